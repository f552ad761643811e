/* Layout-invariant arithmetic, as the whole forward has it: logits and choices of every layout {sp, tp} in both rank
 * orders on 1, 2, 3, 4, 6 and 8 ranks are those of one rank, bit for bit; prefill and decode, chunked or not, 1 to 9
 * sequences, rows and vocabularies that the ranks do not divide, and layouts that change between steps over the same
 * KV. The truth is each sequence alone, in one piece, on one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/rig/layout_subject.h"
#include "models/forward/forward.h"

/* Every layout of n ranks by itself in both rank orders, then all of them in turn over the same KV. */
static int check_width(struct subject *s, struct rng *rng, int n, int max_logits, enum comm_algorithm how)
{
    struct layout layouts[8];
    int n_layouts = layouts_of(model_config(s->model), n, layouts), compared = 0;
    struct node node;
    struct node_opts o = opts_of(n, MAX_ROWS, max_logits, 1);
    struct place sizes;
    o.threads = 1 + (int)rng_below(rng, n <= 3 ? 2 : 1);
    o.n_blocks = place_make(&sizes, (struct layout){n, 1, 1}, 16, LEN, 0);
    place_free(&sizes);
    open_node(&node, s->model, &o);
    node.algorithm = how;
    for (int i = 0; i <= n_layouts; i++) {
        bool all = i == n_layouts;
        struct place p;
        struct layout base = all ? layouts[rng_below(rng, (uint64_t)n_layouts)] : layouts[i];
        for (int order = 0; order < (base.sp > 1 && base.tp > 1 ? 2 : 1); order++) {
            place_make(&p, order || all ? base : (struct layout){n, 1, 1}, node_tokens_per_block(&node, n), LEN, 0);
            struct course c = {&node,
                               &p,
                               all ? layouts : &layouts[i],
                               all ? n_layouts : 1,
                               1 + (int)rng_below(rng, MOST_SEQS),
                               max_logits,
                               .turn = (int)rng_below(rng, 2)};
            while (!course_over(s, &c))
                compared += course_step(s, rng, &c);
            place_free(&p);
        }
    }
    node_close(&node);
    return compared;
}

static void check_subject(struct model *m, int max_len, int stride, uint64_t seed)
{
    static const int widths[] = {8, 4, 6, 3, 2, 1};
    struct rng rng;
    int compared = 0, repeats = getenv("MOONSHIFT_QUICK") ? 1 : REPEATS;
    rng_init(&rng, seed);
    struct subject *s = subject_new(m, max_len, &rng);
    for (size_t i = 0; i < 6; i += (size_t)stride) {
        int n = widths[(i + (stride > 1 ? seed : 0)) % 6];
        enum comm_algorithm how = (enum comm_algorithm)rng_below(&rng, 3);
        for (int k = 0; k < repeats && n <= model_config(m)->n_heads; k++)
            compared += check_width(s, &rng, n, (seed + (uint64_t)k) % 2 ? 5 : MAX_ROWS, how);
    }
    assert_true(compared > 0);
    subject_free(s);
}

static void check_dummy(const char *name, enum dtype type, uint64_t seed)
{
    struct model *m = open_dummy(name, type, seed);
    check_subject(m, LEN, STRIDE, seed);
    model_close(m);
}

static void mha(void **state)
{
    (void)state;
    check_dummy("mha", DT_Q4_1, 1);
}

static void gqa_8_2(void **state)
{
    (void)state;
    check_dummy("gqa", DT_Q8_0, 2);
}

static void mqa(void **state)
{
    (void)state;
    check_dummy("mqa", DT_F16, 3);
}

static void heads_9_3(void **state)
{
    (void)state;
    check_dummy("9_3", DT_F8_SCALED, 4);
}

static void heads_40_8(void **state)
{
    (void)state;
    check_dummy("40_8", DT_Q5_1, 5);
}

static void heads_28_4(void **state)
{
    (void)state;
    check_dummy("28_4", DT_F32, 6);
}

/* Blocks of 256 columns, cut at 64. */
static void k_quants(void **state)
{
    (void)state;
    check_dummy("wide", DT_Q2_K, 7);
    check_dummy("wide", DT_IQ4_XS, 9);
}

/* Heads that fall on no leaf: sequence parallelism only. */
static void narrow_heads(void **state)
{
    (void)state;
    struct model_config c = {.n_heads = 8, .n_kv_heads = 4, .head_dim = 24};
    struct layout layouts[8];
    assert_int_equal(layouts_of(&c, 4, layouts), 1);
    check_dummy("narrow", DT_BF16, 8);
}

/* Half of the layers take their keys and values from one hidden state, and other rows' end before them. */
static void swiftkv(void **state)
{
    (void)state;
    check_dummy("swiftkv", DT_Q8_0, 10);
}

/* All layers but the first, logits in chunks, heads that the ranks do not divide. */
static void swiftkv_from_the_second(void **state)
{
    (void)state;
    check_dummy("swiftkv_9_3", DT_F16, 11);
}

static void demo_model(void **state)
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
    check_subject(m, DEMO_LEN, STRIDE > 1 ? 6 : 1, 9);
    model_close(m);
}

int main(void)
{
#if defined(EMULATED)
    (void)heads_40_8, (void)heads_28_4, (void)k_quants, (void)demo_model; /* too long for emulated threads */
    const struct CMUnitTest tests[] = {cmocka_unit_test(mqa), cmocka_unit_test(heads_9_3),
                                       cmocka_unit_test(narrow_heads), cmocka_unit_test(swiftkv),
                                       cmocka_unit_test(swiftkv_from_the_second)};
    (void)mha, (void)gqa_8_2;
#else
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mha),
        cmocka_unit_test(gqa_8_2),
        cmocka_unit_test(mqa),
        cmocka_unit_test(heads_9_3),
        cmocka_unit_test(heads_40_8),
        cmocka_unit_test(heads_28_4),
        cmocka_unit_test(k_quants),
        cmocka_unit_test(narrow_heads),
        cmocka_unit_test(demo_model),
        cmocka_unit_test(swiftkv),
        cmocka_unit_test(swiftkv_from_the_second),
    };
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
