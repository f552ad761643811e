/* Every row of the family table against a float64 forward (tests/oracle/dummy_oracle.py): Llama with linear and Llama-3
 * RoPE scaling, Mistral with its window, Qwen2 with biases, Qwen3 with QK norm and yarn, SwiftKV from the middle and
 * from the second layer on. Then the same models in every stored type, which must stay near. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/rig/model_rig.h"

enum { TOKENS = 160, EVERY = 10, N_ROWS = TOKENS / EVERY, VOCAB = 120, SEED = 20 };

static const char *const families[] = {"llama2", "llama3", "mistral", "qwen2", "qwen3", "swiftkv", "swiftkv_1"};

static void read_reference(const char *family, float *out)
{
    char path[64];
    struct buf b = {0};
    struct err e;
    snprintf(path, sizeof path, "tests/data/gold_%s.f32", family);
    if (file_read(&b, path, 1 << 20, &e))
        fail_msg("%s", e.text);
    assert_int_equal(b.len, N_ROWS * VOCAB * sizeof(float));
    memcpy(out, b.data, b.len);
    buf_free(&b);
}

/* The logits of every tenth token. */
static void run(const char *family, enum dtype type, enum dtype kv, float *out)
{
    char path[64];
    struct err e = {0};
    struct model *m;
    struct rig r;
    int32_t ids[TOKENS];
    struct sample_row rows[TOKENS];
    struct sample_result results[TOKENS];
    struct rig_opts o = {
        .threads = 1, .max_rows = TOKENS, .max_logits = TOKENS, .n_seqs = 1, .max_len = TOKENS, .kv = kv};
    struct rig_part all = {0, 0, TOKENS, ids};
    float *logits = mem_new_array((size_t)TOKENS * VOCAB, sizeof *logits);
    for (int i = 0; i < TOKENS; i++) {
        ids[i] = (i * i * 7 + i * 3 + 5) % VOCAB;
        rows[i] = (struct sample_row){.given = 0, .n_top = -1};
    }
    snprintf(path, sizeof path, "tests/data/gold_%s.json", family);
    if (model_open_dummy(&m, path, type, SEED, &e) || rig_open(&r, m, &o, &e) ||
        rig_step(&r, &all, 1, rows, results, &e) || rig_logits(&r, TOKENS, logits))
        fail_msg("%s %s: %s", family, dtype_get(type)->name, e.text);
    for (int i = 0; i < N_ROWS; i++)
        memcpy(out + (size_t)i * VOCAB, logits + (size_t)(i * EVERY + EVERY - 1) * VOCAB, VOCAB * sizeof *out);
    rig_close(&r);
    model_close(m);
    mem_free(logits);
}

/* ||a - b|| / ||b|| */
static double distance(const float *a, const float *b)
{
    double d = 0, n = 0;
    for (int i = 0; i < N_ROWS * VOCAB; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        n += (double)b[i] * (double)b[i];
    }
    return sqrt(d / n);
}

static void test_families(void **state)
{
    (void)state;
    float want[N_ROWS * VOCAB], got[N_ROWS * VOCAB];
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        read_reference(families[i], want);
        run(families[i], DT_F32, DT_F32, got);
        double worst = 0;
        for (int k = 0; k < N_ROWS * VOCAB; k++)
            worst = fmax(worst, fabs((double)got[k] - (double)want[k]));
        print_message("%s: worst difference %.2g\n", families[i], worst);
        assert_true(worst < 2e-5); /* logits are of size 3 */
    }
}

static void test_families_differ(void **state)
{
    (void)state;
    float a[N_ROWS * VOCAB], b[N_ROWS * VOCAB];
    run("llama3", DT_F32, DT_F32, a);
    read_reference("qwen2", b);
    assert_true(distance(a, b) > 0.5); /* the comparison can fail */
}

static void test_stored_types(void **state)
{
    (void)state;
    static const struct {
        enum dtype type;
        double limit;
    } types[] = {{DT_F16, 0.002}, {DT_BF16, 0.012}, {DT_Q8_0, 0.05}, {DT_Q5_1, 0.2},
                 {DT_Q5_0, 0.2},  {DT_Q4_1, 0.4},   {DT_Q4_0, 0.4}};
    float want[N_ROWS * VOCAB], got[N_ROWS * VOCAB];
    for (size_t i = 1; i < sizeof families / sizeof *families; i++) { /* llama2 has 72 columns, no whole blocks */
        read_reference(families[i], want);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            run(families[i], types[t].type, DT_F16, got);
            double d = distance(got, want);
            print_message("%s %s: %.4f\n", families[i], dtype_get(types[t].type)->name, d);
            assert_true(d < types[t].limit);
        }
    }
}

/* Three bits of mantissa in the weights, then in the cache alone. */
static void test_fp8(void **state)
{
    (void)state;
    static const char *const whole[] = {"llama3", "qwen3"}; /* blocks of 64 columns */
    float want[N_ROWS * VOCAB], got[N_ROWS * VOCAB];
    for (int i = 0; i < 2; i++) {
        read_reference(whole[i], want);
        run(whole[i], DT_F8_SCALED, DT_F16, got);
        double weights = distance(got, want);
        run(whole[i], DT_F32, DT_F8, got);
        double cache = distance(got, want);
        print_message("%s: weights of fp8 %.4f, cache of fp8 %.4f\n", whole[i], weights, cache);
        assert_true(weights < 0.16 && cache > 0.001 && cache < 0.08);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_families), cmocka_unit_test(test_families_differ),
                                       cmocka_unit_test(test_stored_types), cmocka_unit_test(test_fp8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
