/* What ranks of one process pay to meet: barrier, all-reduce (one shot and two) and all-to-all by size and number of
 * ranks; and how fast cached tokens move between placements, beside memcpy of as many bytes in the same run. usage:
 * comm_bench [RANKS ...]   (2 4 8 by default) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/exec/move.h"
#include "models/forward/sum_tree.h"

enum { COLS = 1024, MAX_KIB = 4096, ROUNDS = 15, SIZES = 6, MOST = 16 };
static const int kib[SIZES] = {4, 16, 64, 256, 1024, MAX_KIB};

struct bench {
    const struct backend_ops *ops;
    struct comm *comm;
    int n;
    struct reduce_order order;
    struct device *devices[MOST];
    double oneshot[SIZES], twoshot[SIZES], exchange[SIZES], meet; /* seconds */
};

struct member {
    struct bench *bench;
    struct thread *thread;
    int index;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static double now(const struct clock *c)
{
    return (double)clock_now(c) * 1e-9;
}

static void meet(const struct member *m)
{
    m->bench->ops->exchange(m->bench->devices[m->index],
                            &(struct exchange_args){.comm = m->bench->comm, .me = m->index});
}

enum what { ONESHOT, TWOSHOT, ALL_TO_ALL };

static void collective(const struct member *m, const struct act *bufs, int rows, enum what what)
{
    struct bench *b = m->bench;
    struct device *d = b->devices[m->index];
    if (what != ALL_TO_ALL) {
        b->ops->reduce(d, &(struct reduce_args){.comm = b->comm,
                                                .me = m->index,
                                                .planes = bufs[0],
                                                .order = &b->order,
                                                .rows = rows,
                                                .algorithm = what == ONESHOT ? COMM_ONESHOT : COMM_TWOSHOT,
                                                .y = bufs[1],
                                                .part = bufs[2]});
        return;
    }
    struct comm_rect rects[MOST];
    int cols = COLS / b->n;
    for (int p = 0; p < b->n; p++) /* each takes its columns of everybody's rows, as q, k and v travel */
        rects[p] =
            (struct comm_rect){.peer = p, .src_col = m->index * cols, .dst_col = p * cols, .rows = rows, .cols = cols};
    b->ops->exchange(
        d, &(struct exchange_args){
               .comm = b->comm, .me = m->index, .src = {bufs[0]}, .dst = {bufs[1]}, .rects = rects, .n_rects = b->n});
}

static double time_one(const struct member *m, const struct clock *c, const struct act *bufs, int rows, enum what what)
{
    double took[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        meet(m);
        double t = now(c);
        collective(m, bufs, rows, what);
        meet(m);
        took[i] = now(c) - t;
    }
    return median(took, ROUNDS);
}

static void body(void *arg)
{
    struct member *m = arg;
    struct bench *b = m->bench;
    struct clock c;
    struct act bufs[3];
    clock_init_real(&c);
    for (int i = 0; i < 3; i++) {
        bufs[i] = (struct act){mem_try_aligned((size_t)MAX_KIB << 10, 64), COLS, COLS, false};
        memset(bufs[i].data, 0, (size_t)MAX_KIB << 10);
    }
    meet(m);
    double t = now(&c);
    for (int i = 0; i < 200; i++)
        meet(m);
    t = (now(&c) - t) / 200;
    if (m->index == 0)
        b->meet = t;
    for (int i = 0; i < SIZES; i++) {
        int rows = kib[i] * 1024 / (int)sizeof(float) / COLS;
        double one = time_one(m, &c, bufs, rows, ONESHOT), two = time_one(m, &c, bufs, rows, TWOSHOT),
               all = time_one(m, &c, bufs, rows, ALL_TO_ALL);
        if (m->index > 0)
            continue;
        b->oneshot[i] = one;
        b->twoshot[i] = two;
        b->exchange[i] = all;
    }
    meet(m);
    for (int i = 0; i < 3; i++)
        mem_free(bufs[i].data);
}

static int bench_ranks(int n, struct err *e)
{
    struct bench b = {.ops = backend_cpu(), .n = n};
    struct member members[MOST];
    struct leaf_range windows[MOST];
    for (int i = 0; i < n; i++) {
        TRY(b.ops->open(&b.devices[i], &(struct device_opts){.n_threads = 1, .max_rows = 1, .max_logits = 1}, e));
        windows[i] = tree_share(n, n, i);
    }
    tree_order(&b.order, n, windows, n);
    TRY(b.ops->comm_open(&b.comm, n, e));
    for (int i = 0; i < n; i++) {
        members[i] = (struct member){&b, NULL, i};
        TRY(thread_start(&members[i].thread, "member", body, &members[i], e));
    }
    for (int i = 0; i < n; i++)
        thread_join(members[i].thread);
    printf("\n%d ranks, %d cores: a barrier takes %.1f us\n%10s %22s %22s %22s\n", n, thread_cores(), b.meet * 1e6,
           "KiB", "all-reduce, one shot", "all-reduce, two shots", "all-to-all");
    for (int i = 0; i < SIZES; i++) {
        double bytes = kib[i] * 1024.0;
        printf("%10d %9.1f us %5.2f GB/s %9.1f us %5.2f GB/s %9.1f us %5.2f GB/s\n", kib[i], b.oneshot[i] * 1e6,
               bytes / b.oneshot[i] * 1e-9, b.twoshot[i] * 1e6, bytes / b.twoshot[i] * 1e-9, b.exchange[i] * 1e6,
               bytes / b.exchange[i] * 1e-9);
    }
    for (int i = 0; i < n; i++)
        b.ops->close(b.devices[i]);
    b.ops->comm_close(b.comm);
    tree_order_free(&b.order);
    return 0;
}

/* ---- moves: one destination rank's part, on one thread */

enum { LAYERS = 16, TOKENS = 4096, KV_HEADS = 8, HEAD_DIM = 64, BLOCK = 16 };

struct store {
    struct kv_space space;
    int32_t blocks[TOKENS / BLOCK];
};

static int make_store(struct store *s, const struct backend_ops *ops, struct err *e)
{
    s->space = (struct kv_space){.block_bytes = ops->kv_block_bytes(DT_F16, BLOCK, KV_HEADS, HEAD_DIM),
                                 .n_blocks = TOKENS / BLOCK,
                                 .n_layers = LAYERS,
                                 .dtype = DT_F16};
    size_t bytes = s->space.block_bytes * (size_t)s->space.n_blocks * LAYERS;
    s->space.base = mem_try_aligned(bytes, 64);
    if (!s->space.base)
        return err_set(e, E_FULL, "no memory for %zu bytes of KV", bytes);
    memset(s->space.base, 1, bytes);
    for (int i = 0; i < s->space.n_blocks; i++)
        s->blocks[i] = (i * 37) % s->space.n_blocks; /* as a pool that has run for a while hands them out */
    return 0;
}

static int bench_move(int from_ranks, int to_ranks, struct err *e)
{
    const struct backend_ops *ops = backend_cpu();
    struct store from, to;
    struct device *d;
    struct clock c;
    double moves[ROUNDS], copies[ROUNDS];
    clock_init_real(&c);
    TRY(ops->open(&d, &(struct device_opts){.n_threads = 1, .max_rows = 1, .max_logits = 1}, e));
    TRY(make_store(&from, ops, e));
    TRY(make_store(&to, ops, e));
    int heads = KV_HEADS / (from_ranks > to_ranks ? from_ranks : to_ranks);
    struct kv_move m = {.from = {&from.space, from.blocks, BLOCK * from_ranks, 0, 0, false},
                        .to = {&to.space, to.blocks, BLOCK * to_ranks, 0, 0, false},
                        .n_layers = LAYERS,
                        .n_heads = heads,
                        .head_dim = HEAD_DIM,
                        .end_token = TOKENS};
    size_t bytes = (size_t)LAYERS * TOKENS * (size_t)heads * HEAD_DIM * 2 * 2;
    for (int i = 0; i < ROUNDS; i++) {
        double t = now(&c);
        ops->kv_move(d, &m);
        moves[i] = now(&c) - t;
        t = now(&c);
        memcpy(to.space.base, from.space.base, bytes);
        copies[i] = now(&c) - t;
    }
    double move = (double)bytes / median(moves, ROUNDS) * 1e-9, copy = (double)bytes / median(copies, ROUNDS) * 1e-9;
    printf("%3d -> %d %12d -> %-4d %8.1f MiB %10.2f GB/s %10.2f GB/s %8.2f\n", from_ranks, to_ranks, BLOCK * from_ranks,
           BLOCK * to_ranks, (double)bytes / 0x1p20, move, copy, move / copy);
    mem_free(from.space.base);
    mem_free(to.space.base);
    ops->close(d);
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    static const int widths[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 4}, {4, 1}, {2, 4}, {4, 2}, {1, 8}, {8, 1}};
    int rc = 0;
    log_setup(&(struct log_opts){.level = LOG_WARN});
    for (int i = 1; i < argc && !rc; i++) {
        int n = atoi(argv[i]);
        rc = n >= 2 && n <= MOST ? bench_ranks(n, &e) : err_set(&e, E_INPUT, "2 to %d ranks", MOST);
    }
    for (int n = 2; argc < 2 && n <= 8 && !rc; n *= 2)
        rc = bench_ranks(n, &e);
    printf("\n  ranks  tokens per block         moved            move         memcpy    ratio\n");
    for (size_t i = 0; i < sizeof widths / sizeof *widths && !rc; i++)
        rc = bench_move(widths[i][0], widths[i][1], &e);
    if (rc)
        fprintf(stderr, "comm_bench: %s\n", e.text);
    return rc ? 1 : 0;
}
