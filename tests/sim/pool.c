/* Pooled FFN weights on a simulated machine: what a step waits for, what sending rows costs, and what fits into memory.
 * Each law is held against a number that this file computes by itself, or against the same step without a pool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "kernels/sim/cost.h"
#include "models/load/model.h"

static const struct layout alone = {1, 1, 1}, tp2 = {1, 2, 1};

static struct sim_machine *open_machine(const char *hardware, const char *model)
{
    struct sim_machine *m;
    struct err e = {0};
    char hw[128], mo[128];
    snprintf(hw, sizeof hw, "models/hardware/%s.json", hardware);
    snprintf(mo, sizeof mo, "models/catalog/%s.json", model);
    if (sim_machine_open(&m, hw, mo, &e))
        fail_msg("%s", e.text);
    return m;
}

static struct ffn_setup pool_of(const struct sim_machine *m, int ranks, int slots, const char *owners)
{
    struct ffn_setup p = {.n_ranks = ranks, .n_layers = m->model.n_layers, .n_slots = slots, .order = FFN_SHIFTED};
    struct err e = {0};
    if (ffn_parse_owners(&p, owners, &e))
        fail_msg("%s", e.text);
    return p;
}

static struct step_size decodes(int n, int busy, int cas)
{
    struct step_size s = {.n_logits = n, .pool_ranks = busy, .cas_layers = cas};
    for (int i = 0; i < n; i++)
        step_size_add(&s, 1, 1024);
    return s;
}

static double ns(const struct sim_machine *m, const struct ffn_setup *p, struct step_size s)
{
    return cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = p}, &s).total;
}

static double layer_bytes(const struct sim_machine *m)
{
    return 3.0 * m->model.hidden * m->model.intermediate * (m->model.linear_bits / 8);
}

/* ---- fetching */

static void a_link_without_bound_costs_nothing(void **state)
{
    struct sim_machine *m = open_machine("h200x8-fitted", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 8, "layer-mod");
    (void)state;
    p.link_gbps = 1e12;
    for (int n = 1; n <= 512; n *= 2)
        assert_true(ns(m, &p, decodes(n, 8, 0)) == ns(m, NULL, decodes(n, 8, 0)));
    sim_machine_close(m);
}

/* Each layer that lies on every rank is one fetch less; with all of them there, nothing is fetched or waited for. */
static void layers_on_every_rank_are_not_fetched(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 4, 4, "layer-mod");
    double before = 1e300, local = ns(m, NULL, decodes(4, 0, 0));
    (void)state;
    for (int n = 0; n <= p.n_layers; n++) {
        struct step_size s = decodes(4, 4, 0);
        s.replica_layers = n;
        struct step_cost c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &s);
        int lacks = 0;
        for (int l = n; l < p.n_layers; l++)
            lacks += p.owner[l] != 0; /* all ranks own as many: it is the first that is judged */
        assert_int_equal(cost_ffn(m, &s, &c).was_bytes, (uint64_t)(lacks * cost_ffn_bytes(&m->model, 1)));
        assert_true(c.total <= before * 1.000001 && c.total >= local);
        before = c.total;
    }
    assert_true(before == local);
    assert_true(cost_layer_copy(m, (struct sim_weights){.shares = 1, .pool = &p}) > 0);
    assert_int_equal(cost_layer_copy(m, (struct sim_weights){.shares = 1, .pool = NULL}), 0);
    sim_machine_close(m);
}

static void nobody_at_work_is_a_node_without_a_pool(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 2, "layer-mod");
    (void)state;
    assert_true(ns(m, &p, decodes(16, 0, 0)) == ns(m, NULL, decodes(16, 0, 0)));
    assert_true(ns(m, &p, decodes(16, 1, 0)) > ns(m, NULL, decodes(16, 0, 0)));
    sim_machine_close(m);
}

/* A large batch hides all fetches; of a small one the step takes as long as they do, and never less. */
static void a_step_takes_the_longer_of_the_two(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    (void)state;
    for (int d = 2; d <= 8; d *= 2) {
        struct ffn_setup p = pool_of(m, d, d, "layer-mod");
        p.link_gbps = 360;
        double fetch = layer_bytes(m) * (64 - 64 / d) / 360e9 * 1e9;
        for (int n = 1; n <= 1024; n *= 2) {
            double pooled = ns(m, &p, decodes(n, d, 0)), local = ns(m, NULL, decodes(n, d, 0));
            assert_true(pooled >= local && pooled >= fetch * 0.999999 && pooled <= (local + fetch) * 1.000001);
            if (n == 1)
                assert_true(pooled < fetch * 1.01); /* one after the other, the link never idle */
            if (n == 1024)
                assert_true(pooled < local * 1.001);
        }
    }
    sim_machine_close(m);
}

static void more_of_what_helps_never_hurts(void **state)
{
    static const enum ffn_order from_best[] = {FFN_SHIFTED, FFN_SLICED, FFN_PLAIN};
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    (void)state;
    for (int n = 1; n <= 256; n *= 4) {
        struct ffn_setup p = pool_of(m, 8, 8, "layer-mod");
        double last = 0;
        for (p.link_gbps = 3200; p.link_gbps >= 25; p.link_gbps /= 2) { /* slower */
            double is = ns(m, &p, decodes(n, 8, 0));
            assert_true(is >= last);
            last = is;
        }
        p.link_gbps = 200;
        for (int i = 0; i < 3; i++) {
            p.order = from_best[i];
            double is = ns(m, &p, decodes(n, 8, 0));
            assert_true(i == 0 || is >= last);
            last = is;
        }
        for (int order = 0; order < 3; order++) {
            p.order = (enum ffn_order)order;
            last = INFINITY;
            for (p.n_slots = 2; p.n_slots <= 8; p.n_slots++) {
                double is = ns(m, &p, decodes(n, 8, 0));
                assert_true(is <= last);
                last = is;
            }
            p.n_slots = 4;
            last = 0;
            for (int busy = 1; busy <= 8; busy++) {
                double is = ns(m, &p, decodes(n, busy, 0));
                assert_true(is >= last);
                last = is;
            }
        }
    }
    sim_machine_close(m);
}

/* Eight that read one owner at a time wait about four times as long as eight that take turns. */
static void readers_of_one_owner_share_its_link(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 8, "layer-mod");
    (void)state;
    double turns = ns(m, &p, decodes(1, 8, 0)), one = ns(m, &p, decodes(1, 1, 0));
    assert_true(turns == one);
    p.order = FFN_PLAIN;
    assert_true(ns(m, &p, decodes(1, 1, 0)) == one);
    double crowd = ns(m, &p, decodes(1, 8, 0));
    assert_true(crowd > 3.9 * turns && crowd < 4.1 * turns);
    sim_machine_close(m);
}

/* The slowest rank counts: who owns nothing fetches everything. */
static void a_list_of_owners_counts(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    char list[3 * 64] = "";
    (void)state;
    for (int l = 0; l < 64; l++)
        strcat(list, l ? ",0" : "0");
    struct ffn_setup even = pool_of(m, 2, 2, "contiguous"), odd = pool_of(m, 2, 2, list);
    even.link_gbps = odd.link_gbps = 100;
    double all = layer_bytes(m) * 64 / 100e9 * 1e9;
    assert_true(ns(m, &odd, decodes(1, 2, 0)) >= all * 0.999999);
    assert_true(ns(m, &even, decodes(1, 2, 0)) < all * 0.75);
    sim_machine_close(m);
}

/* ---- rows that go to their owners */

/* With nobody else at work a rank ships its own rows, there and back, and the product is its own. */
static void one_rank_ships_only_its_rows(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 2, "layer-mod");
    (void)state;
    for (int n = 1; n <= 64; n *= 4) {
        struct step_size s = decodes(n, 1, 64);
        struct step_cost c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &s);
        double ship = m->hardware.exchange_alpha + n * 5120.0 * 2 / 360e9 * 1e9, should = 56 * 2 * ship;
        assert_true(fabs(c.service - should) < 1e-6 * should);
        assert_true(c.wait == 0);
        p.link_gbps = 1e12;
        c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &s);
        assert_true(fabs(c.service - 112 * m->hardware.exchange_alpha) < 1e-3 * c.service);
        p.link_gbps = 0;
    }
    sim_machine_close(m);
}

/* The owner multiplies the rows of all: more ranks, or more rows, take longer; few rows together hardly do. */
static void products_over_the_rows_of_all(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 2, "layer-mod");
    (void)state;
    double last = 0;
    for (int busy = 1; busy <= 8; busy++) {
        double is = ns(m, &p, decodes(128, busy, 64));
        assert_true(is > last);
        last = is;
    }
    for (int rows = 1; rows <= 512; rows *= 2)
        assert_true(ns(m, &p, decodes(2 * rows, 8, 64)) > ns(m, &p, decodes(rows, 8, 64)));
    struct step_size few = decodes(1, 8, 64), many = decodes(256, 8, 64);
    struct step_cost c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &few);
    assert_true(c.service < 64 * 2.2 * m->hardware.exchange_alpha + 0.05 * c.ffn);
    c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &many);
    assert_true(c.service > 6 * c.ffn); /* of 2048 rows instead of 256, bound by arithmetic */
    sim_machine_close(m);
}

/* What is not sent is fetched, and all parts make the whole. */
static void layers_go_either_way(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 2, "layer-mod");
    (void)state;
    double wait = INFINITY, service = -1;
    for (int cas = 0; cas <= 64; cas += 16) {
        struct step_size s = decodes(4, 8, cas);
        struct step_cost c = cost_parts(m, alone, (struct sim_weights){.shares = 1, .pool = &p}, &s);
        double sum = c.linear + c.attention + c.reduce + c.exchange + c.elementwise + c.head + c.launch + c.wait +
                     c.service + c.host;
        assert_true(fabs(sum - c.total) < 1e-6 * c.total);
        assert_true(c.wait < wait && c.service > service);
        wait = c.wait;
        service = c.service;
    }
    assert_true(wait == 0);
    sim_machine_close(m);
}

/* The layers of a step by themselves: what they wait is what the step waits, no fetch overlaps another one, and none
 * comes into a slot that is in use. */
static void layers_one_by_one(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 4, 2, "layer-mod");
    struct sim_pool_layer x[FFN_MAX_LAYERS];
    struct sim_step step = {alone, {.shares = 1, .pool = &p}, decodes(64, 4, 8)};
    (void)state;
    assert_int_equal(sim_machine_pool(m, &step, x), 64);
    struct step_cost c = cost_parts(m, alone, step.weights, &step.size);
    double waited = 0, link = -INFINITY, released[2] = {-INFINITY, -INFINITY};
    for (int l = 0, n = 0; l < 64; l++) {
        assert_int_equal(x[l].mode, l % 4 == 0 ? FFN_LOCAL : l >= 56 ? FFN_CAS : FFN_WAS);
        assert_true(x[l].begin == (l ? x[l - 1].end : 0) && x[l].ready > x[l].begin && x[l].end > x[l].ffn);
        waited += x[l].ffn - x[l].ready;
        if (x[l].mode != FFN_WAS)
            continue;
        assert_true(x[l].ffn >= x[l].fetch_end && x[l].fetch_end > x[l].fetch_begin);
        assert_true(x[l].fetch_begin >= link && x[l].fetch_begin >= released[n % 2]);
        link = x[l].fetch_end;
        released[n++ % 2] = x[l].end;
    }
    assert_true(fabs(waited - c.wait) < 1);
    step.weights.pool = NULL;
    assert_int_equal(sim_machine_pool(m, &step, x), 0);
    sim_machine_close(m);
}

/* ---- what SiDP published (Fig 11: Llama-3.1-70B, TP2 DP2, H20) */

static double sidp(const struct sim_machine *m, const struct ffn_setup *p, int n, int cas)
{
    struct step_size s = decodes(n, 4, cas);
    return cost_parts(m, tp2, (struct sim_weights){.shares = 2, .pool = p}, &s).total;
}

static void modes_cross_as_published(void **state)
{
    struct sim_machine *m = open_machine("h20x8-sidp", "llama-3-70b");
    struct ffn_setup p = pool_of(m, 4, 2, "layer-mod");
    (void)state;
    assert_true(sidp(m, &p, 128, 0) < 1.02 * sidp(m, NULL, 128, 0));
    assert_true(sidp(m, &p, 128, 0) < sidp(m, &p, 128, 80));
    assert_true(sidp(m, &p, 32, 80) < sidp(m, &p, 32, 0));
    double slower = sidp(m, &p, 1, 80) / sidp(m, NULL, 1, 0);
    printf("  CaS over local at one sequence: %.3f (published 1.12)\n", slower);
    assert_true(slower > 1.05 && slower < 1.15);
    sim_machine_close(m);
}

/* ---- memory */

static void a_pool_frees_what_it_should(void **state)
{
    static const struct {
        const char *model, *owners;
        int ranks, slots, shares, most_owned;
    } cases[] = {{"llama-3-70b", "layer-mod", 8, 8, 1, 10}, {"llama-3-70b", "layer-mod", 8, 3, 2, 20},
                 {"qwen3-32b", "contiguous", 4, 2, 1, 16},  {"qwen3-32b-fp8", "layer-mod", 3, 2, 1, 22},
                 {"qwen2.5-72b", "layer-mod", 8, 2, 4, 40}, {"qwen3-32b", "layer-mod", 8, 2, 8, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sim_machine *m = open_machine("h200x8-fitted", cases[i].model);
        struct ffn_setup p = pool_of(m, cases[i].ranks, cases[i].slots, cases[i].owners);
        double saved = cost_weight_bytes(&m->model, (struct sim_weights){.shares = cases[i].shares, .pool = NULL}) -
                       cost_weight_bytes(&m->model, (struct sim_weights){.shares = cases[i].shares, .pool = &p});
        int layers = cases[i].most_owned ? m->model.n_layers - cases[i].most_owned - cases[i].slots : 0;
        assert_true(saved == layer_bytes(m) / cases[i].shares * layers);
        sim_machine_close(m);
    }
}

struct sized {
    size_t weights, kv, block;
};

static struct sized size_node(struct sim_machine *m, const struct ffn_setup *p)
{
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct err e = {0};
    clock_init_virtual(&clock, 1000000000);
    if (model_open_dummy(&model, sim_machine_config(m), DT_BF16, 1, &e))
        fail_msg("%s", e.text);
    struct engine_setup s = {.ops = backend_sim(),
                             .device = {.sim_machine = m, .pool = p},
                             .ffn = p,
                             .model = model,
                             .limits = {.max_num_seqs = 64,
                                        .max_num_batched_tokens = 8192,
                                        .max_model_len = 1024,
                                        .max_num_queued_reqs = 1024},
                             .n_ranks = 8,
                             .start = {1, 1, 1},
                             .memory_share = 0.9,
                             .kv_dtype = DT_BF16,
                             .block_size = 16,
                             .clock = &clock,
                             .quiet = true};
    snprintf(s.model_name, sizeof s.model_name, "sim");
    if (engine_create(&engine, &s, &e))
        fail_msg("%s", e.text);
    const struct node_facts *n = engine_node(engine);
    struct sized is = {n->weight_bytes, n->kv_bytes, n->kv_bytes / (size_t)n->kv_blocks};
    engine_destroy(engine);
    model_close(model);
    return is;
}

/* The cache grows by what the weights shrink by, but for less than a block. */
static void the_cache_grows_by_it(void **state)
{
    struct sim_machine *m = open_machine("h200x8-fitted", "qwen3-32b");
    struct ffn_setup p = pool_of(m, 8, 2, "layer-mod");
    (void)state;
    struct sized all = size_node(m, NULL), pooled = size_node(m, &p);
    size_t freed = (size_t)layer_bytes(m) * (64 - 8 - 2);
    assert_true(all.weights - pooled.weights == freed);
    assert_true(pooled.kv > all.kv + freed - all.block && pooled.kv < all.kv + freed + all.block);
    sim_machine_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_link_without_bound_costs_nothing),
                                       cmocka_unit_test(layers_on_every_rank_are_not_fetched),
                                       cmocka_unit_test(nobody_at_work_is_a_node_without_a_pool),
                                       cmocka_unit_test(a_step_takes_the_longer_of_the_two),
                                       cmocka_unit_test(more_of_what_helps_never_hurts),
                                       cmocka_unit_test(readers_of_one_owner_share_its_link),
                                       cmocka_unit_test(a_list_of_owners_counts),
                                       cmocka_unit_test(one_rank_ships_only_its_rows),
                                       cmocka_unit_test(products_over_the_rows_of_all),
                                       cmocka_unit_test(layers_go_either_way),
                                       cmocka_unit_test(layers_one_by_one),
                                       cmocka_unit_test(modes_cross_as_published),
                                       cmocka_unit_test(a_pool_frees_what_it_should),
                                       cmocka_unit_test(the_cache_grows_by_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
