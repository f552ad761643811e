/* The engine with ranks that really compute, in threads, its clients, and what each of them should hear: what the tests
 * of switching share. Tests only; one thread, which is the client. */
#ifndef RIG_SWITCH_RIG_H
#define RIG_SWITCH_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/base/shared.h"
#include "engine/base/thread.h"
#include "engine/engine.h"
#include "models/guide/guide.h"
#include "models/guide/outline.h"
#include "tests/rig/chaos.h"

/* Sanitizers and the emulator are slow: fewer requests. */
#if defined(EMULATED)
enum { N = 5 };
#elif defined(ON_GPU)
enum { N = 500 };
#elif defined(__SANITIZE_THREAD__)
enum { N = 32 };
#elif defined(__SANITIZE_ADDRESS__)
enum { N = 48 };
#else
enum { N = 1000 };
#define ON_8_RANKS /* eight threads that wait for each other on a few cores take a sanitizer minutes */
#endif
enum { MAX_OUT = N < 10 ? 16 : 24, AT_ONCE = 24, SOME = N < 10 ? N : N < 60 ? 15 : N / 4, LONG = N < 10 ? 30 : 150 };

struct heard {
    int n_tokens, n_ends, ending;
    int32_t tokens[MAX_OUT];
    float logprobs[MAX_OUT];
};

struct run {
    struct clock clock;
    struct engine *engine;
    struct thread *thread;
    struct heard heard[N + 1];
    int n, n_ends, n_replies;
    char *reply;
    bool alike, may_refuse, varied, probed;
    int n_down, n_refused;
};

struct run_opts {
    int n_requests, ranks, kv_blocks, fail_rank; /* n_requests 0: N */
    uint64_t fail_at_step;
    struct layout start;
    bool alike;                  /* requests: short prompts, long answers that end together */
    bool waits;                  /* no step is posted before the one under way has been absorbed */
    bool copy_shards, thirds;    /* thirds: sets of three ranks have communicators too */
    const struct ffn_setup *ffn; /* pooled FFN weights */
    size_t rank_memory;
    bool sharded; /* a rank holds a cut of the weights */
    size_t shard_memory;
    int host_blocks;  /* of host memory for KV, each of 16 tokens */
    const char *disk; /* a file for KV below that; NULL: none */
    size_t disk_bytes;
    bool varied; /* requests: penalties, stop ids, least lengths, forms that answers are held to */
    const struct draft_sources *drafts;
    const struct speculator *speculator;
    const struct drafter_plan *drafter;
    const struct thinking *thinking; /* requests may be probed */
    bool may_refuse;                 /* endings of 503 are what is tested */
    const struct backend_ops *ops;   /* NULL: of the CPU */
    struct policy policy;
};

/* What guided requests need, made once: bytes as tokens, and a form that most answers here do not come to the end of. A
 * vocabulary without room for all bytes has none. */
struct guided_words {
    int vocab;
    struct tokenizer *tokenizer; /* the tokens borrow of it */
    struct guide_tokens *tokens;
    struct grammar *form;
};

static inline const struct guided_words *guided_words(int vocab)
{
    static struct guided_words made[4];
    struct guided_words *w = made;
    if (vocab < 258)
        return NULL;
    while (w->tokens && w->vocab != vocab)
        assert_true(++w < made + 4);
    if (!w->tokens) {
        assert_int_equal(tokenizer_bytes(&w->tokenizer, vocab, NULL), 0);
        assert_int_equal(outline_regex("[a-f]{3,9}(-[0-9]{2,4})*", &w->form, NULL), 0);
        w->tokens = guide_tokens_new(w->tokenizer);
        w->vocab = vocab;
    }
    return w;
}

static inline void start_run(struct run *t, struct model *m, const struct run_opts *o)
{
    static const uint64_t thirds[] = {7, 56};
    struct err e = {0};
    memset(t, 0, sizeof *t);
    t->n = o->n_requests ? o->n_requests : N;
    t->alike = o->alike;
    t->may_refuse = o->may_refuse;
    t->varied = o->varied;
    t->probed = o->thinking != NULL;
    clock_init_real(&t->clock);
    const struct model_config *c = model_config(m);
    struct engine_setup s = {.ops = o->ops ? o->ops : backend_cpu(),
                             .device = {.n_threads = 1},
                             .model = m,
                             .limits = {.max_num_seqs = 16,
                                        .max_num_batched_tokens = 64,
                                        .max_model_len = 256,
                                        .prefix_caching = true,
                                        .park_ns = 200000000},
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .clock = &t->clock,
                             .threaded = true,
                             .quiet = true,
                             .n_ranks = o->ranks,
                             .start = o->start,
                             .fail_rank = o->fail_rank,
                             .fail_at_step = o->fail_at_step,
                             .comm_sets = o->thirds ? thirds : NULL,
                             .n_comm_sets = o->thirds ? 2 : 0,
                             .copy_shards = o->copy_shards,
                             .ffn = o->ffn,
                             .rank_memory = o->rank_memory,
                             .sharded = o->sharded,
                             .shard_memory = o->shard_memory,
                             .disk = {.path = o->disk, .bytes = o->disk_bytes},
                             .memory_share = 0.2,
                             .drafts = o->drafts,
                             .speculator = o->speculator,
                             .drafter = o->drafter,
                             .thinking = o->thinking,
                             .policy = o->policy,
                             .rehearse = N >= 10}; /* over the emulator it would take as long as the rest */
    for (int rows = 16; rows > 0 && s.ops->graph_begin && !o->ffn; rows /= 2)
        s.graph_sizes[s.n_graph_sizes++] = rows;
    s.ahead = o->waits ? 0 : 6;
    if (o->varied && guided_words(c->vocab))
        s.guide_tokens = guided_words(c->vocab)->tokens;
    s.kv_bytes =
        (size_t)o->kv_blocks * (size_t)c->n_layers * s.ops->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    s.host_kv_bytes = o->host_blocks ? (size_t)o->host_blocks * (s.kv_bytes / (size_t)o->kv_blocks) : 0;
    if (engine_create(&t->engine, &s, &e))
        fail_msg("%s", e.text);
    if (thread_start(&t->thread, "engine", engine_run, t->engine, &e))
        fail_msg("%s", e.text);
}

static inline void send(struct run *t, enum engine_in kind, uint64_t tag, void *payload)
{
    struct engine_message m = {.kind = kind, .tag = tag, .payload = payload, .code = END_ABORT};
    assert_int_equal(queue_post(engine_inbox(t->engine), &m), 0);
}

static inline void listen_to(struct run *t, int64_t wait_ns)
{
    struct engine_event ev;
    queue_wait(engine_outbox(t->engine), wait_ns);
    while (queue_take(engine_outbox(t->engine), &ev)) {
        struct heard *h = &t->heard[ev.tag <= N ? ev.tag : 0];
        if (ev.kind == EV_TOKEN) {
            const struct token_logprobs *lp = ev.payload;
            assert_int_equal(h->n_ends, 0);
            assert_true(h->n_tokens < MAX_OUT);
            h->logprobs[h->n_tokens] = lp ? lp->logprob : 0;
            h->tokens[h->n_tokens++] = ev.token;
        } else if (ev.kind == EV_END) {
            t->n_refused += ev.http_status == 503;
            if ((ev.code == END_ERROR || ev.code == END_REFUSED) && !(t->may_refuse && ev.http_status == 503))
                fail_msg("request %llu: %s", (unsigned long long)ev.tag, (char *)ev.payload);
            h->n_ends++;
            h->ending = ev.code;
            t->n_ends++;
        } else if (ev.kind == EV_DOWN) {
            t->n_down++;
        } else if (ev.kind == EV_REPLY) {
            t->n_replies++;
            mem_free(t->reply);
            t->reply = ev.payload;
            ev.payload = NULL;
        }
        mem_free(ev.payload);
    }
}

static inline void stop_run(struct run *t)
{
    send(t, IN_STATE, 0, NULL);
    while (!t->n_replies)
        listen_to(t, 100000000);
    if (!strstr(t->reply, "\"conserved\":true"))
        fail_msg("%s", t->reply);
    send(t, IN_STOP, 0, NULL);
    thread_join(t->thread);
    listen_to(t, 0);
    assert_true(world_check(engine_world(t->engine)));
    mem_free(t->reply);
}

/* What a row's sampling depends on beside its logits. */
static inline void vary(struct request_spec *s, struct rng *r, int vocab)
{
    if (rng_below(r, 3) == 0) {
        s->sampling.repetition_penalty = 1.4f;
        s->sampling.frequency_penalty = 0.3f;
        s->sampling.presence_penalty = 0.2f;
    }
    s->n_stop_ids = vocab / 8;
    s->stop_ids = mem_new_array((size_t)s->n_stop_ids, sizeof *s->stop_ids);
    for (int i = 0; i < s->n_stop_ids; i++)
        s->stop_ids[i] = (int32_t)rng_below(r, (uint64_t)vocab);
    if (rng_below(r, 4) == 0) { /* which says the same again and again */
        s->sampling.n_allowed = 2;
        s->sampling.allowed = shared_new(2, sizeof *s->sampling.allowed);
        s->sampling.allowed[0] = (int32_t)rng_below(r, (uint64_t)vocab / 2);
        s->sampling.allowed[1] = s->sampling.allowed[0] + 1;
        s->n_stop_ids = 0;
    }
    s->min_tokens = rng_below(r, 2) ? (int)rng_below(r, (uint64_t)s->max_tokens + 1) : 0;
    const struct guided_words *guide = guided_words(vocab);
    if (guide && !s->sampling.n_allowed && rng_below(r, 6) == 0) {
        s->grammar = shared_hold(guide->form);
        s->min_tokens = 0;
    }
}

static inline struct request_spec *spec_new(struct run *t, uint64_t tag, int vocab)
{
    struct request_spec *s = mem_new(sizeof *s);
    struct rng r;
    rng_init(&r, tag);
    s->tag = tag;
    s->arrival_ns = clock_now(&t->clock);
    s->priority = (int)rng_below(&r, 3);
    s->n_prompt = 1 + (int)rng_below(&r, rng_below(&r, 5) && LONG > 40 ? 40 : LONG);
    s->max_tokens = 1 + (int)rng_below(&r, N < 10 ? 7 : MAX_OUT - 1);
    if (t->alike) {
        s->n_prompt = 1 + (int)(tag % 4);
        s->max_tokens = MAX_OUT;
    }
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof(int32_t));
    for (int i = 0; i < s->n_prompt; i++) /* one of five beginnings */
        s->prompt[i] = (int32_t)rng_at(tag % 5 + (i < 100 ? 0 : tag), (uint64_t)i) % vocab;
    for (int i = 0; i < s->n_prompt; i++)
        s->prompt[i] = s->prompt[i] < 0 ? -s->prompt[i] : s->prompt[i];
    s->sampling = (struct sampling){.temperature = tag % 3 ? 0 : 0.8f,
                                    .seed = tag,
                                    .top_p = 1,
                                    .repetition_penalty = 1,
                                    .n_logprobs = tag % 4 ? -1 : 0,
                                    .n_prompt_logprobs = -1};
    if (t->varied)
        vary(s, &r, vocab);
    s->probe_every = t->probed && !s->grammar ? 4 : 0;
    s->probe_window = t->probed && !s->grammar ? 3 : 0;
    return s;
}

/* All requests, at most AT_ONCE of them at a time; some are cancelled when asked. */
static inline void serve_all(struct run *t, int vocab, bool *cancelled)
{
    struct rng r;
    rng_init(&r, 77);
    for (uint64_t tag = 1; tag <= (uint64_t)t->n; tag++) {
        send(t, IN_SUBMIT, tag, spec_new(t, tag, vocab));
        if (cancelled && rng_below(&r, 10) == 0) {
            uint64_t victim = tag - rng_below(&r, tag < AT_ONCE ? tag : AT_ONCE);
            cancelled[victim] = true;
            send(t, IN_CANCEL, victim, NULL);
        }
        while ((int)tag - t->n_ends >= AT_ONCE)
            listen_to(t, 100000000);
    }
    while (t->n_ends < t->n)
        listen_to(t, 100000000);
}

static inline void compare(const struct run *is, const struct run *should, const bool *cancelled)
{
    for (int i = 1; i <= is->n; i++) {
        const struct heard *a = &is->heard[i], *b = &should->heard[i];
        assert_int_equal(a->n_ends, 1);
        assert_true(a->n_tokens <= b->n_tokens);
        if (!cancelled || !cancelled[i])
            assert_int_equal(a->n_tokens, b->n_tokens);
        for (int k = 0; k < a->n_tokens; k++)
            if (a->tokens[k] != b->tokens[k] || memcmp(&a->logprobs[k], &b->logprobs[k], sizeof(float)))
                fail_msg("request %d: token %d of %d is %d (%a), not %d (%a)", i, k, a->n_tokens, a->tokens[k],
                         (double)a->logprobs[k], b->tokens[k], (double)b->logprobs[k]);
    }
}

static inline struct model *open_model(const char *config, enum dtype type)
{
    struct model *m;
    struct err e = {0};
    if (model_open_dummy(&m, config, type, 3, &e))
        fail_msg("%s", e.text);
    return m;
}

/* Of a run that has ended and whose partition changed at any time: did the rank that was to fail at one of its steps?
 * It may have had fewer. No other one has failed. */
static inline bool has_failed(const struct run *t, int rank)
{
    uint64_t dead = engine_world(t->engine)->partition.dead_ranks;
    assert_true(dead == 0 || dead == 1ull << rank);
    return dead != 0;
}

/* How many of four must have: all, but for short runs. */
enum { LEAST_FAILED = N < 100 ? 1 : 4 };

static inline void one_rank(struct run *quiet, struct model *m, const struct run_opts *like)
{
    start_run(quiet, m,
              &(struct run_opts){.n_requests = like->n_requests,
                                 .alike = like->alike,
                                 .varied = like->varied,
                                 .ranks = 1,
                                 .kv_blocks = 512,
                                 .waits = true});
    serve_all(quiet, model_config(m)->vocab, NULL);
    stop_run(quiet);
    engine_destroy(quiet->engine);
}

#endif
