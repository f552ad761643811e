/* The demo model against the stored float64 reference (tests/oracle/nll_oracle.py makes it), token by token. Needs the
 * file that models/fetch.sh fetches; sanitizers take a shorter text. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/rig/model_rig.h"

#if defined(__SANITIZE_THREAD__)
enum { MAX_TOKENS = 16 };
#elif defined(__SANITIZE_ADDRESS__)
enum { MAX_TOKENS = 100 };
#else
enum { MAX_TOKENS = 1 << 20 };
#endif

#define NLL_BOUND 0.002 /* of the difference of the means; how often the same token is the likeliest */
#define AGREE_BOUND 0.99
#define FAST_NLL_BOUND 0.003   /* with inputs of eight bits */
#define FAST_AGREE_BOUND 0.965 /* other roundings of the same size move it by two thousandths */

struct comparison {
    double nll, reference;
    int n, agree;
};

static void compare(const struct sample_result *got, const char *stored, int n_stored, struct comparison *c)
{
    const char *best_at = stored + (size_t)n_stored * sizeof(double);
    for (int i = 0; i < c->n; i++) {
        double want;
        int32_t best;
        memcpy(&want, stored + (size_t)i * sizeof want, sizeof want);
        memcpy(&best, best_at + (size_t)i * sizeof best, sizeof best);
        c->nll -= (double)got[i].logprob / c->n;
        c->reference -= want / c->n;
        c->agree += got[i].top_ids[0] == best;
    }
}

/* With such a cache; more: what that may cost. */
static void expect_nll(enum dtype kv, double more)
{
    struct err e = {0};
    struct model *m;
    struct rig r;
    struct buf stored = {0};
    int n;
    if (access(DEMO_MODEL, R_OK) != 0) {
        print_message("%s is not here: models/fetch.sh fetches it\n", DEMO_MODEL);
        skip();
    }
    int32_t *ids = rig_read_ids("tests/data/nll_tokens.json", &n, &e);
    assert_true(n >= 2000);
    assert_int_equal(file_read(&stored, "tests/data/nll_reference.bin", 1 << 20, &e), 0);
    assert_int_equal(stored.len, (size_t)(n - 1) * 12);
    struct comparison c = {.n = n - 1 < MAX_TOKENS ? n - 1 : MAX_TOKENS};
    bool fast = getenv("MOONSHIFT_TEST_FAST");
    struct rig_opts o = {.max_rows = 256, .max_logits = 64, .n_seqs = 1, .max_len = n, .kv = kv};
    struct sample_result *results = mem_new_array((size_t)n, sizeof *results);
    if (model_open_gguf(&m, DEMO_MODEL, &e) || rig_open(&r, m, &o, &e) || rig_score(&r, ids, c.n + 1, 256, results, &e))
        fail_msg("%s", e.text);
    compare(results, stored.data, n - 1, &c);
    print_message("%s: NLL %.5f, float64 %.5f, next tokens agree %.2f%% of %d\n", dtype_get(kv)->name, c.nll,
                  c.reference, 100.0 * c.agree / c.n, c.n);
    assert_true(fabs(c.nll - c.reference) <= (fast ? FAST_NLL_BOUND : NLL_BOUND) + more);
    assert_true(c.agree + 1 >= ((fast ? FAST_AGREE_BOUND : AGREE_BOUND) - 10 * more) * c.n);
    rig_close(&r);
    model_close(m);
    buf_free(&stored);
    mem_free(results);
    mem_free(ids);
}

static void test_nll_is_that_of_float64(void **state)
{
    (void)state;
    expect_nll(getenv("MOONSHIFT_TEST_FAST") ? DT_BF16 : DT_F16, 0); /* the defaults */
}

static void test_a_cache_of_bytes_costs_little(void **state)
{
    (void)state;
    if (!backend_cpu()->kv_block_bytes(DT_I8, 16, 3, 64)) /* GPUs have none */
        skip();
    expect_nll(DT_I8, getenv("MOONSHIFT_TEST_FAST") ? 0.003 : 0.001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nll_is_that_of_float64),
                                       cmocka_unit_test(test_a_cache_of_bytes_costs_little)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
