/* What the tests of the CPU ops share: devices by instruction set, random matrices of every type, activations, float64
 * references. Tests only. */
#ifndef RIG_OP_FIXTURE_H
#define RIG_OP_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "kernels/backend.h"

static const struct backend_ops *ops;

static inline struct device *open_as(const char *isa, int n_threads, bool fast)
{
    struct device *d = NULL;
    struct err e = {0};
    struct device_opts o = {.n_threads = n_threads, .isa = isa, .fast = fast, .max_rows = 1024, .max_logits = 64};
    ops = backend_cpu();
    int rc = ops->open(&d, &o, &e);
    if (rc == E_UNSUPPORTED)
        return NULL; /* this machine has no such instructions */
    if (rc)
        fail_msg("%s", e.text);
    return d;
}

static inline struct device *open_device(const char *isa, int n_threads)
{
    return open_as(isa, n_threads, false);
}

/* Roughly normal, sd 1. */
static inline float gaussian(struct rng *r)
{
    double s = 0;
    for (int i = 0; i < 12; i++)
        s += rng_unit(r);
    return (float)(s - 6.0);
}

static inline float *random_floats(struct rng *r, size_t n, float scale)
{
    float *p = malloc(n * sizeof *p + 64);
    for (size_t i = 0; i < n; i++)
        p[i] = gaussian(r) * scale;
    return p;
}

static inline void random_f16(struct rng *r, uint8_t *p, float scale)
{
    uint16_t h = f32_to_f16(gaussian(r) * scale);
    memcpy(p, &h, 2);
}

/* A random matrix of any type in file format: random bits, scales near 1/columns. */
static inline struct weight_src random_matrix(struct rng *r, enum dtype t, int rows, int cols)
{
    const struct dtype_info *info = dtype_get(t);
    size_t bytes = (size_t)rows * dtype_row_bytes(t, cols);
    uint8_t *p = malloc(bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rng_next(r);
    if (info->block == 1) {
        for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++) {
            float x = gaussian(r) * 0.1f;
            uint16_t h = t == DT_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
            memcpy(p + i * (size_t)info->bytes, t == DT_F32 ? (void *)&x : (void *)&h, (size_t)info->bytes);
        }
    }
    for (size_t i = 0; i < bytes && t == DT_F8_SCALED; i++) /* no NaN among the codes */
        p[i] &= (p[i] & 0x7f) == 0x7f ? 0xfe : 0xff;
    for (size_t b = 0; info->block > 1 && b < bytes; b += (size_t)info->bytes) {
        if (t == DT_F8_SCALED) {
            float d = fabsf(gaussian(r)) * 0.0005f + 1e-5f;
            memcpy(p + b, &d, 4);
            continue;
        }
        if (t == DT_Q6_K || t == DT_Q3_K) {
            random_f16(r, p + b + info->bytes - 2, t == DT_Q6_K ? 0.0005f : 0.002f);
            continue;
        }
        if (t == DT_Q2_K) {
            random_f16(r, p + b + 80, 0.005f);
            random_f16(r, p + b + 82, 0.005f);
            continue;
        }
        bool k = t == DT_Q4_K || t == DT_Q5_K;
        random_f16(r, p + b, k ? 0.0005f : t == DT_IQ4_XS ? 0.0001f : t == DT_Q8_0 || t == DT_IQ4_NL ? 0.001f : 0.01f);
        if (k || t == DT_Q4_1 || t == DT_Q5_1)
            random_f16(r, p + b + 2, k ? 0.002f : 0.05f);
    }
    return (struct weight_src){.type = t, .rows = rows, .cols = cols, .data = p};
}

static inline float *dequantised(const struct weight_src *s)
{
    float *w = malloc((size_t)s->rows * (size_t)s->cols * sizeof *w);
    dtype_to_f32(s->type, s->data, w, (int64_t)s->rows * s->cols);
    return w;
}

static inline struct weight *load(struct device *d, const struct weight_src *s)
{
    struct weight *w = NULL;
    struct err e = {0};
    if (ops->weight_load(d, &w, s, &e))
        fail_msg("%s", e.text);
    return w;
}

static inline struct act act_of(float *p, int cols)
{
    return (struct act){p, cols, cols, false};
}

/* A step without sequences, for ops that only count rows. */
static inline void begin_rows(struct device *d, int rows, struct batch *b)
{
    static int32_t zeros[4096];
    memset(b, 0, sizeof *b);
    b->n_rows = rows;
    b->ids = b->positions = zeros;
    assert_int_equal(ops->begin(d, b, NULL, NULL), 0);
}

static inline void finish(struct device *d)
{
    struct err e = {0};
    struct step_time t;
    if (ops->finish(d, &t, &e))
        fail_msg("%s", e.text);
    assert_true(t.ns >= 0);
}

#endif
