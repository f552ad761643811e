/* Which machine the settings ask for: device lists, the choice of a backend, ranks over devices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cli/machine.h"

static int none(void)
{
    return 0;
}

static int three(void)
{
    return 3;
}

static const struct backend_ops empty = {.name = "cuda", .n_devices = none},
                                full = {.name = "cuda", .n_devices = three};

static const struct backend_ops *without(const char *name)
{
    return !strcmp(name, "cpu") ? backend_cpu() : !strcmp(name, "sim") ? backend_sim() : NULL;
}

static const struct backend_ops *with_none(const char *name)
{
    return !strcmp(name, "cuda") ? &empty : without(name);
}

static const struct backend_ops *with_three(const char *name)
{
    return !strcmp(name, "cuda") ? &full : without(name);
}

static void lists_of_devices(void **state)
{
    static const struct {
        const char *text;
        int n, devices[4];
    } good[] = {{NULL, 0, {0}}, {"", 0, {0}}, {"0", 1, {0}}, {"0,0,1", 3, {0, 0, 1}}, {"7,63", 2, {7, 63}}};
    static const char *const bad[] = {"a", "0,", ",0", "0;1", "-1", "64", "0,,1", "0 1"};
    int devices[MAX_RANKS], n;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(machine_devices(good[i].text, devices, &n, &e), 0);
        assert_int_equal(n, good[i].n);
        for (int k = 0; k < n; k++)
            assert_int_equal(devices[k], good[i].devices[k]);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(machine_devices(bad[i], devices, &n, &e), E_INPUT);
}

static void a_backend_is_chosen(void **state)
{
    const struct backend_ops *ops;
    struct err e;
    struct opts o = {.command = CMD_SERVE, .device = "auto"};
    (void)state;
    assert_int_equal(machine_backend(&o, without, &ops, &e), 0);
    assert_string_equal(ops->name, "cpu");
    assert_int_equal(machine_backend(&o, with_none, &ops, &e), 0);
    assert_string_equal(ops->name, "cpu");
    assert_int_equal(machine_backend(&o, with_three, &ops, &e), 0);
    assert_ptr_equal(ops, &full);
    o.device = "cuda";
    assert_int_equal(machine_backend(&o, with_none, &ops, &e), 0); /* opening it says what is missing */
    assert_int_equal(machine_backend(&o, without, &ops, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "MOONSHIFT_CUDA"));
    o.device = "cpu";
    o.devices = "0,1";
    assert_int_equal(machine_backend(&o, with_three, &ops, &e), E_INPUT);
    o.devices = NULL;
    o.profile = true;
    assert_int_equal(machine_backend(&o, with_three, &ops, &e), 0);
    o.device = "cuda";
    assert_int_equal(machine_backend(&o, with_three, &ops, &e), E_INPUT);
    assert_non_null(strstr(e.text, "--profile"));
    o.profile = false;
    o.command = CMD_SIMULATE;
    assert_int_equal(machine_backend(&o, with_three, &ops, &e), 0);
    assert_string_equal(ops->name, "sim");
}

static void ranks_take_devices_in_turn(void **state)
{
    char *share[] = {"gpu-memory-utilization"};
    struct opts o = {.device = "cuda", .warmup = true};
    struct engine_setup s = {.ops = &full, .n_ranks = 5, .memory_share = 0.4};
    (void)state;
    machine_spread(&o, &s);
    for (int i = 0; i < 5; i++)
        assert_int_equal(s.devices[i], i % 3);
    assert_true(s.memory_share == 0.9 && s.rehearse);
    o.warmup = false;
    machine_spread(&o, &s);
    assert_false(s.rehearse);
    o.given = (struct strings){share, 1};
    s = (struct engine_setup){.ops = &full, .n_ranks = 1, .memory_share = 0.4};
    machine_spread(&o, &s);
    assert_true(s.memory_share == 0.4);
    o.devices = "2,2";
    s = (struct engine_setup){.ops = &full, .n_ranks = 2, .devices = {2, 2}};
    machine_spread(&o, &s);
    assert_int_equal(s.devices[0], 2);
    s = (struct engine_setup){.ops = backend_cpu(), .n_ranks = 2, .memory_share = 0.4};
    o = (struct opts){.device = "cpu", .warmup = true};
    machine_spread(&o, &s);
    assert_true(s.memory_share == 0.4 && s.devices[1] == 0 && !s.rehearse);
}

static int never_called(struct device *d, const struct graph_call *c, const struct rope *rope, struct err *e)
{
    (void)d, (void)c, (void)rope;
    return err_set(e, E_UNSUPPORTED, "no graphs");
}

static const struct backend_ops graphing = {.name = "cuda", .n_devices = three, .graph_begin = never_called};

static void groups_leave_no_rank_idle(void **state)
{
    static const struct {
        int ranks, sp, tp, dp, n; /* n: ranks in the end; 0: refused */
    } cases[] = {{3, 0, 2, 0, 0}, {4, 0, 2, 0, 4}, {0, 0, 2, 0, 2}, {5, 2, 2, 0, 0}, {8, 2, 2, 0, 8},
                 {8, 0, 0, 3, 0}, {8, 0, 0, 2, 8}, {3, 0, 0, 0, 3}, {2, 0, 4, 0, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct opts o = {
            .ranks = cases[i].ranks, .sp = cases[i].sp, .tp = cases[i].tp, .dp = cases[i].dp, .shift_weights = "none"};
        struct engine_setup s = {0};
        struct err e = {0};
        assert_int_equal(machine_ranks(&o, &s, &e), cases[i].n ? 0 : E_INPUT);
        if (cases[i].n)
            assert_int_equal(s.n_ranks, cases[i].n);
        if (i == 0)
            assert_non_null(strstr(e.text, "leave 1 of the 3 ranks idle: --ranks 2 or 4"));
    }
}

static void sizes_of_graphs(void **state)
{
    static const char *const bad[] = {"",
                                      "a",
                                      "1,",
                                      "0",
                                      "-1",
                                      "513",
                                      "1;2",
                                      "1,,2",
                                      "64",
                                      "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,"
                                      "20,21,22,23,24,25,26,27,28,29,30,31,32,33"};
    struct opts o = {.device = "cuda"};
    struct engine_setup s = {.ops = &graphing, .limits = {.max_num_seqs = 20, .max_num_batched_tokens = 48}};
    struct err e;
    (void)state;
    assert_int_equal(machine_graphs(&o, &s, &e), 0);
    assert_int_equal(s.n_graph_sizes, 5); /* 16, 8, 4, 2, 1 */
    assert_true(s.graph_sizes[0] == 16 && s.graph_sizes[4] == 1);
    o.graph_sizes = "3,40,3,1";
    assert_int_equal(machine_graphs(&o, &s, &e), 0);
    assert_int_equal(s.n_graph_sizes, 3);
    assert_true(s.graph_sizes[0] == 40 && s.graph_sizes[1] == 3 && s.graph_sizes[2] == 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.graph_sizes = (char *)(uintptr_t)bad[i];
        assert_int_equal(machine_graphs(&o, &s, &e), E_INPUT);
        assert_non_null(strstr(e.text, "--cudagraph-capture-sizes"));
    }
    o.graph_sizes = "1";
    o.enforce_eager = true;
    assert_int_equal(machine_graphs(&o, &s, &e), 0);
    assert_int_equal(s.n_graph_sizes, 0);
    s.ops = &full;
    assert_int_equal(machine_graphs(&o, &s, &e), E_INPUT);
    o.graph_sizes = NULL;
    assert_int_equal(machine_graphs(&o, &s, &e), 0);
}

/* What --weights pooled says when nothing else is given. */
static struct opts pooled(void)
{
    return (struct opts){.command = CMD_SERVE,
                         .weights = (char *)(uintptr_t) "pooled",
                         .pool_owner = (char *)(uintptr_t) "layer-mod",
                         .pool_slots = 2,
                         .pool_tile = 1 << 20};
}

static void a_pool_is_planned(void **state)
{
    static const struct {
        const char *order;
        int slots;
        enum ffn_order is;
    } orders[] = {{NULL, 2, FFN_SLICED},       {NULL, 4, FFN_SHIFTED},    {NULL, 5, FFN_SHIFTED},
                  {"shifted", 2, FFN_SHIFTED}, {"sliced", 4, FFN_SLICED}, {"plain", 4, FFN_PLAIN}};
    struct ffn_setup p;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        struct engine_setup s = {.ops = backend_cpu(), .n_ranks = 4};
        struct opts o = pooled();
        o.pool_slots = orders[i].slots;
        o.pool_order = (char *)(uintptr_t)orders[i].order;
        o.link_gbps = 12.5;
        o.rank_memory = 1 << 30;
        assert_int_equal(machine_pool(&o, 6, &s, &p, &e), 0);
        assert_true(s.ffn == &p && s.device.pool == &p && s.rank_memory == 1 << 30);
        assert_true(p.order == orders[i].is && p.n_slots == orders[i].slots);
        assert_true(p.n_ranks == 4 && p.n_layers == 6 && p.tile_bytes == 1 << 20 && p.link_gbps == 12.5);
        for (int l = 0; l < 6; l++)
            assert_int_equal(p.owner[l], l % 4);
    }
    struct engine_setup s = {.ops = backend_cpu(), .n_ranks = 2};
    struct opts o = pooled();
    o.pool_owner = (char *)(uintptr_t) "1,1,0";
    assert_int_equal(machine_pool(&o, 3, &s, &p, &e), 0);
    assert_true(p.owner[0] == 1 && p.owner[1] == 1 && p.owner[2] == 0);
    o.weights = (char *)(uintptr_t) "replicated";
    s = (struct engine_setup){.ops = backend_cpu(), .n_ranks = 1};
    assert_int_equal(machine_pool(&o, 3, &s, &p, &e), 0);
    assert_null(s.ffn);
    assert_null(s.device.pool);
}

static void pooled_steps_are_no_graphs(void **state)
{
    struct engine_setup s = {.ops = &full, .n_ranks = 2, .graph_sizes = {2, 1}, .n_graph_sizes = 2};
    struct opts o = pooled();
    struct ffn_setup p;
    struct err e;
    (void)state;
    assert_int_equal(machine_pool(&o, 4, &s, &p, &e), 0);
    assert_true(s.ffn == &p && s.n_graph_sizes == 0);
}

static void refuses_pool(struct opts o, struct engine_setup s, int n_layers, const char *says)
{
    struct ffn_setup p;
    struct err e = {0};
    int rc = machine_pool(&o, n_layers, &s, &p, &e);
    if (rc != E_INPUT && rc != E_UNSUPPORTED)
        fail_msg("%d, where '%s' was expected", rc, says);
    if (!strstr(e.text, says))
        fail_msg("'%s', not '%s'", e.text, says);
    assert_null(s.ffn);
}

static void what_no_pool_can_be(void **state)
{
    static const char *const only_pooled[] = {"pool-owner", "pool-slots", "pool-order", "pool-tile", "link-gbps"};
    struct engine_setup s = {.ops = backend_cpu(), .n_ranks = 2}, alone = s, copy = s, gpus = s, sim = s;
    struct opts o = pooled();
    (void)state;
    alone.n_ranks = 1;
    refuses_pool(o, alone, 4, "--ranks 2 or more");
    copy.copy_shards = true;
    refuses_pool(o, copy, 4, "--shift-weights copy");
    gpus.ops = &full;
    o.graph_sizes = (char *)(uintptr_t) "1,2";
    refuses_pool(o, gpus, 4, "leave --cudagraph-capture-sizes out");
    o.graph_sizes = NULL;
    refuses_pool(o, s, FFN_MAX_LAYERS + 1, "at most 512 can be pooled");
    o.pool_slots = 1;
    refuses_pool(o, s, 4, "at least 2");
    o = pooled();
    o.pool_owner = (char *)(uintptr_t) "0,1,2,0";
    refuses_pool(o, s, 4, "--pool-owner: layer 2");
    o.pool_owner = (char *)(uintptr_t) "0+1,0";
    struct engine_setup described = s;
    described.device.sim_machine = (const struct sim_machine *)&full; /* not looked at */
    refuses_pool(o, described, 2, "--weight-shares");
    o = pooled();
    o.link_gbps = 1;
    sim.ops = backend_sim();
    refuses_pool(o, sim, 4, "--hardware");
    o.link_gbps = 0;
    sim.device.sim_weight_tp = 2;
    refuses_pool(o, sim, 4, "--weight-shares 2");
    o = (struct opts){.weights = (char *)(uintptr_t) "replicated", .rank_memory = 1};
    refuses_pool(o, gpus, 4, "--rank-memory is not offered");
    for (size_t i = 0; i < sizeof only_pooled / sizeof *only_pooled; i++) {
        char *given[] = {(char *)(uintptr_t)only_pooled[i]};
        o = (struct opts){.weights = (char *)(uintptr_t) "replicated", .given = {given, 1}};
        refuses_pool(o, s, 4, only_pooled[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lists_of_devices),
                                       cmocka_unit_test(a_backend_is_chosen),
                                       cmocka_unit_test(ranks_take_devices_in_turn),
                                       cmocka_unit_test(groups_leave_no_rank_idle),
                                       cmocka_unit_test(sizes_of_graphs),
                                       cmocka_unit_test(a_pool_is_planned),
                                       cmocka_unit_test(pooled_steps_are_no_graphs),
                                       cmocka_unit_test(what_no_pool_can_be)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
