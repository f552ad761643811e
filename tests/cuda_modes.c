/* The default mode against the CPU backend: likelihoods of random texts through whole models, in chunks and single tokens, alone and together,
 * in several layouts that change between steps. The two differ by the rounding of bf16; a wrong head, block or weight would show as another distribution. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "tests/layout_rig.h"

enum { TEXT = 56, BLOCKS = 512, STEP_ROWS = 96, SEQS = 2 };

struct text {
    int32_t ids[SEQS][TEXT];
    float given[SEQS][TEXT];        /* log-likelihood of ids[s][i], i >= 1 */
};

static int open_default(struct device **out, const struct device_opts *o, struct err *e)
{
    struct device_opts with = *o;
    with.invariant = false;
    return backend_cuda()->open(out, &with, e);
}

/* Feeds tokens [at, at + n) of every text in one step and notes how likely what follows was. */
static void feed(struct node *n, struct place *p, struct layout l, struct text *t, const int at[2])
{
    struct node_seq seqs[SEQS];
    struct sample_row samples[STEP_ROWS];
    struct sample_result results[STEP_ROWS];
    struct sampling how = {.temperature = 0, .top_p = 1, .repetition_penalty = 1, .n_logprobs = 0, .n_prompt_logprobs = 0};
    struct node_part parts[NODE_RANKS];
    int32_t rows[STEP_ROWS];
    int k = 0;
    for (int s = 0; s < SEQS; s++) {
        seqs[s] = (struct node_seq){s, at[0], at[1], t->ids[s]};
        for (int i = 0; i < at[1]; i++, k++) {
            rows[k] = k;
            samples[k] = (struct sample_row){.how = &how, .given = t->ids[s][(at[0] + i + 1) % TEXT], .n_top = 0};
        }
    }
    struct node_step step = {.place = p, .layout = l, .seqs = seqs, .n_seqs = SEQS, .n_logits = k, .logit_rows = rows, .samples = samples, .results = results};
    if (node_run(n, &step, parts))
        fail_msg("%s", parts[0].err.text);
    for (int s = 0, row = 0; s < SEQS; s++)
        for (int i = 0; i < at[1]; i++, row++)
            if (at[0] + i + 1 < TEXT)
                t->given[s][at[0] + i + 1] = results[row].logprob;
}

/* Chunks, then single tokens; the layouts in turn. */
static void read_texts(struct model *m, const struct backend_ops *ops, const struct layout *layouts, int n_layouts, enum dtype kv, struct text *t)
{
    struct node n;
    struct place p;
    struct err e = {0};
    int ranks = layouts[0].sp * layouts[0].tp, at = 0;
    struct node_opts o = {.ops = ops, .n_ranks = ranks, .max_rows = STEP_ROWS, .max_logits = STEP_ROWS, .n_blocks = BLOCKS, .block_tokens = 32, .kv = kv};
    if (node_open(&n, m, &o, &e))
        fail_msg("%s", e.text);
    place_make(&p, layouts[0], node_tokens_per_block(&n, ranks), TEXT, 0);
    for (int step = 0; at < TEXT; step++) {
        int rows = step == 0 ? 40 : step == 1 ? 9 : step == 4 ? 3 : 1;
        rows = rows < TEXT - at ? rows : TEXT - at;
        feed(&n, &p, layouts[step % n_layouts], t, (const int[2]){at, rows});
        at += rows;
    }
    place_free(&p);
    node_close(&n);
}

/* rms of the difference over the spread of the likelihoods themselves, and the difference of their means. */
static void compare(const struct text *a, const struct text *b, const char *what)
{
    double mean = 0, other = 0, spread = 0, apart = 0;
    int n = SEQS * (TEXT - 1);
    for (int s = 0; s < SEQS; s++)
        for (int i = 1; i < TEXT; i++) {
            mean += (double)a->given[s][i] / n;
            other += (double)b->given[s][i] / n;
        }
    for (int s = 0; s < SEQS; s++)
        for (int i = 1; i < TEXT; i++) {
            spread += ((double)a->given[s][i] - mean) * ((double)a->given[s][i] - mean);
            apart += ((double)a->given[s][i] - (double)b->given[s][i]) * ((double)a->given[s][i] - (double)b->given[s][i]);
        }
    double ratio = sqrt(apart / spread);
    print_message("%s: rms difference %.4f of the spread %.3f, mean %.5f and %.5f\n", what, ratio, sqrt(spread / n), mean, other);
    if (!(ratio < 0.03) || !(fabs(mean - other) < 0.005))
        fail_msg("%s", what);
}

static void check(const char *config, enum dtype type, enum dtype kv, int ranks)
{
    static const struct layout single[] = {{1, 1, 1}}, two[] = {{2, 1, 1}, {1, 2, 1}}, four[] = {{2, 2, 1}, {4, 1, 1}, {1, 4, 1}};
    static struct text exact, fast;
    const struct layout *layouts = ranks == 1 ? single : ranks == 2 ? two : four;
    struct backend_ops with_default = *backend_cuda();
    struct model *m;
    struct err e = {0};
    struct rng r;
    char what[128];
    with_default.open = open_default;
    if (model_open_dummy(&m, config, type, 5, &e))
        fail_msg("%s", e.text);
    rng_init(&r, 7);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < TEXT; i++)
            exact.ids[s][i] = fast.ids[s][i] = (int32_t)rng_below(&r, (uint64_t)model_config(m)->vocab);
    read_texts(m, backend_cpu(), single, 1, kv, &exact);
    read_texts(m, &with_default, layouts, ranks < 3 ? ranks : 3, kv, &fast);
    snprintf(what, sizeof what, "%s, %s, cache %s, %d ranks", config, dtype_get(type)->name, dtype_get(kv)->name, ranks);
    compare(&exact, &fast, what);
    model_close(m);
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
}

static void types_of_weights(void **state)
{
    (void)state;
    check("tests/data/layout_mqa.json", DT_F16, DT_F16, 1);
    check("tests/data/layout_wide.json", DT_Q4_K, DT_F16, 1);
    check("tests/data/layout_gqa.json", DT_F8_SCALED, DT_F8, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_rank), cmocka_unit_test(several_ranks), cmocka_unit_test(types_of_weights)};
    if (!backend_cuda()->n_devices()) {
        puts("no GPU here: nothing was checked");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
