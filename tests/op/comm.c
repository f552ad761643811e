/* Collectives of the CPU backend among threads: exchange against a plain copy, reduce against the same sums in the same
 * order by one and by two shots; more members than cores; and an abort at any point, which must end every wait. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/exec/comm.h"
#include "models/forward/sum_tree.h"

#if defined(__SANITIZE_THREAD__) || defined(EMULATED)
enum { ROUNDS = 16, ABORTS = 10 };
#else
enum { ROUNDS = 40, ABORTS = 60 };
#endif
enum { MOST = 16, MAX_ROWS = 40, MAX_COLS = 700, TALL = 9001 };

static const struct backend_ops *ops;

struct member {
    int index;
    struct device *device;
    struct thread *thread;
    void *ctx;
    void (*body)(struct member *m);
    int rc;
};

static void enter(void *arg)
{
    struct member *m = arg;
    struct batch none = {.n_rows = 1, .ids = (const int32_t[]){0}, .positions = (const int32_t[]){0}};
    struct step_time t;
    ops->begin(m->device, &none, NULL, NULL);
    m->body(m);
    m->rc = ops->finish(m->device, &t, NULL);
}

/* Runs body on n threads, each with a device of 1 or 2 threads. */
static void run_all(struct member *members, int n, void *ctx, void (*body)(struct member *m))
{
    for (int i = 0; i < n; i++) {
        members[i].index = i;
        members[i].ctx = ctx;
        members[i].body = body;
        assert_int_equal(thread_start(&members[i].thread, "member", enter, &members[i], NULL), 0);
    }
    for (int i = 0; i < n; i++)
        thread_join(members[i].thread);
}

static void open_members(struct member *members, int n)
{
    ops = backend_cpu();
    for (int i = 0; i < n; i++) {
        struct device_opts o = {.n_threads = i == 1 ? 2 : 1, .max_rows = 8, .max_logits = 1};
        memset(&members[i], 0, sizeof members[i]);
        assert_int_equal(ops->open(&members[i].device, &o, NULL), 0);
    }
}

static void close_members(struct member *members, int n)
{
    for (int i = 0; i < n; i++)
        ops->close(members[i].device);
}

static struct act act_new(int rows, int cols, int ld)
{
    return (struct act){mem_new_array((size_t)rows * (size_t)ld + 1, sizeof(float)), cols, ld, false};
}

static float *at(struct act a, int row, int col)
{
    return (float *)a.data + (size_t)row * (size_t)a.ld + col;
}

static void fill(struct rng *r, struct act a, int rows)
{
    for (int i = 0; i < rows * a.ld; i++)
        ((float *)a.data)[i] = (float)((double)(int64_t)rng_next(r) * 0x1p-60);
}

/* ---- exchange */

enum { RECTS = 40 };
struct exchange_case {
    struct comm *comm;
    int n, n_rects[MOST];
    struct act src[MOST][EXCHANGE_BUFFERS], dst[MOST][EXCHANGE_BUFFERS], want[MOST][EXCHANGE_BUFFERS];
    struct comm_rect rects[MOST][RECTS];
};

static void exchange_body(struct member *m)
{
    struct exchange_case *c = m->ctx;
    int i = m->index;
    struct exchange_args a = {.comm = c->comm, .me = i, .rects = c->rects[i], .n_rects = c->n_rects[i]};
    memcpy(a.src, c->src[i], sizeof a.src);
    memcpy(a.dst, c->dst[i], sizeof a.dst);
    ops->exchange(m->device, &a);
    ops->exchange(m->device, &(struct exchange_args){.comm = c->comm, .me = i}); /* then what was shown is free again */
    memset(c->src[i][0].data, 0xff, sizeof(float));
}

static int below(struct rng *r, int n)
{
    return (int)rng_below(r, (uint64_t)n);
}

/* Places are multiples of unit, columns so many more than one. */
static struct comm_rect random_rect(struct rng *r, int n, int unit, int more)
{
    struct comm_rect x = {.peer = below(r, n),
                          .buffer = below(r, EXCHANGE_BUFFERS),
                          .rows = below(r, MAX_ROWS),
                          .cols = unit * (1 + below(r, 200 / unit)) + more};
    x.src_row = below(r, MAX_ROWS - x.rows + 1);
    x.dst_row = below(r, MAX_ROWS - x.rows + 1);
    x.src_col = unit * below(r, (MAX_COLS - x.cols) / unit + 1);
    x.dst_col = unit * below(r, (MAX_COLS - x.cols) / unit + 1);
    return x;
}

static void rectangles_arrive(void **state)
{
    (void)state;
    static struct member members[MOST];
    struct exchange_case *c = mem_new(sizeof *c);
    struct rng r;
    rng_init(&r, 1);
    open_members(members, MOST);
    for (int round = 0; round < ROUNDS; round++) {
        int unit = round % 3 ? 4 : 1, more = round % 3 == 2; /* four columns: what a GPU may copy at once */
        c->n = 1 + below(&r, round % 4 ? 8 : MOST);
        assert_int_equal(ops->comm_open(&c->comm, c->n, NULL), 0);
        for (int m = 0; m < c->n; m++)
            for (int b = 0; b < EXCHANGE_BUFFERS; b++) {
                c->src[m][b] = act_new(MAX_ROWS, MAX_COLS, MAX_COLS + 4 * b);
                c->dst[m][b] = act_new(MAX_ROWS, MAX_COLS, MAX_COLS + unit * m);
                c->want[m][b] = act_new(MAX_ROWS, MAX_COLS, MAX_COLS + unit * m);
                fill(&r, c->src[m][b], MAX_ROWS);
            }
        for (int m = 0; m < c->n; m++) {
            c->n_rects[m] = below(&r, RECTS);
            bool used[EXCHANGE_BUFFERS][MAX_ROWS] = {{0}};
            for (int i = 0; i < c->n_rects[m]; i++) {
                struct comm_rect x = random_rect(&r, c->n, unit, more);
                bool free_rows = true; /* rectangles of one taker never overlap */
                for (int k = 0; k < x.rows; k++)
                    free_rows = free_rows && !used[x.buffer][x.dst_row + k];
                if (!free_rows)
                    x.rows = 0;
                for (int k = 0; k < x.rows; k++) {
                    used[x.buffer][x.dst_row + k] = true;
                    memcpy(at(c->want[m][x.buffer], x.dst_row + k, x.dst_col),
                           at(c->src[x.peer][x.buffer], x.src_row + k, x.src_col), (size_t)x.cols * sizeof(float));
                }
                c->rects[m][i] = x;
            }
        }
        run_all(members, c->n, c, exchange_body);
        for (int m = 0; m < c->n; m++)
            for (int b = 0; b < EXCHANGE_BUFFERS; b++) {
                assert_int_equal(members[m].rc, 0);
                assert_memory_equal(c->dst[m][b].data, c->want[m][b].data,
                                    MAX_ROWS * (size_t)c->dst[m][b].ld * sizeof(float));
                mem_free(c->src[m][b].data);
                mem_free(c->dst[m][b].data);
                mem_free(c->want[m][b].data);
            }
        ops->comm_close(c->comm);
    }
    close_members(members, MOST);
    mem_free(c);
}

/* More rows than a GPU's threads for one rectangle: each copies several. */
static void tall(struct member *m)
{
    struct exchange_case *c = m->ctx;
    struct comm_rect all = {.rows = TALL, .cols = 4};
    ops->exchange(m->device,
                  &(struct exchange_args){
                      .comm = c->comm, .src = {c->src[0][0]}, .dst = {c->dst[0][0]}, .rects = &all, .n_rects = 1});
}

static void all_rows_of_a_tall_rectangle_arrive(void **state)
{
    (void)state;
    static struct member members[MOST];
    static struct exchange_case c;
    struct rng r;
    rng_init(&r, 4);
    open_members(members, 1);
    assert_int_equal(ops->comm_open(&c.comm, 1, NULL), 0);
    c.src[0][0] = act_new(TALL, 4, 4);
    c.dst[0][0] = act_new(TALL, 4, 4);
    fill(&r, c.src[0][0], TALL);
    run_all(members, 1, &c, tall);
    assert_memory_equal(c.dst[0][0].data, c.src[0][0].data, TALL * 4 * sizeof(float));
    mem_free(c.src[0][0].data);
    mem_free(c.dst[0][0].data);
    ops->comm_close(c.comm);
    close_members(members, 1);
}

/* ---- reduce */

struct reduce_case {
    struct comm *comm;
    int n, rows, cols;
    bool accumulate;
    enum comm_algorithm how;
    struct reduce_order order;
    struct act planes[MOST], y[MOST], part[MOST];
};

static void reduce_body(struct member *m)
{
    struct reduce_case *c = m->ctx;
    int i = m->index;
    ops->reduce(m->device, &(struct reduce_args){.comm = c->comm,
                                                 .me = i,
                                                 .algorithm = c->how,
                                                 .planes = c->planes[i],
                                                 .order = &c->order,
                                                 .rows = c->rows,
                                                 .accumulate = c->accumulate,
                                                 .y = c->y[i],
                                                 .part = c->part[i]});
    ops->exchange(m->device, &(struct exchange_args){.comm = c->comm, .me = i});
}

/* Planes `from` .. in the tree that the order spells, for one element. */
static float plain_sum(const struct reduce_case *c, int row, int col)
{
    float stack[64];
    int depth = 0;
    for (int p = 0; p < c->order.n_planes; p++) {
        stack[depth++] = *at(c->planes[c->order.member[p]], c->order.index[p] * c->rows + row, col);
        for (int k = 0; k < c->order.adds[p]; k++, depth--)
            stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
    }
    assert_int_equal(depth, 1);
    return stack[0];
}

struct shape {
    int n, leaves;
};

/* The first rounds: orders that a GPU has a kernel for each (pairs of 1, 2, 4, 8; four planes in another
 * order; few that wait, and many). */
static const struct shape shapes[] = {{1, 1}, {2, 2}, {4, 4}, {8, 8}, {2, 6}, {5, 13}, {2, 254}, {MOST, 40}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static struct shape shape_of(struct rng *r, int round)
{
    struct shape s = {1 + below(r, round % 4 ? 8 : MOST), 1 + below(r, 40)};
    return round < 2 * SHAPES ? shapes[round / 2] : s;
}

/* Columns and distances of rows are multiples of unit. */
static void make_case(struct reduce_case *c, struct rng *r, struct shape s, int unit)
{
    struct leaf_range windows[MOST];
    int n = s.n, leaves = s.leaves;
    for (int m = 0; m < n; m++)
        windows[m] = tree_share(leaves, n, m);
    *c = (struct reduce_case){.n = n,
                              .rows = 1 + below(r, MAX_ROWS),
                              .cols = unit * (1 + below(r, MAX_COLS / unit)),
                              .accumulate = below(r, 2)};
    tree_order(&c->order, leaves, windows, n);
    assert_int_equal(ops->comm_open(&c->comm, n, NULL), 0);
    for (int m = 0; m < n; m++) {
        c->planes[m] = act_new(c->rows * TREE_MAX_NODES, c->cols, c->cols);
        c->part[m] = act_new(c->rows, c->cols, c->cols + 3 * unit);
        c->y[m] = act_new(c->rows, c->cols, c->cols + unit);
        fill(r, c->planes[m], c->rows * TREE_MAX_NODES);
    }
}

static void free_case(struct reduce_case *c)
{
    for (int m = 0; m < c->n; m++) {
        mem_free(c->planes[m].data);
        mem_free(c->part[m].data);
        mem_free(c->y[m].data);
    }
    tree_order_free(&c->order);
    ops->comm_close(c->comm);
}

static void sums_are_those_of_one_by_every_algorithm(void **state)
{
    (void)state;
    static struct member members[MOST];
    struct rng r;
    rng_init(&r, 2);
    open_members(members, MOST);
    for (int round = 0; round < ROUNDS; round++) {
        struct reduce_case c;
        make_case(&c, &r, shape_of(&r, round), round % 2 ? 4 : 1);
        for (int how = COMM_AUTO; how <= COMM_LIBRARY; how++) {
            c.how = (enum comm_algorithm)how;
            for (int m = 0; m < c.n; m++)
                for (int i = 0; i < c.rows; i++)
                    for (int k = 0; k < c.cols; k++)
                        *at(c.y[m], i, k) = (float)(i - k);
            run_all(members, c.n, &c, reduce_body);
            for (int i = 0; i < c.rows; i++)
                for (int k = 0; k < c.cols; k++) {
                    float sum = plain_sum(&c, i, k), want = c.accumulate ? (float)(i - k) + sum : sum;
                    for (int m = 0; m < c.n; m++)
                        assert_memory_equal(at(c.y[m], i, k), &want, sizeof want);
                }
        }
        free_case(&c);
    }
    close_members(members, MOST);
}

/* ---- failures */

struct broken {
    struct comm *comm, *other; /* as a layout has an sp and a tp group */
    int n, culprit, at;        /* the step before which it fails */
    int kind;                  /* 0: aborts and leaves; 1: its device fails and it goes on */
    struct act x[MOST], y[MOST], part[MOST];
    struct reduce_order order;
};

/* A device that fails: too many rows for a step sticks in no error, so a linear layer that cannot run does it. */
static void break_device(struct member *m)
{
    static const float weights[64] = {0};
    struct weight *w;
    struct weight_src src = {DT_F32, 1, 64, .data = weights};
    float x[64] = {0}, y[1];
    if (ops->weight_load(m->device, &w, &src, NULL))
        return;
    ops->linear(m->device, &(struct linear_args){
                               .x = {x, 8, 64}, .rows = 1, .n_out = 1, .out = {{{w, 0, 1, 8, 8}, NULL, {y, 1, 1}}}});
    ops->weight_free(m->device, w);
}

static void broken_body(struct member *m)
{
    struct broken *c = m->ctx;
    int i = m->index;
    struct comm_rect rect = {.peer = (i + 1) % c->n, .rows = 1, .cols = 8};
    for (int k = 0; k < 30; k++) {
        if (i == c->culprit && k == c->at) {
            if (c->kind == 0) {
                ops->comm_abort(c->comm);
                ops->comm_abort(c->other);
                return;
            }
            break_device(m);
        }
        if (k % 2 == 0)
            ops->exchange(
                m->device,
                &(struct exchange_args){
                    .comm = c->comm, .me = i, .src = {c->x[i]}, .dst = {c->y[i]}, .rects = &rect, .n_rects = 1});
        else
            ops->reduce(m->device, &(struct reduce_args){.comm = c->other,
                                                         .me = i,
                                                         .algorithm = k % 4 == 1 ? COMM_ONESHOT : COMM_TWOSHOT,
                                                         .planes = c->x[i],
                                                         .order = &c->order,
                                                         .rows = 1,
                                                         .y = c->y[i],
                                                         .part = c->part[i]});
    }
}

static void nobody_waits_for_a_member_that_failed(void **state)
{
    (void)state;
    static struct member members[MOST];
    struct broken c = {0};
    struct leaf_range windows[MOST];
    struct rng r;
    rng_init(&r, 4);
    open_members(members, MOST);
    for (int m = 0; m < MOST; m++) {
        c.x[m] = act_new(1, 8, 8);
        c.y[m] = act_new(1, 8, 8);
        c.part[m] = act_new(1, 8, 8);
    }
    for (int round = 0; round < ABORTS; round++) {
        c.n = 2 + below(&r, round % 4 ? 7 : MOST - 1);
        c.culprit = below(&r, c.n);
        c.at = below(&r, 32); /* beyond 30: nobody fails */
        c.kind = below(&r, 2);
        for (int m = 0; m < c.n; m++)
            windows[m] = tree_share(c.n, c.n, m);
        tree_order(&c.order, c.n, windows, c.n);
        assert_int_equal(ops->comm_open(&c.comm, c.n, NULL), 0);
        assert_int_equal(ops->comm_open(&c.other, c.n, NULL), 0);
        for (int again = 0; again < 2; again++) { /* and after a reset all is as new */
            run_all(members, c.n, &c, broken_body);
            for (int m = 0; m < c.n; m++) {
                bool failed = c.at < 28; /* after the last collective a failure is its own business */
                int want = !failed ? 0 : m == c.culprit ? (c.kind ? E_UNSUPPORTED : 0) : E_PEER;
                if (c.at < 27 || c.at >= 30)
                    assert_int_equal(members[m].rc, c.at >= 30 ? 0 : want);
            }
            ops->comm_reset(c.comm);
            ops->comm_reset(c.other);
            c.at = 99;
        }
        tree_order_free(&c.order);
        ops->comm_close(c.comm);
        ops->comm_close(c.other);
    }
    for (int m = 0; m < MOST; m++) {
        mem_free(c.x[m].data);
        mem_free(c.y[m].data);
        mem_free(c.part[m].data);
    }
    close_members(members, MOST);
}

/* ---- the pool */

static void the_pool_has_aligned_powers_of_two_and_the_whole(void **state)
{
    (void)state;
    static struct member members[MOST];
    struct device *devices[MOST];
    struct comm_pool *pool;
    struct err e;
    const uint64_t extra[] = {0x15, 0x3, 0x1}; /* ranks 0, 2, 4; a pair that is there already; a rank by itself */
    open_members(members, 8);
    for (int i = 0; i < 8; i++)
        devices[i] = members[i].device;
    struct comm_pool_setup s = {.ops = ops, .devices = devices, .n_ranks = 8, .measure = true};
    assert_int_equal(comm_pool_open(&pool, &s, &e), 0);
    assert_int_equal(comm_pool_count(pool), 7); /* 4 + 2 + 1, not 247 */
    assert_non_null(comm_find(pool, 0x30));
    assert_null(comm_find(pool, 0x06));
    for (int i = 0; i < 7; i++) {
        struct comm_set *c = comm_find(pool, comm_pool_mask(pool, i));
        const struct comm_measure *m = comm_measured(c);
        for (int k = 0; k < COMM_SIZES; k++)
            assert_true(m->bytes[k] > 0 && m->oneshot_ns[k] > 0 && m->twoshot_ns[k] > 0);
    }
    comm_pool_close(pool);
    s = (struct comm_pool_setup){.ops = ops, .devices = devices, .n_ranks = 6, .extra = extra, .n_extra = 3};
    assert_int_equal(comm_pool_open(&pool, &s, &e), 0);
    assert_int_equal(comm_pool_count(pool), 6); /* 3 pairs, one four, all six, the extra one */
    assert_non_null(comm_find(pool, 0x15));
    comm_pool_close(pool);
    s.extra = &(const uint64_t){0x81};
    s.n_extra = 1;
    assert_int_equal(comm_pool_open(&pool, &s, &e), E_INPUT);
    s = (struct comm_pool_setup){.ops = ops, .devices = devices, .n_ranks = 1};
    assert_int_equal(comm_pool_open(&pool, &s, &e), 0);
    assert_int_equal(comm_pool_count(pool), 0);
    comm_pool_close(pool);
    close_members(members, 8);
}

/* Seats: members of one sp group share its comm, of one tp group theirs; different groups never do. */
static void seats_match_the_layout(void **state)
{
    (void)state;
    struct comm_pool *pool;
    struct comm_pool_setup s = {.ops = backend_sim(), .n_ranks = 12};
    assert_int_equal(comm_pool_open(&pool, &s, NULL), 0);
    struct comm_set *c = comm_find(pool, 0xfff);
    for (int sp = 1; sp <= 12; sp++)
        for (int i = 0; i < 12 && 12 % sp == 0; i++)
            for (int j = 0; j < 12; j++) {
                struct layout l = {sp, 12 / sp, 1};
                struct comm_seat a = comm_seat(c, l, i, COMM_AUTO), b = comm_seat(c, l, j, COMM_AUTO);
                if (l.sp > 1)
                    assert_int_equal(a.sp == b.sp, share_t(l, i) == share_t(l, j));
                if (l.tp > 1)
                    assert_int_equal(a.tp == b.tp, share_s(l, i) == share_s(l, j));
                assert_ptr_equal(a.all, b.all);
            }
    assert_true(comm_seat(c, (struct layout){1, 12, 1}, 0, COMM_ONESHOT).twoshot_bytes == SIZE_MAX);
    assert_true(comm_seat(c, (struct layout){1, 12, 1}, 0, COMM_TWOSHOT).twoshot_bytes == 0);
    comm_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rectangles_arrive),
        cmocka_unit_test(all_rows_of_a_tall_rectangle_arrive),
        cmocka_unit_test(sums_are_those_of_one_by_every_algorithm),
        cmocka_unit_test(nobody_waits_for_a_member_that_failed),
        cmocka_unit_test(the_pool_has_aligned_powers_of_two_and_the_whole),
        cmocka_unit_test(seats_match_the_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
