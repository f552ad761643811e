/* Logits are bit-identical for every chunking, batch mix, thread count and instruction set: random cases on small
 * models of several types, and on the demo model when its file is here. The truth is each sequence alone, in one piece,
 * on one thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "tests/rig/isas.h"
#include "tests/rig/model_rig.h"

/* Sanitizers are slow: shorter sequences and fewer cases. */
#if defined(__SANITIZE_THREAD__)
enum { SMALL_LEN = 40, SMALL_CASES = 2, DEMO_LEN = 6, DEMO_CASES = 1 };
#elif defined(__SANITIZE_ADDRESS__)
enum { SMALL_LEN = 150, SMALL_CASES = 4, DEMO_LEN = 12, DEMO_CASES = 1 };
#else
enum { SMALL_LEN = 300, SMALL_CASES = 8, DEMO_LEN = 100, DEMO_CASES = 6 };
#endif
enum { SEQS = 4, MAX_LEN = 300, STEP_ROWS = 64 };

struct subject {
    struct model *model;
    int vocab, max_len;
    int32_t ids[SEQS][MAX_LEN];
    int len[SEQS];
    float *logits[SEQS]; /* [len][vocab] */
    float *step;         /* [STEP_ROWS][vocab] */
};

static void open_subject_rig(struct rig *r, struct subject *s, int threads, const char *isa, int max_rows)
{
    struct err e = {0};
    struct rig_opts o = {.threads = threads,
                         .isa = isa,
                         .max_rows = max_rows,
                         .max_logits = max_rows,
                         .n_seqs = SEQS,
                         .max_len = MAX_LEN,
                         .kv = DT_F16};
    if (rig_open(r, s->model, &o, &e))
        fail_msg("%s", e.text);
}

static void step(struct rig *r, const struct rig_part *parts, int n, bool logits)
{
    struct sample_row rows[MAX_LEN];
    struct sample_result *results = mem_new_array(MAX_LEN, sizeof *results);
    struct err e = {0};
    for (int i = 0; i < MAX_LEN; i++)
        rows[i] = (struct sample_row){.given = 0, .n_top = -1};
    if (rig_step(r, parts, n, logits ? rows : NULL, results, &e))
        fail_msg("%s", e.text);
    mem_free(results);
}

static void make_truth(struct subject *s, struct rng *rng)
{
    struct rig r;
    s->vocab = model_config(s->model)->vocab;
    s->step = mem_new_array((size_t)STEP_ROWS * (size_t)s->vocab, sizeof *s->step);
    open_subject_rig(&r, s, 1, NULL, s->max_len);
    for (int q = 0; q < SEQS; q++) {
        s->len[q] = 1 + (int)rng_below(rng, (uint64_t)s->max_len);
        for (int i = 0; i < s->len[q]; i++)
            s->ids[q][i] = (int32_t)rng_below(rng, (uint64_t)s->vocab);
        s->logits[q] = mem_new_array((size_t)s->len[q] * (size_t)s->vocab, sizeof(float));
        struct rig_part all = {q, 0, s->len[q], s->ids[q]};
        step(&r, &all, 1, true);
        assert_int_equal(rig_logits(&r, s->len[q], s->logits[q]), 0);
    }
    rig_close(&r);
}

/* A step of random pieces of the sequences that have something left. */
static int random_parts(const struct subject *s, struct rng *rng, const int *at, struct rig_part *parts)
{
    int n = 0, rows = 0, start = (int)rng_below(rng, SEQS);
    for (int k = 0; k < SEQS; k++) {
        int q = (start + k) % SEQS, left = s->len[q] - at[q];
        int most = rng_below(rng, 2) ? 1 : STEP_ROWS - rows,
            take = 1 + (int)rng_below(rng, (uint64_t)(most > 1 ? most : 1));
        take = take < left ? take : left;
        if (take <= 0 || rows + take > STEP_ROWS || rng_below(rng, 4) == 0)
            continue;
        parts[n++] = (struct rig_part){q, at[q], take, s->ids[q]};
        rows += take;
    }
    return n;
}

static int compare_step(struct subject *s, struct rig *r, const struct rig_part *parts, int n)
{
    int rows = 0;
    for (int i = 0; i < n; i++)
        rows += parts[i].n;
    assert_int_equal(rig_logits(r, rows, s->step), 0);
    const float *got = s->step;
    for (int i = 0; i < n; i++) {
        const float *want = s->logits[parts[i].seq] + (size_t)parts[i].pos * (size_t)s->vocab;
        size_t count = (size_t)parts[i].n * (size_t)s->vocab;
        if (memcmp(got, want, count * sizeof *got) != 0)
            fail_msg("sequence %d, positions %d to %d: logits differ", parts[i].seq, parts[i].pos,
                     parts[i].pos + parts[i].n - 1);
        got += count;
    }
    return rows;
}

static int random_case(struct subject *s, struct rng *rng, int threads, const char *isa)
{
    struct rig r;
    int at[SEQS] = {0}, compared = 0, left = 0;
    open_subject_rig(&r, s, threads, isa, STEP_ROWS);
    for (int q = 0; q < SEQS; q++)
        left += s->len[q];
    while (left > 0) {
        struct rig_part parts[SEQS];
        int n = random_parts(s, rng, at, parts);
        if (!n)
            continue;
        bool logits = rng_below(rng, 4) != 0;
        step(&r, parts, n, logits);
        if (logits)
            compared += compare_step(s, &r, parts, n);
        for (int i = 0; i < n; i++) {
            at[parts[i].seq] += parts[i].n;
            left -= parts[i].n;
        }
    }
    rig_close(&r);
    return compared;
}

static bool has_isa(const char *isa)
{
    struct device *d = NULL;
    struct device_opts o = {.n_threads = 1, .isa = isa, .max_rows = 1, .max_logits = 1};
    bool ok = backend_cpu()->open(&d, &o, NULL) == 0;
    if (ok)
        backend_cpu()->close(d);
    return ok;
}

static void check_subject(struct model *m, int max_len, int n_cases, bool portable)
{
    struct subject *s = mem_new(sizeof *s);
    struct rng rng;
    const char *usable[N_ISAS + 1] = {"auto"};
    int compared = 0, n_usable = 1;
    for (int i = 0; i < N_ISAS; i++)
        if (has_isa(isas[i]) && (portable || strcmp(isas[i], "portable") != 0))
            usable[n_usable++] = isas[i];
    rng_init(&rng, 77);
    s->model = m;
    s->max_len = max_len;
    make_truth(s, &rng);
    for (int i = 0; i < n_cases; i++)
        compared += random_case(s, &rng, 1 + (int)rng_below(&rng, 4), usable[i % n_usable]);
    assert_true(compared > 0);
    for (int q = 0; q < SEQS; q++)
        mem_free(s->logits[q]);
    mem_free(s->step);
    mem_free(s);
}

static void test_small_models(void **state)
{
    (void)state;
    static const struct {
        const char *family;
        enum dtype type;
    } subjects[] = {{"llama3", DT_Q4_1}, {"llama3", DT_Q8_0}, {"mistral", DT_Q4_0}, {"qwen2", DT_Q5_1},
                    {"qwen3", DT_Q5_0},  {"qwen3", DT_BF16},  {"llama2", DT_F32},   {"llama2", DT_F16}};
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        char path[64];
        struct model *m;
        struct err e = {0};
        snprintf(path, sizeof path, "tests/data/gold_%s.json", subjects[i].family);
        if (model_open_dummy(&m, path, subjects[i].type, i, &e))
            fail_msg("%s", e.text);
        check_subject(m, SMALL_LEN, SMALL_CASES, true);
        model_close(m);
    }
}

static void test_demo_model(void **state)
{
    (void)state;
    struct model *m;
    struct err e = {0};
    if (access(DEMO_MODEL, R_OK) != 0) {
        print_message("%s is not here: models/fetch.sh fetches it\n", DEMO_MODEL);
        skip();
    }
    if (model_open_gguf(&m, DEMO_MODEL, &e))
        fail_msg("%s", e.text);
    check_subject(m, DEMO_LEN, DEMO_CASES, false);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_small_models), cmocka_unit_test(test_demo_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
