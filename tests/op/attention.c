/* Attention (as high and as fast), cache writing and rope of the CPU backend: against float64, and bit for bit the same
 * for every instruction set, thread count, chunking, batch mix and block size, and the same for rows of a tree as for
 * their path alone. */
#include "kernels/backend.h"
#include "tests/rig/isas.h"
#include "tests/rig/slow.h"
#include "tests/rig/op_fixture.h"

enum { MAX_SEQS = 4, MAX_ROWS = 1024 };

struct heads {
    int q, kv, dim;
};

/* Keys, values and queries of some sequences, and where they are cached. */
struct world {
    struct heads h;
    int n_seqs, length[MAX_SEQS];
    float *q[MAX_SEQS], *k[MAX_SEQS], *v[MAX_SEQS], *out[MAX_SEQS];
    int window;
    bool fast; /* device_opts.fast */
};

struct cache {
    struct kv_space space;
    struct kv_view view;
    int32_t *blocks[MAX_SEQS];
};

static struct world make_world(struct rng *r, struct heads h, int n_seqs, const int *length, int window)
{
    struct world w = {.h = h, .n_seqs = n_seqs, .window = window};
    for (int s = 0; s < n_seqs; s++) {
        size_t n = (size_t)length[s];
        w.length[s] = length[s];
        w.q[s] = random_floats(r, n * (size_t)(h.q * h.dim), 1.5f);
        w.k[s] = random_floats(r, n * (size_t)(h.kv * h.dim), 1.5f);
        w.v[s] = random_floats(r, n * (size_t)(h.kv * h.dim), 1.0f);
        w.out[s] = calloc(n * (size_t)(h.q * h.dim), sizeof(float));
    }
    return w;
}

static void free_world(struct world *w)
{
    for (int s = 0; s < w->n_seqs; s++) {
        free(w->q[s]);
        free(w->k[s]);
        free(w->v[s]);
        free(w->out[s]);
    }
}

/* Blocks scattered at random over two layers' worth of space filled with NaN: what is not written must not matter. */
static struct cache make_cache(struct rng *r, const struct world *w, enum dtype t, int tokens)
{
    struct cache c = {0};
    int used = 0;
    for (int s = 0; s < w->n_seqs; s++)
        used += (w->length[s] + tokens - 1) / tokens;
    c.space = (struct kv_space){NULL, ops->kv_block_bytes(t, tokens, w->h.kv, w->h.dim), used + 3, 2, t};
    assert_true(c.space.block_bytes > 0);
    size_t bytes = c.space.block_bytes * (size_t)c.space.n_blocks * 2;
    c.space.base = aligned_alloc(64, bytes);
    memset(c.space.base, 0xff, bytes);
    int32_t *free_list = malloc((size_t)c.space.n_blocks * sizeof *free_list);
    for (int i = 0; i < c.space.n_blocks; i++)
        free_list[i] = i;
    int left = c.space.n_blocks;
    for (int s = 0; s < w->n_seqs; s++) {
        int n = (w->length[s] + tokens - 1) / tokens;
        c.blocks[s] = malloc((size_t)n * sizeof(int32_t));
        for (int i = 0; i < n; i++) {
            int at = (int)rng_below(r, (uint64_t)left);
            c.blocks[s][i] = free_list[at];
            free_list[at] = free_list[--left];
        }
    }
    free(free_list);
    c.view = (struct kv_view){NULL, 1, tokens, w->h.kv, w->h.dim};
    return c;
}

/* Runs all sequences through steps of at most `budget` rows, chunk sizes at random up to `chunk`, several sequences a
 * step. */
static void run_world(struct device *d, struct world *w, struct cache *c, struct rng *r, int chunk)
{
    int done[MAX_SEQS] = {0}, kv_head[64], wq = w->h.q * w->h.dim, wk = w->h.kv * w->h.dim;
    static int32_t zeros[MAX_ROWS];
    for (int h = 0; h < w->h.q; h++)
        kv_head[h] = h * w->h.kv / w->h.q;
    c->view.space = &c->space;
    for (;;) {
        struct batch_seq seqs[MAX_SEQS];
        int which[MAX_SEQS], n_seqs = 0, rows = 0;
        for (int s = 0; s < w->n_seqs; s++) {
            int left = w->length[s] - done[s], n = 1 + (int)rng_below(r, (uint64_t)chunk);
            n = n < left ? n : left;
            if (n <= 0)
                continue;
            seqs[n_seqs] = (struct batch_seq){rows, n, done[s], c->blocks[s], NULL};
            which[n_seqs++] = s;
            rows += n;
        }
        if (!n_seqs)
            return;
        float *q = malloc((size_t)(rows * wq) * 4), *k = malloc((size_t)(rows * wk) * 4),
              *v = malloc((size_t)(rows * wk) * 4);
        float *out = calloc((size_t)(rows * wq), 4);
        for (int i = 0; i < n_seqs; i++) {
            size_t at = (size_t)seqs[i].row0, p = (size_t)seqs[i].pos0, n = (size_t)seqs[i].n_rows;
            memcpy(q + at * (size_t)wq, w->q[which[i]] + p * (size_t)wq, n * (size_t)wq * 4);
            memcpy(k + at * (size_t)wk, w->k[which[i]] + p * (size_t)wk, n * (size_t)wk * 4);
            memcpy(v + at * (size_t)wk, w->v[which[i]] + p * (size_t)wk, n * (size_t)wk * 4);
        }
        struct batch b = {.n_rows = rows, .ids = zeros, .positions = zeros, .n_seqs = n_seqs, .seqs = seqs};
        struct attention_args a = {
            act_of(q, wq), act_of(out, wq), w->h.q, kv_head, c->view, 1.0f / sqrtf((float)w->h.dim), w->window};
        assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
        ops->kv_write(d, act_of(k, wk), act_of(v, wk), &c->view);
        ops->attention(d, &a);
        finish(d);
        for (int i = 0; i < n_seqs; i++) {
            memcpy(w->out[which[i]] + (size_t)seqs[i].pos0 * (size_t)wq, out + (size_t)seqs[i].row0 * (size_t)wq,
                   (size_t)seqs[i].n_rows * (size_t)wq * 4);
            done[which[i]] += seqs[i].n_rows;
        }
        free(q);
        free(k);
        free(v);
        free(out);
    }
}

static void free_cache(struct world *w, struct cache *c)
{
    for (int s = 0; s < w->n_seqs; s++)
        free(c->blocks[s]);
    free(c->space.base);
}

/* Element d of a head's n. The scale of DT_I8 is not in it. */
static double rounded(enum dtype t, const float *head, int n, int d)
{
    float x = head[d], most = 0;
    for (int i = 0; i < n && t == DT_I8; i++)
        most = fmaxf(most, fabsf(head[i]));
    return (double)(t == DT_I8     ? rintf(x * (127.0f / most))
                    : t == DT_F8   ? f8_to_f32(f32_to_f8(x))
                    : t == DT_F16  ? f16_to_f32(f32_to_f16(x))
                    : t == DT_BF16 ? bf16_to_f32(f32_to_bf16(x))
                                   : x);
}

/* To bfloat16, as fast attention takes it. */
static float half_of(float x)
{
    return fabsf(x) < 0x1p-50f ? 0 : bf16_to_f32(f32_to_bf16(x));
}

static double cached(const struct world *w, enum dtype t, const float *head, int d)
{
    double y = rounded(t, head, w->h.dim, d);
    return w->fast ? (double)half_of((float)y) : y;
}

static double scale_of(enum dtype t, const float *head, int n)
{
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(head[i]));
    return t == DT_I8 ? (double)(most / 127) : 1;
}

/* The score of position i, as a power of two. */
static double score_of(const struct world *w, enum dtype t, int s, const float *q, int i, int kv)
{
    int dim = w->h.dim;
    float scale = 1.0f / sqrtf((float)dim) * 1.44269504f;
    const float *k = w->k[s] + ((size_t)i * (size_t)w->h.kv + (size_t)kv) * (size_t)dim;
    double sum = 0;
    for (int d = 0; d < dim; d++)
        sum += (w->fast ? (double)half_of(q[d] * scale) : (double)q[d] / sqrt(dim) / log(2)) * cached(w, t, k, d);
    return sum * scale_of(t, k, dim);
}

/* One output vector of one query head in float64 over the cache's rounded keys and values. Weights are relative to the
 * largest of their leaf: fast attention rounds them there. */
static void reference(const struct world *w, enum dtype t, int s, int p, int h, double *o)
{
    enum { LEAF = 128 };
    int kv = h * w->h.kv / w->h.q, dim = w->h.dim, lo = w->window && p >= w->window ? p - w->window + 1 : 0;
    double most = -INFINITY, total = 0, *score = malloc((size_t)(p + 1) * sizeof *score);
    const float *q = w->q[s] + ((size_t)p * (size_t)w->h.q + (size_t)h) * (size_t)dim;
    for (int i = lo; i <= p; i++) {
        score[i] = score_of(w, t, s, q, i, kv);
        most = fmax(most, score[i]);
    }
    memset(o, 0, (size_t)dim * sizeof *o);
    for (int leaf = lo / LEAF; leaf <= p / LEAF; leaf++) {
        double top = -INFINITY;
        int from = leaf * LEAF > lo ? leaf * LEAF : lo, to = leaf * LEAF + LEAF - 1 < p ? leaf * LEAF + LEAF - 1 : p;
        for (int i = from; i <= to; i++)
            top = fmax(top, score[i]);
        for (int i = from; i <= to; i++) {
            const float *v = w->v[s] + ((size_t)i * (size_t)w->h.kv + (size_t)kv) * (size_t)dim;
            double weight = exp2(score[i] - top), scaled = weight * scale_of(t, v, dim);
            scaled = (w->fast ? (double)half_of((float)scaled) : scaled) * exp2(top - most);
            total += t == DT_I8 ? weight * exp2(top - most) : scaled;
            for (int d = 0; d < dim; d++)
                o[d] += scaled * cached(w, t, v, d);
        }
    }
    for (int d = 0; d < dim; d++)
        o[d] /= total;
    free(score);
}

/* f32 sums of a few hundred terms of size up to ~5: 1e-5 leaves a factor of ten over what is seen. A weight that lies
 * between two halves may be rounded to the other one; that happens to few of them. */
static double most_off(const struct world *w)
{
    return w->fast ? 1e-2 : 1e-5;
}

static void check_world(const struct world *w, enum dtype t)
{
    double o[512], off = 0, n = 0;
    for (int s = 0; s < w->n_seqs; s++)
        for (int p = 0; p < w->length[s]; p += p < 4 ? 1 : 37)
            for (int h = 0; h < w->h.q; h++) {
                reference(w, t, s, p, h, o);
                const float *got = w->out[s] + ((size_t)p * (size_t)w->h.q + (size_t)h) * (size_t)w->h.dim;
                for (int d = 0; d < w->h.dim; d++, n++) {
                    double by = fabs(o[d] - (double)got[d]);
                    off += by;
                    if (!(by <= most_off(w)))
                        fail_msg("seq %d position %d head %d element %d: %g, not %g", s, p, h, d, (double)got[d], o[d]);
                }
            }
    if (off / n > 1e-5)
        fail_msg("%g on average, %s", off / n, dtype_get(t)->name);
}

static void keep(const struct world *w, float **first)
{
    for (int s = 0; s < w->n_seqs; s++) {
        size_t bytes = (size_t)(w->length[s] * w->h.q * w->h.dim) * sizeof(float);
        if (!first[s]) {
            first[s] = malloc(bytes);
            memcpy(first[s], w->out[s], bytes);
        } else {
            assert_memory_equal(first[s], w->out[s], bytes);
        }
        memset(w->out[s], 0, bytes);
    }
}

/* Every way to run the same sequences gives the same bits; the first is checked against float64. */
static void every_way(const struct world *made, enum dtype t)
{
    static const struct {
        const char *isa;
        int threads, chunk, tokens;
    } ways[] = {{"portable", 1, 300, 16}, {"auto", 1, 300, 32}, {"auto", 2, 1, 16},
                {"auto", 3, 7, 48},       {"avx2", 2, 64, 128}, {"avx512", 2, 40, 64},
                {"portable", 2, 33, 16},  {"neon", 2, 64, 128}, {"dotprod", 2, 40, 64}};
    struct rng r;
    struct world w = *made;
    float *first[MAX_SEQS] = {0};
    rng_init(&r, (uint64_t)(w.h.dim * 7 + w.h.q + (int)t));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct device *d = open_as(ways[i].isa, ways[i].threads, w.fast);
        if (!d)
            continue;
        struct cache c = make_cache(&r, &w, t, ways[i].tokens);
        run_world(d, &w, &c, &r, ways[i].chunk);
        if (i == 0)
            check_world(&w, t);
        keep(&w, first);
        free_cache(&w, &c);
        ops->close(d);
    }
    for (int s = 0; s < w.n_seqs; s++)
        free(first[s]);
}

static void all_ways(struct heads h, enum dtype t, const int *length, int n_seqs, int window)
{
    struct rng r;
    rng_init(&r, (uint64_t)(h.dim * 5 + h.q + (int)t));
    struct world w = make_world(&r, h, n_seqs, length, window);
    every_way(&w, t);
    w.fast = true;
    every_way(&w, t);
    free_world(&w);
}

static void grouped_heads(void **state)
{
    (void)state;
    static const int length[] = {330, 1, 140, 17};
    all_ways((struct heads){9, 3, 64}, DT_F16, length, 4, 0);
    all_ways((struct heads){4, 4, 64}, DT_BF16, length, 3, 0);
    all_ways((struct heads){8, 2, 128}, DT_F32, length, 3, 0);
    all_ways((struct heads){6, 2, 64}, DT_F8, length, 4, 0);
    all_ways((struct heads){9, 3, 64}, DT_I8, length, 4, 0);
}

static void odd_head_dims(void **state)
{
    (void)state;
    static const int length[] = {150, 29};
    all_ways((struct heads){2, 1, 32}, DT_F16, length, 2, 0);
    all_ways((struct heads){3, 3, 40}, DT_F16, length, 2, 0);
    all_ways((struct heads){5, 1, 80}, DT_BF16, length, 2, 0);
    all_ways((struct heads){3, 1, 40}, DT_F8, length, 2, 0);
    all_ways((struct heads){2, 2, 256}, DT_F16, length, 2, 0);
    all_ways((struct heads){3, 1, 33}, DT_BF16, length, 2, 0);
    all_ways((struct heads){14, 1, 15}, DT_BF16, length, 2, 0);
    all_ways((struct heads){3, 1, 33}, DT_I8, length, 2, 0);
    all_ways((struct heads){6, 2, 120}, DT_F32, length, 2, 0);
}

static void sliding_windows(void **state)
{
    (void)state;
    static const int length[] = {300, 170};
    static const int windows[] = {1, 3, 16, 100, 128, 129, 200};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++)
        all_ways((struct heads){3, 1, 64},
                 i % 4 == 0   ? DT_BF16
                 : i % 4 == 1 ? DT_F32
                 : i % 4 == 2 ? DT_I8
                              : DT_F16,
                 length, 2, windows[i]);
}

/* What one position has that is no number reaches those that see it, and nobody else: not by sharing a pair, a run of
 * lanes or a scale with it. */
static void no_number_reaches_those_before_it(void **state)
{
    (void)state;
    enum { LENGTH = 150, WIDTH = 3 * 32 };
    static const enum dtype types[] = {DT_F16, DT_BF16, DT_F32, DT_I8};
    static const int at[] = {0, 21, 128, 149};
    for (int i = 0; i < 32; i++) {
        int length = LENGTH, bad = at[i / 2 % 4];
        struct rng r;
        rng_init(&r, (uint64_t)i);
        struct world w = make_world(&r, (struct heads){3, 1, 32}, 1, &length, 0);
        w.fast = i % 2;
        float *clean = malloc(sizeof(float) * LENGTH * WIDTH);
        for (int spoilt = 0; spoilt < 2; spoilt++) {
            struct device *d = open_as("auto", 2, w.fast);
            struct cache c = make_cache(&r, &w, types[i / 8], 16);
            run_world(d, &w, &c, &r, i % 3 ? 300 : 3); /* by tiles, and out of the cache */
            free_cache(&w, &c);
            ops->close(d);
            if (!spoilt)
                memcpy(clean, w.out[0], sizeof(float) * LENGTH * WIDTH);
            w.v[0][bad * 32 + 7] = i % 4 ? INFINITY : NAN;
            w.k[0][bad * 32 + 9] = NAN;
        }
        assert_memory_equal(clean, w.out[0], sizeof(float) * WIDTH * (size_t)bad);
        for (int p = bad; p < LENGTH; p++)
            assert_true(w.out[0][p * WIDTH + 7] != w.out[0][p * WIDTH + 7]);
        free(clean);
        free_world(&w);
    }
}

static void many_queries_of_one_head(void **state)
{
    (void)state;
    static const int length[] = {140};
    all_ways((struct heads){50, 1, 32}, DT_F16, length, 1, 0);
}

static void block_sizes(void **state)
{
    (void)state;
    ops = backend_cpu();
    assert_true(ops->kv_block_bytes(DT_F16, 32, 3, 64) == 32 * 3 * 64 * 2 * 2);
    assert_true(ops->kv_block_bytes(DT_F32, 16, 1, 128) == 16 * 128 * 2 * 4);
    assert_true(ops->kv_block_bytes(DT_F8, 32, 3, 64) == 32 * 3 * 64 * 2);
    assert_true(ops->kv_block_bytes(DT_I8, 32, 3, 64) == 32 * 3 * (64 + 4) * 2);
    assert_true(ops->kv_block_bytes(DT_Q8_0, 16, 1, 128) == 0); /* not a cache type */
    assert_true(ops->kv_block_bytes(DT_F8_SCALED, 16, 1, 128) == 0);
    assert_true(ops->kv_block_bytes(DT_F16, 24, 1, 128) == 0);
    assert_true(ops->kv_block_bytes(DT_F16, 16, 1, 1024) == 0);
}

/* Rope of both pairings, part of a head, with per-head norm, against float64; the same bits on every instruction set.
 */
static void rope_and_head_norm(void **state)
{
    (void)state;
    enum { ROWS = 21, DIM = 80, ROTATED = 48, Q = 3, KV = 2 };
    struct rng r;
    rng_init(&r, 11);
    float inv_freq[ROTATED / 2], *q = random_floats(&r, ROWS * Q * DIM, 2.0f),
                                 *k = random_floats(&r, ROWS * KV * DIM, 2.0f);
    float *gain = random_floats(&r, DIM, 1.0f);
    int32_t positions[ROWS];
    for (int i = 0; i < ROTATED / 2; i++)
        inv_freq[i] = (float)pow(10000.0, -2.0 * i / ROTATED);
    for (int i = 0; i < ROWS; i++)
        positions[i] = i < 18 ? i * 13 : 100000 + i;
    for (int mode = 0; mode < 4; mode++) {
        bool halves = mode % 2, norm = mode / 2;
        static float first[ROWS][Q * DIM], y[ROWS][Q * DIM], yk[ROWS][KV * DIM];
        for (int isa = 0; isa < N_ISAS; isa++) {
            struct device *d = open_device(isas[isa], 2);
            if (!d)
                continue;
            memcpy(y, q, sizeof y);
            memcpy(yk, k, sizeof yk);
            struct batch b = {.n_rows = ROWS, .ids = positions, .positions = positions};
            struct rope rope = {halves, ROTATED, inv_freq, 1.25f};
            struct rope_args a = {act_of(&y[0][0], Q * DIM),
                                  act_of(&yk[0][0], KV * DIM),
                                  Q,
                                  KV,
                                  DIM,
                                  ROWS,
                                  norm ? gain : NULL,
                                  NULL,
                                  1e-6f};
            assert_int_equal(ops->begin(d, &b, &rope, NULL), 0);
            ops->rope(d, &a);
            finish(d);
            ops->close(d);
            if (isa)
                assert_memory_equal(first, y, sizeof y);
            else
                memcpy(first, y, sizeof y);
        }
        for (int row = 0; row < ROWS; row++)
            for (int h = 0; h < Q; h++) {
                double x[DIM], square = 0;
                const float *from = q + ((size_t)row * Q + (size_t)h) * DIM;
                for (int i = 0; i < DIM; i++)
                    square += (double)from[i] * (double)from[i];
                for (int i = 0; i < DIM; i++)
                    x[i] = (double)from[i] * (norm ? (double)gain[i] / sqrt(square / DIM + 1e-6) : 1.0);
                for (int i = 0; i < ROTATED / 2; i++) {
                    int i0 = halves ? i : 2 * i, i1 = halves ? i + ROTATED / 2 : 2 * i + 1;
                    double angle = (double)positions[row] * (double)inv_freq[i], x0 = x[i0], x1 = x[i1];
                    x[i0] = 1.25 * (x0 * cos(angle) - x1 * sin(angle));
                    x[i1] = 1.25 * (x0 * sin(angle) + x1 * cos(angle));
                }
                for (int i = 0; i < DIM; i++)
                    assert_true(fabs(x[i] - (double)first[row][h * DIM + i]) <= 1e-6 * (4 + fabs(x[i])));
            }
    }
    free(q);
    free(k);
    free(gain);
}

/* ---- trees */

enum { TREE_ROWS = 40 };

/* `before` tokens, then rows of a tree, then one token behind the path of the last row. */
struct tree_case {
    struct heads h;
    enum dtype type;
    int before, window, tokens; /* tokens: of a block */
    const char *isa;
    int threads;
    bool fast;
};

/* n rows of the sequence from slot pos0 on, written and attended. */
static void run_rows(struct device *d, struct world *w, struct cache *c, int pos0, int n, const struct row_tree *tree)
{
    static int32_t zeros[MAX_ROWS];
    int kv_head[64];
    size_t wq = (size_t)(w->h.q * w->h.dim), wk = (size_t)(w->h.kv * w->h.dim), at = (size_t)pos0;
    for (int h = 0; h < w->h.q; h++)
        kv_head[h] = h * w->h.kv / w->h.q;
    c->view.space = &c->space;
    struct batch_seq seq = {0, n, pos0, c->blocks[0], tree};
    struct batch b = {.n_rows = n, .ids = zeros, .positions = zeros, .n_seqs = 1, .seqs = &seq};
    struct attention_args a = {act_of(w->q[0] + at * wq, (int)wq),
                               act_of(w->out[0] + at * wq, (int)wq),
                               w->h.q,
                               kv_head,
                               c->view,
                               1.0f / sqrtf((float)w->h.dim),
                               w->window};
    assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
    ops->kv_write(d, act_of(w->k[0] + at * wk, (int)wk), act_of(w->v[0] + at * wk, (int)wk), &c->view);
    ops->attention(d, &a);
    finish(d);
}

/* The world in which what this slot follows, and itself, alone stands behind the first `before` tokens, with `more`
 * slots behind it; slots[i] is the slot of its position i. */
static struct world path_world(const struct world *w, const struct row_tree *t, int row, int more, int *slots)
{
    struct rng r;
    int n = t->first;
    for (int k = row; k >= 0; k = t->parents[k])
        n++;
    int length = n + more;
    rng_init(&r, 1);
    struct world x = make_world(&r, w->h, 1, &length, w->window);
    x.fast = w->fast;
    for (int i = 0; i < t->first; i++)
        slots[i] = i;
    for (int k = row, at = n; k >= 0; k = t->parents[k])
        slots[--at] = t->first + k;
    for (int i = 0; i < more; i++)
        slots[n + i] = t->first + t->n + i;
    size_t wq = (size_t)(w->h.q * w->h.dim), wk = (size_t)(w->h.kv * w->h.dim);
    for (int i = 0; i < length; i++) {
        memcpy(x.q[0] + (size_t)i * wq, w->q[0] + (size_t)slots[i] * wq, wq * sizeof(float));
        memcpy(x.k[0] + (size_t)i * wk, w->k[0] + (size_t)slots[i] * wk, wk * sizeof(float));
        memcpy(x.v[0] + (size_t)i * wk, w->v[0] + (size_t)slots[i] * wk, wk * sizeof(float));
    }
    return x;
}

/* The last row of the path: against float64, and the bits of a sequence without a tree. */
static void check_path(struct device *d, const struct world *w, const struct tree_case *x, const struct row_tree *t,
                       int row, int more)
{
    int slots[MAX_ROWS];
    double o[512];
    struct rng r;
    rng_init(&r, 2);
    struct world alone = path_world(w, t, row, more, slots);
    int last = alone.length[0] - 1;
    struct cache c = make_cache(&r, &alone, x->type, x->tokens);
    size_t wq = (size_t)(w->h.q * w->h.dim);
    run_world(d, &alone, &c, &r, 300);
    const float *got = w->out[0] + (size_t)slots[last] * wq;
    assert_memory_equal(alone.out[0] + (size_t)last * wq, got, wq * sizeof(float));
    for (int h = 0; h < w->h.q; h++) {
        reference(&alone, x->type, 0, last, h, o);
        for (int i = 0; i < w->h.dim; i++)
            assert_true(fabs(o[i] - (double)got[h * w->h.dim + i]) <= most_off(w));
    }
    free_cache(&alone, &c);
    free_world(&alone);
}

/* What stands on the path to the last row goes to its place, and one token more is computed behind it. */
static void pack_and_go_on(struct device *d, struct world *w, struct cache *c, const struct row_tree *t)
{
    int32_t from[TREE_ROWS], to[TREE_ROWS];
    int n = 0, end = t->first + t->n;
    for (int k = t->n - 1; k >= 0; k = t->parents[k])
        n++;
    for (int k = t->n - 1, at = n; k >= 0; k = t->parents[k]) {
        from[--at] = t->first + k;
        to[at] = t->first + at;
    }
    for (int layer = 0; layer < 2; layer++) { /* the other one has nothing, and loses nothing */
        struct kv_pack p = {.at = {&c->space, c->blocks[0], c->view.tokens_per_block, layer, 0, false},
                            .n_layers = 1,
                            .n_heads = w->h.kv,
                            .head_dim = w->h.dim,
                            .n = n,
                            .from = from,
                            .to = to};
        ops->kv_pack(d, &p);
    }
    /* It is slot `end` of the world, and is cached at the position behind the path. */
    struct world moved = *w;
    size_t back = (size_t)(end - t->first - n);
    moved.q[0] += back * (size_t)(w->h.q * w->h.dim);
    moved.k[0] += back * (size_t)(w->h.kv * w->h.dim);
    moved.v[0] += back * (size_t)(w->h.kv * w->h.dim);
    moved.out[0] += back * (size_t)(w->h.q * w->h.dim);
    run_rows(d, &moved, c, t->first + n, 1, NULL);
}

static void check_tree(const struct tree_case *x, uint64_t seed)
{
    struct rng r;
    int8_t parents[TREE_ROWS];
    int length = x->before + TREE_ROWS + 1, cut = x->before - (x->before < 9 ? x->before : 9);
    struct device *d = open_as(x->isa, x->threads, x->fast);
    if (!d)
        return;
    rng_init(&r, seed);
    for (int i = 0; i < TREE_ROWS; i++)
        parents[i] = (int8_t)(rng_below(&r, 2) ? i - 1 : (int)rng_below(&r, (uint64_t)i + 1) - 1);
    struct row_tree t = {x->before, TREE_ROWS, parents};
    struct world w = make_world(&r, x->h, 1, &length, x->window);
    w.fast = x->fast;
    struct cache c = make_cache(&r, &w, x->type, x->tokens);
    if (cut)
        run_rows(d, &w, &c, 0, cut, NULL);
    int first = x->before - cut + 7; /* the tree in two batches, as micro-batches cut it; ordinary rows before it */
    run_rows(d, &w, &c, cut, first, &t);
    run_rows(d, &w, &c, cut + first, length - 1 - cut - first, &t);
    pack_and_go_on(d, &w, &c, &t);
    for (int row = 0; row < TREE_ROWS; row += 3)
        check_path(d, &w, x, &t, row, 0);
    check_path(d, &w, x, &t, TREE_ROWS - 1, 1);
    free_cache(&w, &c);
    free_world(&w);
    ops->close(d);
}

/* Trees that begin in a leaf, end in the next one, begin with one; and that have windows which begin in two leaves. */
static void rows_of_a_tree_see_their_path(void **state)
{
    (void)state;
    static const int before[] = {1, 20, 100, 127, 128, 250};
    static const enum dtype types[] = {DT_F32, DT_I8, DT_F16, DT_BF16, DT_F8};
    for (int i = 0; i < 6 * N_ISAS; i += rig_slow() ? 3 : 1) {
        struct tree_case x = {.h = {i % 2 ? 6 : 3, i % 2 ? 2 : 1, i % 2 ? 40 : 32},
                              .type = types[i % 5],
                              .before = i % 7 == 4 ? 148 : before[i % 6],
                              .window = i % 7 == 4 ? 24 : 0,
                              .tokens = i % 3 ? 16 : 48,
                              .isa = isas[i / 6],
                              .threads = 1 + i % 2};
        check_tree(&x, (uint64_t)i);
        x.fast = true;
        check_tree(&x, (uint64_t)i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grouped_heads),
        cmocka_unit_test(odd_head_dims),
        cmocka_unit_test(sliding_windows),
        cmocka_unit_test(no_number_reaches_those_before_it),
        cmocka_unit_test(many_queries_of_one_head),
        cmocka_unit_test(block_sizes),
        cmocka_unit_test(rope_and_head_norm),
        cmocka_unit_test(rows_of_a_tree_see_their_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
