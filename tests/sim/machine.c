/* The engine on a described machine, in virtual time: steps take what the cost model says, copies and switches take
 * time and hold up what comes after them, the KV that fits follows from the description, and two runs are the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/sim/cost.h"
#include "tests/rig/engine_rig.h"

enum { N = 6, IN = 2000, OUT = 40 };

struct node_rig {
    struct rig t;
    struct sim_machine *machine;
};

struct choice {
    const char *hardware, *model;
    int ranks, weight_tp;
    struct layout start;
    bool copy, lockstep;
    int weight_pp;
};

static int try_node(struct node_rig *n, const struct choice *c, struct err *e)
{
    memset(n, 0, sizeof *n);
    clock_init_virtual(&n->t.clock, 1000000000);
    TRY(sim_machine_open(&n->machine, c->hardware, c->model, e));
    TRY(model_open_dummy(&n->t.model, sim_machine_config(n->machine), DT_BF16, 1, e));
    struct engine_setup s = {
        .ops = backend_sim(),
        .device = {.sim_machine = n->machine, .sim_weight_tp = c->weight_tp, .sim_weight_pp = c->weight_pp},
        .model = n->t.model,
        .limits = {.max_num_seqs = 64,
                   .max_num_batched_tokens = 8192,
                   .max_model_len = 8192,
                   .max_num_queued_reqs = 1024},
        .n_ranks = c->ranks,
        .start = c->start,
        .memory_share = 0.9,
        .kv_dtype = DT_BF16,
        .block_size = 16,
        .copy_shards = c->copy,
        .lockstep = c->lockstep,
        .clock = &n->t.clock,
        .quiet = true};
    snprintf(s.model_name, sizeof s.model_name, "sim");
    return engine_create(&n->t.engine, &s, e);
}

static void open_node(struct node_rig *n, const struct choice *c)
{
    struct err e = {0};
    if (try_node(n, c, &e))
        fail_msg("%s", e.text);
}

static void close_node(struct node_rig *n)
{
    engine_destroy(n->t.engine);
    model_close(n->t.model);
    sim_machine_close(n->machine);
}

static const char measured[] = "models/hardware/h200x8.json", fitted[] = "models/hardware/h200x8-fitted.json";
static const char llama[] = "models/catalog/llama-3.3-70b-fp8.json", qwen[] = "models/catalog/qwen3-32b-fp8.json",
                  qwen8[] = "models/catalog/qwen3-32b-fp8-kv8.json";

/* Tokens of KV of the whole node, as one group. */
static double capacity(const struct choice *c)
{
    static struct node_rig n;
    open_node(&n, c);
    double tokens = (double)world_capacity(engine_world(n.t.engine));
    close_node(&n);
    return tokens;
}

static void kv_follows_from_the_memory(void **state)
{
    (void)state;
    double gib = 139.8 * 0x1p30 * 0.9 - 3221225472.0, weights = 70.55e9 + 2.1e9; /* FP8, but for embedding and head */
    double full = 8 * (gib - weights) / 327680, shared = 8 * (gib - weights / 8) / 327680;
    double is = capacity(&(struct choice){fitted, llama, 8, 1, {8, 1, 1}, false, false, 0});
    assert_true(is > full * 0.99 && is < full * 1.01);
    is = capacity(&(struct choice){fitted, llama, 8, 8, {1, 8, 1}, false, false, 0});
    assert_true(is > shared * 0.99 && is < shared * 1.01);
    double copy = capacity(&(struct choice){fitted, llama, 8, 1, {8, 1, 1}, true, false, 0});
    assert_true(copy < full * 0.99 && copy > full - 8 * 68.5e9 / 8 / 327680 * 1.01);
    double wide = capacity(&(struct choice){fitted, qwen, 8, 1, {8, 1, 1}, false, false, 0}),
           narrow = capacity(&(struct choice){fitted, qwen8, 8, 1, {8, 1, 1}, false, false, 0});
    assert_true(narrow > wide * 1.999 && narrow < wide * 2.001);
}

/* One request alone: its prompt in one step, then one token a step, each exactly what cost_step says. */
static void steps_take_what_the_model_says(void **state)
{
    static struct node_rig n;
    int64_t should = 0;
    (void)state;
    open_node(&n, &(struct choice){measured, llama, 8, 1, {8, 1, 1}, false, false, 0});
    int64_t t0 = clock_now(&n.t.clock);
    submit(&n.t, spec_new(&n.t, 1, IN, OUT));
    run_until(&n.t, INT64_MAX);
    for (int i = 0; i < OUT; i++) {
        struct step_size s = {.n_logits = 1};
        step_size_add(&s, i ? 1 : IN, i ? IN + i - 1 : 0);
        struct sim_weights whole = {.shares = 1};
        struct layout l = {1, 8, 1}; /* what the native policy runs */
        should += cost_step(n.machine, l, whole, &s);
        assert_true(estimator_ns(&engine_world(n.t.engine)->estimate, l, s, NULL) ==
                    (double)cost_step(n.machine, l, whole, &s));
    }
    assert_int_equal(n.t.heard[1].n_tokens, OUT);
    assert_int_equal(clock_now(&n.t.clock) - t0, should);
    check_books(&n.t);
    close_node(&n);
}

/* The same in four stages whose devices hold their own layers: a prompt in micro-batches, then one row a step. */
static void steps_in_stages(void **state)
{
    static struct node_rig n;
    const struct layout l = {1, 2, 4};
    const struct sim_weights cut = {.shares = 2, .stages = 4};
    int64_t should = 0;
    (void)state;
    open_node(&n, &(struct choice){fitted, llama, 8, 2, l, false, false, 4});
    int64_t t0 = clock_now(&n.t.clock);
    submit(&n.t, spec_new(&n.t, 1, IN, OUT));
    run_until(&n.t, INT64_MAX);
    for (int i = 0; i < OUT; i++) {
        struct step_size s = {.n_logits = 1};
        int64_t least = INT64_MAX;
        step_size_add(&s, i ? 1 : IN, i ? IN + i - 1 : 0);
        for (s.n_micro = 1; s.n_micro <= 16; s.n_micro *= 2) { /* as many as it takes least with */
            int64_t ns = cost_step(n.machine, l, cut, &s);
            least = ns < least ? ns : least;
            assert_true(cost_parts(n.machine, l, cut, &s).bubble > 0);
        }
        should += least;
    }
    assert_int_equal(n.t.heard[1].n_tokens, OUT);
    assert_int_equal(clock_now(&n.t.clock) - t0, should);
    check_books(&n.t);
    close_node(&n);
}

/* What stages leave away of the weights holds KV: a device has a quarter of the layers, and half of their heads. */
static void stages_make_room(void **state)
{
    struct err e = {0};
    static struct node_rig n;
    double gib = 139.8 * 0x1p30 * 0.9 - 3221225472.0, layers = 68.45e9 / 8, table = 2.1e9 / 2;
    double should = 8 * (gib - layers - table) / 327680;
    (void)state;
    double is = capacity(&(struct choice){fitted, llama, 8, 2, {1, 2, 4}, false, false, 4});
    assert_true(is > should * 0.99 && is < should * 1.01);
    assert_int_equal(try_node(&n, &(struct choice){fitted, llama, 8, 2, {1, 4, 2}, false, false, 4}, &e), E_INPUT);
    assert_non_null(strstr(e.text, "--weight-stages 4"));
    close_node(&n);
}

static void shares_of_weights_limit_the_layouts(void **state)
{
    static struct node_rig n;
    struct err e = {0};
    (void)state;
    assert_int_not_equal(try_node(&n, &(struct choice){fitted, llama, 8, 4, {1, 2, 1}, false, false, 0}, &e), 0);
    model_close(n.t.model);
    sim_machine_close(n.machine);
    open_node(&n, &(struct choice){fitted, llama, 8, 4, {1, 4, 1}, false, false, 0});
    const struct node_shape *s = &engine_world(n.t.engine)->shape;
    assert_null(s->refusals[8][8]);
    assert_null(s->refusals[8][4]);
    assert_non_null(s->refusals[8][2]);
    assert_non_null(s->refusals[4][1]);
    close_node(&n);
}

/* ---- a policy that merges two groups once and takes everything along */

struct merger {
    int64_t at_ns;
    bool asked;
};

static enum verdict merge_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    struct merger *m = ctx;
    (void)e;
    if (!m->asked && v->now_ns >= m->at_ns) {
        struct switch_order o = {
            .mask = 3, .base = {1, 2, 1}, .when = WHEN_HARD, .fate = FATE_MIGRATE, .reason = "merge"};
        m->asked = plan_switch(p, &o);
    }
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, 4096);
        if (b->n_tokens)
            plan_forward(b, b->group->base);
    }
    return VERDICT_OK;
}

static void begin_merge(struct node_rig *n, struct merger *m, const struct policy_ops *ops)
{
    struct engine_message swap = {.kind = IN_POLICY};
    open_node(n, &(struct choice){measured, llama, 2, 1, {1, 1, 1}, false, false, 0});
    struct policy *p = swap.payload = mem_new(sizeof *p);
    *p = (struct policy){.ops = ops, .ctx = m, .name = "merge", .sha256 = "merge"};
    queue_post(engine_inbox(n->t.engine), &swap);
    for (uint64_t tag = 1; tag <= N; tag++)
        submit(&n->t, spec_new(&n->t, tag, IN, OUT));
}

/* The merge of two ranks in the middle of N requests; the times at which each ends, and what the switch did. */
static struct switch_event merge(struct node_rig *n, int64_t ends[N + 1])
{
    static const struct policy_ops ops = {.step = merge_step};
    struct merger m = {.at_ns = 1600000000};
    begin_merge(n, &m, &ops);
    memset(ends, 0, (N + 1) * sizeof *ends);
    for (int64_t next = 0; next != INT64_MAX; next = engine_next_ns(n->t.engine)) {
        if (next > clock_now(&n->t.clock))
            clock_advance_to(&n->t.clock, next);
        while (engine_turn(n->t.engine))
            ;
        listen_to(&n->t);
        for (int i = 1; i <= N; i++)
            if (n->t.heard[i].n_ends && !ends[i])
                ends[i] = clock_now(&n->t.clock);
    }
    assert_true(m.asked);
    check_books(&n->t);
    const struct partition *q = &engine_world(n->t.engine)->partition;
    const struct switch_event *e = partition_event(q, q->n_events);
    assert_non_null(e);
    return *e;
}

static void copies_and_switches_take_time(void **state)
{
    static struct node_rig n;
    int64_t ends[N + 1], again[N + 1];
    (void)state;
    struct switch_event e = merge(&n, ends);
    assert_true(e.n_moved == N && e.bytes > 0);
    assert_true(e.cutover_ns >= cost_switch(n.machine));
    /* Nobody saw a token before the switch and the copies to its rank were over; at most half of what it takes lies on
     * the rank already. */
    int64_t copies = cost_move(n.machine, (int64_t)(e.bytes / 327680), 4, true) / 2;
    assert_true(copies > 0 && e.worst_stall_ns > cost_switch(n.machine) + copies);
    assert_true(e.bytes > (uint64_t)N * IN / 2 * 327680 && /* some prompts were not done */
                e.bytes < (uint64_t)N * (IN + OUT) * 327680);
    for (int i = 1; i <= N; i++)
        assert_true(n.t.heard[i].n_tokens == OUT && ends[i] > e.done_ns + cost_switch(n.machine));
    close_node(&n);
    merge(&n, again);
    assert_memory_equal(ends, again, sizeof ends);
    close_node(&n);
}

/* Copies that are under way when the engine goes are given back. */
static void ends_in_the_middle(void **state)
{
    static const struct policy_ops ops = {.step = merge_step};
    static struct node_rig n;
    struct merger m = {.at_ns = 1600000000};
    (void)state;
    begin_merge(&n, &m, &ops);
    run_until(&n.t, m.at_ns);
    const struct world *w = engine_world(n.t.engine);
    while (w->partition.n_groups > 1) {
        clock_advance_to(&n.t.clock, engine_next_ns(n.t.engine));
        while (engine_turn(n.t.engine))
            ;
    }
    post(&n.t, IN_STOP, 0, 0, NULL);
    while (engine_turn(n.t.engine))
        ;
    assert_true(engine_next_ns(n.t.engine) < INT64_MAX); /* of the copies */
    listen_to(&n.t);
    while (w->requests.n_live) {
        clock_advance_to(&n.t.clock, engine_next_ns(n.t.engine));
        engine_turn(n.t.engine);
    }
    listen_to(&n.t);
    for (int i = 1; i <= N; i++)
        assert_int_equal(n.t.heard[i].n_ends, 1);
    close_node(&n);
}

/* Four ranks by themselves, one request each; when the last of them ends. */
static int64_t four(bool lockstep, const int in[4], const int out[4])
{
    static struct node_rig n;
    open_node(&n, &(struct choice){fitted, qwen, 4, 1, {1, 1, 1}, false, lockstep, 0});
    int64_t t0 = clock_now(&n.t.clock);
    for (int i = 0; i < 4; i++)
        submit(&n.t, spec_new(&n.t, (uint64_t)i + 1, in[i], out[i]));
    run_until(&n.t, INT64_MAX);
    for (int i = 0; i < 4; i++)
        assert_int_equal(n.t.heard[i + 1].n_tokens, out[i]);
    check_books(&n.t);
    int64_t took = clock_now(&n.t.clock) - t0;
    close_node(&n);
    return took;
}

/* Groups of the same work lose nothing; of different work, each waits for padding: the sum over the steps of the
 * slowest. */
static void groups_in_lockstep(void **state)
{
    static const int even[4] = {500, 500, 500, 500}, steps[4] = {30, 30, 30, 30}, odd[4] = {16, 500, 2000, 4000};
    static struct node_rig n;
    struct err e = {0};
    (void)state;
    assert_int_equal(four(true, even, steps), four(false, even, steps));
    int64_t apart = four(false, odd, steps), together = four(true, odd, steps);
    assert_true(together > apart);
    assert_true(together < apart * 1.2); /* nobody arrives later: only the first step is padded */
    memset(&n, 0, sizeof n);
    struct model *m;
    assert_int_equal(model_open_dummy(&m, "tests/data/sim_model.json", DT_BF16, 1, &e), 0);
    struct engine_setup s = {.ops = backend_sim(),
                             .model = m,
                             .limits = {.max_num_seqs = 4, .max_num_batched_tokens = 64},
                             .n_ranks = 1,
                             .memory_share = 0.9,
                             .kv_dtype = DT_BF16,
                             .block_size = 16,
                             .clock = &n.t.clock,
                             .quiet = true,
                             .lockstep = true};
    clock_init_virtual(&n.t.clock, 0);
    assert_int_equal(engine_create(&n.t.engine, &s, &e), E_INPUT);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kv_follows_from_the_memory),
                                       cmocka_unit_test(steps_take_what_the_model_says),
                                       cmocka_unit_test(steps_in_stages),
                                       cmocka_unit_test(stages_make_room),
                                       cmocka_unit_test(shares_of_weights_limit_the_layouts),
                                       cmocka_unit_test(copies_and_switches_take_time),
                                       cmocka_unit_test(ends_in_the_middle),
                                       cmocka_unit_test(groups_in_lockstep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
