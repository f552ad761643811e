/* Ranks with inboxes: steps of groups posted to all members, moves before the steps that need them, groups side by
 * side, and a device that fails: its group ends with it, nobody hangs, the others are well and go on. The truth is the
 * same steps on one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/queue.h"
#include "engine/base/rng.h"
#include "engine/exec/rank.h"

#if defined(__SANITIZE_THREAD__)
enum { LEN = 10, ROUNDS = 3 };
#else
enum { LEN = 30, ROUNDS = 12 };
#endif
enum { RANKS = 4, BLOCKS = 24 };

struct host {
    struct model *model;
    struct rank *ranks[RANKS];
    struct comm_pool *pool;
    struct queue *done; /* of struct step * and struct move * */
    struct heads heads;
    int n;
};

static void step_done(void *ctx, struct step *s)
{
    void *p = s;
    queue_post(((struct host *)ctx)->done, &p);
}

static void move_done(void *ctx, struct move *m)
{
    void *p = m;
    queue_post(((struct host *)ctx)->done, &p);
}

static void open_host(struct host *h, const struct backend_ops *ops, uint64_t fail_at)
{
    struct err e = {0};
    struct device *devices[RANKS];
    *h = (struct host){.n = RANKS, .done = queue_create(sizeof(void *), 0, false)};
    assert_int_equal(model_open_dummy(&h->model, "tests/data/layout_9_3.json", DT_Q4_1, 5, &e), 0);
    h->heads = shard_heads(model_config(h->model));
    for (int i = 0; i < RANKS; i++) {
        struct rank_setup s = {.ops = ops,
                               .device = {.n_threads = 1, .max_rows = LEN, .max_logits = LEN},
                               .model = h->model,
                               .index = i,
                               .n_ranks = RANKS,
                               .shares_with = i ? h->ranks[0] : NULL,
                               .kv_dtype = DT_F16,
                               .block_size = 16,
                               .threaded = true,
                               .quiet = true,
                               .fail_at_step = i == 2 ? fail_at : 0,
                               .step_done = step_done,
                               .move_done = move_done,
                               .ctx = h};
        if (rank_open(&h->ranks[i], &s, &e))
            fail_msg("%s", e.text);
        devices[i] = rank_device(h->ranks[i]);
        assert_true((rank_weight_bytes(h->ranks[i]) > 0) == (i == 0));
    }
    assert_int_equal(
        comm_pool_open(&h->pool, &(struct comm_pool_setup){.ops = ops, .devices = devices, .n_ranks = RANKS}, &e), 0);
    for (int i = 0; i < RANKS; i++)
        assert_int_equal(rank_start(h->ranks[i], BLOCKS, &e), 0);
}

static void close_host(struct host *h)
{
    for (int i = RANKS - 1; i >= 0; i--) /* the first has the weights */
        rank_close(h->ranks[i]);
    comm_pool_close(h->pool);
    queue_destroy(h->done);
    model_close(h->model);
}

/* Where a sequence has its KV: n ranks from first on, by share; its blocks begin at block0 on each. */
struct site {
    struct layout layout;
    int first, n, block0;
};

static int tokens_per_block(const struct host *h, int n)
{
    return rank_tokens_per_block(h->ranks[0], head_max_kv(&h->heads, n));
}

static const int32_t *blocks_of(struct arena *a, int block0, int share)
{
    int32_t *blocks = arena_new(a, 4 * sizeof *blocks);
    for (int i = 0; i < 4; i++)
        blocks[i] = block0 + (i + share) % 4;
    return blocks;
}

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};

/* A step of tokens [pos, pos + n) of one sequence, all its logits wanted. */
static struct step *make_step(struct host *h, const struct site *at, const int32_t *ids, int pos, int n)
{
    struct step *s = mem_new(sizeof *s);
    arena_init(&s->arena);
    s->layout = at->layout;
    s->n_ranks = at->n;
    s->tokens_per_block = tokens_per_block(h, at->n);
    s->parts = arena_new(&s->arena, (size_t)at->n * sizeof *s->parts);
    s->results = arena_new(&s->arena, (size_t)n * sizeof *s->results);
    s->n_rows = n;
    int32_t *positions = arena_new(&s->arena, (size_t)n * sizeof *positions),
            *rows = arena_new(&s->arena, (size_t)n * sizeof *rows);
    struct sample_row *samples = arena_new(&s->arena, (size_t)n * sizeof *samples);
    uint64_t mask = 0;
    for (int i = 0; i < n; i++) {
        positions[i] = pos + i;
        rows[i] = i;
        samples[i] = (struct sample_row){.how = &greedy, .given = -1, .n_top = 2};
    }
    for (int i = 0; i < at->n; i++) {
        struct batch_seq *seq = arena_new(&s->arena, sizeof *seq);
        *seq = (struct batch_seq){0, n, pos, blocks_of(&s->arena, at->block0, i), NULL};
        s->ranks[i] = at->first + i;
        mask |= (uint64_t)1 << s->ranks[i];
        s->parts[i].batch = (struct batch){.n_rows = n,
                                           .ids = ids + pos,
                                           .positions = positions,
                                           .n_seqs = 1,
                                           .seqs = seq,
                                           .n_logits = n,
                                           .logit_rows = rows,
                                           .samples = samples,
                                           .results = s->results};
    }
    s->comms = comm_find(h->pool, mask);
    atomic_init(&s->left, at->n);
    return s;
}

static void post(struct host *h, struct step *s)
{
    for (int i = 0; i < s->n_ranks; i++)
        rank_post_step(h->ranks[s->ranks[i]], s, i);
}

/* What is done next; everything in these tests is done within seconds, and a hang is what they are for. */
static void *wait_done(struct host *h)
{
    void *p;
    while (!queue_take(h->done, &p))
        if (!queue_wait(h->done, 60000000000))
            fail_msg("nothing was done for a minute: somebody waits for ever");
    return p;
}

static struct step *run_step(struct host *h, struct step *s)
{
    post(h, s);
    assert_ptr_equal(wait_done(h), s);
    return s;
}

static struct move *make_move(struct host *h, const struct site *from, const struct site *to, int n_tokens)
{
    struct move *m = move_new();
    const struct site *sites[] = {from, to};
    struct move_end *ends[] = {&m->from, &m->to};
    m->heads = h->heads;
    m->n_tokens = n_tokens;
    for (int k = 0; k < 2; k++) {
        *ends[k] = (struct move_end){
            .n = sites[k]->n, .stages = 1, .tokens_per_block = tokens_per_block(h, sites[k]->n), .n_blocks = 4};
        int32_t *blocks = arena_new(&m->arena, (size_t)sites[k]->n * 4 * sizeof *blocks);
        for (int i = 0; i < sites[k]->n; i++) {
            ends[k]->ranks[i] = sites[k]->first + i;
            memcpy(blocks + 4 * i, blocks_of(&m->arena, sites[k]->block0, i), 4 * sizeof *blocks);
        }
        ends[k]->blocks = blocks;
    }
    return m;
}

static void random_ids(struct rng *r, int32_t *ids)
{
    for (int i = 0; i < LEN; i++)
        ids[i] = (int32_t)rng_below(r, 1000);
}

/* The choices of one rank, in one step. */
static void make_truth(struct host *h, const int32_t *ids, struct sample_result *out)
{
    struct site one = {{1, 1, 1}, 3, 1, 20};
    struct step *s = run_step(h, make_step(h, &one, ids, 0, LEN));
    assert_null(step_failure(s, NULL));
    memcpy(out, s->results, LEN * sizeof *out);
    step_free(s);
}

static void steps_and_moves_in_the_order_posted(void **state)
{
    (void)state;
    struct host h;
    struct rng r;
    int32_t ids[LEN];
    struct sample_result truth[LEN];
    static const struct site tour[] = {{{1, 1, 1}, 0, 1, 0}, {{2, 1, 1}, 0, 2, 4}, {{1, 4, 1}, 0, 4, 8},
                                       {{2, 2, 1}, 0, 4, 8}, {{1, 2, 1}, 2, 2, 0}, {{4, 1, 1}, 0, 4, 12},
                                       {{1, 1, 1}, 2, 1, 16}};
    rng_init(&r, 1);
    open_host(&h, backend_cpu(), 0);
    for (int round = 0; round < ROUNDS; round++) {
        random_ids(&r, ids);
        make_truth(&h, ids, truth);
        for (int at = 0, k = 0; at < LEN; k++) {
            const struct site *here = &tour[k % 7], *before = &tour[(k + 6) % 7];
            int n = 1 + (int)rng_below(&r, 5);
            n = n < LEN - at ? n : LEN - at;
            struct move *m = NULL;
            struct step *s = make_step(&h, here, ids, at, n);
            if (k > 0 && (here->block0 != before->block0 || here->first != before->first)) {
                m = make_move(&h, before, here, at);
                move_post(m, h.ranks, NULL);
            }
            post(&h, s); /* not waiting for the move: the inboxes keep the order */
            for (int left = m ? 2 : 1; left > 0; left--) {
                void *p = wait_done(&h);
                assert_true(p == m || p == s);
            }
            if (m)
                assert_true(m->bytes > 0);
            assert_null(step_failure(s, NULL));
            assert_memory_equal(s->results, truth + at, (size_t)n * sizeof *truth);
            assert_true(step_ns(s) > 0);
            at += n;
            move_free(m);
            step_free(s);
        }
    }
    close_host(&h);
}

/* Two groups at once, each with a sequence of its own. */
static void groups_run_side_by_side(void **state)
{
    (void)state;
    struct host h;
    struct rng r;
    static const struct site sites[2][2] = {{{{2, 1, 1}, 0, 2, 0}, {{1, 2, 1}, 0, 2, 0}},
                                            {{{1, 2, 1}, 2, 2, 4}, {{2, 1, 1}, 2, 2, 4}}};
    rng_init(&r, 2);
    open_host(&h, backend_cpu(), 0);
    for (int round = 0; round < ROUNDS; round++) {
        int32_t ids[2][LEN];
        struct sample_result truth[2][LEN];
        int at[2] = {0};
        struct step *running[2] = {NULL};
        for (int g = 0; g < 2; g++) {
            random_ids(&r, ids[g]);
            make_truth(&h, ids[g], truth[g]);
        }
        for (int left = 2 * LEN; left > 0;) {
            for (int g = 0; g < 2; g++)
                if (!running[g] && at[g] < LEN) {
                    int n = 1 + (int)rng_below(&r, 6);
                    running[g] =
                        make_step(&h, &sites[g][rng_below(&r, 2)], ids[g], at[g], n < LEN - at[g] ? n : LEN - at[g]);
                    post(&h, running[g]);
                }
            struct step *s = wait_done(&h);
            int g = s == running[1];
            assert_ptr_equal(s, running[g]);
            assert_null(step_failure(s, NULL));
            assert_memory_equal(s->results, truth[g] + at[g], (size_t)s->n_rows * sizeof truth[g][0]);
            at[g] += s->n_rows;
            left -= s->n_rows;
            running[g] = NULL;
            step_free(s);
        }
    }
    close_host(&h);
}

/* Rank 2's device fails in its second step. */
static void a_failed_rank_ends_its_group_and_no_other(void **state)
{
    (void)state;
    static const struct layout layouts[] = {{4, 1, 1}, {2, 2, 1}, {1, 4, 1}};
    for (int k = 0; k < 3; k++) {
        struct host h;
        struct rng r;
        int32_t ids[LEN];
        struct sample_result truth[LEN];
        int rank = -1;
        rng_init(&r, 3);
        random_ids(&r, ids);
        open_host(&h, backend_cpu(), 2);
        make_truth(&h, ids, truth);
        struct site all = {layouts[k], 0, 4, 0}, pair = {{1, 2, 1}, 0, 2, 8}, alone = {{1, 1, 1}, 3, 1, 8},
                    dead = {{1, 1, 1}, 2, 1, 8};
        struct step *s = run_step(&h, make_step(&h, &all, ids, 0, 7));
        assert_null(step_failure(s, NULL));
        step_free(s);
        for (int again = 0; again < 2; again++) { /* and whoever still posts to it is told again */
            s = run_step(&h, make_step(&h, &all, ids, 7, 2));
            assert_int_equal(step_failure(s, &rank)->rc, E_DEVICE);
            assert_int_equal(rank, 2);
            for (int i = 0; i < 4; i++)
                assert_int_equal(s->parts[i].rc, i == 2 ? E_DEVICE : E_PEER);
            assert_non_null(strstr(s->parts[2].err.text, "injected"));
            step_free(s);
            comm_reset_within(h.pool, 0xf);
        }
        s = run_step(&h, make_step(&h, &pair, ids, 0, LEN)); /* the others are well */
        assert_null(step_failure(s, NULL));
        assert_memory_equal(s->results, truth, sizeof truth);
        step_free(s);
        s = run_step(&h, make_step(&h, &alone, ids, 0, LEN));
        assert_memory_equal(s->results, truth, sizeof truth);
        step_free(s);
        s = run_step(&h, make_step(&h, &dead, ids, 0, 3));
        assert_int_equal(step_failure(s, &rank)->rc, E_DEVICE);
        step_free(s);
        close_host(&h);
    }
}

/* The simulated machine: made-up tokens do not depend on the layout, time does. */
static void simulated_groups(void **state)
{
    (void)state;
    struct model *m;
    struct err e = {0};
    struct rank *ranks[RANKS];
    struct comm_pool *pool;
    struct heads heads = {9, 3, 64};
    struct host h = {.n = RANKS, .heads = heads};
    int32_t ids[LEN] = {7, 9, 1, 3};
    struct sample_result first[4];
    assert_int_equal(model_open_dummy(&m, "tests/data/layout_9_3.json", DT_Q4_1, 5, &e), 0);
    for (int i = 0; i < RANKS; i++) {
        struct rank_setup s = {.ops = backend_sim(),
                               .device = {.max_rows = LEN, .max_logits = LEN, .sim_step_ns = 1000, .sim_row_ns = 100},
                               .model = m,
                               .index = i,
                               .n_ranks = RANKS,
                               .shares_with = i ? ranks[0] : NULL,
                               .kv_dtype = DT_F16,
                               .block_size = 16,
                               .quiet = true};
        assert_int_equal(rank_open(&ranks[i], &s, &e), 0);
        assert_int_equal(rank_start(ranks[i], BLOCKS, &e), 0);
        h.ranks[i] = ranks[i];
    }
    assert_int_equal(comm_pool_open(&pool, &(struct comm_pool_setup){.ops = backend_sim(), .n_ranks = RANKS}, &e), 0);
    h.pool = pool;
    static const struct site sites[] = {
        {{1, 1, 1}, 1, 1, 0}, {{2, 1, 1}, 0, 2, 0}, {{2, 2, 1}, 0, 4, 0}, {{1, 4, 1}, 0, 4, 0}};
    for (int k = 0; k < 4; k++) {
        struct step *s = make_step(&h, &sites[k], ids, 0, 4);
        post(&h, s);
        assert_int_equal(s->left, 0); /* at once: it is not threaded */
        assert_int_equal(step_ns(s), 1000 + 4 * 100 / sites[k].n);
        if (k == 0)
            memcpy(first, s->results, sizeof first);
        assert_memory_equal(s->results, first, sizeof first);
        step_free(s);
    }
    struct move *move = make_move(&h, &sites[0], &sites[2], 4);
    move_post(move, h.ranks, NULL);
    assert_int_equal(move->left, 0);
    assert_true(move->bytes > 0);
    move_free(move);
    assert_non_null(rank_layout_refusal(ranks[0], (struct layout){8, 1, 1}));
    assert_non_null(rank_layout_refusal(ranks[0], (struct layout){2, 2, 2}));
    assert_non_null(rank_layout_refusal(ranks[0], (struct layout){1, 1, 0}));
    assert_null(rank_layout_refusal(ranks[0], (struct layout){1, 2, 2}));
    assert_null(rank_layout_refusal(ranks[0], (struct layout){2, 2, 1}));
    comm_pool_close(pool);
    for (int i = RANKS - 1; i >= 0; i--)
        rank_close(ranks[i]);
    model_close(m);
}

/* Bytes of a block are constant; tokens follow from the heads, with no drift whatever the way there. */
static void tokens_per_block_follow_from_the_heads(void **state)
{
    (void)state;
    struct host h;
    open_host(&h, backend_cpu(), 0);
    size_t bytes = rank_kv_block_bytes(h.ranks[0]) / 3; /* layers */
    for (int n = 1; n <= 3; n++) {
        int tokens = rank_tokens_per_block(h.ranks[0], n);
        assert_int_equal(tokens % 16, 0);
        assert_true(backend_cpu()->kv_block_bytes(DT_F16, tokens, n, 64) <= bytes);
        assert_true(backend_cpu()->kv_block_bytes(DT_F16, tokens + 16, n, 64) > bytes);
    }
    assert_int_equal(rank_tokens_per_block(h.ranks[0], 3), 16);
    assert_int_equal(rank_tokens_per_block(h.ranks[0], 1), 48);
    close_host(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_and_moves_in_the_order_posted),       cmocka_unit_test(groups_run_side_by_side),
        cmocka_unit_test(a_failed_rank_ends_its_group_and_no_other), cmocka_unit_test(simulated_groups),
        cmocka_unit_test(tokens_per_block_follow_from_the_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
