/* The real engine on the simulated device in virtual time, and what a client would receive from it. Owned by the test,
 * one thread. Invariant: no token comes after an ending (listen_to checks it). */
#ifndef RIG_ENGINE_RIG_H
#define RIG_ENGINE_RIG_H

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/engine.h"

enum { MAX_TAGS = 4096, MAX_OUT = 64 };

struct heard {
    int n_tokens, n_ends, ending, http_status, n_output, n_cached;
    int n_runs; /* several tokens in one event */
    int32_t tokens[MAX_OUT];
};

struct rig {
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct heard heard[MAX_TAGS];
    struct heard reply;
    int n_replies, n_drained;
    char text[8192];
};

struct knobs {
    int seqs, batched, blocks, queued;
    int64_t starvation_ns, park_ns;
    int ranks; /* 0: one */
    struct layout start;
    int fail_rank;
    uint64_t fail_at_step;
    int outbox_events; /* 0: no bound */
    struct policy policy;
};

static inline void open_rig(struct rig *t, const struct knobs *k)
{
    struct err e = {0};
    memset(t, 0, sizeof *t);
    clock_init_virtual(&t->clock, 1000000000);
    if (model_open_dummy(&t->model, "tests/data/sim_model.json", DT_BF16, 1, &e))
        fail_msg("%s", e.text);
    struct engine_setup s = {.ops = backend_sim(),
                             .device = {.sim_step_ns = 1000000, .sim_row_ns = 10000},
                             .model = t->model,
                             .limits = {.max_num_seqs = k->seqs,
                                        .max_num_batched_tokens = k->batched,
                                        .max_model_len = k->blocks * 16,
                                        .max_num_queued_reqs = k->queued,
                                        .prefix_caching = true,
                                        .starvation_ns = k->starvation_ns,
                                        .park_ns = k->park_ns},
                             .n_ranks = k->ranks,
                             .start = k->start,
                             .fail_rank = k->fail_rank,
                             .fail_at_step = k->fail_at_step,
                             .outbox_events = k->outbox_events,
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .clock = &t->clock,
                             .policy = k->policy,
                             .quiet = true};
    snprintf(s.model_name, sizeof s.model_name, "sim");
    s.kv_bytes = (size_t)k->blocks * 2 * backend_sim()->kv_block_bytes(DT_F16, 16, 2, 16);
    if (engine_create(&t->engine, &s, &e))
        fail_msg("%s", e.text);
}

static inline void close_rig(struct rig *t)
{
    engine_destroy(t->engine);
    model_close(t->model);
}

static inline void listen_to(struct rig *t)
{
    struct engine_event ev, one;
    while (queue_take(engine_outbox(t->engine), &ev)) {
        struct heard *h = ev.kind == EV_REPLY ? &t->reply : &t->heard[ev.tag];
        switch (ev.kind) {
        case EV_TOKEN:
            assert_int_equal(h->n_ends, 0);
            assert_true(h->n_tokens < MAX_OUT);
            h->tokens[h->n_tokens++] = ev.token;
            break;
        case EV_END:
            h->n_ends++;
            h->ending = ev.code;
            h->http_status = ev.http_status;
            h->n_output = ev.n_output;
            h->n_cached = ev.n_cached;
            break;
        case EV_REPLY:
            t->n_replies++;
            t->reply.ending = ev.code;
            snprintf(t->text, sizeof t->text, "%s", (char *)ev.payload);
            break;
        case EV_DOWN:
        case EV_EMBED:
        case EV_POLICY:
            break;
        case EV_DRAINED:
            t->n_drained++;
            break;
        case EV_TOKENS:
            assert_int_equal(h->n_ends, 0);
            for (int i = 0; engine_event_token(&ev, i, &one); i++) {
                assert_true(h->n_tokens < MAX_OUT);
                h->tokens[h->n_tokens++] = one.token;
            }
            h->n_runs++;
            break;
        case EV_PROMPT_LOGPROBS:
            break;
        }
        mem_free(ev.payload);
    }
}

/* Runs until nothing is left to do, or until the time is reached. */
static inline void run_until(struct rig *t, int64_t until)
{
    for (;;) {
        while (engine_turn(t->engine))
            ;
        listen_to(t);
        int64_t next = engine_next_ns(t->engine);
        if (next > until || next == INT64_MAX)
            break;
        clock_advance_to(&t->clock, next > clock_now(&t->clock) ? next : clock_now(&t->clock));
    }
    if (until != INT64_MAX && until > clock_now(&t->clock))
        clock_advance_to(&t->clock, until);
}

static inline struct request_spec *spec_new(struct rig *t, uint64_t tag, int n_prompt, int max_tokens)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    s->arrival_ns = clock_now(&t->clock);
    s->n_prompt = n_prompt;
    s->max_tokens = max_tokens;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    for (int i = 0; i < n_prompt; i++)
        s->prompt[i] = (int32_t)(tag % 7 * 100 + (uint64_t)i) % 1000; /* seven texts: prefixes are shared */
    s->sampling = (struct sampling){
        .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    return s;
}

static inline void post(struct rig *t, enum engine_in kind, uint64_t tag, int code, void *payload)
{
    struct engine_message m = {
        .kind = kind, .tag = tag, .code = code, .payload = payload, .n = payload ? strlen(payload) : 0};
    assert_int_equal(queue_post(engine_inbox(t->engine), &m), 0);
}

static inline void submit(struct rig *t, struct request_spec *s)
{
    struct engine_message m = {.kind = IN_SUBMIT, .payload = s};
    assert_int_equal(queue_post(engine_inbox(t->engine), &m), 0);
}

static inline void check_books(struct rig *t)
{
    const struct world *w = engine_world(t->engine);
    assert_true(world_check(w));
    assert_int_equal(w->requests.n_live, 0);
    for (int i = 0; i < w->kv.n_ranks; i++)
        assert_int_equal(w->kv.ranks[i].n_free + w->kv.ranks[i].n_cached + w->kv.ranks[i].n_lent, w->kv.n_blocks);
}

#endif
