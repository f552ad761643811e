/* Whatever a policy makes its habit, every request ends: policies drawn at random by seed, each with a few deeds that
 * it repeats without end (moving, parking, binding, closing, holding, host memory, serving some only), over little and
 * much room, on one to eight ranks. Within the bound each is withdrawn, or serves. */
#include "tests/rig/policy_rig.h"

#include "engine/base/file.h"
#include "engine/base/rng.h"
#include "engine/canary_order.h"

/* What habits mean; a policy is this file behind two locals, what it does and what it serves. Drawn once, so that what
 * a policy does it does for ever. */
static const char habitual[] = "tests/rig/habitual.lua";

static const char *any(struct rng *rng, const char *const *list, int n)
{
    return list[rng_below(rng, (uint64_t)n)];
}
#define ANY(...)                                                                                                       \
    any(rng, (const char *const[]){__VA_ARGS__}, (int)(sizeof(const char *const[]){__VA_ARGS__} / sizeof(char *)))

/* A number from low on, of so many. */
static int some(struct rng *rng, int low, int n)
{
    return low + (int)rng_below(rng, (uint64_t)n);
}

/* One statement for each draw: any compiler makes the same policy of a seed. */
static void draw_habit(struct rng *rng, int ranks, struct buf *out)
{
    buf_printf(out, "  { deed = '%s', ",
               ANY("remap", "cover", "bind", "release", "preempt", "close", "open", "out", "into", "hold", "sleep",
                   "wake", "pool", "unpark", "shard", "layout", "draft", "probe"));
    buf_printf(out, "every = %s, ", ANY("1", "1", "2", "3", "7"));
    buf_printf(out, "at = %d, ", some(rng, 0, 7));
    buf_printf(out, "whom = '%s', ", ANY("red", "red", "all", "any", "old", "new"));
    buf_printf(out, "fixed = %s, ", ANY("true", "false"));
    buf_printf(out, "n = %d, ", some(rng, 1, ranks));
    buf_printf(out, "m = %d, ", some(rng, 1, ranks));
    buf_printf(out, "kv = '%s', ", ANY("migrate", "park", "recompute", "keep"));
    buf_printf(out, "when = '%s', ", ANY("hard", "drain", "soft"));
    buf_printf(out, "ms = %s, ", ANY("1", "20", "100"));
    buf_printf(out, "way = '%s', ", ANY("hard", "recompute"));
    buf_printf(out, "base = %s },\n", ANY("true", "false", "false"));
}

/* What it does and what it serves, as Lua. */
static void draw_habits(struct rng *rng, int ranks, struct buf *out)
{
    int special = some(rng, 0, 3) == 0, serve = some(rng, 1, 9), n = some(rng, 1, 4);
    buf_printf(out, "local serve, habits = %d, {\n", special ? serve : 1);
    for (int i = 0; i < n; i++)
        draw_habit(rng, ranks, out);
    buf_puts(out, "}\n");
}

enum { N_FIRST = 6, N_LATER = 100, N_WATCHED = 40, N_AT_MOST = 3000 };

/* One that it lives in: ranks, groups, room, pooled weights and host memory by the seed. */
static void open_node(struct rig *t, struct rng *rng, struct ffn_setup *pool)
{
    static const int ranks[] = {1, 2, 2, 4, 4, 8}, room[] = {30, 40, 64, 128, 512};
    int n = ranks[rng_below(rng, 6)];
    *pool = (struct ffn_setup){.n_ranks = n, .n_layers = 2, .n_slots = 2, .tile_bytes = 1 << 20};
    assert_int_equal(ffn_parse_owners(pool, "layer-mod", NULL), 0);
    int blocks = room[some(rng, 0, 5)], size = n > 1 ? some(rng, 1, 2) : 0;
    bool pooled = some(rng, 0, 4) == 0 && n > 1, host = some(rng, 0, 2), fails = some(rng, 0, 4) == 0 && n > 1;
    uint64_t at_step = 1 + rng_below(rng, 500);
    rig_open(t, &(struct rig_knobs){.ranks = n,
                                    .blocks = blocks,
                                    .group_size = size,
                                    .ffn = pooled ? pool : NULL,
                                    .host_blocks = host ? 100 : 0,
                                    .fail_rank = n - 1,
                                    .fail_at_step = fails ? at_step : 0,
                                    .starvation_s = 0.3});
}

/* A policy that is not tried before: what is bad is not found out. */
static void load(struct rig *t, struct rng *rng, struct policy *p)
{
    struct buf source = {0}, rest = {0};
    struct err e = {0};
    struct lua_opts opts = t->opts;
    opts.again = true;
    assert_int_equal(file_read(&rest, habitual, 1 << 20, &e), 0);
    draw_habits(rng, engine_world(t->engine)->shape.n_ranks, &source);
    if (getenv("MOONSHIFT_TEST_SEED"))
        print_message("at %.3f s: %s", (double)clock_now(&t->clock) * 1e-9, source.data);
    buf_put(&source, rest.data, rest.len);
    buf_free(&rest);
    if (lua_policy_load(p, "habitual", source.data, source.len, &opts, NULL, &e))
        fail_msg("%s\n%s", e.text, source.data);
    buf_free(&source);
}

static void swap(struct rig *t, struct rng *rng)
{
    struct policy *p = mem_new(sizeof *p);
    load(t, rng, p);
    rig_post(t, IN_POLICY, p, 0);
}

/* On one group, where there are several and no order waits. */
static void begin_canary(struct rig *t, struct rng *rng)
{
    const struct partition *p = &engine_world(t->engine)->partition;
    if (p->n_groups < 2)
        return;
    struct canary_order *o = mem_new(sizeof *o);
    load(t, rng, &o->policy);
    o->for_ns = SECONDS(1000);
    o->n_groups = 1;
    o->groups[0] = partition_group(p, (int)rng_below(rng, (uint64_t)p->n_groups))->id;
    rig_post(t, IN_CANARY, o, 0);
}

/* What clients and operators do meanwhile. */
static void meddle(struct rig *t, struct rng *rng)
{
    struct engine_message cancel = {.kind = IN_CANCEL, .tag = 1 + rng_below(rng, t->n_tags), .code = END_ABORT};
    if (rng_below(rng, 20) == 0)
        queue_post(engine_inbox(t->engine), &cancel);
    if (rng_below(rng, 100) == 0)
        begin_canary(t, rng);
    if (rng_below(rng, 200) == 0)
        swap(t, rng);
    if (rng_below(rng, 200) == 0)
        rig_post(t, IN_RESET_PREFIX_CACHE, NULL, 0);
}

static int count_ended(const struct rig *t)
{
    int n = 0;
    for (int i = 1; i <= N_WATCHED; i++)
        n += t->heard[i].n_ends;
    return n;
}

/* So many come and then nobody; or they come until the first ones have ended, however long their queue is. */
static void send(struct rig *t, struct rng *rng)
{
    bool endless = rng_below(rng, 2);
    int64_t from = clock_now(&t->clock), gap = SECONDS(0.04);
    int longest = 16 * engine_world(t->engine)->kv.n_blocks / 2;
    longest = longest < 400 ? longest : 400;
    if (endless)
        gap = SECONDS(0.005) + (int64_t)rng_below(rng, SECONDS(0.03));
    for (int i = 0; endless ? i < N_AT_MOST && count_ended(t) < N_WATCHED : i < N_FIRST + N_LATER; i++) {
        const char *tenant = some(rng, 0, 10) ? "blue" : "red";
        int n_prompt = some(rng, 1, longest), n_output = some(rng, 1, 40);
        rig_submit(t, tenant, n_prompt, n_output);
        if (i >= N_FIRST)
            rig_run_for(t, (int64_t)rng_below(rng, (uint64_t)gap));
        meddle(t, rng);
        if (endless && clock_now(&t->clock) - from > SECONDS(25))
            fail_msg("%d of the first %d have ended after 25 s", count_ended(t), N_WATCHED);
    }
}

/* The slowest that are lawful sleep for a tenth of a second before each token. Returns whether the policy that was live
 * at the end had been withdrawn. */
static bool run_seed(uint64_t seed)
{
    struct rig t;
    struct rng rng;
    struct ffn_setup pool;
    rng_init(&rng, seed);
    open_node(&t, &rng, &pool);
    swap(&t, &rng);
    send(&t, &rng);
    const struct world *w = engine_world(t.engine);
    for (int64_t from = clock_now(&t.clock); w->requests.n_live && clock_now(&t.clock) - from < SECONDS(300);)
        rig_run_for(&t, SECONDS(0.05));
    if (w->requests.n_live)
        fail_msg("%d live after 300 s", w->requests.n_live);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].n_ends, 1);
    rig_turn(&t); /* the last swap has its answer */
    bool withdrawn = rig_state(&t, "policy.withdrawn") > 0;
    rig_check(&t);
    rig_close(&t);
    return withdrawn;
}

static uint64_t last_seed; /* for whoever looks at a failure, wherever it came from */

static void every_request_ends_whatever_the_habits(void **state)
{
    (void)state;
    const char *first = getenv("MOONSHIFT_TEST_SEED"), *n = getenv("MOONSHIFT_TEST_ROUNDS");
    int rounds = n ? atoi(n) : getenv("MOONSHIFT_SLOW") ? 12 : 150, n_withdrawn = 0;
    last_seed = first ? strtoull(first, NULL, 10) - 1 : 0;
    for (int i = 0; i < rounds; i++)
        n_withdrawn += run_seed(++last_seed); /* with MOONSHIFT_TEST_SEED it says what each policy is */
    if (rounds >= 100)                        /* some habits are borne to the end, and some are not */
        assert_in_range(n_withdrawn, rounds / 5, rounds * 4 / 5);
}

static int say_seed(void **state)
{
    (void)state;
    print_message("the last seed was %llu\n", (unsigned long long)last_seed);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(every_request_ends_whatever_the_habits, say_seed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
