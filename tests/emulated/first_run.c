/* What was likely to go wrong, or slowly, on the first GPU, as far as it can be counted and made to happen without one.
 */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/device.h"
#include "tests/rig/unified.h"

struct emulator_atomics {
    long all, wide, queued; /* tests/emulator/cuda_runtime.h */
};
void emulator_atomics_made(struct emulator_atomics *to);

/* ---- sampling from a large vocabulary */

enum { VOCAB = 128 << 10 };

/* Logits of a model: nearly all of them differ in few of the upper bits. */
static void fill_logits(float *x, uint64_t seed)
{
    struct rng r;
    rng_init(&r, seed);
    for (int i = 0; i < VOCAB; i++) {
        double u = rng_unit(&r), v = rng_unit(&r);
        x[i] = (float)(3 * sqrt(-2 * log(u + 1e-12)) * cos(6.283185307179586 * v));
    }
}

static void count_atomics(const struct sample_params *params, struct emulator_atomics *n)
{
    float *logits = unified(VOCAB * sizeof *logits);
    struct sample_out *out = unified(sizeof *out);
    fill_logits(logits, 3);
    struct sample_job j = {.params = params, .logits = logits, .out = out, .ld = VOCAB, .vocab = VOCAB, .n = 1};
    emulator_atomics_made(n);
    assert_int_equal(launch_sample(NULL, &j), cudaSuccess);
    emulator_atomics_made(n);
    assert_true(out->token >= 0 && out->token < VOCAB);
    unified_free(logits), unified_free(out);
}

/* Shared memory adds 32 bits by itself and 64 in a loop, and lanes that add to the same place go one by one: one
 * addition for each logit would make a pass take milliseconds. */
static void lanes_do_not_queue_at_a_bin(void **state)
{
    static const struct sample_params ways[] = {
        {.draw = 0.4, .temperature = 1, .top_p = 0.9f, .repetition = 1, .given = -1, .n_top = -1, .n_allowed = -1},
        {.draw = 0.4,
         .temperature = 0.7f,
         .top_p = 1,
         .top_k = 50,
         .repetition = 1,
         .given = -1,
         .n_top = -1,
         .n_allowed = -1},
        {.draw = 0.9,
         .temperature = 1,
         .top_p = 1,
         .repetition = 1,
         .given = -1,
         .n_top = 20,
         .logprobs = 1,
         .n_allowed = -1}};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct emulator_atomics n;
        count_atomics(&ways[i], &n);
        print_message("way %zu: %ld additions, %ld of 64 bits, %ld behind others, for %d logits\n", i, n.all, n.wide,
                      n.queued, VOCAB);
        if (n.wide || n.queued > VOCAB / 4)
            fail_msg("way %zu: %ld of 64 bits, %ld behind others", i, n.wide, n.queued);
    }
}

/* ---- a step that is not over yet */

enum { ROWS = 2, COLS = 64 };

struct recorded {
    struct device *d;
    struct batch_seq seqs[ROWS];
    struct sample_row samples[ROWS];
    struct batch batch;
    struct graph_key key;
    float *logits;
};

static const int32_t zeros[ROWS], rows_of_logits[ROWS] = {0, 1};
static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};

/* A step that samples, recorded. */
static void record(struct recorded *r)
{
    static const float freq[2] = {1, 0.5f};
    const struct backend_ops *ops = backend_cuda();
    const struct device_opts o = {.max_rows = 16, .max_logits = 4, .graph_rows = ROWS};
    struct err e = {0};
    *r = (struct recorded){.key = {.tokens_per_block = 16}};
    assert_int_equal(ops->open(&r->d, &o, &e), 0);
    for (int i = 0; i < ROWS; i++) {
        r->seqs[i] = (struct batch_seq){i, 1, 0, zeros, NULL};
        r->samples[i] = (struct sample_row){.how = &greedy, .given = -1, .n_top = -1};
    }
    r->batch = (struct batch){.n_rows = ROWS,
                              .ids = zeros,
                              .positions = zeros,
                              .n_seqs = ROWS,
                              .seqs = r->seqs,
                              .n_logits = ROWS,
                              .logit_rows = rows_of_logits,
                              .samples = r->samples};
    r->batch.results = mem_new_array(ROWS, sizeof *r->batch.results);
    r->logits = ops->alloc(r->d, ROWS * COLS * sizeof *r->logits);
    const struct graph_call call = {&r->key, &r->batch};
    const struct rope rope = {.dim = 4, .inv_freq = freq, .scale = 1};
    assert_int_equal(ops->graph_begin(r->d, &call, &rope, &e), 0);
    ops->sample(r->d, (struct act){r->logits, COLS, COLS, false}, COLS, 0, ROWS);
    assert_int_equal(ops->graph_end(r->d, &e), 0);
}

static void forget(struct recorded *r)
{
    backend_cuda()->release(r->d, r->logits);
    backend_cuda()->close(r->d);
    mem_free(r->batch.results);
}

/* "Not yet" is an answer, and no error for whoever looks for one next. */
static void asking_leaves_no_error(void **state)
{
    const struct backend_ops *ops = backend_cuda();
    struct recorded r;
    struct err e = {0};
    int not_yet = 0;
    (void)state;
    record(&r);
    for (int i = 0; i < 20; i++) {
        const struct graph_call call = {&r.key, &r.batch};
        bool posted;
        assert_int_equal(ops->graph_post(r.d, &call, &posted, &e), 0);
        assert_true(posted);
        for (; !ops->graph_ended(r.d); not_yet++)
            assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
        assert_int_equal(ops->graph_wait(r.d, NULL, &e), 0);
    }
    assert_true(not_yet > 0);
    forget(&r);
}

/* While a step is under way the next one's arrays are filled in: not those that are still being copied. */
static void two_steps_under_way(void **state)
{
    const struct backend_ops *ops = backend_cuda();
    struct recorded r;
    struct err e = {0};
    int32_t positions[ROWS];
    (void)state;
    record(&r);
    struct batch next = r.batch;
    next.positions = positions;
    for (int i = 0; i < 20; i++) {
        const struct graph_call calls[] = {{&r.key, &r.batch}, {&r.key, &next}};
        positions[0] = positions[1] = i + 1;
        for (int k = 0; k < 2; k++) {
            bool posted;
            assert_int_equal(ops->graph_post(r.d, &calls[k], &posted, &e), 0);
            assert_true(posted);
        }
        for (int k = 0; k < 2; k++)
            assert_int_equal(ops->graph_wait(r.d, NULL, &e), 0);
    }
    forget(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_do_not_queue_at_a_bin),
                                       cmocka_unit_test(asking_leaves_no_error), cmocka_unit_test(two_steps_under_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
