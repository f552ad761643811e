/* Linear layers with fp8 weights for tests: matrices whose scales have each of the forms found in files, and their
 * input both as a twin of kernels/cuda/f8.cu rounds it and unrounded. Owned by the test, one thread. Invariant: no
 * code is NaN. */
#ifndef RIG_F8_RIG_H
#define RIG_F8_RIG_H

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/backend.h"
#include "kernels/cuda/job.h"
#include "kernels/cuda/lt.h"

enum f8_form { BY_TENSOR, BY_ROW, BY_BLOCK, BY_64 };

struct f8_case {
    enum f8_form by;
    enum linear_in in;
    int rows, outs[F8_OUTS], n_out, row0;
    int cols, col0, of_cols; /* the window, the matrix */
    bool bias, accumulate;
};

struct f8_data {
    float *x, *x2, *gain; /* [rows][ldx] */
    int ldx, ldy[F8_OUTS], of_rows[F8_OUTS];
    uint8_t *raw[F8_OUTS]; /* rows of DT_F8_SCALED */
    float *wide[F8_OUTS], *bias[F8_OUTS], *before[F8_OUTS];
};

/* About normal: the sum of twelve. */
static inline float normal(struct rng *r)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += rng_unit(r);
    return (float)s;
}

/* n values with one scale, which is returned: the operations of the kernel. */
static inline float twin_codes(const float *x, int n, uint8_t *codes)
{
    float m = 0;
    for (int i = 0; i < n; i++)
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    float scale = m / 448.0f > 0x1p-100f ? m / 448.0f : 0x1p-100f, inverse = 1.0f / scale;
    for (int i = 0; i < n; i++)
        codes[i] = f32_to_f8(x[i] * inverse);
    return scale;
}

struct exact_input {
    enum linear_in in;
    const float *x, *x2, *gain;
    double eps;
};

/* A row of the input, as it would be without rounding. */
static inline void exact_row(double *to, const struct exact_input *in, int cols)
{
    double sum = 0;
    for (int k = 0; k < cols; k++)
        sum += (double)in->x[k] * (double)in->x[k];
    for (int k = 0; k < cols; k++) {
        double x = (double)in->x[k];
        to[k] = in->in == LINEAR_NORM     ? x / sqrt(sum / cols + in->eps) * (double)in->gain[k]
                : in->in == LINEAR_SWIGLU ? x / (1 + exp(-x)) * (double)in->x2[k]
                                          : x;
    }
}

/* Row `row` of a case's input: exact, and with fp8's rounding. */
static inline void f8_case_row(const struct f8_data *d, const struct f8_case *c, int row, double *exact,
                               double *rounded)
{
    float *made = mem_new_array((size_t)c->cols, sizeof *made);
    uint8_t *codes = mem_new_array((size_t)c->cols, 1);
    int each = c->by == BY_BLOCK ? F8_GROUP : c->cols;
    exact_row(exact, &(struct exact_input){c->in, d->x + row * d->ldx, d->x2 + row * d->ldx, d->gain, 1e-5}, c->cols);
    for (int k = 0; k < c->cols; k++)
        made[k] = (float)exact[k];
    for (int first = 0; first < c->cols; first += each) {
        int n = c->cols - first < each ? c->cols - first : each;
        float scale = twin_codes(made + first, n, codes);
        for (int k = 0; k < n; k++)
            rounded[first + k] = (double)scale * (double)f8_to_f32(codes[k]);
    }
    mem_free(made);
    mem_free(codes);
}

static inline float *f8_noise(struct rng *r, size_t n, float size)
{
    float *p = mem_new_array(n, sizeof *p);
    for (size_t i = 0; i < n; i++)
        p[i] = normal(r) * size;
    return p;
}

/* Scales far apart from each other: one taken for its neighbour shows. */
static inline float f8_scale(enum f8_form by, int row, int col)
{
    int at = by == BY_TENSOR ? 3 : by == BY_ROW ? row : by == BY_BLOCK ? row / 128 * 5 + col / 128 : row * 7 + col / 64;
    return 0.001f * (1 + (float)(at % 11));
}

/* Columns of sizes that differ, too: a scale for a row is not one for its groups. */
static inline void f8_matrix(uint8_t *raw, float *wide, enum f8_form by, const int size[2], struct rng *r)
{
    size_t row_bytes = dtype_row_bytes(DT_F8_SCALED, size[1]);
    for (int row = 0; row < size[0]; row++) {
        uint8_t *to = raw + (size_t)row * row_bytes;
        for (int col = 0; col < size[1]; col += 64, to += 68) {
            float d = f8_scale(by, row, col);
            memcpy(to, &d, 4);
            for (int i = 0; i < 64; i++)
                to[4 + i] = f32_to_f8(normal(r) * 12);
        }
        dtype_to_f32(DT_F8_SCALED, raw + (size_t)row * row_bytes, wide + (size_t)row * (size_t)size[1], size[1]);
    }
}

static inline void f8_case_make(struct f8_data *d, const struct f8_case *c, uint64_t seed)
{
    struct rng r;
    rng_init(&r, seed);
    *d = (struct f8_data){.ldx = (c->cols + 15) / 16 * 16 + 16};
    d->x = f8_noise(&r, (size_t)(c->rows * d->ldx), 1);
    d->x2 = f8_noise(&r, (size_t)(c->rows * d->ldx), 1);
    d->gain = f8_noise(&r, (size_t)c->cols, 1);
    for (int i = 0; i < c->rows * d->ldx; i++)
        d->x[i] *= 1 + (float)(i % d->ldx / 128) * 0.7f;
    for (int i = 0; i < c->n_out; i++) {
        const int size[2] = {c->row0 + c->outs[i] + 3, c->of_cols};
        d->of_rows[i] = size[0];
        d->ldy[i] = (c->outs[i] + 15) / 16 * 16 + 16;
        d->raw[i] = mem_new((size_t)size[0] * dtype_row_bytes(DT_F8_SCALED, size[1]));
        d->wide[i] = mem_new_array((size_t)size[0] * (size_t)size[1], sizeof(float));
        f8_matrix(d->raw[i], d->wide[i], c->by, size, &r);
        d->bias[i] = f8_noise(&r, (size_t)c->outs[i], 1);
        d->before[i] = f8_noise(&r, (size_t)(c->rows * d->ldy[i]), 1);
    }
}

static inline void f8_case_free(struct f8_data *d, const struct f8_case *c)
{
    mem_free(d->x), mem_free(d->x2), mem_free(d->gain);
    for (int i = 0; i < c->n_out; i++)
        mem_free(d->raw[i]), mem_free(d->wide[i]), mem_free(d->bias[i]), mem_free(d->before[i]);
}

#endif
