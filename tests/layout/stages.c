/* Pipeline stages compute the same bits: logits and choices of every layout {sp, tp, pp} with pp > 1 on 2, 3, 4, 6 and
 * 8 ranks, in both rank orders, are those of one rank, whatever the number of micro-batches; prefill and decode,
 * chunked or not, with layers that the stages do not divide; and so they are after the cached tokens have gone from one
 * number of stages to another. The truth is each sequence alone, in one piece, on one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/rig/layout_subject.h"
#include "models/forward/forward.h"

enum { MOST_LAYOUTS = 32 };

/* A node whose ranks have room for two placements of all sequences. */
static void open_staged(struct subject *s, struct node *node, int n, int max_logits, int *blocks)
{
    struct node_opts o = opts_of(n, MAX_ROWS, max_logits, 1);
    struct place sizes;
    *blocks = place_make(&sizes, (struct layout){n, 1, 1}, 16, LEN, 0);
    place_free(&sizes);
    o.n_blocks = 2 * *blocks;
    open_node(node, s->model, &o);
}

static void make_place(struct place *p, const struct node *node, struct layout base, int first)
{
    place_make(p, base, node_tokens_per_block(node, base.sp * base.tp), LEN, first);
    if (base.pp > 1)
        place_stage(p, node);
}

/* One number of stages: each layout by itself in both rank orders, then all of them in turn over the same KV. */
static int check_stages(struct subject *s, struct rng *rng, struct node *node, int pp, int max_logits)
{
    struct layout layouts[MOST_LAYOUTS];
    int n = node->n_ranks, n_layouts = staged_layouts_of(model_config(s->model), n, pp, layouts), compared = 0;
    for (int i = 0; i <= n_layouts && n_layouts; i++) {
        bool all = i == n_layouts;
        struct layout base = all ? layouts[rng_below(rng, (uint64_t)n_layouts)] : layouts[i];
        for (int order = 0; order < (base.sp > 1 && base.tp > 1 ? 2 : 1); order++) {
            struct place p;
            make_place(&p, node, order || all ? base : (struct layout){n / pp, 1, pp}, 0);
            struct course c = {node,
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
    return compared;
}

static void move_all(struct subject *s, struct course *c, const struct place *to)
{
    for (int q = 0; q < c->n_seqs; q++)
        if (c->at[q] > 0)
            node_move(c->node, c->place, to, q, (const int[2]){0, c->at[q]});
    c->place = to;
    (void)s;
}

/* Every few steps all cached tokens go to another placement: another number of stages, other heads. */
static int check_moves(struct subject *s, struct rng *rng, struct node *node, int blocks, int max_logits)
{
    struct layout layouts[MOST_LAYOUTS];
    int n = node->n_ranks, n_layouts = 0, compared = 0, side = 0;
    struct place p[2] = {{0}};
    for (int pp = 1; pp <= n; pp++)
        n_layouts += staged_layouts_of(model_config(s->model), n, pp, layouts + n_layouts);
    struct course c = {node, &p[0], layouts, 1, MOST_SEQS, max_logits, .turn = 0};
    make_place(&p[0], node, layouts[0], 0);
    while (!course_over(s, &c)) {
        compared += course_step(s, rng, &c);
        if (rng_below(rng, 2))
            continue;
        side = !side;
        place_free(&p[side]);
        c.layouts = &layouts[rng_below(rng, (uint64_t)n_layouts)];
        make_place(&p[side], node, *c.layouts, side * blocks);
        move_all(s, &c, &p[side]);
    }
    place_free(&p[0]);
    place_free(&p[1]);
    return compared;
}

static void check_subject(struct model *m, int max_len, uint64_t seed)
{
    static const int widths[] = {8, 4, 6, 3, 2};
    struct rng rng;
    int compared = 0, moved = 0;
    rng_init(&rng, seed);
    struct subject *s = subject_new(m, max_len, &rng);
    for (size_t i = 0; i<5; i += STRIDE> 1 ? 2 : 1) {
        struct node node;
        int blocks, max_logits = seed % 2 ? 5 : MAX_ROWS;
        open_staged(s, &node, widths[i], max_logits, &blocks);
        node.algorithm = (enum comm_algorithm)rng_below(&rng, 3);
        for (int pp = 2; pp <= widths[i]; pp++)
            compared += check_stages(s, &rng, &node, pp, max_logits);
        moved += check_moves(s, &rng, &node, blocks, max_logits);
        node_close(&node);
    }
    assert_true(compared > 0 && moved > 0);
    subject_free(s);
}

static void check_dummy(const char *name, enum dtype type, uint64_t seed)
{
    struct model *m = open_dummy(name, type, seed);
    check_subject(m, LEN, seed);
    model_close(m);
}

static void eleven_layers(void **state)
{
    (void)state;
    check_dummy("deep", DT_Q8_0, 1);
}

static void heads_9_3(void **state)
{
    (void)state;
    check_dummy("9_3", DT_F16, 2);
}

static void heads_40_8(void **state)
{
    (void)state;
    check_dummy("40_8", DT_BF16, 3);
}

/* Heads that fall on no leaf: sequence parallelism and stages only. */
static void narrow_heads(void **state)
{
    (void)state;
    check_dummy("narrow", DT_F32, 4);
}

/* SwiftKV's fifth of eleven layers is the first, the last or in the middle of a stage, or no stage's neighbour. */
static void swiftkv(void **state)
{
    (void)state;
    check_dummy("swiftkv_deep", DT_Q8_0, 6);
}

/* Logits in chunks: several go from stage to stage. */
static void swiftkv_in_chunks(void **state)
{
    (void)state;
    check_dummy("swiftkv_9_3", DT_BF16, 7);
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
    check_subject(m, DEMO_LEN, 5);
    model_close(m);
}

int main(void)
{
#if defined(EMULATED)
    (void)eleven_layers, (void)heads_40_8, (void)demo_model; /* too long for emulated threads */
    const struct CMUnitTest tests[] = {cmocka_unit_test(heads_9_3), cmocka_unit_test(narrow_heads),
                                       cmocka_unit_test(swiftkv_in_chunks)};
    (void)swiftkv;
    if (!getenv("MOONSHIFT_WIDE"))
        cmocka_set_skip_filter("heads_9_3");
#else
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eleven_layers),     cmocka_unit_test(heads_9_3),  cmocka_unit_test(heads_40_8),
        cmocka_unit_test(narrow_heads),      cmocka_unit_test(demo_model), cmocka_unit_test(swiftkv),
        cmocka_unit_test(swiftkv_in_chunks),
    };
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
