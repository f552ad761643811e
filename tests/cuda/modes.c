/* The default mode against the CPU backend: likelihoods of random texts through whole models, in chunks and single
 * tokens, alone and together, in several layouts that change between steps. The two differ by the rounding of bf16; a
 * wrong head, block or weight would show as another distribution. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "tests/rig/layout_rig.h"
#ifdef EMULATED
#include "tests/emulator/lt_twin.h"
#endif

enum { TEXT = 56, LONG_TEXT = 84, BLOCKS = 512, STEP_ROWS = 140, SEQS = 2 };

struct text {
    int n; /* tokens of each */
    int32_t ids[SEQS][LONG_TEXT];
    float given[SEQS][LONG_TEXT]; /* log-likelihood of ids[s][i], i >= 1, of the first text 2 */
};

static int open_default(struct device **out, const struct device_opts *o, struct err *e)
{
    struct device_opts with = *o;
    with.invariant = false;
    return backend_cuda()->open(out, &with, e);
}

/* As a device does that has no kernels of its own kind. */
static int open_plain(struct device **out, const struct device_opts *o, struct err *e)
{
    struct device_opts with = *o;
    with.plain_kernels = true;
    return open_default(out, &with, e);
}

/* Feeds tokens [at, at + n) of every text in one step and notes how likely what follows was. */
static void feed(struct node *n, struct place *p, struct layout l, struct text *t, const int at[2])
{
    struct node_seq seqs[SEQS];
    struct sample_row samples[STEP_ROWS];
    struct sample_result results[STEP_ROWS];
    struct sampling how = {
        .temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = 0, .n_prompt_logprobs = 0};
    struct node_part parts[NODE_RANKS];
    int32_t rows[STEP_ROWS];
    int k = 0;
    for (int s = 0; s < SEQS; s++) {
        seqs[s] = (struct node_seq){s, at[0], at[1], t->ids[s]};
        for (int i = at[0] || s ? 0 : 1; i < at[1]; i++, k++) { /* one row of a chunk has no logits */
            rows[k] = s * at[1] + i;
            samples[k] = (struct sample_row){.how = &how, .given = t->ids[s][(at[0] + i + 1) % t->n], .n_top = 0};
        }
    }
    struct node_step step = {.place = p,
                             .layout = l,
                             .seqs = seqs,
                             .n_seqs = SEQS,
                             .n_logits = k,
                             .logit_rows = rows,
                             .samples = samples,
                             .results = results};
    if (node_run(n, &step, parts))
        fail_msg("%s", parts[0].err.text);
    for (int s = 0, row = 0; s < SEQS; s++)
        for (int i = at[0] || s ? 0 : 1; i < at[1]; i++, row++)
            if (at[0] + i + 1 < t->n)
                t->given[s][at[0] + i + 1] = results[row].logprob;
}

/* Chunks, then single tokens; the layouts in turn. */
static void read_texts(struct model *m, const struct backend_ops *ops, const struct layout *layouts, int n_layouts,
                       enum dtype kv, struct text *t)
{
    struct node n;
    struct place p;
    struct err e = {0};
    int ranks = layouts[0].sp * layouts[0].tp, at = 0;
    struct node_opts o = {.ops = ops,
                          .n_ranks = ranks,
                          .max_rows = STEP_ROWS,
                          .max_logits = STEP_ROWS,
                          .n_blocks = BLOCKS,
                          .block_tokens = 32,
                          .kv = kv};
    if (node_open(&n, m, &o, &e))
        fail_msg("%s", e.text);
    place_make(&p, layouts[0], node_tokens_per_block(&n, ranks), t->n, 0);
    for (int step = 0; at < t->n; step++) {
        int rows = step == 0 ? t->n - 16 : step == 1 ? 9 : step == 4 ? 3 : 1;
        rows = rows < t->n - at ? rows : t->n - at;
        feed(&n, &p, layouts[step % n_layouts], t, (const int[2]){at, rows});
        at += rows;
    }
    place_free(&p);
    node_close(&n);
}

/* ---- fp8 whose scales have a form that files have: a dummy model's have one for 64 columns */

static enum f8_scales scales; /* what the loads below give */

static float peak_of(const float *x, int rows, int cols, int ld)
{
    float m = 0;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++)
            m = fmaxf(m, fabsf(x[(size_t)r * (size_t)ld + (size_t)c]));
    return m / 448;
}

static void put_codes(uint8_t *to, const float *x, float d)
{
    memcpy(to, &d, sizeof d);
    for (int i = 0; i < 64; i++)
        to[4 + i] = f32_to_f8(x[i] / d);
}

/* The same matrix with one scale for each row, or for 128 x 128 elements. */
static uint8_t *scaled_anew(const struct weight_src *src)
{
    int rows = src->rows, cols = src->cols, high = scales == F8_BY_ROW ? 1 : F8_SCALE_BLOCK,
        wide = scales == F8_BY_ROW ? cols : F8_SCALE_BLOCK;
    size_t row_bytes = dtype_row_bytes(src->type, cols);
    float *x = mem_new_array((size_t)rows * (size_t)cols, sizeof *x);
    uint8_t *to = mem_new((size_t)rows * row_bytes);
    for (int r = 0; r < rows; r++)
        dtype_to_f32(src->type, (const char *)src->data + (size_t)r * weight_src_pitch(src),
                     x + (size_t)r * (size_t)cols, cols);
    for (int r0 = 0; r0 < rows; r0 += high)
        for (int c0 = 0; c0 < cols; c0 += wide) {
            int r1 = r0 + high < rows ? r0 + high : rows, c1 = c0 + wide < cols ? c0 + wide : cols;
            float d = peak_of(x + (size_t)r0 * (size_t)cols + c0, r1 - r0, c1 - c0, cols);
            for (int r = r0; r < r1; r++)
                for (int c = c0; c < c1; c += 64)
                    put_codes(to + (size_t)r * row_bytes + (size_t)(c / 64) * 68, x + (size_t)r * (size_t)cols + c, d);
        }
    mem_free(x);
    return to;
}

static int load_with(const struct backend_ops *ops, struct device *d, struct weight **out, const struct weight_src *src,
                     struct err *e)
{
    struct weight_src own = *src;
    uint8_t *made = src->type == DT_F8_SCALED && src->rows > 1 ? scaled_anew(src) : NULL;
    if (made)
        own.data = made, own.scales = scales, own.pitch = 0;
    int rc = ops->weight_load(d, out, &own, e);
    mem_free(made);
    return rc;
}

static int load_cpu(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    return load_with(backend_cpu(), d, out, src, e);
}

static int load_cuda(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    return load_with(backend_cuda(), d, out, src, e);
}

struct subject {
    const char *config;
    enum dtype type, kv;
    int ranks;
    enum f8_scales scales;
    bool plain;
    int tokens;  /* of each text; 0: TEXT */
    bool turned; /* the first chunk, which has most rows, by tensor parallelism */
};

/* ---- */

/* rms of the difference over the spread of the likelihoods themselves, and the difference of their means. */
static void compare(const struct text *a, const struct text *b, const char *what, const double bounds[2])
{
    double mean = 0, other = 0, spread = 0, apart = 0;
    int n = SEQS * (a->n - 1) - 1;
    for (int s = 0; s < SEQS; s++)
        for (int i = s ? 1 : 2; i < a->n; i++) {
            mean += (double)a->given[s][i] / n;
            other += (double)b->given[s][i] / n;
        }
    for (int s = 0; s < SEQS; s++)
        for (int i = s ? 1 : 2; i < a->n; i++) {
            spread += ((double)a->given[s][i] - mean) * ((double)a->given[s][i] - mean);
            apart +=
                ((double)a->given[s][i] - (double)b->given[s][i]) * ((double)a->given[s][i] - (double)b->given[s][i]);
        }
    double ratio = sqrt(apart / spread);
    print_message("%s: rms difference %.4f of the spread %.3f, mean %.5f and %.5f\n", what, ratio, sqrt(spread / n),
                  mean, other);
    if (!(ratio < bounds[0]) || !(fabs(mean - other) < bounds[1]))
        fail_msg("%s", what);
}

static const double near[2] = {0.03, 0.005};

static void check_within(const struct subject *with, const double bounds[2])
{
    const char *config = with->config;
    enum dtype type = with->type, kv = with->kv;
    int ranks = with->ranks;
    static const struct layout single[] = {{1, 1, 1}}, two[] = {{2, 1, 1}, {1, 2, 1}},
                               four[] = {{2, 2, 1}, {4, 1, 1}, {1, 4, 1}}, turned[] = {{1, 4, 1}, {2, 2, 1}, {4, 1, 1}};
    static struct text exact, fast;
    const struct layout *layouts = ranks == 1 ? single : ranks == 2 ? two : with->turned ? turned : four;
    struct backend_ops with_default = *backend_cuda(), cpu = *backend_cpu();
    struct model *m;
    struct err e = {0};
    struct rng r;
    char what[128];
    exact.n = fast.n = with->tokens ? with->tokens : TEXT;
    with_default.open = with->plain ? open_plain : open_default;
    if (with->scales) {
        scales = with->scales;
        cpu.weight_load = load_cpu;
        with_default.weight_load = load_cuda;
    }
    if (model_open_dummy(&m, config, type, 5, &e))
        fail_msg("%s", e.text);
    rng_init(&r, 7);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < exact.n; i++)
            exact.ids[s][i] = fast.ids[s][i] = (int32_t)rng_below(&r, (uint64_t)model_config(m)->vocab);
    read_texts(m, &cpu, single, 1, kv, &exact);
    read_texts(m, &with_default, layouts, ranks < 3 ? ranks : 3, kv, &fast);
    snprintf(what, sizeof what, "%s, %s, cache %s, %d ranks%s", config, dtype_get(type)->name, dtype_get(kv)->name,
             ranks, with->plain ? ", plain kernels" : "");
    compare(&exact, &fast, what, bounds);
    model_close(m);
}

static void check(const char *config, enum dtype type, enum dtype kv, int ranks)
{
    check_within(&(struct subject){config, type, kv, ranks, F8_BY_64, false, 0, false}, near);
}

static void one_rank(void **state)
{
    (void)state;
    check("tests/data/layout_gqa.json", DT_BF16, DT_F16, 1);
    check("tests/data/layout_9_3.json", DT_Q4_1, DT_BF16, 1);
}

static void several_ranks(void **state)
{
    (void)state;
    check("tests/data/layout_gqa.json", DT_Q8_0, DT_F16, 2);
    check("tests/data/layout_9_3.json", DT_BF16, DT_F16, 4);
    /* so long that each member of sp has more than 64 rows, and shows the others its attention in bf16 */
    check_within(&(struct subject){"tests/data/layout_gqa.json", DT_Q8_0, DT_F16, 2, F8_BY_64, false, LONG_TEXT, false},
                 near);
    /* several nodes of the sum, each with columns of its own */
    check_within(&(struct subject){"tests/data/layout_9_3.json", DT_BF16, DT_F16, 4, F8_BY_64, false, 0, true}, near);
}

static void types_of_weights(void **state)
{
    /* what bf16 has rounded before may come to lie in the neighbouring code of fp8, a sixteenth away */
    static const double fp8_cache[2] = {0.05, 0.01};
    (void)state;
    check("tests/data/layout_mqa.json", DT_F16, DT_F16, 1);
    check_within(&(struct subject){"tests/data/layout_mqa.json", DT_F16, DT_F16, 1, F8_BY_64, true, 0, false}, near);
    check("tests/data/layout_wide.json", DT_Q4_K, DT_F16, 1);
    check_within(&(struct subject){"tests/data/layout_gqa.json", DT_F8_SCALED, DT_F8, 1, F8_BY_64, false, 0, false},
                 fp8_cache);
}

/* The CPU multiplies fp8 weights with inputs of f32. Here chunks of more than 64 rows have theirs rounded to fp8, where
 * the device can; single tokens do not. */
static void inputs_in_fp8(void **state)
{
    static const double of_fp8[2] = {0.12, 0.03};
    (void)state;
    check_within(&(struct subject){"tests/data/layout_gqa.json", DT_F8_SCALED, DT_F16, 1, F8_BY_ROW, false, 0, false},
                 of_fp8);
    check_within(&(struct subject){"tests/data/layout_gqa.json", DT_F8_SCALED, DT_F16, 1, F8_BY_BLOCK, false, 0, false},
                 of_fp8);
    check_within(
        &(struct subject){"tests/data/layout_wide.json", DT_F8_SCALED, DT_F16, 2, F8_BY_BLOCK, false, 0, false},
        of_fp8);
    check_within(&(struct subject){"tests/data/layout_9_3.json", DT_F8_SCALED, DT_F16, 4, F8_BY_ROW, false, 0, false},
                 of_fp8);
#ifdef EMULATED
    assert_true(lt_twin_products(CUDA_R_8F_E4M3) >
                24); /* the first chunks, of 80 rows, where none of it is cut by rows */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_rank), cmocka_unit_test(several_ranks),
                                       cmocka_unit_test(types_of_weights), cmocka_unit_test(inputs_in_fp8)};
    if (!backend_cuda()->n_devices()) {
        puts("no GPU here: nothing was checked");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
