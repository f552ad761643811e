/* Single operations of the CUDA backend on the first GPU, timed by its own events inside a step: linear layers in the
 * shapes of Llama-3.1-8B by type (of fp8: by the form of its scales) and rows, attention by batch and context (prompts
 * also by the kernel for all devices, where this one has its own). Random data; weights in turn from as many copies as
 * no cache holds. Ratios are to what the same run measures (probe.h): reading device memory, the library's best product
 * of the same shape. Prints a table and the goals G5, G6, G7 and G9; asserts nothing about time. usage: gpu_bench
 * [--seconds S] [--dry]   (dry: small sizes, for the emulator) */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/backend.h"
#include "tests/bench/gpu/probe.h"

enum { LONG_ROWS = 16384, REPEATS = 6, MOST_COPIES = 32, X_BYTES = 1 << 29, LOGITS_BYTES = 1 << 30 };

/* What the goals are about; the worst of all that count. 0: not measured. */
struct verdicts {
    double attention, attention_alone, large, large_f8, skinny, slim, prefill, prefill_times;
};

struct bench {
    const struct backend_ops *ops;
    struct device *d,
        *plain; /* plain: the same without kernels of its compute capability alone; NULL: there are none */
    struct probe probe;
    struct clock clock;
    double read_gbs, deadline;
    void *x, *y; /* activations: X_BYTES of noise, room for what is computed */
    bool dry;
    struct verdicts v;
};

static bool time_is_over(const struct bench *b)
{
    return (double)clock_now(&b->clock) * 1e-9 > b->deadline;
}

static void worst(double *of, double ratio)
{
    if (ratio > 0 && (*of == 0 || ratio < *of))
        *of = ratio;
}

static void check(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "gpu_bench: %s\n", e && e->text[0] ? e->text : "a CUDA call failed");
    exit(1);
}

static void fill(void *p, size_t bytes, uint64_t seed)
{
    struct rng r;
    rng_init(&r, seed);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = rng_next(&r);
        memcpy((char *)p + i, &v, 8);
    }
}

/* Bits of any type whose scales are small and finite: f16 and bf16 near 0.01, quantised blocks by their 16-bit fields
 * at the front or the end. */
static void *random_weights(enum dtype t, int rows, int cols)
{
    const struct dtype_info *info = dtype_get(t);
    size_t bytes = (size_t)rows * dtype_row_bytes(t, cols), unit = (size_t)info->bytes;
    uint8_t *p = mem_try_aligned(bytes + 8, 64);
    uint16_t scale = f32_to_f16(0.002f);
    if (!p)
        return NULL;
    fill(p, bytes, 7);
    for (size_t i = 0; i < bytes; i += unit) {
        if (t == DT_F8_SCALED) { /* the same for all: any form of scales */
            const float d = 0.002f;
            memcpy(p + i, &d, sizeof d);
            for (size_t k = sizeof d; k < unit; k++)
                p[i + k] &= 0xbf;
        } else if (info->block == 1) {
            uint16_t h = (uint16_t)((p[i] | p[i + 1] << 8) & 0x80ff) | (t == DT_BF16 ? 0x3c00 : 0x2000);
            memcpy(p + i, &h, 2);
        } else {
            memcpy(p + i + (t == DT_Q6_K ? unit - 2 : 0), &scale, 2);
            if (t == DT_Q4_K || t == DT_Q5_K || t == DT_Q4_1 || t == DT_Q5_1)
                memcpy(p + i + 2, &scale, 2);
        }
    }
    return p;
}

static double step_us(const struct bench *b, const struct batch *batch, void (*op)(const struct bench *, void *),
                      void *ctx, int n)
{
    double took[REPEATS];
    struct err e = {0};
    for (int i = -1; i < REPEATS; i++) { /* the first warms up */
        struct step_time t;
        check(b->ops->begin(b->d, batch, NULL, &e), &e);
        for (int k = 0; k < n; k++)
            op(b, ctx);
        check(b->ops->finish(b->d, &t, &e), &e);
        if (i >= 0)
            took[i] = (double)t.ns / n * 1e-3;
    }
    return median(took, REPEATS);
}

/* A product with the same shape of weights from another place each time. */
struct linear_bench {
    struct linear_args a;
    struct weight *copies[MOST_COPIES];
    int n_copies, next;
};

static void run_linear(const struct bench *b, void *ctx)
{
    struct linear_bench *l = ctx;
    l->a.out[0].w.w = l->copies[l->next++ % l->n_copies];
    b->ops->linear(b->d, &l->a);
}

static bool load_copies(const struct bench *b, struct linear_bench *l, const struct weight_src *src)
{
    struct err e = {0};
    size_t each = (size_t)src->rows * dtype_row_bytes(src->type, src->cols),
           past_caches = b->dry ? 1 : (size_t)320 << 20;
    for (l->n_copies = 0; l->n_copies < MOST_COPIES && (l->n_copies == 0 || (size_t)l->n_copies * each < past_caches);
         l->n_copies++)
        check(b->ops->weight_load(b->d, &l->copies[l->n_copies], src, &e), &e);
    return l->n_copies > 0;
}

/* The same by the library: factors as they are stored there. */
static double library_us(struct bench *b, const struct weight_src *src, int rows)
{
    bool f8 = src->type == DT_F8_SCALED;
    if (src->type != DT_BF16 && !(f8 && rows >= 64))
        return 0;
    enum probe_factors of = !f8 ? PROBE_BF16 : src->scales == F8_BY_ROW ? PROBE_F8_ROWS : PROBE_F8_BLOCKS;
    return probe_product(&b->probe, &(struct probe_product){rows, src->rows, src->cols, of}) * 1e6;
}

static const char *name_of(const struct weight_src *src)
{
    return src->type != DT_F8_SCALED ? dtype_get(src->type)->name : src->scales == F8_BY_ROW ? "F8row" : "F8blk";
}

/* rows: how many; the goals are about bf16 and fp8 without the vocabulary's table. */
static void time_linear(struct bench *b, struct linear_bench *l, const struct weight_src *src, int rows)
{
    int32_t *zeros = mem_new_array((size_t)rows, sizeof *zeros);
    struct batch batch = {.n_rows = rows, .ids = zeros, .positions = zeros};
    l->a = (struct linear_args){.in = LINEAR_PLAIN,
                                .x = {b->x, src->cols, src->cols},
                                .rows = rows,
                                .n_out = 1,
                                .out = {{{NULL, 0, src->rows, 0, src->cols}, NULL, {b->y, src->rows, src->rows}}}};
    double us = step_us(b, &batch, run_linear, l,
                        b->dry       ? 2
                        : rows > 256 ? 5
                                     : 20),
           bytes = (double)b->ops->weight_bytes(l->copies[0]);
    double flops = 2.0 * rows * src->rows * src->cols, library = library_us(b, src, rows), times;
    times = us > 0 ? library / us : 0;
    printf("linear %-5s %6d x %5d rows %4d  %9.1f us  %7.0f GB/s (%.2f of reading)  %7.1f TFLOPS", name_of(src),
           src->rows, src->cols, rows, us, bytes / us / 1e3, bytes / us / 1e3 / b->read_gbs, flops / us / 1e6);
    printf(library > 0 ? "  %.2f x cuBLASLt (%.1f us)\n" : "\n", times, library);
    if (src->rows < 100000 && rows <= 16)
        worst(&b->v.skinny, times);
    if (src->type == DT_BF16 && src->rows < 100000 && rows > 16 && rows <= 64)
        worst(&b->v.slim, times);
    if (src->rows < 100000 && rows >= 512)
        worst(src->type == DT_BF16 ? &b->v.large : &b->v.large_f8, times);
    mem_free(zeros);
}

static void bench_linear(struct bench *b, const struct weight_src *kind, int rows_out, int cols)
{
    static const int rows[] = {1, 16, 2048, 4, 8, 32, 64, 256, 512, 8192};
    struct linear_bench l = {.n_copies = 0};
    struct weight_src src = {kind->type, rows_out, cols, .data = random_weights(kind->type, rows_out, cols),
                             .scales = kind->scales};
    if (!src.data)
        return;
    load_copies(b, &l, &src);
    mem_free((void *)src.data);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && !time_is_over(b); i++)
        if ((size_t)rows[i] * (size_t)rows_out * sizeof(float) <= LOGITS_BYTES && (!b->dry || rows[i] <= 64))
            time_linear(b, &l, &src, rows[i]);
    for (int i = 0; i < l.n_copies; i++)
        b->ops->weight_free(b->d, l.copies[i]);
}

struct attention_bench {
    struct attention_args a;
};

static void run_attention(const struct bench *b, void *ctx)
{
    b->ops->attention(b->d, &((struct attention_bench *)ctx)->a);
}

/* n sequences of `rows` new rows each at context `length`, 32 query and 8 kv heads of 128. */
struct attention_case {
    int n, rows, length;
    enum { OF_NOTHING, OF_DECODE, OF_LONE_DECODE, OF_PREFILL } goal;
};

enum { Q = 32, KV = 8, DIM = 128, TOKENS = 16 };

static void time_attention(struct bench *b, const struct attention_case *k, struct kv_space *space)
{
    int each = (k->length + TOKENS - 1) / TOKENS, total = each * k->n, kv_head[Q];
    struct batch_seq *seqs = mem_new_array((size_t)k->n, sizeof *seqs);
    int32_t *blocks = mem_new_array((size_t)total, sizeof *blocks),
            *zeros = mem_new_array((size_t)(k->n * k->rows), sizeof *zeros);
    for (int i = 0; i < total; i++)
        blocks[i] = (int32_t)(((int64_t)i * 7919) % total);
    for (int i = 0; i < k->n; i++)
        seqs[i] = (struct batch_seq){i * k->rows, k->rows, k->length - k->rows, blocks + i * each, NULL};
    for (int h = 0; h < Q; h++)
        kv_head[h] = h * KV / Q;
    struct batch batch = {.n_rows = k->n * k->rows, .ids = zeros, .positions = zeros, .n_seqs = k->n, .seqs = seqs};
    struct attention_bench c = {{.q = {b->x, Q * DIM, Q * DIM},
                                 .out = {b->y, Q * DIM, Q * DIM},
                                 .n_heads = Q,
                                 .kv_head = kv_head,
                                 .kv = {space, 0, TOKENS, KV, DIM},
                                 .scale = 0.088f}};
    struct bench with_plain = *b;
    with_plain.d = b->plain;
    double us = step_us(b, &batch, run_attention, &c, b->dry ? 1 : 10),
           bytes = (double)k->n * k->length * KV * DIM * 2 * 2;
    double flops =
        4.0 * k->n * Q * DIM * ((double)k->rows * (k->length - k->rows) + (double)k->rows * (k->rows + 1) / 2);
    double of_read = bytes / us / 1e3 / b->read_gbs;
    printf("attention %3d seqs x %5d rows at %5d  %9.1f us  %7.0f GB/s (%.2f of reading)  %7.1f TFLOPS\n", k->n,
           k->rows, k->length, us, bytes / us / 1e3, of_read, flops / us / 1e6);
    if (k->rows > 1 && b->plain) {
        double plain = step_us(&with_plain, &batch, run_attention, &c, b->dry ? 1 : 10);
        printf("   by the kernel for all devices  %21.1f us  %60.1f TFLOPS  (%.2f times the time)\n", plain,
               flops / plain / 1e6, plain / us);
        worst(&b->v.prefill_times, plain / us);
    }
    if (k->goal == OF_DECODE)
        worst(&b->v.attention, of_read);
    if (k->goal == OF_LONE_DECODE)
        worst(&b->v.attention_alone, of_read);
    if (k->goal == OF_PREFILL)
        worst(&b->v.prefill, flops / us / 1e6 / 989);
    mem_free(seqs), mem_free(blocks), mem_free(zeros);
}

static void bench_attention(struct bench *b, struct attention_case k)
{
    if (b->dry)
        k.n = k.n < 3 ? k.n : 3, k.length = k.length > 64 ? 64 : k.length, k.rows = k.rows > 1 ? 40 : 1;
    int total = (k.length + TOKENS - 1) / TOKENS * k.n;
    size_t block = b->ops->kv_block_bytes(DT_BF16, TOKENS, KV, DIM);
    struct kv_space space = {b->ops->alloc(b->d, block * (size_t)total), block, total, 1, DT_BF16};
    if (!space.base || time_is_over(b)) {
        printf("attention %d seqs at %d: not run, %s\n", k.n, k.length, space.base ? "the time is over" : "no room");
    } else {
        probe_check(launch_noise(b->probe.stream, space.base, block * (size_t)total / 16, 3), "noise");
        probe_check(cudaStreamSynchronize(b->probe.stream), "noise");
        time_attention(b, &k, &space);
    }
    if (space.base)
        b->ops->release(b->d, space.base);
}

/* ---- */

static void goal(const struct bench *b, const char *name, double value, double wanted, const char *what)
{
    if (value > 0)
        printf("%s %.2f (goal %.2f) %s%s\n", name, value, wanted, what, b->dry ? " [dry run: means nothing]" : "");
    else
        printf("%s not measured: %s\n", name, what);
}

static void bench_all(struct bench *b)
{
    static const struct attention_case attention[] = {
        {64, 1, 4096, OF_DECODE},    {1, 1, 32768, OF_LONE_DECODE}, {1, LONG_ROWS, LONG_ROWS, OF_PREFILL},
        {128, 1, 2048, OF_DECODE},   {1, 1, 1024, OF_NOTHING},      {1, 1, 8192, OF_NOTHING},
        {32, 1, 4096, OF_NOTHING},   {1, 1024, 1024, OF_NOTHING},   {1, 2048, 4096, OF_NOTHING},
        {1, 2048, 16384, OF_NOTHING}};
    static const struct {
        int rows, cols;
    } shapes[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}};
    static const struct weight_src kinds[] = {{.type = DT_BF16},
                                              {.type = DT_F8_SCALED, .scales = F8_BY_ROW},
                                              {.type = DT_F8_SCALED, .scales = F8_BY_BLOCK},
                                              {.type = DT_Q8_0},
                                              {.type = DT_Q4_K},
                                              {.type = DT_Q6_K}};
    int shrink = b->dry ? 16 : 1;
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++)
        bench_attention(b, attention[i]);
    for (size_t t = 0; t < sizeof kinds / sizeof *kinds; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes && !time_is_over(b); s++)
            if (!b->dry || s == 0)
                bench_linear(b, &kinds[t], shapes[s].rows / shrink, shapes[s].cols / shrink);
    if (time_is_over(b))
        printf("the time is over: some were not run\n");
    goal(b, "G5", b->v.attention, 0.90, "decode attention with 1 GB of cache, of the reading probe");
    goal(b, "G5b", b->v.attention_alone, 0.60, "decode attention, one sequence at 32k, of the reading probe");
    goal(b, "G6", b->v.large, 0.95, "products of 512 rows and more, bf16, of cuBLASLt's best; the worst of all shapes");
    goal(b, "G6b", b->v.large_f8, 0.95,
         "the same of fp8, both forms of scales, inputs rounded on the way; the library's best is of inputs that are "
         "fp8 already");
    goal(b, "G7", b->v.skinny, 1.15, "products of 1 to 16 rows, bf16, times cuBLASLt's best; the worst of all shapes");
    goal(b, "G7b", b->v.slim, 1.0,
         "products of 17 to 64 rows, bf16, inputs in f32, times cuBLASLt's best; the worst of all shapes");
    goal(b, "G9", b->v.prefill, 0.60, "causal attention over 16384 tokens, heads of 128, bf16, of 989 TFLOPS");
    goal(b, "G9b", b->v.prefill_times, 1.00,
         "attention of prompts, times the kernel for all devices; the worst of all cases");
}

static void *take(struct bench *b, size_t bytes)
{
    void *p = b->ops->alloc(b->d, b->dry ? bytes >> 6 : bytes);
    struct err e = {E_FULL, "no memory on the GPU"};
    check(p ? 0 : E_FULL, &e);
    return p;
}

/* Activations between -2 and 2. */
static void fill_inputs(struct bench *b)
{
    size_t n = ((size_t)X_BYTES >> (b->dry ? 6 : 0)) / sizeof(float), first = n < 1 << 22 ? n : 1 << 22;
    float *host = mem_new_array(first, sizeof *host);
    struct err e = {E_DEVICE, "the device refused the inputs"};
    for (size_t i = 0; i < first; i++)
        host[i] = (float)((double)(rng_at(3, i) >> 11) * 0x1p-53 * 4 - 2);
    for (size_t done = 0; done < n; done += first)
        check(b->ops->upload(b->d, (float *)b->x + done, host, (n - done < first ? n - done : first) * sizeof(float)),
              &e);
    mem_free(host);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct device_facts f;
    struct bench b = {.ops = backend_cuda()};
    double budget = 150;
    for (int i = 1; i < argc; i++) {
        b.dry = b.dry || !strcmp(argv[i], "--dry");
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            budget = atof(argv[++i]);
    }
    if (b.ops->n_devices() == 0) {
        printf("no GPU here: nothing was measured\n");
        return 0;
    }
    clock_init_real(&b.clock);
    b.deadline = (double)clock_now(&b.clock) * 1e-9 + budget;
    check(b.ops->open(&b.d, &(struct device_opts){.max_rows = LONG_ROWS, .max_logits = 64}, &e), &e);
    b.ops->facts(b.d, &f);
    if (!strcmp(f.isa, "sm_90"))
        check(b.ops->open(&b.plain,
                          &(struct device_opts){.max_rows = LONG_ROWS, .max_logits = 64, .plain_kernels = true}, &e),
              &e);
    probe_open(&b.probe, b.dry);
    b.read_gbs = probe_read(&b.probe);
    printf("%s%s; copy of device memory %.0f GB/s, read and write; reading alone %.0f GB/s\n", f.name,
           b.dry ? " (dry run: sizes are small, times mean nothing)" : "", probe_copy(&b.probe), b.read_gbs);
    b.x = take(&b, X_BYTES);
    b.y = take(&b, LOGITS_BYTES);
    fill_inputs(&b);
    bench_all(&b);
    b.ops->release(b.d, b.x);
    b.ops->release(b.d, b.y);
    probe_close(&b.probe);
    if (b.plain)
        b.ops->close(b.plain);
    b.ops->close(b.d);
    return 0;
}
