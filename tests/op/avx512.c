/* The AVX-512 kernels, and those by tiles of AMX, emulated on whatever x86 machine runs the tests: the same bits as the
 * portable twin, kernel by kernel. Where the CPU has them the other op tests run them for real as well. */
#ifdef NO_X86
#include <stdio.h>
int main(void)
{
    puts("not an x86 machine: there are no AVX-512 kernels to test");
    return 0;
}
#else
#include "tests/rig/simde_avx512.h"
#include "tests/rig/tiles.h"

#define CPU_INTRINSICS 1
#define cpu_kernels_avx512 emulated_avx512
#include "kernels/cpu/kernels_avx512.c"
#undef cpu_kernels_avx512
#define linear_amx emulated_amx
#include "kernels/cpu/linear_amx.c"
#undef linear_amx

#include "kernels/cpu/device.h"
#include "tests/rig/op_fixture.h"
#include "tests/rig/slow.h"

static bool can_run(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

/* PAIRS: this CPU's own products of pairs of bfloat16, which it may have and not use (isa_half_dots). */
enum kind { PORTABLE, AVX512, AMX, PAIRS, N_KINDS };

/* NULL: there is none here, or it is like one before. quantised: weights. */
static struct device *open_kind(enum kind k, bool fast, bool quantised, int rows)
{
    if ((k == AMX && (!fast || !quantised || rows < AMX_ROWS)) ||
        (k == PAIRS && !(fast && __builtin_cpu_supports("avx512bf16"))))
        return NULL;
    struct device *d = open_device(k == PAIRS ? "avx512" : "portable", 1);
    d->opts.fast = fast;
    if (k == AVX512 || k == AMX)
        d->kernels = emulated_avx512();
    d->tiles = k == AMX ? emulated_amx() : NULL;
    d->half_dots = k == PAIRS ? DOTS_EVERYWHERE : DOTS_NOWHERE;
    return d;
}

static void assert_same(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a))
            fail_msg("%s: element %zu is %a, not %a", what, i, (double)b[i], (double)a[i]);
}

/* Frees the weights, too. */
static void multiply_and_close(struct device *d, const struct linear_args *a, struct weight *w)
{
    struct batch b;
    begin_rows(d, a->rows, &b);
    ops->linear(d, a);
    finish(d);
    ops->weight_free(d, w);
    ops->close(d);
}

static void compare_linear(bool fast)
{
    static const int row_counts[] = {1, 2, 3, 4, 5, 8, 15, 66};
    struct rng r;
    rng_init(&r, 31);
    for (int t = 0; t < DT_MATRICES; t++)
        for (int n = rig_slow() ? t % 3 : 0; n < 8; n += rig_slow() ? 3 : 1) {
            enum { OUT = 37, COLS = 1536 };
            int rows = row_counts[n], col0 = n % 2 * LEAF_COLS, cols = COLS - col0;
            struct weight_src src = random_matrix(&r, (enum dtype)t, OUT, COLS);
            float *x = random_floats(&r, (size_t)rows * COLS, 1.0f), *x2 = random_floats(&r, (size_t)rows * COLS, 1.0f);
            float *gain = random_floats(&r, COLS, 1.0f), *y[N_KINDS] = {NULL};
            for (int e = 0; e < N_KINDS; e++) {
                struct device *d = open_kind((enum kind)e, fast, dtype_get((enum dtype)t)->block > 1, rows);
                if (!d)
                    continue;
                struct weight *w = load(d, &src);
                y[e] = calloc((size_t)rows * OUT, sizeof(float));
                struct linear_args a = {.in = (enum linear_in)(n % 3),
                                        .x = act_of(x, cols),
                                        .x2 = act_of(x2, cols),
                                        .gain = gain,
                                        .eps = 1e-5f,
                                        .rows = rows,
                                        .n_out = 1};
                a.out[0] = (struct linear_out){{w, 0, OUT, col0, cols}, NULL, act_of(y[e], OUT)};
                multiply_and_close(d, &a, w);
            }
            for (int e = 1; e < N_KINDS; e++) {
                if (y[e])
                    assert_same(y[0], y[e], (size_t)rows * OUT, dtype_get((enum dtype)t)->name);
                free(y[e]);
            }
            free(y[0]);
            free(x);
            free(x2);
            free(gain);
            free((void *)src.data);
        }
}

static void linear_twins(void **state)
{
    (void)state;
    if (!can_run())
        skip();
    compare_linear(false);
    compare_linear(true);
}

/* As fast inputs and weights are. */
static float half_of(float x)
{
    return fabsf(x) < SMALLEST_HALF ? 0 : bf16_to_f32(f32_to_bf16(x));
}

struct factors {
    const float *w, *x; /* by absolute column */
    int col1;
};

/* The sum of a leaf as tiles have it: kernels.h says in what order. */
static float leaf_in_order(const struct factors *f, int leaf)
{
    float sum = 0;
    for (int c = leaf * LEAF_COLS; c < (leaf + 1) * LEAF_COLS && c < f->col1; c += BLOCK_COLS) {
        float of[2] = {0, 0};
        for (int i = c; i < c + BLOCK_COLS && i < f->col1; i++)
            of[i % 2] = fmaf(half_of(f->x[i]), half_of(f->w[i]), of[i % 2]);
        sum += of[0] + of[1];
    }
    return sum;
}

static float leaves_in_order(const struct factors *f, int a, int b)
{
    if (b - a == 1)
        return leaf_in_order(f, a);
    int level = 31 - __builtin_clz((unsigned)(a ^ (b - 1))), middle = (b - 1) >> level << level;
    return leaves_in_order(f, a, middle) + leaves_in_order(f, middle, b);
}

/* emulated: whatever this CPU has. */
static void pairs_on(bool emulated, enum dtype t, int rows, int cols, int col0, struct rng *r)
{
    enum { OUT = 37 };
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x2680, 0x2700, 0x7f00, 0xff80, 0x7fc0};
    struct device *d = open_as(emulated ? "portable" : "amx", 1, true);
    if (!d)
        return;
    if (emulated) {
        d->kernels = emulated_avx512();
        d->tiles = emulated_amx();
    }
    struct weight_src src = random_matrix(r, t, OUT, cols);
    int n = cols - col0;
    float *x = random_floats(r, (size_t)rows * (size_t)n, 1.0f), *y = calloc((size_t)rows * OUT, sizeof *y);
    if (col0 == 0)
        for (int i = 0; i < 9; i++)
            x[rng_below(r, (uint64_t)(rows * n))] = bf16_to_f32(odd[rng_below(r, sizeof odd / sizeof *odd)]);
    struct weight *w = load(d, &src);
    struct linear_args a = {.x = act_of(x, n), .rows = rows, .n_out = 1};
    a.out[0] = (struct linear_out){{w, 0, OUT, col0, n}, NULL, act_of(y, OUT)};
    multiply_and_close(d, &a, w);
    float *wide = dequantised(&src);
    for (int i = 0; i < rows * OUT; i++) {
        struct factors f = {wide + (size_t)(i % OUT) * (size_t)cols, x + i / OUT * n - col0, cols};
        float want = leaves_in_order(&f, col0 / LEAF_COLS, (cols + LEAF_COLS - 1) / LEAF_COLS);
        if (isnan(want) ? !isnan(y[i]) : memcmp(&want, y + i, sizeof want) != 0)
            fail_msg("%s, %d rows of %d: element %d is %a, not %a", dtype_get(t)->name, rows, n, i, (double)y[i],
                     (double)want);
    }
    free(wide);
    free(x);
    free(y);
    free((void *)src.data);
}

static void pairs_by_tiles_add_in_their_order(void **state)
{
    static const int rows_of[] = {1, 2, 3, 4, 5, 8, 13, 16, 35}, cols_of[] = {576, 97, 200, 1536};
    struct rng r;
    (void)state;
    if (!can_run())
        skip();
    rng_init(&r, 34);
    for (int i = 0; i < 36; i++)
        for (int emulated = 0; emulated < 2; emulated++)
            pairs_on(emulated, i % 2 ? DT_F16 : DT_BF16, rows_of[i % 9], cols_of[i / 9], i % 5 ? 0 : LEAF_COLS, &r);
}

static void compare_attention(bool fast)
{
    static const int dims[] = {64, 40, 128}, queries[] = {3, 1, 9, 5, 3};
    static const enum dtype caches[] = {DT_F16, DT_BF16, DT_F32, DT_F8, DT_I8};
    struct rng r;
    rng_init(&r, 32);
    for (int i = 0; i < 15; i += rig_slow() ? 4 : 1) { /* each dim, and four caches of five */
        enum { LENGTH = 300, TOKENS = 32, BLOCKS = 10 };
        int dim = dims[i % 3], heads = queries[i / 3], window = i == 4 ? 77 : 0, done[] = {0, 290, 299, LENGTH};
        int kv_head[16] = {0};
        float *q = random_floats(&r, (size_t)(LENGTH * heads * dim), 1.0f);
        float *k = random_floats(&r, (size_t)(LENGTH * dim), 1.0f),
              *v = random_floats(&r, (size_t)(LENGTH * dim), 1.0f);
        float *out[N_KINDS] = {NULL};
        for (int e = 0; e < N_KINDS; e++) {
            struct device *d = open_kind((enum kind)e, fast, false, 0);
            if (!d)
                continue;
            int32_t blocks[BLOCKS], zeros[LENGTH] = {0};
            struct kv_space space = {NULL, ops->kv_block_bytes(caches[i / 3], TOKENS, 1, dim), BLOCKS, 1,
                                     caches[i / 3]};
            space.base = ops->alloc(d, space.block_bytes * BLOCKS);
            out[e] = calloc((size_t)(LENGTH * heads * dim), sizeof(float));
            for (int b = 0; b < BLOCKS; b++)
                blocks[b] = (b * 7 + 3) % BLOCKS;
            for (int s = 0; s < 3; s++) {
                int p = done[s], n = done[s + 1] - p;
                struct batch_seq seq = {0, n, p, blocks, NULL};
                struct batch b = {.n_rows = n, .ids = zeros, .positions = zeros, .n_seqs = 1, .seqs = &seq};
                struct kv_view view = {&space, 0, TOKENS, 1, dim};
                struct attention_args a = {act_of(q + p * heads * dim, heads * dim),
                                           act_of(out[e] + p * heads * dim, heads * dim),
                                           heads,
                                           kv_head,
                                           view,
                                           0.11f,
                                           window};
                assert_int_equal(ops->begin(d, &b, NULL, NULL), 0);
                ops->kv_write(d, act_of(k + p * dim, dim), act_of(v + p * dim, dim), &view);
                ops->attention(d, &a);
                finish(d);
            }
            ops->release(d, space.base);
            ops->close(d);
        }
        for (int e = 1; e < N_KINDS; e++) {
            if (out[e])
                assert_same(out[0], out[e], (size_t)(LENGTH * heads * dim), "attention");
            free(out[e]);
        }
        free(out[0]);
        free(q);
        free(k);
        free(v);
    }
}

static void attention_twins(void **state)
{
    (void)state;
    if (!can_run())
        skip();
    compare_attention(false);
    compare_attention(true);
}

/* What is kept of a quantised row beside its integers. */
struct quantised {
    union qword meta[3 * 96 / 32];
    int32_t half[2 * 96 / 32];
};

static struct qinput quantised_into(int8_t *q, struct quantised *m)
{
    return (struct qinput){q, m->meta, m->half, 1};
}

/* Small kernels on awkward values: zeros, infinities, NaN, the largest and the least floats. */
static void row_twins(void **state)
{
    (void)state;
    enum { N = 96 };
    static const float odd[] = {0.0f,     -0.0f,  INFINITY, -INFINITY, NAN,     3.4e38f,
                                -3.4e38f, 1e-45f, 1e-38f,   88.0f,     -104.0f, 1e30f};
    const struct cpu_kernels *a = cpu_kernels_portable(), *b = emulated_avx512();
    struct rng r;
    rng_init(&r, 33);
    if (!can_run())
        skip();
    for (int round = 0; round < 400; round++) {
        float x[N], x2[N], y[2][N];
        int8_t q[2][N / 32 * QUANT_BLOCK];
        struct quantised m[2];
        uint16_t h[2][N];
        int n = N - (int)rng_below(&r, 40);
        for (int i = 0; i < N; i++) {
            x[i] = gaussian(&r) * 20.0f;
            x2[i] = gaussian(&r);
        }
        if (round % 2)
            x[rng_below(&r, N)] = odd[rng_below(&r, sizeof odd / sizeof *odd)];
        for (int fast = 0; fast < 2; fast++) {
            memset(m, 0, sizeof m);
            a->quantise_row(x, N, quantised_into(q[0], &m[0]), fast);
            b->quantise_row(x, N, quantised_into(q[1], &m[1]), fast);
            assert_memory_equal(q[0], q[1], N / 32 * quant_block(fast));
            assert_memory_equal(&m[0], &m[1], sizeof m[0]);
        }
        for (int t = DT_F16; t <= DT_BF16; t++) {
            a->to_cache(x, n, (enum dtype)t, h[0]);
            b->to_cache(x, n, (enum dtype)t, h[1]);
            assert_memory_equal(h[0], h[1], (size_t)n * 2);
        }
        a->to_cache(x, n, DT_F8, h[0]);
        b->to_cache(x, n, DT_F8, h[1]);
        assert_memory_equal(h[0], h[1], (size_t)n);
        a->swiglu_row(x, x2, n, y[0]);
        b->swiglu_row(x, x2, n, y[1]);
        for (int i = 0; i < n; i++)
            assert_true(y[0][i] != y[0][i] ? y[1][i] != y[1][i] : memcmp(&y[0][i], &y[1][i], 4) == 0);
        a->norm_row(x, x2, n, 1e-6f, y[0]);
        b->norm_row(x, x2, n, 1e-6f, y[1]);
        for (int i = 0; i < n; i++)
            assert_true(y[0][i] != y[0][i] ? y[1][i] != y[1][i] : memcmp(&y[0][i], &y[1][i], 4) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_twins),
        cmocka_unit_test(pairs_by_tiles_add_in_their_order),
        cmocka_unit_test(attention_twins),
        cmocka_unit_test(row_twins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
