/* The default mode's matrix kernels: products of a few rows of every family, the making of bf16 inputs, widening of
 * weights; against float64 over the same rounded inputs, so that only the order of the sums is left to differ. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/fast.h"
#include "models/load/quantize.h"
#include "tests/rig/unified.h"

static const struct {
    enum dtype type;
    enum family family;
    int q, h, s, d; /* bytes of each plane for 32 columns; d: for 256 */
} kinds[] = {
    {DT_F16, FAM_F16, 0, 0, 0, 0},   {DT_BF16, FAM_BF16, 0, 0, 0, 0},     {DT_Q4_0, FAM_U4, 16, 0, 2, 0},
    {DT_Q4_1, FAM_U4M, 16, 0, 4, 0}, {DT_Q5_0, FAM_U5, 16, 4, 2, 0},      {DT_Q5_1, FAM_U5M, 16, 4, 4, 0},
    {DT_Q8_0, FAM_S8, 32, 0, 2, 0},  {DT_Q4_K, FAM_K4, 16, 0, 2, 4},      {DT_Q5_K, FAM_K5, 16, 4, 2, 4},
    {DT_Q6_K, FAM_K6, 16, 8, 2, 2},  {DT_F8_SCALED, FAM_F8, 32, 0, 2, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct matrix {
    struct weight_planes p;
    void *planes[4];
    float *wide; /* [rows][cols] */
    int rows, cols;
};

/* About normal: the sum of twelve. */
static double rng_normal(struct rng *r)
{
    double s = -6;
    for (int i = 0; i < 12; i++)
        s += rng_unit(r);
    return s;
}

static void *plane(size_t bytes)
{
    void *p = unified(bytes);
    memset(p, 0, bytes);
    return p;
}

static void fill_plain(struct matrix *m, enum dtype t, struct rng *r)
{
    m->p.stride = (m->cols + WEIGHT_PAD - 1) / WEIGHT_PAD * WEIGHT_PAD;
    m->p.q = m->planes[0] = plane((size_t)m->rows * (size_t)m->p.stride * 2);
    for (int i = 0; i < m->rows; i++)
        for (int k = 0; k < m->cols; k++) {
            float x = (float)rng_normal(r) * 0.1f;
            uint16_t h = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
            ((uint16_t *)m->planes[0])[(size_t)i * (size_t)m->p.stride + (size_t)k] = h;
            m->wide[(size_t)i * (size_t)m->cols + (size_t)k] = t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        }
}

static void fill_blocks(struct matrix *m, int kind, struct rng *r)
{
    enum dtype t = kinds[kind].type;
    size_t row_bytes = dtype_row_bytes(t, m->cols), n = row_bytes * (size_t)m->rows,
           blocks = (size_t)m->rows * (size_t)m->p.blocks;
    uint8_t *raw = plane(n);
    float *x = mem_new_array((size_t)m->cols, sizeof *x);
    for (int i = 0; i < m->rows; i++) {
        for (int k = 0; k < m->cols; k++)
            x[k] = (float)rng_normal(r) * 0.1f;
        quantize_row(t, x, raw + (size_t)i * row_bytes, m->cols);
    }
    mem_free(x);
    for (int i = 0; i < m->rows; i++)
        dtype_to_f32(t, raw + (size_t)i * row_bytes, m->wide + (size_t)i * (size_t)m->cols, m->cols);
    m->p.q = m->planes[0] = plane(blocks * (size_t)kinds[kind].q);
    m->p.h = m->planes[1] = plane(blocks * (size_t)kinds[kind].h);
    m->p.s = m->planes[2] = plane(blocks * (size_t)kinds[kind].s);
    m->p.d = m->planes[3] = plane((size_t)m->rows * (size_t)((m->cols + 255) / 256) * (size_t)kinds[kind].d);
    struct pack_job j = {.raw = raw, .row_bytes = row_bytes, .n = m->rows, .to = m->p};
    assert_int_equal(launch_pack(NULL, &j), cudaSuccess);
    unified_wait();
    unified_free(raw);
}

static void make_matrix(struct matrix *m, int kind, int rows, int cols, struct rng *r)
{
    *m = (struct matrix){.rows = rows, .cols = cols, .wide = mem_new_array((size_t)rows * (size_t)cols, sizeof(float))};
    m->p = (struct weight_planes){.family = kinds[kind].family, .cols = cols, .blocks = cols / BLOCK_COLS};
    if (kinds[kind].q)
        fill_blocks(m, kind, r);
    else
        fill_plain(m, kinds[kind].type, r);
}

static void free_matrix(struct matrix *m)
{
    for (int i = 0; i < 4; i++)
        unified_free(m->planes[i]);
    mem_free(m->wide);
}

/* As inputs are made: the products of few rows know the first two. */
enum made { PLAIN = SKINNY_PLAIN, NORM = SKINNY_NORM, SWIGLU };

/* Input element k of a row, without 1 / rms. */
static double exactly(enum made in, const float *x, const float *x2, const float *gain, int k)
{
    return in == NORM     ? (double)x[k] * (double)gain[k]
           : in == SWIGLU ? (double)x[k] / (1 + exp(-(double)x[k])) * (double)x2[k]
                          : (double)x[k];
}

static double rms_inverse(const float *x, int n, double eps)
{
    double s = 0;
    for (int i = 0; i < n; i++)
        s += (double)x[i] * (double)x[i];
    return 1 / sqrt(s / n + eps);
}

struct product_case {
    int kind, rows, outs[3], n_out, cols; /* cols: of the matrix */
    int col0, used;                       /* the window */
    enum skinny_in in;
    bool bias, accumulate, gated, slim; /* slim: by slim.cu */
    int places;                         /* 0: a few, so that CTAs take several tiles */
    int n_sms;                          /* slim: for so many the columns are cut into parts; 0: they are not */
};

/* Inputs [0, n) of a block as lean.cu rounds them: to integers, or to f16, of which the largest has 14 bits. */
static void round_block(float *x, int n, bool f16)
{
    float most = 0;
    int exponent;
    for (int k = 0; k < n; k++)
        most = fmaxf(most, fabsf(x[k]));
    frexpf(most, &exponent);
    float d = ldexpf(1, exponent - 14);
    for (int k = 0; k < n; k++)
        x[k] = d * (f16 ? f16_to_f32(f32_to_f16(x[k] / d)) : rintf(x[k] / d));
}

/* A row's inputs, without 1 / rms, as they are rounded before they are multiplied. */
static double *round_inputs(const struct product_case *c, const float *x, const float *gain)
{
    double *to = mem_new_array((size_t)c->used, sizeof *to);
    float *in = mem_new_array((size_t)c->used, sizeof *in);
    bool lean = kinds[c->kind].q && !c->slim;
    for (int k = 0; k < c->used; k++)
        in[k] = (float)exactly((enum made)c->in, x, NULL, gain, k);
    for (int k = 0; k < c->used && lean; k += BLOCK_COLS)
        round_block(in + k, c->used - k < BLOCK_COLS ? c->used - k : BLOCK_COLS, kinds[c->kind].family == FAM_F8);
    for (int k = 0; k < c->used; k++)
        to[k] = (double)(lean ? in[k] : bf16_to_f32(f32_to_bf16(in[k])));
    mem_free(in);
    return to;
}

static float *random_rows(int rows, int ld, struct rng *r)
{
    float *x = plane((size_t)rows * (size_t)ld * sizeof *x);
    for (int i = 0; i < rows * ld; i++)
        x[i] = (float)rng_normal(r);
    return x;
}

struct product_inputs {
    const float *x;     /* a row */
    const double *made; /* as round_inputs makes it */
};

/* What tensor cores may cut off a sum of so many products, over the sizes of these: eight at a time and the sum so far,
 * each below 24 bits, and the new sum below 23 (tests/emulator/tensor_twins.h). It never all adds up: a quarter of that
 * is allowed. How much it was, of what is allowed in all, is printed. */
static double worst_plain, worst_tile;

static double cut_off(int cols)
{
    return (cols + 7) / 8 * (9 + 2) * 0x1p-26;
}

static void note_worst(double *worst, double off, double most)
{
    *worst = fmax(*worst, off / most);
}

/* The product, and how far off it may be. */
static double product_of(const struct product_case *c, const struct matrix *m, int out, const struct product_inputs *in,
                         double *most)
{
    double scale = c->in == SKINNY_NORM ? rms_inverse(in->x, c->used, 1e-5) : 1, sum = 0, size = 0;
    for (int k = 0; k < c->used; k++) {
        double t = in->made[k] * (double)m->wide[(size_t)out * (size_t)m->cols + (size_t)(c->col0 + k)];
        sum += t;
        size += fabs(t);
    }
    *most = size * scale * (2e-6 + cut_off(c->used)) + 1e-6;
    return sum * scale;
}

static void check_output(const struct product_case *c, const struct matrix *m, int out, const struct product_inputs *in,
                         const double base_is[2])
{
    double most, should = product_of(c, m, out, in, &most) + base_is[0], is = base_is[1];
    note_worst(&worst_plain, fabs(should - is), most);
    if (!(fabs(should - is) <= most))
        fail_msg("kind %d rows %d in %d out %d: %.9g, not %.9g +- %g", c->kind, c->rows, c->in, out, is, should, most);
}

/* silu grows by at most 1.1 times its argument's growth. */
static void check_gated(const struct product_case *c, const struct matrix m[2], int out,
                        const struct product_inputs *in, const double base_is[3])
{
    double most[2], gate = product_of(c, &m[0], out, in, &most[0]) + base_is[0],
                    up = product_of(c, &m[1], out, in, &most[1]) + base_is[1], is = base_is[2];
    double silu = gate / (1 + exp(-gate)),
           off = 1.1 * most[0] * fabs(up) + most[1] * fabs(silu) + 1e-5 * fabs(silu * up);
    if (!(fabs(silu * up - is) <= off + 1e-6))
        fail_msg("kind %d rows %d gated %d: %.9g, not %.9g +- %g", c->kind, c->rows, out, is, silu * up, off);
}

static void launch_few(const struct skinny_job *j)
{
    struct skinny_job with_room = *j;
    size_t floats = 0, counters = 0;
    if (j->out[0].w.p.family > FAM_BF16)
        lean_needs(j, &floats, &counters);
    with_room.partial = plane(floats * sizeof(float) + 16);
    with_room.arrived = plane((counters + 1) * sizeof *with_room.arrived);
    memset(with_room.partial, 0xff, floats * sizeof(float));
    assert_int_equal(launch_skinny(NULL, &with_room), cudaSuccess);
    unified_wait();
    for (size_t i = 0; i < counters; i++)
        assert_int_equal(with_room.arrived[i], 0);
    unified_free(with_room.partial);
    unified_free(with_room.arrived);
}

static void launch_product(const struct product_case *c, const struct skinny_job *j)
{
    struct slim_room r = {0};
    size_t floats, counters;
    if (!c->slim) {
        launch_few(j);
        return;
    }
    slim_cut(j, c->n_sms, &r);
    slim_needs(j, c->n_sms, &floats, &counters);
    assert_true(r.n_parts == 1 || (size_t)r.n_tiles <= counters);
    assert_int_equal(r.n_parts > 1, c->n_sms > 0);
    r.partial = plane(floats * sizeof(float) + 16);
    r.arrived = plane((size_t)r.n_tiles * sizeof *r.arrived);
    memset(r.partial, 0xff, floats * sizeof(float));
    assert_int_equal(launch_slim(NULL, j, &r), cudaSuccess);
    unified_wait();
    for (int i = 0; i < r.n_tiles; i++)
        assert_int_equal(r.arrived[i], 0);
    unified_free(r.partial);
    unified_free(r.arrived);
}

struct product_outputs {
    const struct matrix *m;
    float *const *bias, *const *before, *const *is;
};

static void check_row(const struct product_case *c, const struct product_outputs *to, int row, const float *x,
                      const float *gain)
{
    double *made = round_inputs(c, x, gain);
    const struct product_inputs in = {x, made};
    for (int i = 0; c->gated && i < c->outs[0]; i++)
        check_gated(c, to->m, 2 + i, &in,
                    (const double[3]){c->bias ? (double)to->bias[0][i] : 0, c->bias ? (double)to->bias[1][i] : 0,
                                      (double)to->is[0][row * c->outs[0] + i]});
    for (int o = 0; o < c->n_out && !c->gated; o++)
        for (int i = 0; i < c->outs[o]; i++) {
            int at = row * c->outs[o] + i;
            double base = (c->bias ? (double)to->bias[o][i] : 0) + (c->accumulate ? (double)to->before[o][at] : 0);
            check_output(c, &to->m[o], 2 + i, &in, (const double[2]){base, (double)to->is[o][at]});
        }
    mem_free(made);
}

static void try_product(const struct product_case *c, uint64_t seed)
{
    struct rng r;
    struct matrix m[3];
    rng_init(&r, seed);
    int ld = (c->used + 15) / 16 * 16;
    float *x = random_rows(c->rows, ld, &r), *gain = random_rows(1, ld, &r), *y[3], *before[3], *bias[3];
    struct skinny_job j = {.in = c->in,
                           .x = x,
                           .gain = gain,
                           .ldx = ld,
                           .rows = c->rows,
                           .n_out = c->n_out,
                           .places = c->places ? c->places : 1 + (int)(seed % 5),
                           .shared = (seed % 3           ? 227
                                      : kinds[c->kind].q ? 163
                                                         : 99)
                                     << 10, /* 9.0; 8.0, 8.6 */
                           .eps = 1e-5f,
                           .accumulate = c->accumulate,
                           .gated = c->gated,
                           .pdl = seed % 2};
    for (int o = 0; o < c->n_out; o++) {
        make_matrix(&m[o], c->kind, c->outs[o] + 3, c->cols, &r);
        y[o] = random_rows(c->rows, c->outs[o], &r);
        before[o] = plane((size_t)c->rows * (size_t)c->outs[o] * sizeof(float));
        memcpy(before[o], y[o], (size_t)c->rows * (size_t)c->outs[o] * sizeof(float));
        bias[o] = random_rows(1, c->outs[o], &r);
        j.out[o] = (struct skinny_out){.w = {m[o].p, 2, c->outs[o], c->col0, c->used},
                                       .bias = c->bias ? bias[o] : NULL,
                                       .y = y[o],
                                       .ldy = c->outs[o]};
    }
    launch_product(c, &j);
    for (int row = 0; row < c->rows; row++)
        check_row(c, &(struct product_outputs){m, bias, before, y}, row, x + row * ld, gain);
    for (int o = 0; o < c->n_out; o++) {
        free_matrix(&m[o]);
        unified_free(y[o]);
        unified_free(before[o]);
        unified_free(bias[o]);
    }
    unified_free(x);
    unified_free(gain);
}

static void skinny_products_of_every_family(void **state)
{
    (void)state;
    static const int rows[] = {1, 2, 3, 5, 7, 8};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct product_case c = {.kind = kind,
                                     .rows = rows[i],
                                     .outs = {24, 16, 5},
                                     .n_out = 1 + (int)i % 3,
                                     .cols = 768,
                                     .used = 768,
                                     .in = (enum skinny_in)((size_t)kind + i) % 2,
                                     .bias = i % 2,
                                     .accumulate = i % 3 == 1};
            try_product(&c, (uint64_t)kind * 100 + i);
        }
}

/* Columns whose inputs do not fit are cut into parts (lean.cu), gated ones too: fewer CTAs than parts, several groups
 * of them, some of which have no tile in the last turn. */
static void columns_in_parts(void **state)
{
    (void)state;
    for (int kind = 2; kind < KINDS; kind++) {
        bool gated = kind % 3 == 0;
        struct product_case c = {.kind = kind,
                                 .rows = 8,
                                 .outs = {gated ? 50 : 100, gated ? 50 : 16},
                                 .n_out = 2,
                                 .cols = 6656,
                                 .used = 6656,
                                 .in = (enum skinny_in)(kind % 2),
                                 .accumulate = kind == 4,
                                 .gated = gated,
                                 .places = kind % 2 ? 12 : 0};
        try_product(&c, (uint64_t)kind);
    }
}

/* In one part, and in as many as there may be: 1,216 columns are ten slabs, the last one half empty. */
static void slim_products_of_every_family(void **state)
{
    (void)state;
    static const int rows[] = {1, 8, 9, 16, 17, 32, 33, 64};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            bool k = kind > 6 && kind < 10; /* blocks of 256 */
            struct product_case c = {.kind = kind,
                                     .rows = rows[i],
                                     .outs = {24, 130, 5},
                                     .n_out = 1 + (int)i % 3,
                                     .cols = k ? 1280 : 1216,
                                     .used = k ? 1280 : 1216,
                                     .in = (enum skinny_in)((size_t)kind + i) % 2,
                                     .bias = i % 2,
                                     .accumulate = i % 3 == 1,
                                     .slim = true,
                                     .n_sms = (kind + (int)i / 2) % 2 ? 132 : 0};
            try_product(&c, (uint64_t)kind * 100 + i + 50);
        }
}

/* silu(gate) * up, by both kernels: tiles that end within a warp's outputs, and one more than a CTA has. */
static void gated_products(void **state)
{
    (void)state;
    static const int rows[] = {1, 7, 5, 16, 20, 64};
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            if (((size_t)kind + i) % 3) /* each kernel with some of the families */
                continue;
            struct product_case c = {.kind = kind,
                                     .rows = rows[i],
                                     .outs = {75, 75},
                                     .n_out = 2,
                                     .cols = 1024,
                                     .used = 1024,
                                     .in = (enum skinny_in)(1 - i % 2),
                                     .bias = i % 2,
                                     .gated = true,
                                     .slim = i > 1,
                                     .n_sms = i > 1 && kind % 2 ? 16 : 0};
            try_product(&c, (uint64_t)kind * 100 + i + 70);
        }
}

static void windows_of_columns(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct product_case c = {.kind = kind,
                                 .rows = 3,
                                 .outs = {18},
                                 .n_out = 1,
                                 .cols = 512,
                                 .col0 = 64,
                                 .used = 192,
                                 .in = SKINNY_PLAIN};
        try_product(&c, 1);
        c.col0 = 192;
        c.used = 320; /* to the end */
        try_product(&c, 2);
        c.rows = 19;
        c.slim = true;
        try_product(&c, 3);
    }
}

static void columns_that_no_tile_divides(void **state)
{
    (void)state;
    for (int in = 0; in < 2; in++) {
        try_product(&(struct product_case){.kind = 1,
                                           .rows = 40,
                                           .outs = {16},
                                           .n_out = 1,
                                           .cols = 203,
                                           .used = 203,
                                           .in = (enum skinny_in)in,
                                           .slim = true},
                    2);
        try_product(
            &(struct product_case){
                .kind = 1, .rows = 5, .outs = {16}, .n_out = 1, .cols = 203, .used = 203, .in = (enum skinny_in)in},
            3);
        try_product(
            &(struct product_case){
                .kind = 0, .rows = 2, .outs = {16}, .n_out = 1, .cols = 71, .used = 71, .in = (enum skinny_in)in},
            4);
        try_product(
            &(struct product_case){
                .kind = 2, .rows = 2, .outs = {16}, .n_out = 1, .cols = 96, .used = 96, .in = (enum skinny_in)in},
            5);
    }
}

static void two_tiles_a_cta(void **state)
{
    (void)state;
    try_product(
        &(struct product_case){
            .kind = 1, .rows = 3, .outs = {4100, 4100}, .n_out = 2, .cols = 64, .used = 64, .in = SKINNY_NORM},
        6);
    try_product(
        &(struct product_case){
            .kind = 3, .rows = 7, .outs = {4100, 4100}, .n_out = 2, .cols = 64, .used = 64, .in = SKINNY_PLAIN},
        7);
}

/* A row's sums are the same bits however many rows there are, in any kernel: whether inputs are kept or read again
 * (skinny.cu with 2,560 columns and more than 3 rows), columns in parts (lean.cu with 6,656), and whoever has which
 * tile.
 */
static void check_bits_of_rows(int kind, enum skinny_in in, int cols)
{
    struct rng r;
    struct matrix m;
    enum { OUTS = 160 };
    float first[OUTS];
    rng_init(&r, 9);
    make_matrix(&m, kind, OUTS, cols, &r);
    float *x = random_rows(SLIM_ROWS, cols, &r), *gain = random_rows(1, cols, &r),
          *y = plane(SLIM_ROWS * OUTS * sizeof *y);
    for (int i = 1; i <= SKINNY_ROWS + SLIM_ROWS; i += i < 18 ? 1 : 18) {
        bool slim = i > SKINNY_ROWS;
        int rows = slim ? i - SKINNY_ROWS : i;
        struct skinny_job j = {.in = in,
                               .x = x,
                               .gain = gain,
                               .eps = 1e-5f,
                               .ldx = cols,
                               .rows = rows,
                               .places = rows / 4 + 1,
                               .shared = 227 << 10,
                               .n_out = 1,
                               .out = {{.w = {m.p, 0, OUTS, 0, cols}, .y = y, .ldy = OUTS}}};
        launch_product(&(struct product_case){.rows = rows, .slim = slim}, &j);
        if (rows == 1)
            memcpy(first, y, sizeof first);
        assert_memory_equal(first, y, sizeof first);
    }
    free_matrix(&m);
    unified_free(x);
    unified_free(gain);
    unified_free(y);
}

static void rows_do_not_depend_on_each_other(void **state)
{
    (void)state;
    check_bits_of_rows(1, SKINNY_NORM, 2560);
    check_bits_of_rows(0, SKINNY_PLAIN, 2560);
    check_bits_of_rows(7, SKINNY_NORM, 6656);
    check_bits_of_rows(10, SKINNY_PLAIN, 6656);
}

/* One row is not finite, others are huge or tiny or nothing: each has its own outputs, and what is not finite shows. */
static void inputs_of_any_size(void **state)
{
    (void)state;
    enum { ROWS = 6, COLS = 512, OUTS = 16 };
    static const float sizes[ROWS] = {1, NAN, 1e30f, INFINITY, 1e-30f, 0};
    for (int kind = 0; kind < KINDS; kind++) {
        struct rng r;
        struct matrix m;
        float ones[ROWS * OUTS];
        rng_init(&r, 41);
        make_matrix(&m, kind, OUTS, COLS, &r);
        float *x = random_rows(ROWS, COLS, &r), *y = plane(sizeof ones);
        for (int row = 1; row < ROWS; row++)
            memcpy(x + row * COLS, x, COLS * sizeof *x);
        struct skinny_job j = {.x = x,
                               .ldx = COLS,
                               .rows = ROWS,
                               .places = 2,
                               .shared = 227 << 10,
                               .n_out = 1,
                               .out = {{.w = {m.p, 0, OUTS, 0, COLS}, .y = y, .ldy = OUTS}}};
        launch_few(&j);
        memcpy(ones, y, sizeof ones);
        for (int i = 0; i < COLS; i++)
            for (int row = 0; row < ROWS; row++)
                if (row != 1 && row != 3)
                    x[row * COLS + i] *= sizes[row];
        x[COLS + 77] = sizes[1], x[3 * COLS + 300] = sizes[3];
        launch_few(&j);
        for (int i = 0; i < ROWS * OUTS; i++) {
            double was = (double)ones[i], is = (double)y[i], size = (double)sizes[i / OUTS];
            bool right = isfinite(size) ? fabs(is - was * size) <= 0.02 * size : !isfinite(is);
            if (!right)
                fail_msg("kind %d row %d out %d: %g, where inputs of 1 make %g", kind, i / OUTS, i % OUTS, is, was);
        }
        free_matrix(&m);
        unified_free(x);
        unified_free(y);
    }
}

static void inputs_in_16_bits(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 11);
    enum { ROWS = 3, COLS = 333, LD = 336, TO = 384 };
    float *x = random_rows(ROWS, LD, &r), *x2 = random_rows(ROWS, LD, &r), *gain = random_rows(1, LD, &r);
    uint16_t *y = plane(ROWS * TO * sizeof *y);
    for (int how = 0; how < 6; how++) {
        enum made in = (enum made)(how % 3);
        bool f16 = how >= 3;
        struct narrow_job j = {.x = x,
                               .x2 = in == SWIGLU ? x2 : NULL,
                               .gain = in == NORM ? gain : NULL,
                               .y = y,
                               .ldx = LD,
                               .ldx2 = LD,
                               .ldy = TO,
                               .rows = ROWS,
                               .cols = COLS,
                               .eps = 1e-5f,
                               .f16 = f16};
        memset(y, 0xff, ROWS * TO * sizeof *y);
        assert_int_equal(launch_narrow(NULL, &j), cudaSuccess);
        unified_wait();
        for (int i = 0; i < ROWS; i++)
            for (int k = 0; k < TO; k++) {
                double is = (double)(f16 ? f16_to_f32(y[i * TO + k]) : bf16_to_f32(y[i * TO + k]));
                double should = k < COLS ? exactly(in, x + i * LD, x2 + i * LD, gain, k) *
                                               (in == NORM ? rms_inverse(x + i * LD, COLS, 1e-5) : 1)
                                         : 0;
                if (!(fabs(is - should) <= fabs(should) / (f16 ? 1500 : 200) + 1e-7))
                    fail_msg("in %d row %d column %d: %g, not %g", how, i, k, is, should);
            }
    }
    x[0] = 1e9f;
    struct narrow_job big = {.x = x, .y = y, .ldx = LD, .ldy = TO, .rows = 1, .cols = COLS, .f16 = true};
    assert_int_equal(launch_narrow(NULL, &big), cudaSuccess);
    unified_wait();
    assert_true(f16_to_f32(y[0]) == 65504.0f);
    unified_free(x);
    unified_free(x2);
    unified_free(gain);
    unified_free(y);
}

/* Many rows by tiles, every type; rows and outputs stand over the edge of a tile. */
static void tiles_of_every_family(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct rng r;
        struct matrix m;
        rng_init(&r, 30);
        enum { ROWS = 70, OUTS = 67 };
        bool f16 = kinds[kind].type == DT_F16;
        make_matrix(&m, kind, OUTS + 1, 512, &r);
        uint16_t *x = plane(ROWS * 320 * sizeof *x);
        float *y = random_rows(ROWS, OUTS, &r), *before = random_rows(ROWS, OUTS, &r), *bias = random_rows(1, OUTS, &r);
        for (int i = 0; i < ROWS * 320; i++)
            x[i] = f16 ? f32_to_f16((float)rng_normal(&r)) : f32_to_bf16((float)rng_normal(&r));
        memcpy(y, before, ROWS * OUTS * sizeof *y);
        struct fast_job j = {.w = {m.p, 1, OUTS, 192, 320},
                             .x = x,
                             .ldx = 320,
                             .bias = kind % 2 ? bias : NULL,
                             .y = y,
                             .ldy = OUTS,
                             .rows = ROWS,
                             .accumulate = kind % 3 == 0};
        assert_int_equal(launch_tile(NULL, &j), cudaSuccess);
        unified_wait();
        for (int i = 0; i < ROWS; i++)
            for (int o = 0; o < OUTS; o++) {
                double sum = (kind % 2 ? (double)bias[o] : 0) + (kind % 3 == 0 ? (double)before[i * OUTS + o] : 0),
                       size = 0;
                for (int k = 0; k < 320; k++) {
                    double t = (double)(f16 ? f16_to_f32(x[i * 320 + k]) : bf16_to_f32(x[i * 320 + k])) *
                               (double)m.wide[(o + 1) * 512 + 192 + k];
                    sum += t;
                    size += fabs(t);
                }
                /* quantised weights are rounded to bf16 */
                double off = fabs((double)y[i * OUTS + o] - sum),
                       most = size * (kinds[kind].q ? 2e-3 : 1e-6 + cut_off(320)) + 1e-6;
                if (!kinds[kind].q)
                    note_worst(&worst_tile, off, most);
                if (!(off <= most))
                    fail_msg("kind %d row %d out %d: %g, not %g", kind, i, o, (double)y[i * OUTS + o], sum);
            }
        free_matrix(&m);
        unified_free(x);
        unified_free(y);
        unified_free(before);
        unified_free(bias);
    }
}

static void widened_weights(void **state)
{
    (void)state;
    for (int kind = 2; kind < KINDS; kind++) {
        struct rng r;
        struct matrix m;
        rng_init(&r, 20);
        make_matrix(&m, kind, 7, 512, &r);
        uint16_t *y = plane(5 * 320 * sizeof *y);
        struct widen_job j = {.w = {m.p, 1, 5, 192, 320}, .to = y};
        assert_int_equal(launch_widen(NULL, &j), cudaSuccess);
        unified_wait();
        for (int i = 0; i < 5; i++)
            for (int k = 0; k < 320; k++) {
                double is = (double)bf16_to_f32(y[i * 320 + k]), should = (double)m.wide[(i + 1) * 512 + 192 + k];
                if (!(fabs(is - should) <= fabs(should) / 250 + 1e-7))
                    fail_msg("kind %d row %d column %d: %g, not %g", kind, i, k, is, should);
            }
        free_matrix(&m);
        unified_free(y);
    }
}

int main(void)
{
    if (!unified_here()) {
        puts("no GPU here: nothing was checked");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(skinny_products_of_every_family),
        cmocka_unit_test(columns_in_parts),
        cmocka_unit_test(slim_products_of_every_family),
        cmocka_unit_test(gated_products),
        cmocka_unit_test(windows_of_columns),
        cmocka_unit_test(columns_that_no_tile_divides),
        cmocka_unit_test(two_tiles_a_cta),
        cmocka_unit_test(rows_do_not_depend_on_each_other),
        cmocka_unit_test(inputs_of_any_size),
        cmocka_unit_test(inputs_in_16_bits),
        cmocka_unit_test(tiles_of_every_family),
        cmocka_unit_test(widened_weights),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    print_message("of what they may be off: %.3f by few rows, %.3f by tiles\n", worst_plain, worst_tile);
    return failed;
}
