/* The sampler against a reference that sorts everything and computes in float64. A draw is checked through the inverse
 * of the reference's cumulative weights, so a wrong set of kept tokens, a wrong weight or a wrong order shows. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cpu/sample.h"

enum { MAX_VOCAB = 70000 };

static const struct sampling plain = {
    .temperature = 1, .top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};

struct fixture {
    void *memory;
    struct sample_scratch *scratch;
    float *x;
    double *ref;
    int *order;
};

static int setup(void **state)
{
    struct fixture *f = mem_new(sizeof *f);
    f->memory = mem_try_aligned(sample_scratch_bytes(MAX_VOCAB), 64);
    f->scratch = sample_scratch_init(f->memory, MAX_VOCAB);
    f->x = mem_new_array(MAX_VOCAB, sizeof *f->x);
    f->ref = mem_new_array(MAX_VOCAB, sizeof *f->ref);
    f->order = mem_new_array(MAX_VOCAB, sizeof *f->order);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    mem_free(f->memory);
    mem_free(f->x);
    mem_free(f->ref);
    mem_free(f->order);
    mem_free(f);
    return 0;
}

static struct sample_result sample(struct fixture *f, const float *logits, int n, const struct sample_row *row)
{
    struct sample_result r;
    memcpy(f->x, logits, (size_t)n * sizeof *logits);
    sample_logits(f->x, n, row, &r, f->scratch);
    return r;
}

/* ---- the reference ---- */

static int by_logit(const void *a, const void *b, void *ctx)
{
    const double *x = ctx;
    int i = *(const int *)a, j = *(const int *)b;
    return x[i] != x[j] ? (x[i] < x[j] ? 1 : -1) : i - j;
}

static int count_in(const int32_t *list, int n, int32_t id)
{
    int c = 0;
    for (int i = 0; i < n; i++)
        c += list[i] == id;
    return c;
}

/* Logits after every change, one token at a time; in float, as the changes are defined, so that ties are the same ties.
 */
static void reference_logits(const float *logits, int n, const struct sample_row *r, double *x)
{
    const struct sampling *h = r->how;
    for (int i = 0; i < n; i++) {
        float v = isnan(logits[i]) ? -INFINITY : fminf(logits[i], FLT_MAX);
        if (r->n_allowed && !count_in(r->allowed, r->n_allowed, i))
            v = -INFINITY;
        if (count_in(r->banned, r->n_banned, i))
            v = -INFINITY;
        for (int k = 0; k < h->n_bias; k++)
            if (h->bias[k].token == i)
                v += h->bias[k].bias;
        int out = count_in(r->output, r->n_output, i), in = count_in(r->prompt, r->n_prompt, i);
        if (in || out)
            v = v > 0 ? v / h->repetition_penalty : v * h->repetition_penalty;
        v -= h->frequency_penalty * (float)out;
        v -= out ? h->presence_penalty : 0;
        x[i] = (double)v;
    }
}

/* Fills order and returns how many of it stay, or -1 when rounding decides. */
static int reference_kept(const double *x, int n, const struct sampling *h, int *order, double *weight)
{
    for (int i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_logit, (void *)(uintptr_t)x);
    int kept = 0;
    double sum = 0, so_far = 0, t = (double)h->temperature;
    for (int i = 0; i < n; i++) {
        weight[i] = exp((x[order[i]] - x[order[0]]) / t);
        if (h->min_p > 0 && fabs(weight[i] / (double)h->min_p - 1) < 1e-5 * (1 + fabs(x[order[0]]) / t))
            return -1;
        kept += weight[i] >= (double)h->min_p;
    }
    if (h->top_k > 0 && kept > h->top_k)
        kept = h->top_k;
    for (int i = 0; i < kept; i++)
        sum += weight[i];
    if (h->top_p >= 1)
        return kept;
    for (int i = 0; i < kept; i++) {
        if (fabs(so_far / sum - (double)h->top_p) < 1e-5)
            return -1;
        if (so_far >= (double)h->top_p * sum)
            return i;
        so_far += weight[i];
    }
    return kept;
}

/* True when the reference may have drawn `token`: u lies in its share of [0, 1), or within rounding of it. */
static bool reference_draws(const int *order, const double *weight, int kept, double u, int token, int n)
{
    double *by_id = mem_new_array((size_t)n, sizeof *by_id), sum = 0, from = 0;
    for (int i = 0; i < kept; i++) {
        by_id[order[i]] = weight[i];
        sum += weight[i];
    }
    for (int i = 0; i < token; i++)
        from += by_id[i];
    bool ok = by_id[token] > 0 && u >= from / sum - 1e-5 && u <= (from + by_id[token]) / sum + 1e-5;
    mem_free(by_id);
    return ok;
}

/* ---- random cases ---- */

static double pick(struct rng *r, double lo, double hi)
{
    return lo + (hi - lo) * rng_unit(r);
}

struct random_case {
    float logits[4096];
    int n;
    struct sampling how;
    struct sample_row row;
    struct logit_bias bias[8];
    int32_t allowed[64], banned[4], prompt[300], output[300];
};

/* Continuous logits, or coarse ones with many ties; a few that are not numbers. */
static void random_logits(struct rng *r, struct random_case *c)
{
    static const int sizes[] = {1, 2, 5, 17, 63, 64, 65, 257, 1000, 4096};
    bool coarse = rng_below(r, 4) == 0;
    double width = pick(r, 0.5, 12);
    c->n = sizes[rng_below(r, 10)];
    for (int i = 0; i < c->n; i++) {
        double u = rng_unit(r) + rng_unit(r) + rng_unit(r) - 1.5;
        c->logits[i] = (float)(coarse ? floor(u * 6) / 2 : u * width);
    }
    for (int i = 0; i < 3 && rng_below(r, 6) == 0 && c->n > 5; i++)
        c->logits[rng_below(r, (uint64_t)c->n)] = i == 0 ? NAN : -INFINITY;
}

static void random_lists(struct rng *r, struct random_case *c)
{
    uint64_t n = (uint64_t)c->n + 2; /* some ids out of range */
    if (rng_below(r, 3) == 0) {
        c->how.n_bias = (int)rng_below(r, c->n < 8 ? 2 : 8);
        for (int i = 0; i < c->how.n_bias; i++)
            c->bias[i] = (struct logit_bias){(int32_t)(i * (c->n / 8)), (float)pick(r, -10, 10)};
    }
    if (c->n > 1000 && rng_below(r, 4) == 0) {
        c->row.n_allowed = 1 + (int)rng_below(r, 63);
        for (int i = 0; i < c->row.n_allowed; i++)
            c->allowed[i] = i * 15 + 3;
    }
    c->row.n_banned = c->n > 5 ? (int)rng_below(r, 4) : 0;
    for (int i = 0; i < c->row.n_banned; i++)
        c->banned[i] = (int32_t)rng_below(r, n);
    c->row.n_prompt = (int)rng_below(r, 300);
    c->row.n_output = (int)rng_below(r, 300);
    for (int i = 0; i < 300; i++) {
        c->prompt[i] = (int32_t)rng_below(r, n);
        c->output[i] = (int32_t)rng_below(r, 1 + n / 4);
    }
}

static void random_case(struct rng *r, struct random_case *c)
{
    static const float rep[] = {1, 1, 1.3f, 0.8f};
    c->how = plain;
    c->how.bias = c->bias;
    c->row = (struct sample_row){.how = &c->how,
                                 .prompt = c->prompt,
                                 .output = c->output,
                                 .banned = c->banned,
                                 .allowed = c->allowed,
                                 .given = -1,
                                 .n_top = -1};
    random_logits(r, c);
    random_lists(r, c);
    c->how.seed = rng_next(r);
    c->how.temperature = rng_below(r, 3) ? (float)pick(r, 0.3, 2) : 1;
    c->how.repetition_penalty = rep[rng_below(r, 4)];
    c->how.frequency_penalty = rng_below(r, 3) ? 0 : (float)pick(r, -2, 2);
    c->how.presence_penalty = rng_below(r, 3) ? 0 : (float)pick(r, -2, 2);
    c->how.top_k = rng_below(r, 2) ? 0 : 1 + (int)rng_below(r, rng_below(r, 2) ? 8 : 1000);
    c->how.top_p = rng_below(r, 2) ? 1 : (float)pick(r, 0.05, 0.99);
    c->how.min_p = rng_below(r, 3) ? 0 : (float)pick(r, 0.001, 0.9);
}

static void test_random_draws(void **state)
{
    struct fixture *f = *state;
    struct random_case *c = mem_new(sizeof *c);
    double *weight = mem_new_array(4096, sizeof *weight);
    struct rng r;
    int decided = 0;
    rng_init(&r, 42);
    for (int i = 0; i < 4000; i++) {
        random_case(&r, c);
        reference_logits(c->logits, c->n, &c->row, f->ref);
        int kept = reference_kept(f->ref, c->n, &c->how, f->order, weight);
        if (kept < 0 || f->ref[f->order[0]] == -INFINITY)
            continue;
        decided++;
        for (uint64_t at = 0; at < 24; at++) {
            c->row.position = at;
            struct sample_result got = sample(f, c->logits, c->n, &c->row);
            double u = (double)(rng_at(c->how.seed, at) >> 11) * 0x1p-53;
            if (!reference_draws(f->order, weight, kept, u, got.token, c->n))
                fail_msg("case %d draw %d: token %d of %d, kept %d, T %g k %d p %g min_p %g", i, (int)at, got.token,
                         c->n, kept, (double)c->how.temperature, c->how.top_k, (double)c->how.top_p,
                         (double)c->how.min_p);
        }
    }
    assert_true(decided > 3500);
    mem_free(weight);
    mem_free(c);
}

static void test_random_greedy(void **state)
{
    struct fixture *f = *state;
    struct random_case *c = mem_new(sizeof *c);
    struct rng r;
    rng_init(&r, 7);
    for (int i = 0; i < 2000; i++) {
        random_case(&r, c);
        c->how.temperature = rng_below(&r, 2) ? 0 : 9e-6f;
        reference_logits(c->logits, c->n, &c->row, f->ref);
        int best = 0;
        for (int k = 1; k < c->n; k++)
            best = f->ref[k] > f->ref[best] ? k : best;
        int got = sample(f, c->logits, c->n, &c->row).token;
        if (f->ref[best] > -INFINITY)
            assert_int_equal(got, best);
    }
    mem_free(c);
}

static void test_random_logprobs(void **state)
{
    struct fixture *f = *state;
    struct random_case *c = mem_new(sizeof *c);
    struct rng r;
    rng_init(&r, 9);
    for (int i = 0; i < 2000; i++) {
        random_case(&r, c);
        c->row.n_top = (int)rng_below(&r, SAMPLING_MAX_LOGPROBS + 1);
        c->row.given = rng_below(&r, 2) ? -1 : (int32_t)rng_below(&r, (uint64_t)c->n);
        struct sample_result got = sample(f, c->logits, c->n, &c->row);
        for (int k = 0; k < c->n; k++)
            f->ref[k] = isnan(c->logits[k]) ? -INFINITY : (double)c->logits[k];
        for (int k = 0; k < c->n; k++)
            f->order[k] = k;
        qsort_r(f->order, (size_t)c->n, sizeof *f->order, by_logit, f->ref);
        double sum = 0, max = f->ref[f->order[0]];
        for (int k = 0; k < c->n; k++)
            sum += exp(f->ref[k] - max);
        if (c->row.given >= 0)
            assert_int_equal(got.token, c->row.given);
        double want = f->ref[got.token] - max - log(sum);
        assert_true(want == (double)got.logprob || fabs(want - (double)got.logprob) < 2e-6 * (1 + fabs(want)));
        assert_int_equal(f->order[got.rank - 1], got.token);
        assert_int_equal(got.n_top, c->row.n_top < c->n ? c->row.n_top : c->n);
        for (int k = 0; k < got.n_top; k++) {
            assert_int_equal(got.top_ids[k], f->order[k]);
            want = f->ref[f->order[k]] - max - log(sum);
            assert_true(want == (double)got.top_logprobs[k] ||
                        fabs(want - (double)got.top_logprobs[k]) < 2e-6 * (1 + fabs(want)));
        }
    }
    mem_free(c);
}

/* ---- distributions ---- */

/* Pearson's statistic of 40,000 draws against the weights; 0.999 quantile by Wilson and Hilferty's approximation. */
static void check_distribution(struct fixture *f, const float *logits, int n, struct sampling how)
{
    enum { DRAWS = 40000 };
    struct sample_row row = {.how = &how, .given = -1, .n_top = -1};
    double *weight = mem_new_array((size_t)n, sizeof *weight), sum = 0, chi2 = 0;
    int *seen = mem_new_array((size_t)n, sizeof *seen), freedom = -1;
    reference_logits(logits, n, &row, f->ref);
    int kept = reference_kept(f->ref, n, &how, f->order, weight);
    assert_true(kept > 0);
    for (int i = 0; i < DRAWS; i++) {
        row.position = (uint64_t)i;
        seen[sample(f, logits, n, &row).token]++;
    }
    for (int i = 0; i < kept; i++)
        sum += weight[i];
    for (int i = 0; i < n; i++) {
        double expected = i < kept ? weight[i] / sum * DRAWS : 0, got = seen[f->order[i]];
        if (i >= kept)
            assert_true(got == 0);
        if (expected < 5)
            continue;
        chi2 += (got - expected) * (got - expected) / expected;
        freedom++;
    }
    double a = 2.0 / (9 * freedom), limit = freedom * pow(1 - a + 3.09 * sqrt(a), 3);
    if (freedom > 0 && chi2 > limit)
        fail_msg("chi2 %g of %d degrees of freedom, limit %g", chi2, freedom, limit);
    mem_free(weight);
    mem_free(seen);
}

static void test_distributions(void **state)
{
    float logits[200];
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 200; i++)
        logits[i] = (float)pick(&r, -2, 2);
    struct sampling how = plain;
    for (uint64_t seed = 0; seed < 3; seed++) {
        how = plain;
        how.seed = seed;
        check_distribution(*state, logits, 200, how);
        how.temperature = 0.5f;
        check_distribution(*state, logits, 200, how);
        how.top_k = 20;
        check_distribution(*state, logits, 200, how);
        how.top_p = 0.8f;
        check_distribution(*state, logits, 200, how);
        how = plain;
        how.seed = seed + 100;
        how.min_p = 0.2f;
        check_distribution(*state, logits, 200, how);
        how.top_p = 0.9f;
        check_distribution(*state, logits, 200, how);
    }
}

/* ---- corners ---- */

static void test_ties_take_the_lowest_id(void **state)
{
    float x[300];
    for (int i = 0; i < 300; i++)
        x[i] = i % 50 == 7 ? 3.0f : 1.0f;
    struct sampling how = plain;
    struct sample_row row = {.how = &how, .given = -1, .n_top = 4};
    how.temperature = 0;
    struct sample_result r = sample(*state, x, 300, &row);
    assert_int_equal(r.token, 7);
    assert_int_equal(r.rank, 1);
    assert_int_equal(r.top_ids[1], 57);
    assert_int_equal(r.top_ids[3], 157);
    how.temperature = 1;
    how.top_k = 2;
    for (uint64_t i = 0; i < 200; i++) {
        row.position = i;
        int t = sample(*state, x, 300, &row).token;
        assert_true(t == 7 || t == 57);
    }
    how.top_k = 0;
    how.top_p = 0.02f; /* six threes weigh 0.049 together; two of them reach it, the third would be the next */
    for (uint64_t i = 0; i < 200; i++) {
        row.position = i;
        int t = sample(*state, x, 300, &row).token;
        assert_true(t == 7 || t == 57 || t == 107);
    }
}

static void test_nothing_finite(void **state)
{
    float x[130];
    int32_t banned[] = {0, 1, 5}, allowed[] = {1, 5, 9};
    struct sampling how = plain;
    struct sample_row row = {.how = &how, .banned = banned, .n_banned = 3, .given = -1, .n_top = 5};
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 130; i++)
            x[i] = kind == 0 ? NAN : kind == 1 ? -INFINITY : i % 2 ? NAN : -INFINITY;
        how = plain;
        row.n_allowed = 0;
        for (int greedy = 0; greedy < 2; greedy++) {
            how.temperature = greedy ? 0 : 1;
            assert_int_equal(sample(*state, x, 130, &row).token, 2);
        }
        row.allowed = allowed;
        row.n_allowed = 3;
        assert_int_equal(sample(*state, x, 130, &row).token, 9);
    }
}

static void test_infinite_logit(void **state)
{
    float x[100] = {0};
    struct sampling how = plain;
    struct sample_row row = {.how = &how, .given = -1, .n_top = 1};
    x[33] = INFINITY;
    struct sample_result r = sample(*state, x, 100, &row);
    assert_int_equal(r.token, 33);
    assert_true(r.logprob == 0);
    x[60] = INFINITY;
    for (uint64_t i = 0; i < 50; i++) {
        row.position = i;
        r = sample(*state, x, 100, &row);
        assert_true(r.token == 33 || r.token == 60);
        assert_true(isfinite(r.logprob));
    }
}

static void test_extreme_temperatures(void **state)
{
    float x[100];
    struct sampling how = plain;
    struct sample_row row = {.how = &how, .given = -1, .n_top = -1};
    for (int i = 0; i < 100; i++)
        x[i] = (float)(i % 10);
    for (uint64_t i = 0; i < 100; i++) {
        row.position = i;
        how.temperature = 1.1e-5f;
        assert_int_equal(sample(*state, x, 100, &row).token % 10, 9);
        how.temperature = 1e30f;
        int t = sample(*state, x, 100, &row).token;
        assert_true(t >= 0 && t < 100);
    }
}

/* A row's result depends on the row alone: neither on what the scratch was used for before nor on its size. */
static void test_scratch_leaves_no_trace(void **state)
{
    struct fixture *f = *state;
    struct random_case *a = mem_new(sizeof *a), *b = mem_new(sizeof *b);
    struct rng r;
    rng_init(&r, 11);
    for (int i = 0; i < 300; i++) {
        random_case(&r, a);
        random_case(&r, b);
        a->row.n_top = b->row.n_top = 5;
        sample(f, b->logits, b->n, &b->row);
        struct sample_result used = sample(f, a->logits, a->n, &a->row), fresh;
        void *memory = mem_try_aligned(sample_scratch_bytes(a->n), 64);
        memset(memory, 0xa5, sample_scratch_bytes(a->n));
        memcpy(f->x, a->logits, (size_t)a->n * sizeof(float));
        sample_logits(f->x, a->n, &a->row, &fresh, sample_scratch_init(memory, a->n));
        assert_memory_equal(&used, &fresh, sizeof fresh);
        mem_free(memory);
    }
    mem_free(a);
    mem_free(b);
}

static void test_seed_and_position_fix_the_draw(void **state)
{
    float x[1000];
    struct sampling how = plain;
    struct sample_row row = {.how = &how, .given = -1, .n_top = -1};
    int same_seed = 0, same_position = 0;
    for (int i = 0; i < 1000; i++)
        x[i] = (float)(i % 7) * 0.1f;
    for (uint64_t i = 0; i < 300; i++) {
        how.seed = 5;
        row.position = i;
        int a = sample(*state, x, 1000, &row).token, again = sample(*state, x, 1000, &row).token;
        row.position = i + 1000;
        int b = sample(*state, x, 1000, &row).token;
        how.seed = 6;
        row.position = i;
        int c = sample(*state, x, 1000, &row).token;
        assert_int_equal(a, again);
        same_position += a == b;
        same_seed += a == c;
    }
    assert_true(same_position < 5 && same_seed < 5);
}

/* A vocabulary of the size of real ones, and all of it kept in one set or another. */
static void test_large_vocabulary(void **state)
{
    struct fixture *f = *state;
    float *x = mem_new_array(MAX_VOCAB, sizeof *x);
    double *weight = mem_new_array(MAX_VOCAB, sizeof *weight);
    struct rng r;
    rng_init(&r, 13);
    for (int i = 0; i < MAX_VOCAB; i++)
        x[i] = (float)((rng_unit(&r) + rng_unit(&r) + rng_unit(&r) - 1.5) * 6);
    for (int i = 0; i < 40; i++) {
        struct sampling how = plain;
        struct sample_row row = {.how = &how, .given = -1, .n_top = -1, .position = (uint64_t)i};
        how.temperature = (float)pick(&r, 0.5, 3);
        how.top_p = i % 2 ? 1 : (float)pick(&r, 0.5, 0.999);
        how.top_k = i % 3 ? 0 : 1 + (int)rng_below(&r, MAX_VOCAB);
        reference_logits(x, MAX_VOCAB, &row, f->ref);
        int kept = reference_kept(f->ref, MAX_VOCAB, &how, f->order, weight);
        struct sample_result got = sample(f, x, MAX_VOCAB, &row);
        double u = (double)(rng_at(how.seed, (uint64_t)i) >> 11) * 0x1p-53;
        if (kept > 0)
            assert_true(reference_draws(f->order, weight, kept, u, got.token, MAX_VOCAB));
    }
    mem_free(weight);
    mem_free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_random_draws, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_greedy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_random_logprobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_distributions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ties_take_the_lowest_id, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_finite, setup, teardown),
        cmocka_unit_test_setup_teardown(test_infinite_logit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_extreme_temperatures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scratch_leaves_no_trace, setup, teardown),
        cmocka_unit_test_setup_teardown(test_seed_and_position_fix_the_draw, setup, teardown),
        cmocka_unit_test_setup_teardown(test_large_vocabulary, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
