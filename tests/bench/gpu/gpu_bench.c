/* Single operations of the CUDA backend on the first GPU, timed by its own events inside a step: linear layers in the shapes of Llama-3.1-8B by
 * type and rows, attention by batch and context. Ratios are to a copy of device memory measured in the same run. Random data. Prints a table;
 * asserts nothing about time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/backend.h"

enum { ROWS = 2048, REPEATS = 5, COPY_MIB = 2048 };

struct bench {
    const struct backend_ops *ops;
    struct device *d;
    double copy_gbs;
    void *x, *y;            /* activations, ROWS x 16384 f32 each */
};

static void check(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "gpu_bench: %s\n", e && e->text[0] ? e->text : "a CUDA call failed");
    exit(1);
}

/* Read and written bytes a second of a copy on the device, the best of some. */
static double copy_rate(void)
{
    char *p = NULL;
    cudaEvent_t a, b;
    size_t bytes = (size_t)COPY_MIB << 20;
    float best = 1e9f, ms;
    check(cudaMalloc((void **)&p, 2 * bytes) || cudaEventCreate(&a) || cudaEventCreate(&b), NULL);
    for (int i = 0; i < 10; i++) {
        check(cudaEventRecord(a, 0) || cudaMemcpyAsync(p + bytes, p, bytes, cudaMemcpyDeviceToDevice, 0) || cudaEventRecord(b, 0) ||
                  cudaEventSynchronize(b) || cudaEventElapsedTime(&ms, a, b), NULL);
        best = ms < best ? ms : best;
    }
    cudaFree(p);
    return 2 * (double)bytes / ((double)best * 1e6);
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

/* Bits of any type whose scales are small and finite: f16 and bf16 near 0.01, quantised blocks by their 16-bit fields at the front or the end. */
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
        if (info->block == 1) {
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

static double step_us(const struct bench *b, const struct batch *batch, void (*op)(const struct bench *, void *), void *ctx, int n)
{
    double best = 1e18;
    struct err e = {0};
    for (int i = 0; i < REPEATS; i++) {
        struct step_time t;
        check(b->ops->begin(b->d, batch, NULL, &e), &e);
        for (int k = 0; k < n; k++)
            op(b, ctx);
        check(b->ops->finish(b->d, &t, &e), &e);
        best = (double)t.ns / n < best && i ? (double)t.ns / n : best; /* the first warms up */
    }
    return best / 1e3;
}

static void run_linear(const struct bench *b, void *ctx)
{
    b->ops->linear(b->d, ctx);
}

static void bench_linear(const struct bench *b, enum dtype t, int rows_out, int cols)
{
    static const int rows[] = {1, 4, 8, 16, 32, 64, 256, 2048};
    struct err e = {0};
    struct weight *w = NULL;
    struct weight_src src = {t, rows_out, cols, random_weights(t, rows_out, cols)};
    if (!src.data)
        return;
    check(b->ops->weight_load(b->d, &w, &src, &e), &e);
    mem_free((void *)src.data);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        static int32_t zeros[ROWS];
        struct batch batch = {.n_rows = rows[i], .ids = zeros, .positions = zeros};
        struct linear_args a = {.in = LINEAR_PLAIN, .x = {b->x, cols, cols}, .rows = rows[i], .n_out = 1,
                                .out = {{{w, 0, rows_out, 0, cols}, NULL, {b->y, rows_out, rows_out}}}};
        double us = step_us(b, &batch, run_linear, &a, 20), bytes = (double)b->ops->weight_bytes(w);
        double flops = 2.0 * rows[i] * rows_out * cols;
        printf("linear %-5s %6d x %5d rows %4d  %9.1f us  %7.0f GB/s (%.2f of copy)  %7.1f TFLOPS\n", dtype_get(t)->name, rows_out, cols, rows[i], us,
               bytes / us / 1e3, bytes / us / 1e3 / b->copy_gbs, flops / us / 1e6);
    }
    b->ops->weight_free(b->d, w);
}

struct attention_bench {
    struct attention_args a;
};

static void run_attention(const struct bench *b, void *ctx)
{
    b->ops->attention(b->d, &((struct attention_bench *)ctx)->a);
}

/* n sequences of `rows` new rows each at context `length`, 32 query and 8 kv heads of 128. */
static void bench_attention(const struct bench *b, int n, int rows, int length)
{
    enum { Q = 32, KV = 8, DIM = 128, TOKENS = 16 };
    int each = (length + TOKENS - 1) / TOKENS, total = each * n, kv_head[Q];
    size_t block = b->ops->kv_block_bytes(DT_BF16, TOKENS, KV, DIM);
    struct kv_space space = {b->ops->alloc(b->d, block * (size_t)total), block, total, 1, DT_BF16};
    struct batch_seq *seqs = mem_new_array((size_t)n, sizeof *seqs);
    int32_t *blocks = mem_new_array((size_t)total, sizeof *blocks), *zeros = mem_new_array((size_t)(n * rows), sizeof *zeros);
    if (space.base) {
        for (int i = 0; i < total; i++)
            blocks[i] = (int32_t)(((int64_t)i * 7919) % total);
        for (int i = 0; i < n; i++)
            seqs[i] = (struct batch_seq){i * rows, rows, length - rows, blocks + i * each};
        for (int h = 0; h < Q; h++)
            kv_head[h] = h * KV / Q;
        struct batch batch = {.n_rows = n * rows, .ids = zeros, .positions = zeros, .n_seqs = n, .seqs = seqs};
        struct attention_bench c = {{.q = {b->x, Q * DIM, Q * DIM}, .out = {b->y, Q * DIM, Q * DIM}, .n_heads = Q, .kv_head = kv_head,
                                     .kv = {&space, 0, TOKENS, KV, DIM}, .scale = 0.088f}};
        double us = step_us(b, &batch, run_attention, &c, 10), bytes = (double)n * length * KV * DIM * 2 * 2;
        double flops = 4.0 * n * Q * DIM * ((double)rows * (length - rows) + (double)rows * (rows + 1) / 2);
        printf("attention %3d seqs x %4d rows at %5d  %9.1f us  %7.0f GB/s (%.2f of copy)  %7.1f TFLOPS\n", n, rows, length, us, bytes / us / 1e3,
               bytes / us / 1e3 / b->copy_gbs, flops / us / 1e6);
        b->ops->release(b->d, space.base);
    }
    mem_free(seqs), mem_free(blocks), mem_free(zeros);
}

int main(void)
{
    static const struct {
        int rows, cols;
    } shapes[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}};
    static const enum dtype types[] = {DT_BF16, DT_Q8_0, DT_Q4_K, DT_Q6_K};
    struct err e = {0};
    struct device_facts f;
    struct bench b = {.ops = backend_cuda()};
    size_t act = (size_t)ROWS * 16384;
    if (b.ops->n_devices() == 0) {
        printf("no GPU here: nothing was measured\n");
        return 0;
    }
    check(b.ops->open(&b.d, &(struct device_opts){.max_rows = ROWS, .max_logits = 64}, &e), &e);
    b.ops->facts(b.d, &f);
    b.copy_gbs = copy_rate();
    printf("%s; copy of device memory %.0f GB/s, read and write\n", f.name, b.copy_gbs);
    float *host = mem_new_array(act, sizeof *host);
    for (size_t i = 0; i < act; i++)
        host[i] = (float)((double)(rng_at(3, i) >> 11) * 0x1p-53 * 4 - 2);
    b.x = b.ops->alloc(b.d, act * sizeof(float));
    b.y = b.ops->alloc(b.d, 128256ull * ROWS * sizeof(float));
    if (!b.x || !b.y)
        check(E_FULL, NULL);
    check(b.ops->upload(b.d, b.x, host, act * sizeof(float)), NULL);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            bench_linear(&b, types[t], shapes[s].rows, shapes[s].cols);
    bench_attention(&b, 1, 1, 1024), bench_attention(&b, 1, 1, 8192), bench_attention(&b, 1, 1, 32768);
    bench_attention(&b, 32, 1, 4096), bench_attention(&b, 64, 1, 4096), bench_attention(&b, 128, 1, 2048);
    bench_attention(&b, 1, 1024, 1024), bench_attention(&b, 1, 2048, 4096), bench_attention(&b, 1, 2048, 16384);
    mem_free(host);
    b.ops->close(b.d);
    return 0;
}
