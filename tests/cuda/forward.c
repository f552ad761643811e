/* Whole models on the CUDA backend beside the CPU: a prompt and a few decodes, in layouts of 1 to 8 ranks on one
 * device. In invariant mode every layout gives the CPU's choices and, among themselves, the same bits; in the default
 * mode logprobs stay near. Over tests/emulator, or on a GPU. */
#include <math.h>
#include <stdlib.h>

#include "tests/rig/layout_subject.h"

/* The emulator is slow: cuda_modes has its default mode. */
#if defined(EMULATED)
enum { DEFAULT_TOO = 0 };
#else
enum { DEFAULT_TOO = 1 };
#endif
enum { PROMPT = 14, DECODES = 3, TOKENS = PROMPT + DECODES, TOP = 3, BLOCK = 16 };

struct answer {
    struct sample_result rows[TOKENS];
};

struct variant {
    const struct backend_ops *ops;
    struct layout layout;
    bool fast;
};

static void answer_step(struct node *n, const struct place *p, const struct variant *v, const int32_t *ids,
                        const int range[2], struct answer *out)
{
    struct node_part parts[NODE_RANKS];
    struct sample_row rows[TOKENS];
    int32_t wanted[TOKENS];
    int count = range[1] - range[0];
    for (int i = 0; i < count; i++) {
        wanted[i] = i;
        rows[i] = (struct sample_row){.how = &ways[(range[0] + i) % 3],
                                      .given = i % 2 ? ids[i] : -1,
                                      .position = (uint64_t)(range[0] + i),
                                      .n_top = TOP};
    }
    struct node_seq seq = {0, range[0], count, ids};
    struct node_step step = {.place = p,
                             .layout = v->layout,
                             .seqs = &seq,
                             .n_seqs = 1,
                             .n_logits = count,
                             .logit_rows = wanted,
                             .samples = rows,
                             .results = out->rows + range[0]};
    if (node_run(n, &step, parts))
        for (int i = 0; i < p->n; i++)
            if (parts[i].rc)
                fail_msg("share %d: %s", i, parts[i].err.text);
}

static void answer(struct model *m, const struct variant *v, const int32_t *ids, struct answer *out)
{
    struct node n;
    struct place p;
    int ranks = v->layout.sp * v->layout.tp;
    struct node_opts o = {.ops = v->ops,
                          .n_ranks = ranks,
                          .max_rows = PROMPT,
                          .max_logits = 8,
                          .block_tokens = BLOCK,
                          .kv = DT_F16,
                          .fast = v->fast};
    o.n_blocks = NODE_SEQS * ((TOKENS + BLOCK - 1) / BLOCK);
    memset(out, 0, sizeof *out);
    open_node(&n, m, &o);
    place_make(&p, (struct layout){ranks, 1, 1}, node_tokens_per_block(&n, ranks), TOKENS, 0);
    answer_step(&n, &p, v, ids, (const int[2]){0, PROMPT}, out);
    for (int i = PROMPT; i < TOKENS; i++)
        answer_step(&n, &p, v, ids, (const int[2]){i, i + 1}, out);
    place_free(&p);
    node_close(&n);
}

/* The device's logarithm may round otherwise; all else is equal. */
static void equal_choices(const struct answer *cpu, const struct answer *gpu, struct layout l)
{
    for (int i = 0; i < TOKENS; i++) {
        const struct sample_result *a = &cpu->rows[i], *b = &gpu->rows[i];
        bool same = a->token == b->token && a->rank == b->rank && a->n_top == b->n_top &&
                    !memcmp(a->top_ids, b->top_ids, sizeof a->top_ids);
        if (!same || fabsf(a->logprob - b->logprob) > 1e-5f)
            fail_msg("{%d,%d} row %d: token %d (%g), on the CPU %d (%g)", l.sp, l.tp, i, b->token, (double)b->logprob,
                     a->token, (double)a->logprob);
    }
}

static void near_choices(const struct answer *cpu, const struct answer *gpu, struct layout l)
{
    double off = 0, most = 0;
    for (int i = 0; i < TOKENS; i++)
        for (int k = 0; k < TOP; k++) {
            double d = fabs((double)cpu->rows[i].top_logprobs[k] - (double)gpu->rows[i].top_logprobs[k]);
            off += d / (TOKENS * TOP);
            most = d > most || d != d ? d : most;
        }
    if (!(off < 0.05) || !(most < 0.5))
        fail_msg("{%d,%d}: top logprobs are off by %g, at most %g", l.sp, l.tp, off, most);
}

static void check_model(struct model *m, int widest)
{
    const struct model_config *c = model_config(m);
    int32_t ids[TOKENS];
    struct answer cpu, first = {0}, gpu;
    struct layout layouts[8];
    if (getenv("MOONSHIFT_QUICK") && widest > 2)
        widest = 2;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (i * i * 7 + i * 3 + 5) % c->vocab;
    answer(m, &(struct variant){backend_cpu(), {1, 1, 1}, false}, ids, &cpu);
    for (int ranks = 1; ranks <= widest; ranks *= 2)
        for (int k = 0, n = layouts_of(c, ranks, layouts); k < n; k++) {
            answer(m, &(struct variant){backend_cuda(), layouts[k], false}, ids, &gpu);
            equal_choices(&cpu, &gpu, layouts[k]);
            first = ranks == 1 ? gpu : first;
            if (memcmp(&first, &gpu, sizeof gpu))
                fail_msg("{%d,%d}: not the bits of one rank", layouts[k].sp, layouts[k].tp);
            if (!DEFAULT_TOO || (ranks > 2 && k))
                continue;
            answer(m, &(struct variant){backend_cuda(), layouts[k], true}, ids, &gpu);
            near_choices(&cpu, &gpu, layouts[k]);
        }
    model_close(m);
}

static void no_gpu_is_said(void)
{
    if (backend_cuda()->n_devices() > 0)
        return;
    print_message("no GPU here: nothing of the CUDA backend was checked\n");
    skip();
}

#define LAYOUTS(name, type, widest)                                                                                    \
    static void layouts_##name(void **state)                                                                           \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        no_gpu_is_said();                                                                                              \
        check_model(open_dummy(#name, type, 11), widest);                                                              \
    }
LAYOUTS(gqa, DT_Q8_0, 8)
LAYOUTS(9_3, DT_Q4_0, 4)
LAYOUTS(mqa, DT_F16, 4)
LAYOUTS(wide, DT_Q6_K, 1)
LAYOUTS(narrow, DT_BF16, 2)
LAYOUTS(mha, DT_F8_SCALED, 1)
LAYOUTS(swiftkv, DT_Q8_0, 2)
#undef LAYOUTS

#define FAMILY(name, type)                                                                                             \
    static void family_##name(void **state)                                                                            \
    {                                                                                                                  \
        struct model *m;                                                                                               \
        struct err e = {0};                                                                                            \
        (void)state;                                                                                                   \
        no_gpu_is_said();                                                                                              \
        if (model_open_dummy(&m, "tests/data/gold_" #name ".json", type, 12, &e))                                      \
            fail_msg("%s", e.text);                                                                                    \
        check_model(m, 1);                                                                                             \
    }
FAMILY(llama3, DT_F32)
FAMILY(mistral, DT_Q4_1)
FAMILY(qwen2, DT_Q5_0)
FAMILY(qwen3, DT_BF16)
#undef FAMILY

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_gqa),    cmocka_unit_test(layouts_9_3),     cmocka_unit_test(layouts_mqa),
        cmocka_unit_test(layouts_wide),   cmocka_unit_test(layouts_narrow),  cmocka_unit_test(family_llama3),
        cmocka_unit_test(family_mistral), cmocka_unit_test(family_qwen2),    cmocka_unit_test(family_qwen3),
        cmocka_unit_test(layouts_mha),    cmocka_unit_test(layouts_swiftkv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
