/* Kernels by themselves: rooflines, or what was measured of them. */
#include <math.h>

#include "kernels/sim/cost.h"

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* (a^3.5 + b^3.5)^(1/3.5), a smooth roofline: measured kernels (Llama-2-70B's GEMMs on H100) go from memory-bound to
 * compute-bound along such a curve. With s = (least/most)^3.5 the rest is (1 + s)^(2/7), which is nearly straight:
 * sixteen linear pieces are exact to 1e-5. */
static double smooth_max(double a, double b)
{
    static const double root[] = {1.0,           1.0174722045,  1.03422493995, 1.05032545513, 1.06583155827,
                                  1.08079334188, 1.09525452625, 1.10925351925, 1.12282426199, 1.1359969106,
                                  1.14879839109, 1.16125285494, 1.17338205605, 1.18520566501, 1.19674153282,
                                  1.20800591368, 1.2190136542};
    enum { PIECES = sizeof root / sizeof *root - 1 };
    double hi = most(a, b), r = hi > 0 ? least(a, b) / hi : 0, s = r * r * r * sqrt(r) * PIECES;
    int i = (int)s < PIECES ? (int)s : PIECES - 1;
    return hi * (root[i] + (s - i) * (root[i + 1] - root[i]));
}

/* A value for groups of 2, 4 and 8, between and beyond them along straight lines, not past the ends. */
static double by_group(const double v[SIM_GROUPS], int g)
{
    if (g <= 2)
        return v[0];
    if (g <= 4)
        return v[0] + (v[1] - v[0]) * (g - 2) / 2;
    return g >= 8 ? v[2] : v[1] + (v[2] - v[1]) * (g - 4) / 4;
}

/* ---- kernels. With a table: the roofline of the peaks plus a fixed time, times the measured utilisation. */

/* With the error of this place where errors are drawn. */
static double priced(const struct sim_machine *m, enum sim_table_kind kind, const double *x, double ns)
{
    if (m->drawn)
        ns *= sim_residual_draw(m->residuals, m->seed, kind, x);
    if (m->outside)
        sim_outside_note(m->outside, &m->tables, kind, x, ns);
    return ns;
}

/* Past the last point of an axis the time is extrapolated linearly from the last two points; `ends` are the times at
 * these. On held-out rows this is closer than keeping the last utilisation for decode attention and FP8 GEMMs, and for
 * no other kernel (models/hardware/README.md). */
static double beyond(const struct sim_table *t, int axis, const double ends[2], double x)
{
    const double *last = &t->axis[axis][t->size[axis] - 1];
    return ends[1] + most(0, ends[1] - ends[0]) / (last[0] - last[-1]) * (x - last[0]);
}

static bool is_beyond(const struct sim_table *t, int axis, double x)
{
    return t->size[axis] > 1 && x > t->axis[axis][t->size[axis] - 1];
}

static double gemm_in_grid(const struct sim_machine *m, int bits, double rows, double n, double k)
{
    const struct sim_hardware *h = &m->hardware;
    const struct sim_table *t = &m->tables.of[bits == 8 ? TABLE_GEMM_FP8 : TABLE_GEMM_BF16];
    double peak = bits == 8 ? h->fp8_peak : h->bf16_peak, w = bits / 8;
    double roof = most(2 * rows * n * k / peak, ((n * k + rows * k) * w + rows * n * 2) / h->memory_rate);
    return (roof * 1e9 + 4000) * sim_table_at(t, (double[]){n, k, rows});
}

double cost_gemm(const struct sim_machine *m, int bits, double rows, double n, double k)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = bits == 8 ? TABLE_GEMM_FP8 : TABLE_GEMM_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double peak = bits == 8 ? h->fp8_peak : h->bf16_peak, share = bits == 8 ? h->fp8_share : h->bf16_share,
           w = bits / 8;
    if (t->n_axes && bits == 8 && is_beyond(t, 2, rows)) {
        const double *last = &t->axis[2][t->size[2] - 1],
                     ends[2] = {gemm_in_grid(m, bits, last[-1], n, k), gemm_in_grid(m, bits, last[0], n, k)};
        return priced(m, kind, (double[]){n, k, rows}, beyond(t, 2, ends, rows));
    }
    if (t->n_axes)
        return priced(m, kind, (double[]){n, k, rows}, gemm_in_grid(m, bits, rows, n, k));
    double bytes = n * k * w / (h->memory_rate * h->gemm_memory_share), flop = 2 * rows * n * k / (peak * share);
    return priced(m, kind, (double[]){n, k, rows}, smooth_max(bytes, flop) * 1e9 + h->gemm_fixed);
}

double cost_prefill_attention(const struct sim_machine *m, double n, double rows, double looked_at, int heads,
                              int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = m->model.kv_bits == 8 ? TABLE_PREFILL_FP8 : TABLE_PREFILL_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double dim = m->model.head_dim, flop = 4 * looked_at * heads * dim;
    /* a chunk with a past: as the whole prompt that has as much to look at */
    const double x[] = {dim, (double)heads / kv_heads, sqrt(2 * looked_at / n), n, heads};
    if (t->n_axes) {
        double roof = flop / (h->bf16_peak * 0.65) + rows * (heads + kv_heads) * 2 * dim * 2 / h->memory_rate;
        return priced(m, kind, x, (roof * 1e9 + 6000) * sim_table_at(t, x));
    }
    return priced(m, kind, x, flop / (h->bf16_peak * h->prefill_share) * 1e9);
}

static double decode_in_grid(const struct sim_machine *m, double n, double looked_at, int heads, int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    const struct sim_table *t = &m->tables.of[m->model.kv_bits == 8 ? TABLE_DECODE_FP8 : TABLE_DECODE_BF16];
    double dim = m->model.head_dim, bytes = looked_at * kv_heads * dim * 2 * (m->model.kv_bits / 8);
    double roof = most(bytes / h->memory_rate, 4 * looked_at * heads * dim / h->bf16_peak);
    return (roof * 1e9 + 8000) * sim_table_at(t, (double[]){dim, looked_at / n, n * kv_heads});
}

double cost_decode_attention(const struct sim_machine *m, double n, double looked_at, int heads, int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = m->model.kv_bits == 8 ? TABLE_DECODE_FP8 : TABLE_DECODE_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double dim = m->model.head_dim, each = looked_at / n;
    const double x[] = {dim, each, n * kv_heads};
    if (t->n_axes && is_beyond(t, 2, x[2])) {
        const double *last = &t->axis[2][t->size[2] - 1];
        const double n0 = last[-1] / kv_heads, n1 = last[0] / kv_heads;
        const double ends[2] = {decode_in_grid(m, n0, n0 * each, heads, kv_heads),
                                decode_in_grid(m, n1, n1 * each, heads, kv_heads)};
        return priced(m, kind, x, beyond(t, 2, ends, x[2]));
    }
    if (t->n_axes)
        return priced(m, kind, x, decode_in_grid(m, n, looked_at, heads, kv_heads));
    double bytes = looked_at * kv_heads * dim * 2 * (m->model.kv_bits / 8);
    return priced(m, kind, x, bytes / (h->memory_rate * h->kv_read_share) * 1e9);
}

static double collective(const struct sim_machine *m, enum sim_table_kind kind, const double x[2], double wire,
                         double by_formula)
{
    const struct sim_table *t = &m->tables.of[kind];
    return priced(m, kind, x, t->n_axes ? (wire / 450e9 * 1e9 + 5000) * sim_table_at(t, x) : by_formula);
}

double cost_all_reduce(const struct sim_machine *m, int g, double bytes, bool graph)
{
    const struct sim_hardware *h = &m->hardware;
    double wire = 2.0 * (g - 1) / g * bytes / m->link_scale,
           formula = h->reduce_alpha + wire / by_group(h->reduce_rate, g) * 1e9;
    if (g < 2)
        return 0;
    if (bytes <= h->small_bytes)
        formula = by_group(h->small_alpha, g) + wire / by_group(h->small_rate, g) * 1e9;
    return collective(m, graph ? TABLE_REDUCE : TABLE_REDUCE_EAGER, (double[]){g, bytes}, wire, formula);
}

static double exchange(const struct sim_machine *m, enum sim_table_kind kind, int g, double bytes)
{
    double wire = (g - 1.0) / g * bytes;
    return g < 2 ? 0
                 : collective(m, kind, (double[]){g, bytes}, wire,
                              m->hardware.exchange_alpha + wire / m->hardware.exchange_rate * 1e9);
}

double cost_all_to_all(const struct sim_machine *m, int g, double bytes)
{
    return exchange(m, TABLE_ALL_TO_ALL, g, bytes);
}

double cost_all_gather(const struct sim_machine *m, int g, double bytes)
{
    return exchange(m, TABLE_ALL_GATHER, g, bytes);
}
