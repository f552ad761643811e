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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lanes_do_not_queue_at_a_bin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
