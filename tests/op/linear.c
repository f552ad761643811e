/* Linear layers of the CPU backend: every type against float64, and bit for bit the same on every instruction set,
 * thread count, batch and window. */
#include "kernels/backend.h"
#include "tests/rig/isas.h"
#include "tests/rig/op_fixture.h"
#include "tests/rig/slow.h"

struct shape {
    int rows, cols;
};

static const enum dtype types[] = {DT_F32,    DT_F16,    DT_BF16, DT_Q4_0, DT_Q4_1, DT_Q5_0, DT_Q5_1, DT_Q8_0,
                                   DT_IQ4_NL, DT_IQ4_XS, DT_Q2_K, DT_Q3_K, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_F8_SCALED};
enum { N_TYPES = sizeof types / sizeof *types };

/* Under TSan, which looks at threads alone, some types are enough. */
#if defined(__SANITIZE_THREAD__)
enum { TYPE_STEP = 4 };
#else
enum { TYPE_STEP = 1 };
#endif

static void run(struct device *d, struct linear_args a)
{
    struct batch b;
    begin_rows(d, a.rows, &b);
    ops->linear(d, &a);
    finish(d);
}

/* y[rows][w.rows] = x w^T on a fresh device. NULL when the machine lacks the instructions. */
static float *product(const char *isa, int threads, const struct weight_src *src, float *x, int rows)
{
    struct device *d = open_device(isa, threads);
    if (!d)
        return NULL;
    struct weight *w = load(d, src);
    float *y = calloc((size_t)rows * (size_t)src->rows, sizeof *y);
    struct linear_args a = {.in = LINEAR_PLAIN, .x = act_of(x, src->cols), .rows = rows, .n_out = 1};
    a.out[0] = (struct linear_out){{w, 0, src->rows, 0, src->cols}, NULL, act_of(y, src->rows)};
    run(d, a);
    ops->weight_free(d, w);
    ops->close(d);
    return y;
}

/* What a product rounds: nothing, its inputs to 8 bits, or both of its factors to bfloat16. */
enum rounding { ROUNDS_NOTHING, ROUNDS_INPUTS, ROUNDS_HALVES };

static enum rounding rounding_of(enum dtype t)
{
    if (dtype_get(t)->block > 1 && t != DT_F8_SCALED)
        return ROUNDS_INPUTS;
    return getenv("MOONSHIFT_TEST_FAST") && (t == DT_F16 || t == DT_BF16) ? ROUNDS_HALVES : ROUNDS_NOTHING;
}

/* Tiles add pairs of halves in an order of their own (kernels.h). */
static bool in_other_order(const char *isa, enum dtype t)
{
    return rounding_of(t) == ROUNDS_HALVES && strcmp(isa, "amx") == 0;
}

/* The error that this may cause. Inputs of 8 bits move by at most amax/254 of their 32 columns, halves by at most a
 * 512th of themselves, which adds up as a random walk; six standard deviations (uniform: a third of the square each)
 * plus the rounding of the f32 sums. */
static double tolerance(enum rounding how, const float *w, const float *x, int cols)
{
    double walk = 0, size = 0;
    for (int c = 0; c < cols; c++) {
        double each = fabs((double)w[c] * (double)x[c]);
        size += each;
        walk += how == ROUNDS_HALVES ? 2 * each * each / (512.0 * 512.0 * 3.0) : 0;
    }
    for (int b = 0; b < cols && how == ROUNDS_INPUTS; b += 32) {
        double amax = 0, w2 = 0;
        for (int i = b; i < b + 32; i++) {
            amax = fmax(amax, fabs((double)x[i]));
            w2 += (double)w[i] * (double)w[i];
        }
        walk += w2 * amax * amax / (254.0 * 254.0 * 3.0);
    }
    return 6.0 * sqrt(walk) + size * 1e-6 + 1e-12;
}

static void check_against_double(const struct weight_src *src, const float *x, const float *y, int rows)
{
    float *w = dequantised(src);
    enum rounding how = rounding_of(src->type);
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < src->rows; o++) {
            const float *wo = w + (size_t)o * (size_t)src->cols, *xr = x + (size_t)r * (size_t)src->cols;
            double sum = 0;
            for (int c = 0; c < src->cols; c++)
                sum += (double)wo[c] * (double)xr[c];
            double err = fabs(sum - (double)y[(size_t)r * (size_t)src->rows + (size_t)o]);
            if (!(err <= tolerance(how, wo, xr, src->cols)))
                fail_msg("%s %dx%d row %d output %d: off by %g", dtype_get(src->type)->name, src->rows, src->cols, r, o,
                         err);
        }
    free(w);
}

static void assert_bits(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a))
            fail_msg("%s: element %zu is %a, not %a", what, i, (double)b[i], (double)a[i]);
}

static void every_type_and_shape(void **state)
{
    (void)state;
    static const struct shape shapes[] = {{1, 256},  {16, 256}, {48, 576}, {37, 1536},
                                          {80, 768}, {17, 288}, {33, 100}, {20, 2304}};
    static const int rows_of[] = {1, 2, 3, 4, 5, 7, 16, 67};
    struct rng r;
    rng_init(&r, 1);
    for (int t = 0; t < N_TYPES; t += TYPE_STEP)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (shapes[s].cols % dtype_get(types[t])->block)
                continue;
            struct weight_src src = random_matrix(&r, types[t], shapes[s].rows, shapes[s].cols);
            int rows = rows_of[(s + (size_t)t) % 8];
            float *x = random_floats(&r, (size_t)rows * (size_t)src.cols, 2.0f);
            float *y = product("portable", 1, &src, x, rows);
            check_against_double(&src, x, y, rows);
            for (int i = 1; i < N_ISAS; i++) {
                float *z = product(isas[i], 2, &src, x, rows);
                if (z && in_other_order(isas[i], src.type))
                    check_against_double(&src, x, z, rows);
                else if (z)
                    assert_bits(y, z, (size_t)rows * (size_t)src.rows, isas[i]);
                free(z);
            }
            free(y);
            free(x);
            free((void *)src.data);
        }
}

static void extreme_weights(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 2);
    for (int t = 3; t < N_TYPES; t += TYPE_STEP) {
        struct weight_src src = random_matrix(&r, types[t], 32, 512);
        const struct dtype_info *info = dtype_get(src.type);
        uint8_t *p = (uint8_t *)src.data;
        for (size_t b = 0; b < (size_t)32 * dtype_row_bytes(src.type, 512); b++) /* largest weights, largest scales */
            if (b % (size_t)info->bytes >= 4 &&
                b % (size_t)info->bytes < (size_t)info->bytes - (src.type == DT_Q2_K ? 4 : 2))
                p[b] = src.type == DT_Q8_0 && b % 3 ? 0x80 : src.type == DT_F8_SCALED ? b % 3 ? 0xfe : 0x7e : 0xff;
        float *x = malloc(5 * 512 * sizeof *x);
        for (int i = 0; i < 5 * 512; i++)
            x[i] = i % 7 ? 1.0f : i % 3 ? -1.0f : 0.5f;
        for (int rows = 1; rows <= 5; rows += 4) {
            float *y = product("portable", 1, &src, x, rows), *z = product("auto", 1, &src, x, rows);
            check_against_double(&src, x, y, rows);
            assert_bits(y, z, (size_t)rows * 32, info->name);
            free(y);
            free(z);
        }
        free(x);
        free(p);
    }
}

/* Each row alone, on one thread, gives what it gave in every batch and on every number of threads. */
static void rows_stand_alone(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int t = 0; t < N_TYPES; t += TYPE_STEP) {
        struct weight_src src = random_matrix(&r, types[t], 208, 1280);
        enum { ROWS = 150 };
        float *x = random_floats(&r, (size_t)ROWS * 1280, 1.0f);
        float *all = product("auto", 1, &src, x, ROWS);
        for (int threads = rig_slow() || getenv("MOONSHIFT_QUICK") ? 3 : 1; threads <= 3; threads++) {
            int at = 0;
            while (at < ROWS) {
                int n = 1 + (int)rng_below(&r, at > 20 ? 70 : 6);
                n = n < ROWS - at ? n : ROWS - at;
                float *y = product("auto", threads, &src, x + (size_t)at * 1280, n);
                assert_bits(all + (size_t)at * 208, y, (size_t)n * 208, dtype_get(types[t])->name);
                free(y);
                at += n;
            }
        }
        free(all);
        free(x);
        free((void *)src.data);
    }
}

/* So large that a thread takes several blocks of rows of some groups at a time: the same as a block alone. */
static void blocks_of_rows_stand_alone(void **state)
{
    (void)state;
    enum { OUT = 4088, COLS = 256, ROWS = 600, SOME = 200 };
    static const enum dtype two[] = {DT_Q8_0, DT_F16};
    struct rng r;
    rng_init(&r, 7);
    for (int t = 0; t < (rig_slow() ? 1 : 2); t++) {
        struct weight_src src = random_matrix(&r, two[t], OUT, COLS);
        float *x = random_floats(&r, (size_t)ROWS * COLS, 1.0f), *all = product("auto", 2, &src, x, ROWS);
        for (int at = 0; at < ROWS; at += SOME) {
            float *y = product("auto", 1, &src, x + (size_t)at * COLS, SOME);
            assert_bits(all + (size_t)at * OUT, y, SOME * (size_t)OUT, dtype_get(two[t])->name);
            free(y);
        }
        free(all);
        free(x);
        free((void *)src.data);
    }
}

/* The sum over the tree of leaves lo <= i < hi that lie in node `level`, `index`, of leaf sums given one by one. */
static bool tree_sum(const float *leaves, int n, int level, int index, float *out)
{
    if (index << level >= n)
        return false;
    if (level == 0) {
        *out = leaves[index];
        return true;
    }
    float a, b;
    tree_sum(leaves, n, level - 1, 2 * index, &a);
    *out = tree_sum(leaves, n, level - 1, 2 * index + 1, &b) ? a + b : a;
    return true;
}

/* Windows of one leaf give the leaf sums, and these add up in the stated tree to the whole, bit for bit: what a layout
 * needs. Row windows give the same outputs. */
enum { WINDOW_OUT = 75, WINDOW_COLS = 1536, WINDOW_ROWS = 29, WINDOW_LEAVES = WINDOW_COLS / 64 };

/* [rows][WINDOW_OUT] of leaves [leaves[0], leaves[1]). */
static void window(struct device *d, struct weight *w, float *x, int rows, const int leaves[2], float *y)
{
    int first = leaves[0] * 64, cols = leaves[1] * 64 - first;
    struct linear_args a = {.x = {x + first, cols, WINDOW_COLS}, .rows = rows, .n_out = 1};
    a.out[0] = (struct linear_out){{w, 0, WINDOW_OUT, first, cols}, NULL, act_of(y, WINDOW_OUT)};
    run(d, a);
}

static void windows_of(const struct weight_src *src, float *x, int rows)
{
    enum { OUT = WINDOW_OUT, LEAVES = WINDOW_LEAVES };
    static float leaf[LEAVES][WINDOW_ROWS][OUT], part[WINDOW_ROWS][OUT], top[WINDOW_ROWS][48], rest[WINDOW_ROWS][27];
    static const int cuts[][2] = {{0, 24}, {0, 16}, {16, 24}, {0, 8}, {8, 16}, {4, 8}, {22, 24}};
    struct device *d = open_device("auto", 2);
    struct weight *w = load(d, src);
    for (int i = 0; i < LEAVES; i++)
        window(d, w, x, rows, (int[]){i, i + 1}, &leaf[i][0][0]);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) { /* the whole, and whole nodes: a rank's share */
        int a0 = cuts[c][0], a1 = cuts[c][1];
        window(d, w, x, rows, cuts[c], &part[0][0]);
        for (int row = 0; row < rows; row++)
            for (int o = 0; o < OUT; o++) {
                float leaves[LEAVES] = {0}, sum;
                for (int i = a0; i < a1; i++)
                    leaves[i - a0] = leaf[i][row][o];
                tree_sum(leaves, a1 - a0, 5, 0, &sum);
                assert_bits(&sum, &part[row][o], 1, "node");
            }
    }
    window(d, w, x, rows, cuts[0], &part[0][0]);
    struct linear_args a = {.x = act_of(x, WINDOW_COLS), .rows = rows, .n_out = 2};
    a.out[0] = (struct linear_out){{w, 0, 48, 0, WINDOW_COLS}, NULL, act_of(&top[0][0], 48)};
    a.out[1] = (struct linear_out){{w, 48, 27, 0, WINDOW_COLS}, NULL, act_of(&rest[0][0], 27)};
    run(d, a);
    for (int row = 0; row < rows; row++) {
        assert_bits(part[row], top[row], 48, "upper rows");
        assert_bits(part[row] + 48, rest[row], 27, "lower rows");
    }
    ops->weight_free(d, w);
    ops->close(d);
}

static void windows(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 4);
    for (int t = 0; t < N_TYPES; t += TYPE_STEP) {
        struct weight_src src = random_matrix(&r, types[t], WINDOW_OUT, WINDOW_COLS);
        float *x = random_floats(&r, (size_t)WINDOW_ROWS * WINDOW_COLS, 1.0f);
        windows_of(&src, x, 6);
        windows_of(&src, x, WINDOW_ROWS); /* as many as are taken several groups at a time */
        free(x);
        free((void *)src.data);
    }
}

/* The fused inputs against float64: norm(x) * gain and silu(x) * x2, into three outputs, with bias and accumulation. */
static void fused_inputs(void **state)
{
    (void)state;
    enum { ROWS = 9, COLS = 608, OUT = 40 };
    struct rng r;
    rng_init(&r, 5);
    static const enum dtype mixed[3] = {DT_Q4_1, DT_Q8_0, DT_F16};
    struct weight_src src[3];
    for (int i = 0; i < 3; i++)
        src[i] = random_matrix(&r, mixed[i], OUT, COLS);
    float *x = random_floats(&r, ROWS * COLS, 3.0f), *x2 = random_floats(&r, ROWS * COLS, 1.0f);
    float *gain = random_floats(&r, COLS, 1.0f), *bias = random_floats(&r, OUT, 1.0f);
    for (int in = LINEAR_NORM; in <= LINEAR_SWIGLU; in++) {
        static float first[3][ROWS][OUT], y[3][ROWS][OUT], plain[ROWS][COLS];
        for (int row = 0; row < ROWS; row++) {
            double square = 0;
            for (int c = 0; c < COLS; c++)
                square += (double)x[row * COLS + c] * (double)x[row * COLS + c];
            for (int c = 0; c < COLS; c++) {
                double v = (double)x[row * COLS + c];
                plain[row][c] = (float)(in == LINEAR_NORM ? v / sqrt(square / COLS + 1e-5) * (double)gain[c]
                                                          : v / (1 + exp(-v)) * (double)x2[row * COLS + c]);
            }
        }
        for (int isa = 0; isa < N_ISAS; isa++) {
            struct device *d = open_device(isas[isa], 2);
            if (!d)
                continue;
            struct linear_args a = {.in = (enum linear_in)in,
                                    .x = act_of(x, COLS),
                                    .x2 = act_of(x2, COLS),
                                    .gain = gain,
                                    .eps = 1e-5f,
                                    .rows = ROWS,
                                    .accumulate = true,
                                    .n_out = 3};
            struct weight *w[3];
            for (int i = 0; i < 3; i++) {
                w[i] = load(d, &src[i]);
                for (int k = 0; k < ROWS * OUT; k++)
                    (&y[i][0][0])[k] = 10.0f;
                a.out[i] = (struct linear_out){{w[i], 0, OUT, 0, COLS}, i == 1 ? NULL : bias, act_of(&y[i][0][0], OUT)};
            }
            run(d, a);
            for (int i = 0; i < 3; i++)
                if (isa == 0)
                    memcpy(first[i], y[i], sizeof y[i]);
                else if (!in_other_order(isas[isa], src[i].type))
                    assert_bits(&first[i][0][0], &y[i][0][0], ROWS * OUT, isas[isa]);
            for (int i = 0; i < 3; i++)
                ops->weight_free(d, w[i]);
            ops->close(d);
        }
        for (int i = 0; i < 3; i++) {
            static float bare[ROWS][OUT];
            for (int k = 0; k < ROWS * OUT; k++)
                (&bare[0][0])[k] = (&first[i][0][0])[k] - 10.0f - (i == 1 ? 0.0f : bias[k % OUT]);
            float *wf = dequantised(&src[i]);
            for (int row = 0; row < ROWS; row++)
                for (int o = 0; o < OUT; o++) {
                    double sum = 0;
                    for (int c = 0; c < COLS; c++)
                        sum += (double)wf[o * COLS + c] * (double)plain[row][c];
                    double limit = tolerance(rounding_of(mixed[i]), wf + o * COLS, plain[row], COLS) + 1e-5;
                    assert_true(fabs(sum - (double)bare[row][o]) <= limit);
                }
            free(wf);
        }
    }
    for (int i = 0; i < 3; i++)
        free((void *)src[i].data);
    free(x);
    free(x2);
    free(gain);
    free(bias);
}

/* One call after another on the same devices, of other inputs, sums and numbers of rows: whoever prepares what (each
 * thread for itself, for its band, or one for all), it is what one thread makes of them. */
static void shared_inputs(void **state)
{
    (void)state;
    enum { ROWS = 150, COLS = 608, OUT = 72, N = 4 };
    static const enum dtype mixed[N] = {DT_Q4_K, DT_Q8_0, DT_F16, DT_F32};
    static const int threads[] = {1, 2, 3, 4, 6, 7},
                     rows_of[] = {3, 4, 8, 15, 16, 17, 24, 31, 32, 33, 48, 64, 97, ROWS};
    enum { N_DEVICES = sizeof threads / sizeof *threads, N_CALLS = sizeof rows_of / sizeof *rows_of };
    static float y[N_DEVICES][N][ROWS][OUT];
    struct rng r;
    rng_init(&r, 8);
    struct weight_src src[N];
    for (int i = 0; i < N; i++)
        src[i] = random_matrix(&r, mixed[i], OUT, i ? COLS : 512);
    float *x = random_floats(&r, 2 * ROWS * COLS, 3.0f), *gain = random_floats(&r, COLS, 1.0f);
    struct device *d[N_DEVICES];
    struct weight *w[N_DEVICES][N];
    for (int k = 0; k < N_DEVICES; k++) {
        d[k] = open_device("auto", threads[k]);
        for (int i = 0; i < N; i++)
            w[k][i] = load(d[k], &src[i]);
    }
    for (int call = 0; call < 3 * N_CALLS; call++) {
        int rows = rows_of[call * 5 % N_CALLS], first = (int)rng_below(&r, 3), n = 1 + (int)rng_below(&r, 3);
        int cols = first ? COLS : 512, from = (int)rng_below(&r, ROWS);
        n = first == 0 ? 1 : first + n > N ? N - first : n;
        for (int k = 0; k < N_DEVICES; k++) {
            struct linear_args a = {.in = (enum linear_in)(call % 3),
                                    .x = {x + from, cols, COLS},
                                    .gain = gain,
                                    .x2 = {x + from + ROWS * COLS / 2, cols, COLS},
                                    .eps = 1e-5f,
                                    .rows = rows,
                                    .n_out = n};
            for (int i = 0; i < n; i++)
                a.out[i] = (struct linear_out){{w[k][first + i], 0, OUT, 0, cols}, NULL, act_of(&y[k][i][0][0], OUT)};
            run(d[k], a);
            for (int i = 0; i < n; i++)
                assert_bits(&y[0][i][0][0], &y[k][i][0][0], (size_t)rows * OUT, "the threads");
        }
    }
    for (int k = 0; k < N_DEVICES; k++) {
        for (int i = 0; i < N; i++)
            ops->weight_free(d[k], w[k][i]);
        ops->close(d[k]);
    }
    for (int i = 0; i < N; i++)
        free((void *)src[i].data);
    free(x);
    free(gain);
}

static void bad_numbers_show(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 6);
    struct weight_src src = random_matrix(&r, DT_Q4_1, 16, 64);
    float *x = random_floats(&r, 2 * 64, 1.0f);
    x[64 + 5] = NAN;
    float *y = product("auto", 1, &src, x, 2), *z = product("portable", 1, &src, x, 2);
    for (int i = 0; i < 16; i++) {
        assert_true(isfinite(y[i]) && isfinite(z[i]));
        assert_true(isnan(y[16 + i]) && isnan(z[16 + i]));
    }
    memset(x, 0, 2 * 64 * sizeof *x);
    free(y);
    free(z);
    y = product("auto", 1, &src, x, 2);
    for (int i = 0; i < 32; i++)
        assert_true(y[i] == 0.0f);
    free(y);
    free(x);
    free((void *)src.data);
}

/* Numbers near zero, at the end of the range, and none at all: each instruction set makes the same of them. */
static void edges_of_halves(void **state)
{
    (void)state;
    enum { OUT = 20, COLS = 97, ROWS = 9, N = 12 };
    static const uint16_t odd_ones[N] = {0x0000, 0x8000, 0x0001, 0x8070, 0x0080, 0x2680,
                                         0x2700, 0x2780, 0x7f00, 0xff80, 0x7fc0, 0x3f80};
    struct rng r;
    rng_init(&r, 7);
    for (int t = 0; t < 2; t++)
        for (int many = 0; many < 4; many++) {
            struct weight_src src = random_matrix(&r, t ? DT_BF16 : DT_F16, OUT, COLS);
            uint16_t *w = (uint16_t *)src.data;
            float *x = random_floats(&r, (size_t)ROWS * COLS, 1.0f);
            for (int i = 0; i < OUT * COLS; i++) /* infinities and NaN in some rounds only: few sums are numbers then */
                if (rng_below(&r, 3) < 2 && t)
                    w[i] = odd_ones[rng_below(&r, many ? 9 : N)];
            for (int i = 0; i < ROWS * COLS; i++)
                if (rng_below(&r, 3) < 2)
                    x[i] = bf16_to_f32(odd_ones[rng_below(&r, many > 1 ? 8 : N)]) * (i % 2 ? 1.0f : 1.0039f);
            float *y = product("portable", 1, &src, x, ROWS);
            for (int i = 1; i < N_ISAS; i++) {
                float *z = in_other_order(isas[i], src.type) ? NULL : product(isas[i], 1, &src, x, ROWS);
                for (int k = 0; z && k < ROWS * OUT; k++)
                    if (isnan(y[k]) ? !isnan(z[k]) : y[k] != z[k])
                        fail_msg("%s: element %d is %a, not %a", isas[i], k, (double)z[k], (double)y[k]);
                free(z);
            }
            free(y);
            free(x);
            free(w);
        }
}

static void refusals(void **state)
{
    (void)state;
    struct err e = {0};
    struct device *d = NULL;
    struct device_opts o = {.n_threads = 1, .isa = "sse9", .max_rows = 8, .max_logits = 1};
    ops = backend_cpu();
    assert_int_equal(ops->open(&d, &o, &e), E_INPUT);
    assert_non_null(strstr(e.text, "sse9"));
    assert_null(d);
    o.isa = "auto";
    assert_int_equal(ops->open(&d, &o, &e), 0);
    static const uint8_t zeros[4096];
    struct weight *w = NULL;
    struct weight_src src = {DT_Q4_K, 4, 96, .data = zeros};
    assert_int_equal(ops->weight_load(d, &w, &src, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "256"));
    assert_null(w);
    src = (struct weight_src){DT_F8_SCALED, 4, 96, .data = zeros};
    assert_int_equal(ops->weight_load(d, &w, &src, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "64"));
    src = (struct weight_src){DT_F8, 4, 64, .data = zeros};
    assert_int_equal(ops->weight_load(d, &w, &src, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "scales"));
    src = (struct weight_src){DT_Q4_0, 32, 160, .data = zeros};
    assert_int_equal(ops->weight_load(d, &w, &src, &e), 0);
    float x[160] = {0}, y[32];
    struct linear_args a = {.x = act_of(x, 128), .rows = 1, .n_out = 1};
    a.out[0] = (struct linear_out){{w, 0, 32, 32, 128}, NULL, act_of(y, 32)}; /* starts inside a leaf */
    struct batch b;
    begin_rows(d, 1, &b);
    ops->linear(d, &a);
    assert_int_equal(ops->finish(d, NULL, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "multiple of 64"));
    begin_rows(d, 1, &b);
    a.out[0].w = (struct wview){w, 8, 16, 0, 160};
    a.x = act_of(x, 160);
    ops->linear(d, &a);
    assert_int_equal(ops->finish(d, NULL, &e), E_UNSUPPORTED);
    b.n_rows = 9;
    assert_int_equal(ops->begin(d, &b, NULL, &e), E_FULL);
    ops->weight_free(d, w);
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_shape),
        cmocka_unit_test(extreme_weights),
        cmocka_unit_test(rows_stand_alone),
        cmocka_unit_test(blocks_of_rows_stand_alone),
        cmocka_unit_test(windows),
        cmocka_unit_test(fused_inputs),
        cmocka_unit_test(shared_inputs),
        cmocka_unit_test(bad_numbers_show),
        cmocka_unit_test(edges_of_halves),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
