/* What lies between two ops in bf16, in steps of many rows: outputs rounded once from what they would be in f32, and
 * inputs that give the products that the same numbers in f32 give; attention's, by each of its kernels. */
#include <math.h>

#include "engine/base/mem.h"
#include "tests/rig/op_fixture.h"

enum { MAX_ROWS = 160, OUTS = 192, COLS = 256, HEADS = 4, BLOCK = 16 };

static const enum dtype types[] = {DT_BF16, DT_Q4_K, DT_Q8_0, DT_Q6_K, DT_F8_SCALED, DT_F16, DT_F32};
enum { N_TYPES = sizeof types / sizeof *types };

static struct device *open_default(void)
{
    struct device *d;
    struct err e = {0};
    ops = backend_cuda();
    if (ops->n_devices() == 0)
        skip();
    if (ops->open(&d, &(struct device_opts){.max_rows = MAX_ROWS, .max_logits = 1}, &e))
        fail_msg("%s", e.text);
    return d;
}

static void *put(struct device *d, const void *host, size_t bytes)
{
    void *p = ops->alloc(d, bytes);
    assert_non_null(p);
    assert_int_equal(ops->upload(d, p, host, bytes), 0);
    return p;
}

/* n activations, as f32. */
static float *fetch(struct device *d, struct act a, size_t n)
{
    float *out = mem_new_array(n, sizeof *out);
    uint16_t *half = mem_new_array(n, sizeof *half);
    assert_int_equal(ops->download(d, a.half ? (void *)half : out, a.data, n * (a.half ? 2 : 4)), 0);
    for (size_t i = 0; i < n && a.half; i++)
        out[i] = bf16_to_f32(half[i]);
    mem_free(half);
    return out;
}

static struct act act_put(struct device *d, const float *x, int rows, int cols, bool half)
{
    size_t n = (size_t)rows * (size_t)cols;
    uint16_t *rounded = mem_new_array(n, sizeof *rounded);
    for (size_t i = 0; i < n; i++)
        rounded[i] = f32_to_bf16(x[i]);
    struct act a = {put(d, half ? (const void *)rounded : x, n * (half ? 2 : 4)), cols, cols, half};
    mem_free(rounded);
    return a;
}

/* Scales by rows, or by blocks of 128 x 128, so that both factors may be fp8. */
static struct weight_src matrix_of(struct rng *r, enum dtype t, int rows, int cols, enum f8_scales scales)
{
    struct weight_src src = random_matrix(r, t, rows, cols);
    for (int i = 0; i < rows && t == DT_F8_SCALED; i++)
        for (int c = 0; c < cols / 64; c++) {
            float scale = 0.01f * (float)(1 + i / 128);
            memcpy((char *)src.data + (size_t)i * dtype_row_bytes(t, cols) + (size_t)c * 68, &scale, sizeof scale);
        }
    src.scales = t == DT_F8_SCALED ? scales : F8_BY_64;
    return src;
}

static void run_linear(struct device *d, const struct linear_args *a)
{
    static const int32_t zeros[MAX_ROWS];
    struct batch b = {.n_rows = a->rows, .ids = zeros, .positions = zeros};
    struct err e = {0};
    assert_int_equal(ops->begin(d, &b, NULL, &e), 0);
    ops->linear(d, a);
    if (ops->finish(d, NULL, &e))
        fail_msg("%s", e.text);
}

/* ---- outputs */

/* Another algorithm of the library's may add in another order. */
static void rounded_once(const float *half, const float *whole, size_t n, double slack, const char *what)
{
    double size = 0;
    for (size_t i = 0; i < n; i++)
        size += (double)whole[i] * (double)whole[i] / (double)n;
    assert_true(size > 0);
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)half[i] - (double)whole[i]) <= fabs((double)whole[i]) / 250 + slack * sqrt(size)))
            fail_msg("%s: element %zu is %g, in f32 %g", what, i, (double)half[i], (double)whole[i]);
}

struct output_case {
    enum dtype type;
    enum f8_scales scales;
    int rows, cols;
    bool in_parts; /* the library refuses all columns at once */
};

static void check_outputs(struct device *d, struct rng *r, const struct output_case *c)
{
    enum dtype t = c->type;
    int rows = c->rows, cols = c->cols;
    float *x = random_floats(r, (size_t)rows * (size_t)cols, 1), *gain = random_floats(r, (size_t)cols, 1), *y[2][2];
    struct act in = act_put(d, x, rows, cols, false);
    struct linear_args a = {
        .in = LINEAR_NORM, .x = in, .gain = put(d, gain, (size_t)cols * 4), .eps = 1e-5f, .rows = rows, .n_out = 2};
    static const float zeros[MAX_ROWS * OUTS];
    struct weight *w[2];
    size_t n = (size_t)rows * OUTS;
    for (int i = 0; i < 2; i++) {
        struct weight_src src = matrix_of(r, t, OUTS, cols, c->scales);
        assert_int_equal(ops->weight_load(d, &w[i], &src, NULL), 0);
        free((void *)src.data);
    }
    assert_true(ops->narrows(d, (struct wview){w[0], 0, OUTS, 0, cols}, rows));
    assert_false(ops->narrows(d, (struct wview){w[0], 0, OUTS, 0, cols}, 64));
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 2; i++)
            a.out[i] = (struct linear_out){{w[i], 0, OUTS, 0, cols}, NULL, act_put(d, zeros, rows, OUTS, half)};
        run_linear(d, &a);
        for (int i = 0; i < 2; i++) {
            y[half][i] = fetch(d, a.out[i].y, n);
            ops->release(d, a.out[i].y.data);
        }
        if (!half)
            continue;
        for (int i = 0; i < 2; i++) {
            rounded_once(y[1][i], y[0][i], n, c->in_parts ? 0.01 : 1e-4, dtype_get(t)->name);
            mem_free(y[0][i]), mem_free(y[1][i]);
        }
    }
    ops->release(d, in.data), ops->release(d, (void *)a.gain);
    ops->weight_free(d, w[0]), ops->weight_free(d, w[1]);
    free(x), free(gain);
}

static void outputs_are_rounded_once(void **state)
{
    (void)state;
    struct device *d = open_default();
    struct rng r;
    rng_init(&r, 1);
    for (int t = 0; t < 4; t++)
        check_outputs(d, &r, &(struct output_case){types[t], F8_BY_64, 65 + 16 * t, COLS, false});
    check_outputs(d, &r, &(struct output_case){DT_F8_SCALED, F8_BY_ROW, 80, COLS, false});
    check_outputs(d, &r, &(struct output_case){DT_F8_SCALED, F8_BY_BLOCK, 80, COLS, false});
    check_outputs(d, &r,
                  &(struct output_case){DT_F8_SCALED, F8_BY_BLOCK, 83, COLS, false}); /* through working memory */
    check_outputs(d, &r, &(struct output_case){DT_F8_SCALED, F8_BY_64, 70, COLS, false});
    check_outputs(d, &r, &(struct output_case){DT_F8_SCALED, F8_BY_ROW, 70, 4096, true});
    check_outputs(d, &r,
                  &(struct output_case){DT_BF16, F8_BY_64, 82, COLS, false}); /* what the emulated library refuses */
    ops->close(d);
}

static void never_narrows(struct device *d, enum dtype t)
{
    struct rng r;
    struct weight *w;
    rng_init(&r, 2);
    struct weight_src src = matrix_of(&r, t, 16, COLS, F8_BY_64);
    assert_int_equal(ops->weight_load(d, &w, &src, NULL), 0);
    assert_false(ops->narrows(d, (struct wview){w, 0, 16, 0, COLS}, 100));
    ops->weight_free(d, w);
    free((void *)src.data);
}

/* Nothing of bf16 is between products of f16, which round less, or of f32. */
static void finer_weights_keep_what_is_between(void **state)
{
    (void)state;
    struct device *d = open_default();
    never_narrows(d, DT_F16);
    never_narrows(d, DT_F32);
    assert_false(ops->narrows(d, (struct wview){NULL, 0, 16, 0, COLS}, 100));
    ops->close(d);
}

static void invariant_mode_rounds_nothing(void **state)
{
    (void)state;
    struct device *d = open_default();
    ops->close(d);
    assert_int_equal(
        ops->open(&d, &(struct device_opts){.max_rows = MAX_ROWS, .max_logits = 1, .invariant = true}, NULL), 0);
    never_narrows(d, DT_BF16);
    ops->close(d);
}

/* ---- inputs */

struct input_case {
    enum dtype type;
    enum f8_scales scales;
    enum linear_in in;
    int rows, col0, cols; /* the window */
};

static void check_inputs(struct device *d, struct rng *r, const struct input_case *c)
{
    struct weight_src src = matrix_of(r, c->type, OUTS, COLS, c->scales);
    size_t n = (size_t)c->rows * COLS, n_y = (size_t)c->rows * OUTS;
    float *x[2] = {random_floats(r, n, 1), random_floats(r, n, 1)}, *before = random_floats(r, n_y, 1), *y[2];
    struct weight *w;
    assert_int_equal(ops->weight_load(d, &w, &src, NULL), 0);
    for (int half = 0; half < 2; half++) {
        struct act in[2], out = act_put(d, before, c->rows, OUTS, false);
        struct linear_args a = {.in = c->in, .rows = c->rows, .accumulate = true, .n_out = 1};
        for (int i = 0; i < 2; i++) {
            for (size_t k = 0; k < n; k++)
                x[i][k] = bf16_to_f32(f32_to_bf16(x[i][k]));
            in[i] = act_put(d, x[i], c->rows, COLS, half);
        }
        size_t at = (size_t)c->col0 * (half ? 2 : 4);
        a.x = (struct act){(char *)in[0].data + at, c->cols, COLS, half};
        a.x2 = (struct act){(char *)in[1].data + at, c->cols, COLS, half};
        a.out[0] = (struct linear_out){{w, 0, OUTS, c->col0, c->cols}, NULL, out};
        run_linear(d, &a);
        y[half] = fetch(d, out, n_y);
        ops->release(d, in[0].data), ops->release(d, in[1].data), ops->release(d, out.data);
    }
    for (size_t i = 0; i < n_y; i++)
        if (!(fabsf(y[0][i] - y[1][i]) <= 1e-4f * (1 + fabsf(y[0][i]))))
            fail_msg("%s, in %d, %d rows, columns %d + %d: element %zu is %g, of f32 %g", dtype_get(c->type)->name,
                     (int)c->in, c->rows, c->col0, c->cols, i, (double)y[1][i], (double)y[0][i]);
    ops->weight_free(d, w);
    free((void *)src.data), free(x[0]), free(x[1]), free(before), mem_free(y[0]), mem_free(y[1]);
}

static void inputs_give_what_they_give_in_f32(void **state)
{
    (void)state;
    struct device *d = open_default();
    struct rng r;
    rng_init(&r, 4);
    for (int t = 0; t < N_TYPES; t++)
        check_inputs(d, &r, &(struct input_case){types[t], F8_BY_64, LINEAR_SWIGLU, 70 + t, 64 * (t % 2), 192});
    for (int t = 0; t < N_TYPES - 2; t++)
        check_inputs(d, &r, &(struct input_case){types[t], F8_BY_64, LINEAR_PLAIN, 70 + t, 64 * (t % 3), 128});
    for (enum linear_in in = LINEAR_PLAIN; in <= LINEAR_SWIGLU; in += LINEAR_SWIGLU - LINEAR_PLAIN) {
        check_inputs(d, &r, &(struct input_case){DT_F8_SCALED, F8_BY_ROW, in, 80, 0, 256});
        check_inputs(d, &r, &(struct input_case){DT_F8_SCALED, F8_BY_BLOCK, in, 88, 128, 128});
    }
    check_inputs(d, &r, &(struct input_case){DT_F16, F8_BY_64, LINEAR_PLAIN, 70, 0, 256}); /* another 16 bits */
    ops->close(d);
}

/* ---- attention */

struct attention_case {
    enum dtype cache;
    int dim, kv_heads, seqs[4]; /* rows of each; 0: the end */
};

/* A step of these sequences, each from its first position on, whose blocks lie among each other; on the device its
 * cache and numbers that bf16 has. */
struct scene {
    struct batch b;
    struct batch_seq seqs[4];
    int32_t positions[MAX_ROWS], zeros[MAX_ROWS], blocks[4][MAX_ROWS / BLOCK + 1];
    int width, kv_width; /* of queries; of keys */
    size_t n, cached;    /* numbers of all queries; bytes of the cache */
    struct kv_space space;
    struct kv_view kv;
    float *x, *y[2]; /* [n], of f32 and of bf16 */
};

static void open_scene(struct scene *s, struct device *d, struct rng *r, const struct attention_case *c)
{
    int rows = 0, n = 0;
    *s = (struct scene){.width = HEADS * c->dim, .kv_width = c->kv_heads * c->dim};
    for (; n < 4 && c->seqs[n]; rows += c->seqs[n++]) {
        s->seqs[n] = (struct batch_seq){rows, c->seqs[n], 0, s->blocks[n], NULL};
        for (int i = 0; i < MAX_ROWS / BLOCK + 1; i++)
            s->blocks[n][i] = 4 * i + n;
        for (int i = 0; i < c->seqs[n]; i++)
            s->positions[rows + i] = i;
    }
    s->b = (struct batch){.n_rows = rows, .ids = s->zeros, .positions = s->positions, .n_seqs = n, .seqs = s->seqs};
    s->space = (struct kv_space){.block_bytes = ops->kv_block_bytes(c->cache, BLOCK, c->kv_heads, c->dim),
                                 .n_blocks = 4 * (MAX_ROWS / BLOCK + 1),
                                 .n_layers = 1,
                                 .dtype = c->cache};
    s->kv = (struct kv_view){&s->space, 0, BLOCK, c->kv_heads, c->dim};
    s->cached = s->space.block_bytes * (size_t)s->space.n_blocks;
    s->space.base = ops->alloc(d, s->cached);
    s->n = (size_t)rows * (size_t)s->width;
    s->x = random_floats(r, s->n, 1);
    for (size_t i = 0; i < s->n; i++)
        s->x[i] = bf16_to_f32(f32_to_bf16(s->x[i]));
}

static void close_scene(struct scene *s, struct device *d)
{
    ops->release(d, s->space.base);
    free(s->x), mem_free(s->y[0]), mem_free(s->y[1]);
}

static struct attention_args attention_of(const struct scene *s, struct act q, struct act out)
{
    static const int kv_head[2][HEADS] = {{0, 0, 0, 0}, {0, 0, 1, 1}};
    return (struct attention_args){
        .q = q, .out = out, .n_heads = HEADS, .kv_head = kv_head[s->kv.n_kv_heads - 1], .kv = s->kv, .scale = 0.125f};
}

static void end_step(struct device *d)
{
    struct err e = {0};
    if (ops->finish(d, NULL, &e))
        fail_msg("%s", e.text);
}

static void check_attention(struct device *d, struct rng *r, const struct attention_case *c)
{
    struct scene s;
    open_scene(&s, d, r, c);
    for (int half = 0; half < 2; half++) {
        struct act out = act_put(d, s.x, s.b.n_rows, s.width, half), q = act_put(d, s.x, s.b.n_rows, s.width, half),
                   k = act_put(d, s.x, s.b.n_rows, s.kv_width, half);
        struct attention_args a = attention_of(&s, q, out);
        assert_int_equal(ops->begin(d, &s.b, NULL, NULL), 0);
        ops->kv_write(d, k, k, &s.kv);
        ops->attention(d, &a);
        end_step(d);
        s.y[half] = fetch(d, out, s.n);
        ops->release(d, out.data), ops->release(d, q.data), ops->release(d, k.data);
    }
    for (size_t i = 0; i < s.n; i++)
        if (s.y[1][i] != bf16_to_f32(f32_to_bf16(s.y[0][i])))
            fail_msg("cache %s, heads of %d: element %zu is %a, in f32 %a", dtype_get(c->cache)->name, c->dim, i,
                     (double)s.y[1][i], (double)s.y[0][i]);
    close_scene(&s, d);
}

/* Rotates the same numbers as q, k and v, writes the cache and attends: `cache` is what lies there then. */
static void attend_rotated(struct device *d, struct scene *s, const float *gains, bool half, char *cache)
{
    static const float inv_freq[] = {1, 0.5f, 0.25f, 0.1f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const struct rope rope = {.halves = true, .dim = 32, .inv_freq = inv_freq, .scale = 1};
    int rows = s->b.n_rows;
    struct act q = act_put(d, s->x, rows, s->width, half), k = act_put(d, s->x, rows, s->kv_width, half),
               v = act_put(d, s->x + s->kv_width, rows, s->kv_width, half),
               out = act_put(d, s->x, rows, s->width, half);
    struct attention_args a = attention_of(s, q, out);
    struct rope_args turn = {.q = q,
                             .k = k,
                             .n_heads = HEADS,
                             .n_kv_heads = s->kv.n_kv_heads,
                             .head_dim = s->kv.head_dim,
                             .rows = rows,
                             .q_gain = gains,
                             .k_gain = gains,
                             .eps = 1e-5f};
    assert_int_equal(ops->begin(d, &s->b, &rope, NULL), 0);
    ops->rope_attention(d, &turn, v, &a);
    end_step(d);
    s->y[half] = fetch(d, out, s->n);
    assert_int_equal(ops->download(d, cache, s->space.base, s->cached), 0);
    ops->release(d, q.data), ops->release(d, k.data), ops->release(d, v.data), ops->release(d, out.data);
}

/* q, k and v of bf16, which are rotated first: the same keys and values are cached as from the same numbers in f32, and
 * a decode's queries are rotated on their way, so that all is the same; a prompt's are rounded once more. */
static void check_rotated(struct device *d, struct rng *r, const struct attention_case *c, bool norms)
{
    struct scene s;
    open_scene(&s, d, r, c);
    char *cache[2] = {mem_new(s.cached), mem_new(s.cached)};
    float *gain = random_floats(r, (size_t)c->dim, 1), *gains = put(d, gain, (size_t)c->dim * sizeof *gain);
    for (int half = 0; half < 2; half++)
        attend_rotated(d, &s, norms ? gains : NULL, half, cache[half]);
    assert_memory_equal(cache[0], cache[1], s.cached);
    float most = s.b.n_rows > 64 ? 0.03f : 0.004f;
    for (size_t i = 0; i < s.n; i++)
        if (!(fabsf(s.y[1][i] - s.y[0][i]) <= most * (1 + fabsf(s.y[0][i]))))
            fail_msg("%d rows, element %zu is %g, in f32 %g", s.b.n_rows, i, (double)s.y[1][i], (double)s.y[0][i]);
    ops->release(d, gains);
    free(gain), mem_free(cache[0]), mem_free(cache[1]);
    close_scene(&s, d);
}

static void rotation_reads_halves(void **state)
{
    (void)state;
    struct device *d = open_default();
    struct rng r;
    rng_init(&r, 6);
    check_rotated(d, &r, &(struct attention_case){DT_F16, 64, 2, {1, 1, 1}}, false);
    check_rotated(d, &r, &(struct attention_case){DT_F16, 64, 2, {1, 2, 1}}, true);
    check_rotated(d, &r, &(struct attention_case){DT_F16, 64, 2, {66, 1, 3}}, false);
    check_rotated(d, &r, &(struct attention_case){DT_F16, 64, 2, {1, 70, 64}}, true);
    ops->close(d);
}

static void attention_is_rounded_once(void **state)
{
    static const struct attention_case cases[] = {
        {DT_BF16, 128, 1, {130}},    /* by Hopper's kernel, where there is one */
        {DT_F16, 64, 2, {1, 66, 1}}, /* decodes beside a prompt */
        {DT_F8, 64, 1, {70, 1, 3}},  /* wide tiles of the plain kernel */
        {DT_F32, 64, 2, {66}},       /* as in invariant mode */
        {DT_BF16, 48, 1, {64, 2}},   /* so are heads of other sizes */
    };
    (void)state;
    struct device *d = open_default();
    struct rng r;
    rng_init(&r, 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attention(d, &r, &cases[i]);
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_are_rounded_once),      cmocka_unit_test(finer_weights_keep_what_is_between),
        cmocka_unit_test(invariant_mode_rounds_nothing), cmocka_unit_test(inputs_give_what_they_give_in_f32),
        cmocka_unit_test(attention_is_rounded_once),     cmocka_unit_test(rotation_reads_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
