/* Several nodes behind a router: what each of them does is what it would do alone with the requests that it got, to the
 * nanosecond; what is counted is counted over all; and which node a request goes to is what the router promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/lab/replay.h"
#include "engine/policy.h"

enum { N_ROWS = 400, MAX_NODES = 5 };

struct row {
    double at_s;
    int input, output, shared;
};

static char folder[] = "/tmp/fleet-XXXXXX";

static void make_rows(struct row *rows, uint64_t seed)
{
    double at = 0;
    for (int i = 0; i < N_ROWS; i++) {
        uint64_t x = rng_at(seed, (uint64_t)i);
        at += (double)(x % 1000) * 2e-5;
        rows[i] = (struct row){at, 600 + (int)((x >> 10) % 400), 1 + (int)((x >> 20) % 60), (int)((x >> 30) % 6)};
    }
}

/* Every n-th row, beginning with the k-th. */
static void write_rows(const struct row *rows, int k, int n, char path[64])
{
    snprintf(path, 64, "%s/%d-%d.csv", folder, k, n);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fprintf(f, "arrival_s,input_tokens,output_tokens,hash_ids\n");
    for (int i = k; i < N_ROWS; i += n)
        fprintf(f, "%.9f,%d,%d,%d %d\n", rows[i].at_s, rows[i].input, rows[i].output, 100 + rows[i].shared, 1000 + i);
    fclose(f);
}

static void replay(struct replay *out, const char *path, int n_nodes, enum router_kind router, int n_ranks)
{
    struct err e = {0};
    struct arrivals *arrivals = NULL;
    struct model *model = NULL;
    struct policy others[MAX_NODES];
    if (model_open_dummy(&model, n_ranks > 1 ? "tests/data/sim_ranks.json" : "tests/data/sim_model.json", DT_BF16, 1,
                         &e))
        fail_msg("%s", e.text);
    const struct model_config *c = model_config(model);
    struct engine_setup s = {.ops = backend_sim(),
                             .device = {.sim_step_ns = 1000000, .sim_row_ns = 10000},
                             .model = model,
                             .limits = {.max_num_seqs = 16,
                                        .max_num_batched_tokens = 512,
                                        .max_model_len = 2048,
                                        .prefix_caching = true,
                                        .starvation_ns = INT64_C(30000000000),
                                        .park_ns = 500000000},
                             .n_ranks = n_ranks,
                             .kv_dtype = DT_F16,
                             .block_size = 16,
                             .quiet = true};
    s.kv_bytes = 512 * (size_t)c->n_layers * backend_sim()->kv_block_bytes(DT_F16, 16, c->n_kv_heads, c->head_dim);
    policy_fcfs(&s.policy);
    for (int i = 0; i < MAX_NODES; i++)
        policy_fcfs(&others[i]);
    if (arrivals_open(&arrivals, &(struct arrivals_setup){.spec = path}, &e))
        fail_msg("%s", e.text);
    struct replay_setup r = {.engine = &s,
                             .n_nodes = n_nodes,
                             .router = router,
                             .others = others,
                             .arrivals = arrivals,
                             .seed = 1,
                             .vocab = c->vocab};
    if (replay_run(out, &r, &e))
        fail_msg("%s", e.text);
    arrivals_close(arrivals);
    model_close(model);
    assert_true(out->conserved && !out->stopped && out->n_live == 0);
    assert_int_equal(out->n_nodes, n_nodes);
}

/* The same life, that began so much later. */
static void expect_same(const struct replay_request *x, const struct replay_request *y, int64_t later)
{
    assert_int_equal(x->arrival_ns, y->arrival_ns + later);
    assert_int_equal(x->start_ns, y->start_ns + later);
    assert_int_equal(x->first_ns, y->first_ns + later);
    assert_int_equal(x->last_ns, y->last_ns + later);
    assert_int_equal(x->end_ns, y->end_ns + later);
    assert_true(x->n_prompt == y->n_prompt && x->n_output == y->n_output && x->n_cached == y->n_cached &&
                x->n_preempted == y->n_preempted && x->ending == y->ending);
}

static void check_round_robin(const struct row *rows, int n_nodes, int n_ranks)
{
    struct replay all, alone;
    char path[64];
    uint64_t steps = 0, decisions = 0;
    int cached = 0;
    write_rows(rows, 0, 1, path);
    replay(&all, path, n_nodes, ROUTER_ROUND_ROBIN, n_ranks);
    assert_int_equal(all.n_requests, N_ROWS);
    for (int k = 0; k < n_nodes; k++) {
        write_rows(rows, k, n_nodes, path);
        replay(&alone, path, 1, ROUTER_ROUND_ROBIN, n_ranks);
        for (size_t i = 0; i < alone.n_requests; i++) {
            const struct replay_request *x = &all.requests[(size_t)k + i * (size_t)n_nodes];
            assert_int_equal(x->node, k);
            expect_same(x, &alone.requests[i], all.requests[k].arrival_ns);
            cached += x->n_cached;
        }
        steps += alone.counters[C_STEPS];
        decisions += alone.n_decisions;
        replay_free(&alone);
    }
    assert_int_equal(all.counters[C_STEPS], steps);
    assert_int_equal(all.n_decisions, decisions);
    assert_true(cached > 0);
    replay_free(&all);
}

static void nodes_do_what_each_would_do_alone(void **state)
{
    (void)state;
    struct row rows[N_ROWS];
    for (uint64_t seed = 1; seed <= 4; seed++) {
        make_rows(rows, seed);
        for (int n = 1; n <= MAX_NODES; n += 2)
            check_round_robin(rows, n, seed % 2 ? 1 : 2);
    }
}

/* The most that ran at the end of a second. Everything adds up. */
static int most_running(const struct row *rows, int n_nodes)
{
    struct replay r;
    char path[64];
    uint64_t arrived = 0, ended = 0, output = 0, asked = 0;
    int most = 0;
    write_rows(rows, 0, 1, path);
    replay(&r, path, n_nodes, ROUTER_LEAST_LOADED, 1);
    for (size_t i = 0; i < r.n_bins; i++) {
        arrived += r.bins[i].n_arrived;
        ended += r.bins[i].n_ended;
        output += r.bins[i].n_output_tokens;
        most = r.bins[i].n_running > most ? r.bins[i].n_running : most;
        assert_int_equal(r.bins[i].n_groups, n_nodes);
    }
    for (size_t i = 0; i < r.n_requests; i++)
        asked += (uint64_t)r.requests[i].n_asked;
    assert_true(arrived == N_ROWS && ended == N_ROWS && output == asked);
    assert_int_equal(r.bins[r.n_bins - 1].n_running, 0);
    replay_free(&r);
    return most;
}

/* Gauges are those of all nodes together. */
static void bins_are_of_all_nodes(void **state)
{
    (void)state;
    struct row rows[N_ROWS];
    make_rows(rows, 9);
    for (int i = 0; i < N_ROWS; i++) {
        rows[i].at_s = 0;
        rows[i].output = 400;
    }
    int alone = most_running(rows, 1), all = most_running(rows, 4);
    assert_true(all > 2 * alone);
}

/* Who is sent where a prefix is known has less to compute than who is sent anywhere. */
static void affinity_finds_more_in_the_cache(void **state)
{
    (void)state;
    struct row rows[N_ROWS];
    struct replay r;
    char path[64];
    long cached[3] = {0};
    make_rows(rows, 3);
    for (int i = 0; i < N_ROWS; i++)
        rows[i].at_s = i * 0.05; /* so that no node is crowded */
    write_rows(rows, 0, 1, path);
    for (int kind = 0; kind < 3; kind++) {
        replay(&r, path, 5, (enum router_kind)kind, 1);
        for (size_t i = 0; i < r.n_requests; i++)
            cached[kind] += r.requests[i].n_cached;
        replay_free(&r);
    }
    assert_true(cached[ROUTER_PREFIX_AFFINITY] > cached[ROUTER_LEAST_LOADED]);
    assert_true(cached[ROUTER_PREFIX_AFFINITY] > cached[ROUTER_ROUND_ROBIN]);
    assert_true(cached[ROUTER_PREFIX_AFFINITY] >= (N_ROWS - 6) * 512L); /* all but the first of each */
}

/* ---- the router alone, against a plain account of who has how many */

static void the_least_loaded_is_chosen(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        int n = 1 + (int)(seed % ROUTER_MAX_NODES), has[ROUTER_MAX_NODES] = {0};
        struct router *r = router_new(ROUTER_LEAST_LOADED, n);
        for (uint64_t i = 0; i < 2000; i++) {
            int any = (int)(rng_at(seed, i) % (uint64_t)n);
            if (rng_at(seed + 1000, i) % 2 && has[any]) {
                router_ended(r, any);
                has[any]--;
                continue;
            }
            int got = router_choose(r, &(struct trace_row){.n_prompt = 1});
            for (int k = 0; k < n; k++)
                assert_true(has[got] <= has[k]);
            has[got]++;
        }
        router_free(r);
    }
}

static void idle_nodes_take_turns(void **state)
{
    (void)state;
    struct router *r = router_new(ROUTER_LEAST_LOADED, 3);
    for (int i = 0; i < 9; i++) {
        int got = router_choose(r, &(struct trace_row){.n_prompt = 1});
        assert_int_equal(got, i % 3);
        router_ended(r, got);
    }
    router_free(r);
}

static int choose(struct router *r, const char *tenant, int n, const uint64_t *hashes)
{
    struct trace_row row = {.n_prompt = 512 * n, .hashes = hashes, .n_hashes = n};
    snprintf(row.tenant, sizeof row.tenant, "%s", tenant);
    return router_choose(r, &row);
}

static void prefixes_stay_where_they_are(void **state)
{
    (void)state;
    struct router *r = router_new(ROUTER_PREFIX_AFFINITY, 4);
    const uint64_t a[] = {1, 2, 3}, b[] = {1, 2, 9}, c[] = {7};
    int first = choose(r, "", 3, a);
    assert_int_equal(choose(r, "", 3, b), first); /* two of its blocks are known there */
    assert_int_not_equal(choose(r, "other", 3, a), first);
    assert_int_not_equal(choose(r, "", 1, c), first);
    int n = 0; /* until it is crowded: it has two, and the others none or one */
    while (choose(r, "", 3, a) == first)
        assert_true(++n < 20);
    assert_true(n > 5);
    router_free(r);
}

/* Where a prefix goes again after so many others, when a prefix that nobody knows would go to the other node. */
static bool is_known_after(uint64_t n_others)
{
    struct router *r = router_new(ROUTER_PREFIX_AFFINITY, 2);
    const uint64_t old = 5;
    int first = choose(r, "", 1, &old), last = -1;
    router_ended(r, first);
    for (uint64_t i = 100; i < n_others || last != first; i++) {
        last = choose(r, "", 1, &i);
        router_ended(r, last);
    }
    int again = choose(r, "", 1, &old);
    router_free(r);
    return again == first;
}

/* Half a million others later it is forgotten, and the memory for it with it. */
static void prefixes_are_forgotten(void **state)
{
    (void)state;
    assert_true(is_known_after(1000));
    assert_true(is_known_after(200000));
    assert_false(is_known_after(700000));
}

static void words_of_routers(void **state)
{
    (void)state;
    struct err e = {0};
    enum router_kind kind;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(router_parse(router_word((enum router_kind)i), &kind, &e), 0);
        assert_int_equal(kind, i);
    }
    assert_int_equal(router_parse("random", &kind, &e), E_INPUT);
    assert_non_null(strstr(e.text, "prefix-affinity"));
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char line[128];
    snprintf(line, sizeof line, "rm -r %s", folder);
    return system(line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_do_what_each_would_do_alone),
        cmocka_unit_test(bins_are_of_all_nodes),
        cmocka_unit_test(affinity_finds_more_in_the_cache),
        cmocka_unit_test(the_least_loaded_is_chosen),
        cmocka_unit_test(idle_nodes_take_turns),
        cmocka_unit_test(prefixes_stay_where_they_are),
        cmocka_unit_test(prefixes_are_forgotten),
        cmocka_unit_test(words_of_routers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
