/* A recording of the engine with its threads in real time, on the simulated device, under a policy that changes the
 * partition all the time, with cancels, shared prefixes, stop ids, ranks that fail and orders from an operator: played
 * again it takes the same decisions, every time. A recording that was changed says where; one that was cut off is good
 * as far as it goes. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/thread.h"
#include "engine/canary_order.h"
#include "engine/lab/drafts.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/recording/recording_digest.h"
#include "engine/lab/reenact.h"
#include "tests/rig/chaos.h"

enum { REQUESTS = 220 };

struct subject {
    const char *config;
    int ranks, fail_rank;
    uint64_t fail_at_step, seed;
    bool caching, orders; /* orders: swaps, rollbacks, resets */
    bool bad; /* the policy leaves closed groups and more behind, and is withdrawn; those that orders bring come back to
                 it */
    bool pooled; /* FFN weights, on a device that says what that costs */
    bool drafts;
    bool canary; /* groups of one rank that stay, and canaries on some of them that come and go */
};

struct paths {
    char folder[64], file[96], changed[96];
};

static void open_paths(struct paths *p)
{
    snprintf(p->folder, sizeof p->folder, "/tmp/moonshift-record-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->file, sizeof p->file, "%s/live.rec", p->folder);
    snprintf(p->changed, sizeof p->changed, "%s/changed.rec", p->folder);
}

static void close_paths(struct paths *p)
{
    unlink(p->file);
    unlink(p->changed);
    rmdir(p->folder);
}

/* Some calls are cut off when they have asked for draft tokens already. */
static enum verdict step_or_tear(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct draft_guess g;
    if (v->world->step % 256 != 99)
        return chaos_step(ctx, v, p, e);
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        plan_decodes(b);
        for (int k = 0; k < b->n_items; k++)
            plan_draft(p, b->items[k].request->id, &(struct draft_wish){3, -1, false, 0}, &g);
    }
    err_set(e, E_POLICY, "too late");
    return VERDICT_TIMEOUT;
}

static const struct policy_ops torn_now_and_then = {.step = step_or_tear};

static struct policy chaos_for(struct chaos *c, const struct subject *s, uint64_t seed)
{
    memset(c, 0, sizeof *c);
    rng_init(&c->rng, seed);
    c->every = s->canary ? INT32_MAX : 5;
    c->budget = 96;
    c->bad = s->bad;
    c->drafts = s->drafts;
    chaos_partitions(c, s->ranks);
    c->points = s->canary;
    struct policy p = chaos_policy(c);
    if (s->drafts)
        p.ops = &torn_now_and_then;
    return p;
}

/* ---- the live run */

static struct request_spec *spec_new(struct rng *rng, uint64_t tag, int64_t now)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    s->arrival_ns = now;
    s->n_prompt = 1 + (int)rng_below(rng, 200);
    s->max_tokens = (int)rng_below(rng, 40) + 1;
    s->priority = (int)rng_below(rng, 5) - 2;
    s->leader = tag > 1 && rng_below(rng, 8) == 0 ? tag - 1 : 0;
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof(int32_t));
    int text = (int)rng_below(rng, 4);
    for (int i = 0; i < s->n_prompt; i++)
        s->prompt[i] = text * 100 + i;
    if (rng_below(rng, 3) == 0) {
        s->n_stop_ids = 1 + (int)rng_below(rng, 60);
        s->stop_ids = mem_new_array((size_t)s->n_stop_ids, sizeof(int32_t));
        for (int i = 0; i < s->n_stop_ids; i++)
            s->stop_ids[i] = (int32_t)rng_below(rng, 1000);
    }
    snprintf(s->name, sizeof s->name, "client %llu/%%", (unsigned long long)tag);
    snprintf(s->tenant, sizeof s->tenant, "%s", tag % 3 ? "acme" : "-");
    s->sampling = (struct sampling){.top_p = 1,
                                    .temperature = 1,
                                    .seed = tag,
                                    .repetition_penalty = 1,
                                    .n_logprobs = -1,
                                    .n_prompt_logprobs = tag % 17 ? -1 : 0};
    return s;
}

static void tell(struct engine *engine, struct engine_message m)
{
    queue_post(engine_inbox(engine), &m);
}

static void give_order(struct engine *engine, struct rng *rng)
{
    struct policy *p = mem_new(sizeof *p);
    policy_fcfs(p);
    switch (rng_below(rng, 3)) {
    case 0:
        tell(engine, (struct engine_message){.kind = IN_POLICY, .payload = p});
        return;
    case 1:
        tell(engine, (struct engine_message){.kind = IN_ROLLBACK});
        break;
    default:
        tell(engine, (struct engine_message){.kind = IN_RESET_PREFIX_CACHE});
        break;
    }
    mem_free(p);
}

/* Groups by the ids that the first ones have; of some that is no more, and of some it never was. */
static void order_canary(struct engine *engine, struct rng *rng, int ranks)
{
    struct canary_order *o = mem_new(sizeof *o);
    if (rng_below(rng, 3) == 0) {
        mem_free(o);
        tell(engine, (struct engine_message){.kind = IN_CANARY_END});
        return;
    }
    policy_fcfs(&o->policy);
    o->for_ns = (int64_t)rng_below(rng, 8000000) + 1;
    for (int slot = 0; slot < ranks && o->n_groups < ranks; slot++)
        if (rng_below(rng, 2))
            o->groups[o->n_groups++] = slot * (MAX_RANKS + 1) + 1;
    if (!o->n_groups)
        o->groups[o->n_groups++] = 2;
    tell(engine, (struct engine_message){.kind = IN_CANARY, .payload = o});
}

/* Endings of requests; *canaries: of canaries, besides. */
static int count_ends(struct engine *engine, int *canaries)
{
    struct engine_event ev;
    int n = 0;
    while (queue_take(engine_outbox(engine), &ev)) {
        n += ev.kind == EV_END;
        *canaries += ev.kind == EV_POLICY && strstr(ev.payload, "\"canary-end\"");
        mem_free(ev.payload);
    }
    return n;
}

static void drive(struct engine *engine, const struct subject *s, const struct clock *clock)
{
    struct rng rng;
    int ended = 0, canaries = 0;
    rng_init(&rng, s->seed);
    for (uint64_t tag = 1; tag <= REQUESTS; tag++) {
        tell(engine, (struct engine_message){.kind = IN_SUBMIT, .payload = spec_new(&rng, tag, clock_now(clock))});
        if (rng_below(&rng, 6) == 0)
            tell(engine, (struct engine_message){.kind = IN_CANCEL,
                                                 .tag = 1 + rng_below(&rng, tag),
                                                 .code = rng_below(&rng, 2) ? END_ABORT : END_STOP});
        if (s->orders && rng_below(&rng, 10) == 0)
            give_order(engine, &rng);
        if (s->canary && rng_below(&rng, 5) == 0)
            order_canary(engine, &rng, s->ranks);
        if (rng_below(&rng, 3) == 0)
            queue_wait(engine_outbox(engine), (int64_t)rng_below(&rng, 2000000));
        ended += count_ends(engine, &canaries);
    }
    for (int i = 0; ended < REQUESTS && i < 60000; i++) {
        queue_wait(engine_outbox(engine), 1000000);
        ended += count_ends(engine, &canaries);
    }
    assert_int_equal(ended, REQUESTS);
    assert_true((canaries > 3) == s->canary);
}

/* Costs that differ from step to step. */
static int finish_pooled(struct device *d, struct step_time *time, struct err *e)
{
    static atomic_int n;
    int rc = backend_sim()->finish(d, time, e), i = atomic_fetch_add(&n, 1);
    time->ffn = (struct ffn_cost){.wait_ns = 1000 + i * 37 % 500,
                                  .fetch_ns = 50000 + i * 91 % 700,
                                  .was_bytes = 1 << 20,
                                  .cas_bytes = (uint64_t)i % 3000,
                                  .cas_rows = (uint64_t)i % 40};
    return rc;
}

static void pool(struct engine_setup *setup, struct backend_ops *ops, struct ffn_setup *f)
{
    *ops = *backend_sim();
    ops->finish = finish_pooled;
    *f = (struct ffn_setup){.n_ranks = setup->n_ranks,
                            .n_layers = model_config(setup->model)->n_layers,
                            .n_slots = 2,
                            .order = FFN_SLICED,
                            .tile_bytes = 4096,
                            .link_gbps = 12.5};
    assert_int_equal(ffn_parse_owners(f, "contiguous", NULL), 0);
    setup->ops = ops;
    setup->ffn = setup->device.pool = f;
}

/* Two sources: one that is right at times, and one whose guesses depend on what no replay has. */
struct live_drafts {
    struct modelled_drafts modelled;
    struct draft_sources sources;
    struct rng rng;
};

static void guess_any(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g)
{
    struct live_drafts *d = ctx;
    const struct draft_source *s = &d->modelled.sources.items[0];
    s->guess(s->ctx, r, note, most, g);
    g->n = (int)rng_below(&d->rng, (uint64_t)g->n + 1);
    g->match = (int)rng_below(&d->rng, 50);
    g->score = (float)rng_unit(&d->rng) * 5;
    if (g->n && rng_below(&d->rng, 4) == 0)
        g->tokens[g->n - 1]++;
}

static void forget(void *ctx, enum draft_evict rule)
{
    (void)ctx;
    (void)rule;
}

static const struct draft_sources *draft_from(struct live_drafts *d, int vocab)
{
    modelled_drafts_open(&d->modelled, &(struct modelled_drafts_setup){.chance = 0.7, .seed = 3, .vocab = vocab});
    rng_init(&d->rng, (uint64_t)clock_wall_seconds());
    d->sources = d->modelled.sources;
    d->sources.items[d->sources.n++] =
        (struct draft_source){.name = "any", .guess = guess_any, .evict = forget, .ctx = d};
    return &d->sources;
}

static void record(const struct subject *s, const char *path)
{
    struct live_drafts drafts;
    struct backend_ops ops;
    struct ffn_setup f;
    struct err e = {0};
    struct clock clock;
    struct model *model = NULL;
    struct chaos chaos;
    struct engine *engine = NULL;
    struct recorder *rec = NULL;
    struct thread *thread = NULL;
    clock_init_real(&clock);
    if (model_open_dummy(&model, s->config, DT_BF16, 1, &e) || recorder_open(&rec, path, NULL, &e))
        fail_msg("%s", e.text);
    const struct model_config *c = model_config(model);
    struct engine_setup setup = {.ops = backend_sim(),
                                 .device = {.sim_step_ns = 30000, .sim_row_ns = 100},
                                 .model = model,
                                 .limits = {.max_num_seqs = 12,
                                            .max_num_batched_tokens = 96,
                                            .max_model_len = 512,
                                            .max_num_queued_reqs = 100,
                                            .prefix_caching = s->caching,
                                            .probation_ns = s->orders ? 30000000 : 0,
                                            .park_ns = 20000000},
                                 .n_ranks = s->ranks,
                                 .start = {s->canary, s->canary, s->canary},
                                 .fail_rank = s->fail_rank,
                                 .fail_at_step = s->fail_at_step,
                                 .kv_dtype = DT_F16,
                                 .block_size = 16,
                                 .clock = &clock,
                                 .threaded = true,
                                 .quiet = true,
                                 .policy = chaos_for(&chaos, s, s->seed),
                                 .drafts = s->drafts ? draft_from(&drafts, c->vocab) : NULL,
                                 .witness = recorder_witness(rec)};
    setup.kv_bytes = 40 * (size_t)c->n_layers * backend_sim()->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    if (s->pooled)
        pool(&setup, &ops, &f);
    snprintf(setup.model_name, sizeof setup.model_name, "sim");
    if (engine_create(&engine, &setup, &e))
        fail_msg("%s", e.text);
    recorder_begin(rec, &(struct recorder_start){engine_node(engine), c, setup.start, setup.block_size, "test"},
                   engine);
    if (thread_start(&thread, "engine", engine_run, engine, &e))
        fail_msg("%s", e.text);
    drive(engine, s, &clock);
    tell(engine, (struct engine_message){.kind = IN_STOP});
    thread_join(thread);
    engine_destroy(engine);
    recorder_close(rec); /* what failed had its chance now */
    if (s->drafts)
        modelled_drafts_close(&drafts.modelled);
    model_close(model);
}

/* ---- and again */

static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    (void)ctx;
    (void)params;
    (void)e;
    policy_fcfs(out);
    assert_string_equal(name, out->name);
    assert_string_equal(sha256, out->sha256);
    return 0;
}

struct played {
    int rc;
    bool equal, complete;
    uint64_t n_decisions;
    char why[1024];
};

static struct played play(const struct subject *s, const char *path, uint64_t seed)
{
    struct played out = {0};
    struct err e = {0};
    struct model *model = NULL;
    struct chaos chaos;
    struct engine_setup engine;
    struct engine_play how;
    struct reenactment exact = {0};
    struct replay what = {0};
    struct reenact_setup again = {.find_policy = find_policy};
    out.rc = recording_open(&again.recording, path, &e);
    if (!out.rc)
        out.rc = model_open_described(&model, recording_head(again.recording)->config, DT_BF16, &e);
    if (!out.rc) {
        reenact_engine(&engine, &how, recording_head(again.recording), model);
        engine.policy = chaos_for(&chaos, s, seed);
        struct replay_setup r = {.engine = &engine, .vocab = 1000};
        again.replay = &r;
        out.rc = reenact_run(&exact, &what, &again, &e);
        out.equal = exact.equal;
        out.complete = exact.complete;
        out.n_decisions = exact.n_decisions;
    }
    snprintf(out.why, sizeof out.why, "%s", out.rc ? e.text : exact.difference ? exact.difference : "");
    if (out.equal && !out.rc)
        assert_true(what.conserved);
    reenact_free(&exact);
    replay_free(&what);
    recording_close(again.recording);
    model_close(model);
    return out;
}

static const struct subject subjects[] = {
    {"tests/data/sim_model.json", 1, 0, 0, 1, true, false, false, false, false, false},
    {"tests/data/sim_model.json", 1, 0, 0, 2, false, true, false, false, false, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 3, true, false, false, false, false, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 4, true, true, false, false, false, false},
    {"tests/data/sim_ranks.json", 4, 2, 40, 5, true, true, false, false, false, false},
    {"tests/data/sim_ranks.json", 2, 1, 25, 6, false, false, false, false, false, false},
    {"tests/data/sim_ranks.json", 8, 0, 0, 7, true, true, false, false, false, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 8, true, true, true, false, false, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 9, true, false, true, false, false, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 10, true, true, false, true, false, false},
    {"tests/data/sim_ranks.json", 8, 3, 30, 11, false, false, true, true, false, false},
    {"tests/data/sim_model.json", 1, 0, 0, 12, true, false, false, false, true, false},
    {"tests/data/sim_ranks.json", 4, 2, 40, 13, true, false, false, false, true, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 14, false, false, false, true, true, false},
    {"tests/data/sim_ranks.json", 4, 0, 0, 15, true, false, false, false, false, true},
    {"tests/data/sim_ranks.json", 4, 2, 60, 16, true, true, false, false, false, true},
};

static void decisions_come_out_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        struct paths p;
        struct recording_digest d;
        struct err e = {0};
        open_paths(&p);
        record(&subjects[i], p.file);
        struct played out = play(&subjects[i], p.file, subjects[i].seed);
        if (out.rc || !out.equal)
            fail_msg("subject %zu: %d %s", i, out.rc, out.why);
        if (recording_digest(&d, p.file, &e))
            fail_msg("%s", e.text);
        assert_true((d.fetches.n_steps > 0) == subjects[i].pooled);
        assert_true(out.complete && d.complete);
        assert_true(out.n_decisions > 50 && out.n_decisions == d.n_decisions);
        for (int k = 0; k < 2; k++) {
            const struct recording_drafts *x = &d.drafts[k];
            assert_true((x->n_asked > 0) == subjects[i].drafts && (x->n_right > 20) == subjects[i].drafts);
            assert_true((x->n_wrong > 20) == subjects[i].drafts && x->n_asked >= x->n_ideas);
        }
        recording_digest_free(&d);
        close_paths(&p);
    }
}

static void another_seed_differs(void **state)
{
    (void)state;
    struct paths p;
    open_paths(&p);
    record(&subjects[2], p.file);
    struct played out = play(&subjects[2], p.file, 99);
    assert_true(!out.rc && !out.equal && strstr(out.why, "decision "));
    close_paths(&p);
}

/* ---- recordings that are not as they were */

static void write_file(const char *path, const char *text, size_t n)
{
    struct err e = {0};
    if (file_replace(path, text, n, &e))
        fail_msg("%s", e.text);
}

/* The nth line of a kind. */
static char *find_line(char *text, char kind, int nth)
{
    for (char *c = text; c; c = strchr(c, '\n'), c = c ? c + 1 : NULL)
        if (c[0] == kind && c[1] == ' ' && nth-- == 0)
            return c;
    return NULL;
}

static void a_changed_plan_says_where(void **state)
{
    (void)state;
    struct paths p;
    struct buf text = {0};
    struct err e = {0};
    open_paths(&p);
    record(&subjects[2], p.file);
    assert_int_equal(file_read(&text, p.file, (size_t)1 << 30, &e), 0);
    char *at = find_line(text.data, 'q', 30), *batch = strstr(at, " B");
    assert_non_null(batch);
    batch[2] = batch[2] == '9' ? '8' : '9';
    write_file(p.changed, text.data, text.len);
    struct played out = play(&subjects[2], p.changed, subjects[2].seed);
    assert_int_equal(out.rc, 0);
    assert_false(out.equal);
    assert_true(out.n_decisions >= 30);
    assert_non_null(strstr(out.why, "recorded: "));
    assert_non_null(strstr(out.why, "came out: "));
    buf_free(&text);
    close_paths(&p);
}

static void cut_off_it_is_good_as_far_as_it_goes(void **state)
{
    (void)state;
    struct paths p;
    struct buf text = {0};
    struct err e = {0};
    open_paths(&p);
    record(&subjects[4], p.file);
    assert_int_equal(file_read(&text, p.file, (size_t)1 << 30, &e), 0);
    size_t head = (size_t)(strchr(text.data, '\n') - text.data) + 1;
    for (size_t n = head; n < text.len; n += 1 + text.len / 23) {
        write_file(p.changed, text.data, n);
        struct played out = play(&subjects[4], p.changed, subjects[4].seed);
        if (out.rc || !out.equal || out.complete)
            fail_msg("cut at %zu: %d %s", n, out.rc, out.why);
    }
    buf_free(&text);
    close_paths(&p);
}

/* Whatever is changed: it is refused, or it differs, or nothing depended on it; the replay never breaks. */
static void any_change_is_survived(void **state)
{
    (void)state;
    static const char marks[] = "0123456789 -abcdefstq\n.x*:";
    struct paths p;
    struct buf text = {0};
    struct err e = {0};
    struct rng rng;
    int n_noticed = 0;
    rng_init(&rng, 12);
    open_paths(&p);
    record(&subjects[2], p.file);
    assert_int_equal(file_read(&text, p.file, (size_t)1 << 30, &e), 0);
    size_t head = (size_t)(strchr(text.data, '\n') - text.data) + 1;
    for (int i = 0; i < 60; i++) {
        char *at = &text.data[head + rng_below(&rng, text.len - head)], was = *at;
        *at = marks[rng_below(&rng, sizeof marks - 1)];
        write_file(p.changed, text.data, text.len);
        struct played out = play(&subjects[2], p.changed, subjects[2].seed);
        n_noticed += out.rc || !out.equal;
        *at = was;
    }
    assert_true(n_noticed > 10);
    buf_free(&text);
    close_paths(&p);
}

/* ---- the recorder itself */

/* A file that may not grow past a limit is a disk that is full: every request is served all the same, and what is in
 * the file is good. */
static void a_full_disk_ends_the_recording_only(void **state)
{
    (void)state;
    struct rlimit was, little;
    struct paths p;
    struct recording_digest d;
    struct err e = {0};
    open_paths(&p);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    little = was;
    little.rlim_cur = 50000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    record(&subjects[0], p.file);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    struct played out = play(&subjects[0], p.file, subjects[0].seed);
    if (out.rc || !out.equal || out.complete)
        fail_msg("%d %s", out.rc, out.why);
    if (recording_digest(&d, p.file, &e))
        fail_msg("%s", e.text);
    assert_true(d.n_decisions > 10 && !d.complete);
    recording_digest_free(&d);
    close_paths(&p);
}

static void what_is_there_is_not_written_over(void **state)
{
    (void)state;
    struct err e = {0};
    struct recorder *r = NULL;
    struct paths p;
    open_paths(&p);
    record(&subjects[0], p.file);
    assert_int_equal(recorder_open(&r, p.file, NULL, &e), E_INPUT);
    assert_non_null(strstr(e.text, "is there already"));
    assert_int_equal(recorder_open(&r, "/no/such/folder/x.rec", NULL, &e), E_SYS);
    close_paths(&p);
}

static void the_hash_is_siphash(void **state)
{
    (void)state;
    /* SipHash-2-4 of the bytes 0..15 under the key 0..15: the reference implementation's vector 16 */
    const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    assert_int_equal(record_hash(key, key), 0x3f2acc7f57c29bdbu);
    struct buf out = {0};
    record_name(&out, "a b%-_.9");
    assert_string_equal(out.data, "a%20b%25-_.9");
    buf_clear(&out);
    record_name(&out, "");
    record_name(&out, "-");
    assert_string_equal(out.data, "-%2d");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decisions_come_out_the_same),
        cmocka_unit_test(another_seed_differs),
        cmocka_unit_test(a_changed_plan_says_where),
        cmocka_unit_test(cut_off_it_is_good_as_far_as_it_goes),
        cmocka_unit_test(any_change_is_survived),
        cmocka_unit_test(a_full_disk_ends_the_recording_only),
        cmocka_unit_test(what_is_there_is_not_written_over),
        cmocka_unit_test(the_hash_is_siphash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
