/* All-reduces by the library (tests/emulator/nccl_twin.h): used among ranks on different GPUs in the default mode and
 * nowhere else, near the own algorithms' sums, made anew after a failure, gone with the comms. */
#include <math.h>

#include "tests/emulator/faults.h"
#include "tests/emulator/nccl_twin.h"
#include "tests/rig/layout_subject.h"

enum { TOKENS = 20, BLOCK = 16, RANKS = 4, TOP = 3 };

struct scene {
    bool fast, spread;
    size_t library_bytes;
};

static void open_scene(struct node *n, struct model *m, const struct scene *s)
{
    struct node_opts o = {.ops = backend_cuda(),
                          .n_ranks = RANKS,
                          .max_rows = 32,
                          .max_logits = 32,
                          .block_tokens = BLOCK,
                          .kv = DT_F16,
                          .n_blocks = NODE_SEQS * ((TOKENS + BLOCK - 1) / BLOCK),
                          .fast = s->fast,
                          .spread = s->spread};
    open_node(n, m, &o);
    for (int i = 0; i < comm_pool_count(n->pool); i++)
        comm_set_measured(comm_find(n->pool, comm_pool_mask(n->pool, i)),
                          &(struct comm_measure){.library_bytes = s->library_bytes});
}

/* One step of all tokens in this layout; returns what the ranks said by share. */
static void answer(struct node *n, struct layout l, struct sample_result out[TOKENS], struct node_part *parts)
{
    struct place p;
    struct sample_row rows[TOKENS];
    int32_t ids[TOKENS], wanted[TOKENS];
    const struct node_seq seq = {0, 0, TOKENS, ids};
    place_make(&p, (struct layout){l.sp * l.tp, 1, 1}, node_tokens_per_block(n, l.sp * l.tp), TOKENS, 0);
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * 31 + 7) % model_config(n->model)->vocab;
        wanted[i] = i;
        rows[i] = (struct sample_row){.how = &ways[0], .given = -1, .n_top = TOP};
    }
    memset(out, 0, TOKENS * sizeof *out);
    struct node_step step = {.place = &p,
                             .layout = l,
                             .seqs = &seq,
                             .n_seqs = 1,
                             .n_logits = TOKENS,
                             .logit_rows = wanted,
                             .samples = rows,
                             .results = out};
    node_run(n, &step, parts);
    place_free(&p);
}

static void answer_well(struct node *n, struct layout l, struct sample_result out[TOKENS])
{
    struct node_part parts[NODE_RANKS];
    answer(n, l, out, parts);
    for (int i = 0; i < l.sp * l.tp; i++)
        if (parts[i].rc)
            fail_msg("share %d: %s", i, parts[i].err.text);
}

static void near(const struct sample_result *a, const struct sample_result *b)
{
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < TOP; k++)
            assert_true(fabsf(a[i].top_logprobs[k] - b[i].top_logprobs[k]) < 1e-3f);
}

/* How often the library added in a step of this scene. */
static long sums_of(struct model *m, const struct scene *s, struct layout l, struct sample_result out[TOKENS])
{
    struct node n;
    open_scene(&n, m, s);
    long before = nccl_twin_sums();
    answer_well(&n, l, out);
    long sums = nccl_twin_sums() - before;
    node_close(&n);
    assert_int_equal(nccl_twin_live(), 0);
    assert_int_equal(fault_live(), 0);
    return sums;
}

static void used_where_it_may_be(void **state)
{
    static const struct layout layouts[] = {{1, 4, 1}, {2, 2, 1}, {1, 2, 1}};
    struct model *m = open_dummy("gqa", DT_BF16, 31);
    struct sample_result own[TOKENS], library[TOKENS];
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct layout l = layouts[i];
        assert_int_equal(sums_of(m, &(struct scene){true, true, 0}, l, own), 0);
        assert_int_equal(sums_of(m, &(struct scene){true, true, 1}, l, library),
                         2 * model_config(m)->n_layers * l.sp * l.tp);
        near(own, library);
        assert_int_equal(sums_of(m, &(struct scene){true, false, 1}, l, library), 0); /* ranks that share a GPU */
        assert_memory_equal(own, library, sizeof own);
        assert_int_equal(sums_of(m, &(struct scene){false, true, 1}, l, library), 0); /* invariant mode */
    }
    assert_int_equal(sums_of(m, &(struct scene){true, true, COMM_NEVER}, layouts[0], library), 0);
    nccl_twin_absent(1);
    assert_int_equal(sums_of(m, &(struct scene){true, true, 1}, layouts[0], library), 0);
    nccl_twin_absent(0);
    sums_of(m, &(struct scene){true, true, 0}, layouts[0], own);
    assert_memory_equal(own, library, sizeof own);
    model_close(m);
}

/* Each rank in turn fails at each of its calls in a step: the others hear of it, though they wait inside the library;
 * then three ranks' pairs go on. */
static void a_member_fails(void **state)
{
    struct model *m = open_dummy("gqa", DT_BF16, 31);
    struct sample_result right[TOKENS], out[TOKENS];
    struct node_part parts[NODE_RANKS];
    const struct scene s = {true, true, 1};
    const struct layout l = {1, 2, 1};
    struct node n;
    (void)state;
    open_scene(&n, m, &s);
    fault_arm(1, 0, false);
    answer_well(&n, l, right);
    int calls = fault_calls(1), n_peers = 0;
    node_close(&n);
    for (int at = 1; at <= calls; at += 3) {
        open_scene(&n, m, &s);
        fault_arm(1, at, true);
        fault_compute(false);
        answer(&n, l, out, parts);
        fault_arm(1, 0, false);
        assert_true(parts[1].rc == E_DEVICE || parts[1].rc == E_FULL);
        assert_true(parts[0].rc == 0 || parts[0].rc == E_PEER);
        n_peers += parts[0].rc == E_PEER;
        comm_reset_within(n.pool, ~0ull);
        answer(&n, (struct layout){1, 1, 1}, out, parts);
        assert_int_equal(parts[0].rc, 0);
        fault_compute(true);
        node_close(&n);
        assert_int_equal(nccl_twin_live(), 0);
        assert_int_equal(fault_live(), 0);
    }
    print_message("%d calls, %d times the other rank heard of it\n", calls, n_peers);
    assert_true(n_peers > 3);
    model_close(m);
}

/* An abort that comes between steps ends the communicators; the next step makes new ones and says the same. */
static void made_anew_after_an_abort(void **state)
{
    struct model *m = open_dummy("gqa", DT_BF16, 31);
    struct sample_result before[TOKENS], after[TOKENS];
    const struct layout l = {1, 4, 1};
    struct node n;
    (void)state;
    open_scene(&n, m, &(struct scene){true, true, 1});
    answer_well(&n, l, before);
    assert_int_equal(nccl_twin_live(), RANKS);
    struct comm_seat seat = comm_seat(comm_find(n.pool, 15), l, 0, COMM_AUTO);
    n.ops->comm_abort(seat.tp);
    assert_int_equal(nccl_twin_live(), 0);
    comm_reset_within(n.pool, ~0ull);
    answer_well(&n, l, after);
    assert_int_equal(nccl_twin_live(), RANKS);
    assert_memory_equal(before, after, sizeof before);
    node_close(&n);
    assert_int_equal(nccl_twin_live(), 0);
    model_close(m);
}

/* What is measured at start: the library among ranks on different GPUs, with what the layouts' groups need made
 * already. */
static void measured_at_start(void **state)
{
    struct model *m = open_dummy("gqa", DT_BF16, 31);
    struct node n;
    struct err e = {0};
    (void)state;
    for (int spread = 0; spread < 2; spread++) {
        struct comm_pool *pool;
        open_scene(&n, m, &(struct scene){true, spread, 0});
        fault_compute(false);
        assert_int_equal(
            comm_pool_open(
                &pool, &(struct comm_pool_setup){.ops = n.ops, .devices = n.devices, .n_ranks = RANKS, .measure = true},
                &e),
            0);
        fault_compute(true);
        const struct comm_measure *got = comm_measured(comm_find(pool, 15));
        assert_true(got->oneshot_ns[0] > 0);
        assert_true(spread ? got->library_bytes > 0 : got->library_bytes == 0);
        assert_true(spread ? nccl_twin_live() >= RANKS : nccl_twin_live() == 0);
        assert_int_equal(comm_seat(comm_find(pool, 15), (struct layout){1, 4, 1}, 0, COMM_LIBRARY).library_bytes,
                         spread);
        assert_int_equal(comm_seat(comm_find(pool, 15), (struct layout){1, 4, 1}, 0, COMM_TWOSHOT).library_bytes, 0);
        comm_pool_close(pool);
        node_close(&n);
        assert_int_equal(nccl_twin_live(), 0);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(used_where_it_may_be), cmocka_unit_test(a_member_fails),
                                       cmocka_unit_test(made_anew_after_an_abort), cmocka_unit_test(measured_at_start)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
