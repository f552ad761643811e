/* Speed of the CPU ops against what the machine can do: Gop/s of linear layers beside an in-run probe of int8 (or f32,
 * or pairs of bfloat16) multiply-adds by the widest instructions that the ops have, GB/s of their weights and of cached
 * keys and values beside an in-run probe of memory reads; GB/s at which matrices are loaded beside copying them. One
 * row a line; probes before every row.
 *
 * usage: kernels_bench [-t THREADS] [-i ISA] [-q TYPE] [-m ROWS] [-f] [-c] [linear|attention|load|all]
 *   -f  inputs of eight bits
 *   -c  count processor time instead of wall time: for one thread on a busy machine */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "kernels/backend.h"
#include "kernels/cpu/probe.h"

enum { REPEATS = 7, PROBE_MIB = 256 };

struct bench {
    const struct backend_ops *ops;
    struct device *device;
    struct pool *pool; /* of the probes */
    struct probe *probe;
    int n_threads, only_rows;
    const char *isa, *only_type;
    bool cpu_time, fast;
    struct rng rng;
    double int8_ops, f32_ops, pair_ops, bandwidth; /* probed, per second */
};

static double now(const struct bench *b)
{
    struct timespec t;
    clock_gettime(b->cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median of REPEATS timings of about 30 ms each, in seconds per call. */
static double measure(struct bench *b, void (*fn)(struct bench *, void *), void *ctx)
{
    double times[REPEATS], start = now(b);
    fn(b, ctx);
    double once = now(b) - start;
    int n = once > 0.03 ? 1 : (int)(0.03 / (once + 1e-7)) + 1;
    for (int r = 0; r < REPEATS; r++) {
        start = now(b);
        for (int i = 0; i < n; i++)
            fn(b, ctx);
        times[r] = (now(b) - start) / n;
    }
    qsort(times, REPEATS, sizeof *times, by_size);
    return times[REPEATS / 2];
}

/* ---- probes ---- */

static double best_rate(struct bench *b, enum probe_kind what, int runs)
{
    double best = 0;
    for (int r = 0; r < runs; r++) {
        double start = now(b), done = probe_run(b->probe, what), rate = done / (now(b) - start);
        best = rate > best ? rate : best;
    }
    return best;
}

static void run_probes(struct bench *b)
{
    b->int8_ops = best_rate(b, PROBE_INT8, 3);
    b->f32_ops = best_rate(b, PROBE_F32, 3);
    b->pair_ops = b->fast ? best_rate(b, PROBE_PAIRS, 3) : 0;
    b->bandwidth = best_rate(b, PROBE_READ, 1);
}

/* ---- linear ---- */

struct linear_case {
    struct weight **w;
    int copies, next, rows;
    struct linear_args args;
    struct batch batch;
};

static void linear_once(struct bench *b, void *ctx)
{
    struct linear_case *c = ctx;
    c->args.out[0].w.w = c->w[c->next];
    c->next = (c->next + 1) % c->copies;
    b->ops->begin(b->device, &c->batch, NULL, NULL);
    b->ops->linear(b->device, &c->args);
    b->ops->finish(b->device, NULL, NULL);
}

static float *random_row(struct bench *b, size_t n)
{
    float *p = mem_try_aligned(n * sizeof *p, 64);
    ASSERT(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(rng_unit(&b->rng) - 0.5);
    return p;
}

static void linear_row(struct bench *b, enum dtype t, int out, int in, int rows)
{
    static int32_t zeros[1024];
    const struct dtype_info *info = dtype_get(t);
    size_t stored = (size_t)out * dtype_row_bytes(t, in);
    struct linear_case c = {.rows = rows, .copies = rows <= 16 ? (int)(((size_t)256 << 20) / stored) + 1 : 2};
    uint8_t *data = mem_try(stored);
    ASSERT(data);
    for (size_t i = 0; i < stored; i++) /* small numbers of any type: no exponent bits */
        data[i] = (uint8_t)(rng_next(&b->rng) & (info->block == 1 ? 0x3b : 0x7b));
    c.w = mem_new_array((size_t)c.copies, sizeof *c.w);
    for (int i = 0; i < c.copies; i++) {
        struct weight_src src = {t, out, in, .data = data};
        ASSERT(b->ops->weight_load(b->device, &c.w[i], &src, NULL) == 0);
    }
    float *x = random_row(b, (size_t)rows * (size_t)in), *y = random_row(b, (size_t)rows * (size_t)out);
    c.batch = (struct batch){.n_rows = rows, .ids = zeros, .positions = zeros};
    c.args = (struct linear_args){.x = {x, in, in}, .rows = rows, .n_out = 1};
    c.args.out[0] = (struct linear_out){{c.w[0], 0, out, 0, in}, NULL, {y, out, out, false}};
    run_probes(b);
    double s = measure(b, linear_once, &c), ops = 2.0 * rows * out * in / s, bytes = (double)stored / s;
    bool pairs = b->pair_ops > 0 && (t == DT_F16 || t == DT_BF16);
    double floats = pairs && b->pair_ops > b->f32_ops ? b->pair_ops : b->f32_ops; /* by either */
    double peak = info->block == 1 ? floats : b->int8_ops;
    printf("%-5s %6d x %-5d rows %4d  %9.1f us  %7.1f Gop/s (%3.0f%% of %.0f)  %6.1f GB/s (%3.0f%% of %.1f)\n",
           info->name, out, in, rows, s * 1e6, ops * 1e-9, peak > 0 ? 100 * ops / peak : 0, peak * 1e-9, bytes * 1e-9,
           100 * bytes / b->bandwidth, b->bandwidth * 1e-9);
    fflush(stdout);
    for (int i = 0; i < c.copies; i++)
        b->ops->weight_free(b->device, c.w[i]);
    mem_free(c.w);
    mem_free(data);
    mem_free(x);
    mem_free(y);
}

static void linear_table(struct bench *b)
{
    static const int rows[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 512},
                     shapes[][2] = {{1536, 576}, {576, 1536}, {4096, 4096}};
    for (int t = 0; t < DT_MATRICES; t++)
        for (int s = 0; s < 3; s++)
            for (int r = 0; r < (b->only_rows ? 1 : (int)(sizeof rows / sizeof *rows)); r++) {
                bool wanted = !b->only_type || strcmp(b->only_type, dtype_get((enum dtype)t)->name) == 0;
                if (!wanted || shapes[s][1] % dtype_get((enum dtype)t)->block)
                    continue;
                linear_row(b, (enum dtype)t, shapes[s][0], shapes[s][1], b->only_rows ? b->only_rows : rows[r]);
            }
}

/* ---- attention ---- */

struct attention_case {
    struct batch batch;
    struct attention_args args;
};

static void attention_once(struct bench *b, void *ctx)
{
    struct attention_case *c = ctx;
    b->ops->begin(b->device, &c->batch, NULL, NULL);
    b->ops->attention(b->device, &c->args);
    b->ops->finish(b->device, NULL, NULL);
}

/* n_seqs sequences of `rows` new rows each, on top of `depth` cached positions; 9 query heads on 3 cached ones of 64.
 */
static void attention_row(struct bench *b, enum dtype t, int n_seqs, int depth, int rows)
{
    enum { HEADS = 9, KV = 3, DIM = 64, TOKENS = 16, MOST = 4096 / TOKENS };
    static const int kv_head[HEADS] = {0, 0, 0, 1, 1, 1, 2, 2, 2};
    static int32_t zeros[1024], blocks[32 * MOST];
    struct batch_seq seqs[32];
    int per_seq = (depth + rows + TOKENS - 1) / TOKENS, total = n_seqs * rows;
    struct kv_space space = {NULL, b->ops->kv_block_bytes(t, TOKENS, KV, DIM), per_seq * n_seqs, 1, t};
    space.base = b->ops->alloc(b->device, space.block_bytes * (size_t)space.n_blocks);
    ASSERT(space.base);
    for (int i = 0; i < space.n_blocks; i++)
        blocks[i] = i;
    for (int s = 0; s < n_seqs; s++)
        seqs[s] = (struct batch_seq){s * rows, rows, depth, blocks + s * per_seq, NULL};
    float *q = random_row(b, (size_t)total * HEADS * DIM), *out = random_row(b, (size_t)total * HEADS * DIM);
    struct kv_view view = {&space, 0, TOKENS, KV, DIM};
    struct attention_case c = {
        .batch = {.n_rows = total, .ids = zeros, .positions = zeros, .n_seqs = n_seqs, .seqs = seqs},
        .args = {{q, HEADS * DIM, HEADS * DIM}, {out, HEADS * DIM, HEADS * DIM}, HEADS, kv_head, view, 0.125f, 0}};
    run_probes(b);
    double s = measure(b, attention_once, &c), pairs = 0;
    for (int r = 0; r < rows; r++)
        pairs += depth + r + 1;
    double ops = 4.0 * pairs * n_seqs * HEADS * DIM / s, bytes = (double)space.block_bytes * space.n_blocks / s;
    printf("%-5s attention  %2d x %3d rows at %4d  %9.1f us  %7.1f Gop/s (%3.0f%% of %.0f)  %6.1f GB/s (%3.0f%% of "
           "%.1f)\n",
           dtype_get(t)->name, n_seqs, rows, depth, s * 1e6, ops * 1e-9, b->f32_ops > 0 ? 100 * ops / b->f32_ops : 0,
           b->f32_ops * 1e-9, bytes * 1e-9, 100 * bytes / b->bandwidth, b->bandwidth * 1e-9);
    fflush(stdout);
    b->ops->release(b->device, space.base);
    mem_free(q);
    mem_free(out);
}

static void attention_table(struct bench *b)
{
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32, DT_I8, DT_F8};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        attention_row(b, types[t], 1, 0, 512);
        attention_row(b, types[t], 1, 3584, 512);
        attention_row(b, types[t], 1, 128, 1);
        attention_row(b, types[t], 1, 1024, 1);
        attention_row(b, types[t], 16, 128, 1);
        attention_row(b, types[t], 16, 1024, 1);
    }
}

/* ---- loading matrices, as one thread does, into memory that was written before */

static void load_once(struct bench *b, void *ctx)
{
    struct weight *w;
    ASSERT(b->ops->weight_load(b->device, &w, ctx, NULL) == 0);
    b->ops->weight_free(b->device, w);
}

struct copy {
    void *to;
    const void *from;
    size_t bytes;
};

static void copy_once(struct bench *b, void *ctx)
{
    const struct copy *c = ctx;
    (void)b;
    memcpy(c->to, c->from, c->bytes);
    __asm__ volatile("" ::"r"(c->to) : "memory");
}

static void load_table(struct bench *b)
{
    enum { ROWS = 16384, COLS = 4096 };
    for (int t = 0; t < DT_MATRICES; t++) {
        struct weight_src src = {.type = (enum dtype)t, .rows = ROWS, .cols = COLS};
        double bytes = (double)dtype_row_bytes(src.type, COLS) * ROWS;
        if (b->only_type && strcmp(b->only_type, dtype_get(src.type)->name) != 0)
            continue;
        struct copy c = {mem_try_aligned((size_t)bytes, 64), mem_try_aligned((size_t)bytes, 64), (size_t)bytes};
        ASSERT(c.to && c.from);
        memset((void *)c.from, 0x3b, c.bytes);
        src.data = c.from;
        double load = bytes / measure(b, load_once, &src), copy = bytes / measure(b, copy_once, &c);
        printf("%-5s load  %6.2f GB/s  copy %6.2f GB/s  (%.2f of it)\n", dtype_get(src.type)->name, load * 1e-9,
               copy * 1e-9, load / copy);
        fflush(stdout);
        mem_free(c.to);
        mem_free((void *)c.from);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = backend_cpu(), .n_threads = thread_cores()};
    struct err e = {0};
    int c;
    while ((c = getopt(argc, argv, "t:i:q:m:cf")) != -1) {
        if (c == 't')
            b.n_threads = atoi(optarg);
        else if (c == 'i')
            b.isa = optarg;
        else if (c == 'q')
            b.only_type = optarg;
        else if (c == 'm')
            b.only_rows = atoi(optarg);
        else if (c == 'c')
            b.cpu_time = true;
        else if (c == 'f')
            b.fast = true;
        else
            return 2;
    }
    const char *what = optind < argc ? argv[optind] : "all";
    struct device_opts o = {.n_threads = b.n_threads,
                            .isa = b.isa,
                            .fast = b.fast,
                            .max_rows = 1024,
                            .max_logits = 1,
                            .keeps_memory = true};
    if (b.n_threads < 1 || b.ops->open(&b.device, &o, &e) || pool_open(&b.pool, b.n_threads, &e)) {
        fprintf(stderr, "%s\n", e.code ? e.text : "threads must be positive");
        return 1;
    }
    struct device_facts f;
    b.ops->facts(b.device, &f);
    const char *isa = !b.fast && strcmp(f.isa, "amx") == 0 ? "avx512" : f.isa; /* tiles are for fast inputs */
    ASSERT(probe_open(&b.probe, b.pool, isa, PROBE_MIB * b.n_threads, &e) == 0);
    printf("%s\n", f.name);
    bool all = strcmp(what, "all") == 0;
    if (all || strcmp(what, "linear") == 0)
        linear_table(&b);
    if (all || strcmp(what, "attention") == 0)
        attention_table(&b);
    if (all || strcmp(what, "load") == 0)
        load_table(&b);
    probe_close(b.probe);
    pool_close(b.pool);
    b.ops->close(b.device);
    return 0;
}
