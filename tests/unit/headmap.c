/* Head maps, exhaustively: every (sp, tp) of up to 16 ranks and every pair of head counts of real models, and odd ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/world/headmap.h"

static const struct heads models[] = {
    {32, 32, 128}, {32, 8, 128}, {40, 8, 128}, {40, 40, 128}, {64, 8, 128},  {28, 4, 128},  {14, 2, 64},
    {9, 3, 64},    {15, 5, 64},  {16, 8, 128}, {16, 2, 128},  {12, 12, 64},  {12, 2, 128},  {71, 1, 64},
    {8, 1, 256},   {24, 8, 128}, {48, 8, 128}, {96, 8, 128},  {128, 8, 128}, {16, 16, 128}, {20, 20, 64},
    {25, 5, 64},   {10, 10, 64}, {10, 2, 64},  {6, 6, 64},    {5, 1, 64},    {3, 1, 64},    {7, 7, 64},
    {13, 13, 64},  {1, 1, 64},   {2, 1, 64},   {17, 17, 64},  {32, 1, 64},   {32, 2, 64},   {32, 4, 64},
    {36, 4, 64},   {22, 2, 64},  {60, 20, 64}, {56, 8, 128},  {80, 8, 128},  {112, 7, 64},
};
enum { N_MODELS = sizeof models / sizeof *models, MOST = 16 };

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

static void shares_are_even_and_contiguous(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int n = 1; n <= MOST && n <= models[m].n_q; n++) {
            const struct heads *h = &models[m];
            int next = 0, least = h->n_q, most = 0, most_kv = 0;
            for (int i = 0; i < n; i++) {
                struct head_span s = head_span(h, n, i, 1);
                assert_int_equal(s.q0, next);
                next += s.n_q;
                least = s.n_q < least ? s.n_q : least;
                most = s.n_q > most ? s.n_q : most;
                most_kv = s.n_kv > most_kv ? s.n_kv : most_kv;
                assert_true(i == 0 || s.n_q <= head_span(h, n, i - 1, 1).n_q); /* the first have one more */
            }
            assert_int_equal(next, h->n_q);
            assert_true(most - least <= 1);
            assert_int_equal(head_max_kv(h, n), most_kv);
            assert_true(most_kv >= ceil_div(h->n_kv, n) && most_kv <= h->n_kv);
        }
}

/* A rank stores the kv heads that its q heads need, all of them and no other. */
static void each_q_head_meets_its_kv_head(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int n = 1; n <= MOST && n <= models[m].n_q; n++)
            for (int i = 0; i < n; i++)
                for (int count = 1; i + count <= n; count++) {
                    const struct heads *h = &models[m];
                    struct head_span s = head_span(h, n, i, count);
                    int used[256] = {0};
                    for (int q = s.q0; q < s.q0 + s.n_q; q++) {
                        int kv = q / (h->n_q / h->n_kv);
                        assert_in_range(kv, s.kv0, s.kv0 + s.n_kv - 1);
                        used[kv] = 1;
                    }
                    for (int kv = 0; kv < h->n_kv; kv++)
                        assert_int_equal(used[kv], kv >= s.kv0 && kv < s.kv0 + s.n_kv);
                }
}

/* KV replication as Shift has it: with 4 kv heads on 8 ranks, rank r stores head r * 4 / 8. */
static void kv_heads_repeat_where_ranks_outnumber_them(void **state)
{
    (void)state;
    for (int r = 0; r < 8; r++) {
        struct head_span s = head_span(&(struct heads){32, 4, 128}, 8, r, 1);
        assert_int_equal(s.kv0, r * 4 / 8);
        assert_int_equal(s.n_kv, 1);
    }
    assert_int_equal(head_max_kv(&(struct heads){32, 4, 128}, 8), 1);
    assert_int_equal(head_max_kv(&(struct heads){9, 3, 64}, 4),
                     2); /* heads 3, 2, 2, 2: share 2 has heads 5 and 6 of kv heads 1 and 2 */
}

/* What a tp share computes before the all-to-all is what its sp members keep after it. */
static void a_tp_share_is_the_union_of_its_sp_shares(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int sp = 1; sp <= MOST; sp++)
            for (int tp = 1; sp * tp <= MOST && sp * tp <= models[m].n_q; tp++)
                for (int t = 0; t < tp; t++) {
                    const struct heads *h = &models[m];
                    struct head_span all = head_span(h, sp * tp, t * sp, sp);
                    int q = all.q0, kv_end = 0;
                    for (int s = 0; s < sp; s++) {
                        struct head_span one = head_span(h, sp * tp, t * sp + s, 1);
                        assert_int_equal(one.q0, q);
                        assert_true(one.kv0 >= all.kv0);
                        q += one.n_q;
                        kv_end = one.kv0 + one.n_kv;
                    }
                    assert_int_equal(q, all.q0 + all.n_q);
                    assert_int_equal(kv_end, all.kv0 + all.n_kv);
                    if (t > 0) {
                        struct head_span before = head_span(h, sp * tp, (t - 1) * sp, sp);
                        assert_int_equal(before.q0 + before.n_q, all.q0);
                    }
                }
}

/* The heads of a rank, as Algorithm 1 finds them: of its tp share, the slice that the all-to-all sends to its place in
 * the sp group. */
static struct head_span by_algorithm(const struct heads *h, struct layout l, int share)
{
    struct head_span tp_share = head_span(h, l.sp * l.tp, share_t(l, share) * l.sp, l.sp), own;
    int q = tp_share.q0;
    for (int s = 0; s < share_s(l, share); s++)
        q += head_span(h, l.sp * l.tp, share_t(l, share) * l.sp + s, 1).n_q;
    own = head_span(h, l.sp * l.tp, share, 1);
    own.q0 = q;
    return own;
}

static void base_and_shift_hold_the_same_heads_in_the_same_order(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int sp = 1; sp <= MOST; sp++)
            for (int tp = 1; sp * tp <= MOST && sp * tp <= models[m].n_q; tp++) {
                const struct heads *h = &models[m];
                int n = sp * tp, share_of[MOST];
                struct layout base = {sp, tp, 1}, shift = {1, n, 1}, full = {n, 1, 1};
                share_order(base, share_of);
                for (int r = 0; r < n; r++) {
                    struct head_span in_base = by_algorithm(h, base, share_of[r]);
                    struct head_span in_shift = by_algorithm(h, shift, share_of[r]),
                                     in_full = by_algorithm(h, full, share_of[r]);
                    assert_memory_equal(&in_base, &in_shift, sizeof in_base);
                    assert_memory_equal(&in_base, &in_full, sizeof in_base);
                }
            }
}

static void orders_are_permutations_with_adjacent_tp_groups(void **state)
{
    (void)state;
    for (int sp = 1; sp <= MOST; sp++)
        for (int tp = 1; sp * tp <= MOST; tp++) {
            struct layout base = {sp, tp, 1};
            int share_of[MOST], rank_of[MOST], n = sp * tp;
            memset(rank_of, -1, sizeof rank_of);
            share_order(base, share_of);
            for (int r = 0; r < n; r++) {
                assert_in_range(share_of[r], 0, n - 1);
                assert_int_equal(rank_of[share_of[r]], -1);
                rank_of[share_of[r]] = r;
                assert_int_equal(share_s(base, share_of[r]), r / tp); /* ranks of one tp group are neighbours */
                assert_int_equal(share_t(base, share_of[r]), r % tp);
                if (sp == 1 || tp == 1)
                    assert_int_equal(share_of[r], r);
            }
            for (int i = 0; i < n; i++)
                assert_int_equal(share_of[rank_of[i]], i);
        }
}

/* The two tables of Shift Parallelism for sp 3, tp 2: heads by rank, and ranks in head order. */
static void the_orders_of_the_paper(void **state)
{
    (void)state;
    static const int heads_by_rank[] = {0, 3, 1, 4, 2, 5}, ranks_by_head[] = {0, 2, 4, 1, 3, 5};
    int share_of[6], rank_of[6];
    share_order((struct layout){3, 2, 1}, share_of);
    assert_memory_equal(share_of, heads_by_rank, sizeof share_of);
    for (int r = 0; r < 6; r++)
        rank_of[share_of[r]] = r;
    assert_memory_equal(rank_of, ranks_by_head, sizeof rank_of);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(heads_by_rank[ranks_by_head[i]], i);
        assert_int_equal(ranks_by_head[heads_by_rank[i]], i);
        assert_int_equal(head_span(&(struct heads){6, 6, 64}, 6, share_of[i], 1).q0, heads_by_rank[i]);
    }
}

static void rows_are_sliced_without_padding(void **state)
{
    (void)state;
    for (int sp = 1; sp <= MOST; sp++)
        for (int rows = 0; rows <= 70; rows++) {
            int next = 0;
            for (int s = 0; s < sp; s++) {
                int row0, n;
                row_slice(rows, sp, s, &row0, &n);
                assert_int_equal(row0, next);
                assert_in_range(n, 0, ceil_div(rows, sp));
                next += n;
            }
            assert_int_equal(next, rows);
        }
}

/* Layers follow one another over the stages, as even as can be, and pieces fill a rank's memory as far as they can. */
static void stages_share_the_layers(void **state)
{
    (void)state;
    for (int layers = 1; layers <= 80; layers++)
        for (int pp = 1; pp <= layers && pp <= MAX_RANKS; pp++) {
            int next = 0, most = stage_layers(layers, pp, 0).n, pieces = stage_pieces(layers, pp);
            for (int i = 0; i < pp; i++) {
                struct layer_span s = stage_layers(layers, pp, i);
                assert_int_equal(s.first, next);
                assert_in_range(s.n, most - 1, most);
                assert_true(s.n >= 1 && (i == 0 || s.n <= stage_layers(layers, pp, i - 1).n));
                next += s.n;
            }
            assert_int_equal(next, layers);
            assert_true(pieces >= 1 && pieces * most <= layers && (pieces + 1) * most > layers);
        }
    assert_int_equal(stage_pieces(80, 4), 4);
    assert_int_equal(stage_pieces(30, 4), 3); /* eight layers in a stage */
}

static void stages_have_ranks_of_their_own(void **state)
{
    (void)state;
    int share_of[MAX_RANKS];
    struct layout l = {3, 2, 2};
    share_order(l, share_of);
    static const int expected[] = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};
    assert_memory_equal(share_of, expected, sizeof expected);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(share_stage(l, i), i / 6);
        assert_int_equal(share_in_stage(l, i), i % 6);
    }
    assert_true(layout_equal(layout_of_stage(l), (struct layout){3, 2, 1}));
}

static void what_cannot_run_is_refused(void **state)
{
    (void)state;
    struct heads demo = {9, 3, 64}, narrow = {32, 32, 80};
    for (int sp = 1; sp <= MOST; sp++)
        for (int tp = 1; sp * tp <= MOST; tp++) {
            struct layout l = {sp, tp, 1};
            assert_int_equal(layout_refusal(&demo, l) == NULL, sp * tp <= 9);
            assert_int_equal(layout_refusal(&narrow, l) == NULL, tp == 1);
        }
    assert_null(layout_refusal(&demo, (struct layout){3, 3, 7}));
    assert_non_null(layout_refusal(&demo, (struct layout){3, 3, 8}));
    assert_non_null(layout_refusal(&demo, (struct layout){1, 1, 0}));
    assert_non_null(layout_refusal(&demo, (struct layout){1, 1, 65}));
    assert_non_null(layout_refusal(&demo, (struct layout){0, 1, 1}));
    assert_non_null(layout_refusal(&demo, (struct layout){1, -1, 1}));
    assert_non_null(layout_refusal(&(struct heads){128, 128, 64}, (struct layout){65, 1, 1}));
    assert_non_null(layout_refusal(&(struct heads){128, 128, 64}, (struct layout){1 << 16, 1 << 16, 1}));
    assert_non_null(strstr(layout_refusal(&demo, (struct layout){16, 1, 1}), "query heads"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_even_and_contiguous),
        cmocka_unit_test(each_q_head_meets_its_kv_head),
        cmocka_unit_test(kv_heads_repeat_where_ranks_outnumber_them),
        cmocka_unit_test(a_tp_share_is_the_union_of_its_sp_shares),
        cmocka_unit_test(base_and_shift_hold_the_same_heads_in_the_same_order),
        cmocka_unit_test(orders_are_permutations_with_adjacent_tp_groups),
        cmocka_unit_test(the_orders_of_the_paper),
        cmocka_unit_test(rows_are_sliced_without_padding),
        cmocka_unit_test(stages_share_the_layers),
        cmocka_unit_test(stages_have_ranks_of_their_own),
        cmocka_unit_test(what_cannot_run_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
