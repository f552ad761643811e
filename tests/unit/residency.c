/* What ranks hold where weights lie in shares: whose layers, how much of it a change moves, which layout a group of
 * ranks holds, all against counting by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "engine/world/world.h"

enum { LAYERS = 10, RANKS = 4, LAYER = 1200 };
static const struct heads eight = {8, 8, 64};

/* Layer l takes LAYER + l bytes, cut evenly. */
struct box {
    struct world w;
    struct metrics m;
    struct residency_facts facts;
    struct cut_size sizes[16];
    size_t bytes[16][LAYERS];
};

static void add_size(struct box *b, struct cut_size s)
{
    size_t *layers = b->bytes[b->facts.n_sizes];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (size_t)(LAYER + 12 * l) / (size_t)s.tp;
    s.layers = layers;
    b->sizes[b->facts.n_sizes++] = s;
}

static void open_box(struct box *b, size_t room)
{
    struct node_shape shape;
    struct limits l = {.max_num_seqs = 8, .max_num_batched_tokens = 64, .max_model_len = 256};
    *b = (struct box){.facts = {.start = {1, 1, 4}, .room = room, .n_layers = LAYERS}};
    metrics_init(&b->m);
    node_shape_uniform(&shape, RANKS, &eight, LAYERS, 16);
    world_init(&b->w, &l, &shape, 8, &b->m);
    for (int sp = 1; sp <= RANKS; sp++)
        for (int tp = 1; sp * tp <= RANKS; tp++)
            for (int t = 0; t < tp && (tp > 1 || sp == 1); t++)
                add_size(b, (struct cut_size){.sp = sp, .tp = tp, .t = t});
    b->facts.sizes = b->sizes;
    b->w.residency.facts = &b->facts;
    b->w.cost.load_ns_per_byte = 2;
    for (int i = 0; i < RANKS; i++)
        b->w.residency.held[i] = cut_of(b->facts.start, i);
}

static const int all[RANKS] = {0, 1, 2, 3};

static size_t layers_of(int first, int n, int tp)
{
    size_t sum = 0;
    for (int l = first; l < first + n; l++)
        sum += (size_t)(LAYER + 12 * l) / (size_t)tp;
    return sum;
}

static void a_rank_has_the_layers_of_its_stage_and_the_share_of_its_place(void **state)
{
    (void)state;
    struct cut c = cut_of((struct layout){2, 2, 1}, 3), d = cut_of((struct layout){1, 2, 2}, 2),
               e = cut_of((struct layout){2, 1, 2}, 1), f = cut_of((struct layout){1, 1, 2}, 0);
    assert_true(c.t == 1 && c.stage == 0 && c.layout.sp == 2);
    assert_true(d.t == 0 && d.stage == 1);
    assert_true(cut_equal(&e, &f)); /* whole layers: how tokens are split makes no difference */
    assert_int_equal(cut_layers(&d, LAYERS).first, 5);
    assert_int_equal(cut_layers(&d, LAYERS).n, 5);
    assert_int_equal(cut_layers(&(struct cut){0}, LAYERS).n, 0);
}

static void a_change_moves_what_is_not_there(void **state)
{
    (void)state;
    static struct box b;
    open_box(&b, 100000);
    struct cut none = {0}, first = cut_of((struct layout){1, 1, 4}, 0), half = cut_of((struct layout){1, 1, 2}, 0),
               share = cut_of((struct layout){1, 4, 1}, 0);
    assert_int_equal(residency_bytes(&b.facts, &first), layers_of(0, 3, 1)); /* 10 layers: 3, 3, 2, 2 */
    assert_int_equal(residency_missing(&b.facts, &none, &half), layers_of(0, 5, 1));
    assert_int_equal(residency_missing(&b.facts, &first, &half), layers_of(3, 2, 1));
    assert_int_equal(residency_missing(&b.facts, &half, &first), 0);
    assert_int_equal(residency_missing(&b.facts, &first, &share), layers_of(0, 10, 4));
    world_free(&b.w);
}

static void the_cost_is_of_all_and_of_the_slowest_and_says_what_stops(void **state)
{
    (void)state;
    static struct box b;
    struct reshard_cost cost;
    size_t share = layers_of(0, 10, 4), held = layers_of(3, 3, 1); /* rank 1 holds most */
    open_box(&b, held + share / 2);
    residency_cost(&b.w, all, RANKS, (struct layout){1, 4, 1}, &cost);
    assert_int_equal(cost.bytes, 4 * share);
    assert_int_equal(cost.most, share);
    assert_true(cost.ns == 2.0 * (double)share);
    assert_true(cost.stop_ns >= (double)share - 2 && cost.stop_ns <= (double)share + 2); /* half of it, there */
    residency_cost(&b.w, all, RANKS, (struct layout){1, 1, 4}, &cost);
    assert_true(cost.bytes == 0 && cost.ns == 0);
    world_free(&b.w);
}

static void ranks_match_the_layout_whose_cuts_they_hold_and_no_other(void **state)
{
    (void)state;
    static struct box b;
    struct layout l;
    static const int turned[RANKS] = {1, 0, 2, 3};
    open_box(&b, 100000);
    assert_true(residency_match(&b.w, all, RANKS, 4, &l) && l.tp == 1 && l.pp == 4);
    assert_false(residency_match(&b.w, turned, RANKS, 4, &l));
    assert_false(residency_match(&b.w, all, RANKS, 1, &l));
    assert_false(residency_match(&b.w, all, 2, 2, &l));
    assert_int_equal(residency_take(&b.w, all, RANKS, (struct layout){1, 4, 1}), 0xf);
    assert_int_equal(residency_take(&b.w, all, RANKS, (struct layout){1, 4, 1}), 0);
    assert_true(residency_match(&b.w, all, RANKS, 1, &l) && l.tp == 4);
    world_free(&b.w);
}

static void what_has_no_room_is_refused(void **state)
{
    (void)state;
    static struct box b;
    struct layout l;
    open_box(&b, layers_of(0, 10, 2));
    assert_non_null(residency_refusal(&b.w, RANKS, (struct layout){4, 1, 1}));
    assert_null(residency_refusal(&b.w, RANKS, (struct layout){2, 2, 1}));
    assert_true(residency_usual(&b.w, RANKS, 1, &l) && l.tp == 4);
    assert_true(residency_usual(&b.w, 2, 1, &l) && l.tp == 2);
    assert_false(residency_usual(&b.w, 1, 1, &l));
    world_free(&b.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_has_the_layers_of_its_stage_and_the_share_of_its_place),
        cmocka_unit_test(a_change_moves_what_is_not_there),
        cmocka_unit_test(the_cost_is_of_all_and_of_the_slowest_and_says_what_stops),
        cmocka_unit_test(ranks_match_the_layout_whose_cuts_they_hold_and_no_other),
        cmocka_unit_test(what_has_no_room_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
