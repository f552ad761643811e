/* Sequences that move between placements: other ranks, other tokens per block, old and new blocks side by side. After
 * any cycle of widths the next steps give the bits of one rank that never moved, and a move back and forth leaves every
 * cached byte as it was. Named after Flying Serving's failures: width 2 then 4, block size drift over
 * cycles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "models/forward/forward.h"
#include "tests/rig/layout_subject.h"

enum { MOST_PLACES = 8 };

/* A place of the tour: the first of its ranks, and the layouts that it runs. */
struct stop {
    int first_rank, n;
};

static void make_places(struct node *n, const struct stop *stops, int n_stops, struct place *places, int *n_blocks)
{
    *n_blocks = 0;
    for (int i = 0; i < n_stops; i++) {
        *n_blocks = place_make(&places[i], (struct layout){stops[i].n, 1, 1},
                               n ? node_tokens_per_block(n, stops[i].n) : 16, LEN, *n_blocks);
        for (int k = 0; k < stops[i].n; k++)
            places[i].ranks[k] += stops[i].first_rank;
    }
}

static void free_places(struct place *places, int n)
{
    for (int i = 0; i < n; i++)
        place_free(&places[i]);
}

/* Runs the sequences to their ends while they move from stop to stop after every step or two. */
static void tour(struct model *m, const struct stop *stops, int n_stops, uint64_t seed)
{
    struct rng rng;
    struct node node;
    struct place places[MOST_PLACES];
    struct layout layouts[8];
    int n_blocks, compared = 0, at_stop = 0;
    rng_init(&rng, seed);
    struct subject *s = subject_new(m, LEN, &rng);
    make_places(NULL, stops, n_stops, places, &n_blocks); /* 16 tokens a block: more blocks than any */
    free_places(places, n_stops);
    struct node_opts o = opts_of(4, MAX_ROWS, MAX_ROWS, n_blocks);
    open_node(&node, m, &o);
    make_places(&node, stops, n_stops, places, &n_blocks);
    struct course c = {.node = &node, .layouts = layouts, .n_seqs = MOST_SEQS, .max_logits = MAX_ROWS};
    while (!course_over(s, &c)) {
        c.place = &places[at_stop];
        c.n_layouts = layouts_of(model_config(m), c.place->n, layouts);
        for (int k = 1 + (int)rng_below(&rng, 2); k > 0 && !course_over(s, &c); k--)
            compared += course_step(s, &rng, &c);
        int next = (at_stop + 1) % n_stops;
        for (int q = 0; q < MOST_SEQS; q++) /* in two parts, as a move does that runs ahead of the last step */
            if (c.at[q] > 0) {
                int middle = (int)rng_below(&rng, (uint64_t)c.at[q] + 1);
                node_move(&node, &places[at_stop], &places[next], q, (const int[2]){0, middle});
                node_move(&node, &places[at_stop], &places[next], q, (const int[2]){middle, c.at[q]});
            }
        at_stop = next;
    }
    assert_true(compared > 0);
    free_places(places, n_stops);
    node_close(&node);
    subject_free(s);
}

static void tour_of(const char *name, enum dtype type, const struct stop *stops, int n_stops)
{
    struct model *m = open_dummy(name, type, 3);
    tour(m, stops, n_stops, (uint64_t)n_stops);
    model_close(m);
}

static void width_2_then_4(void **state)
{
    (void)state;
    static const struct stop stops[] = {{0, 2}, {0, 4}, {2, 2}, {0, 4}};
    tour_of("gqa", DT_Q8_0, stops, 4);
    tour_of("9_3", DT_Q4_0, stops, 4);
}

static void widths_1_2_4_and_back(void **state)
{
    (void)state;
    static const struct stop stops[] = {{0, 1}, {0, 2}, {0, 4}, {2, 2}, {3, 1}, {0, 4}, {1, 1}};
    tour_of("mha", DT_Q4_1, stops, 7);
    tour_of("9_3", DT_F8_SCALED, stops, 7);
    tour_of("mqa", DT_F16, stops, 7);
}

static void widths_1_3_4(void **state)
{
    (void)state;
    static const struct stop stops[] = {{3, 1}, {0, 3}, {0, 4}, {0, 3}};
    tour_of("40_8", DT_Q5_1, stops, 4);
    tour_of("28_4", DT_BF16, stops, 4);
    tour_of("narrow", DT_F32, stops, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(width_2_then_4),
        cmocka_unit_test(widths_1_2_4_and_back),
        cmocka_unit_test(widths_1_3_4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
