/* What another partition would bring: numbers counted by hand on a machine with a simple law, and what has to hold of
 * any forecast. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/world/forecast.h"

enum { RANKS = 4, BLOCKS = 400, TOKENS = 16 };
static const struct heads eight = {8, 8, 64};
static const int64_t MS = 1000000, NOW = 1000000000;

/* 10 ms, and 1 ms for a row on one rank; n ranks together waste a tenth for each of the others. */
static int64_t law(const void *ctx, struct layout l, const struct step_size *s)
{
    (void)ctx;
    int n = layout_size(l);
    return 10 * MS + s->rows * MS * (9 + n) / 10 / n;
}

struct box {
    struct world w;
    struct metrics m;
    uint64_t tag;
};

static void open_box(struct box *b)
{
    struct node_shape shape;
    struct limits l = {.max_num_seqs = 64, .max_num_batched_tokens = 4096, .max_model_len = 8192};
    *b = (struct box){0};
    metrics_init(&b->m);
    node_shape_uniform(&shape, RANKS, &eight, 8, TOKENS);
    world_init(&b->w, &l, &shape, BLOCKS, &b->m);
    b->w.estimate.known = law;
}

static struct request *submit(struct box *b, int prompt, int max_tokens, double slo_ttft_ms)
{
    struct err e = {0};
    struct request *r;
    struct request_spec *s = mem_new(sizeof *s);
    *s = (struct request_spec){
        .tag = ++b->tag, .arrival_ns = NOW, .n_prompt = prompt, .max_tokens = max_tokens, .slo_ttft_ms = slo_ttft_ms};
    s->prompt = mem_new_array((size_t)prompt, sizeof *s->prompt);
    assert_int_equal(world_submit(&b->w, s, NOW, &r, &e), 0);
    return r;
}

static struct forecast ask(struct box *b, int n, int size)
{
    struct forecast f;
    struct forecast_ask a = {.n = n, .most = 4096, .now_ns = NOW};
    for (int i = 0; i < n; i++)
        a.sizes[i] = size;
    assert_null(forecast_make(&b->w, &a, &f));
    return f;
}

static void close_box(struct box *b)
{
    while (b->w.waiting.n)
        world_end(&b->w, b->w.waiting.items[0], END_ABORT);
    world_free(&b->w);
}

static void near(double ns, double ms)
{
    if (ns < (ms - 0.01) * 1e6 || ns > (ms + 0.01) * 1e6)
        fail_msg("%.3f ms, by hand %.3f", ns * 1e-6, ms);
}

static void one_request_counts_as_by_hand(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    submit(&b, 100, 11, 0);
    /* Four ranks: a row takes 13/40 ms; so the prompt 10 + 32.5, and each of ten tokens 10.325. One rank: 10 + 100, and
     * 11. The time until the first token counts by itself, too. */
    struct forecast wide = ask(&b, 1, 4), narrow = ask(&b, 4, 1);
    near(wide.queue_ns, 42.5);
    near(wide.sum_ns, 2 * 42.5 + 10 * 10.325);
    near(narrow.queue_ns, 110);
    near(narrow.sum_ns, 2 * 110 + 10 * 11);
    close_box(&b);
}

static void time_per_token_counts_as_often_as_asked(void **state)
{
    (void)state;
    struct box b;
    struct forecast f;
    struct forecast_ask a = {.sizes = {4}, .n = 1, .most = 4096, .now_ns = NOW, .tpot = 20};
    open_box(&b);
    submit(&b, 100, 11, 0);
    assert_null(forecast_make(&b.w, &a, &f));
    near(f.sum_ns, 2 * 42.5 + (10 + 20) * 10.325);
    world_end(&b.w, b.w.waiting.items[0], END_ABORT);
    submit(&b, 100, 1, 0); /* has no time per token */
    assert_null(forecast_make(&b.w, &a, &f));
    near(f.sum_ns, 2 * 42.5);
    close_box(&b);
}

static void requests_share_groups_in_their_order(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    for (int i = 0; i < 4; i++)
        submit(&b, 1000, 1, 0);
    /* Each rank has one: 1010 ms. In pairs, one after another in one step of 2000 rows at 11/20 ms a row. */
    near(ask(&b, 4, 1).sum_ns, 4 * 2 * 1010);
    near(ask(&b, 2, 2).queue_ns, 10 + 2000 * 0.55);
    close_box(&b);
}

static void a_crowd_is_sooner_done_in_narrow_groups(void **state)
{
    (void)state;
    for (int n = 1; n <= 32; n *= 32) {
        struct box b;
        open_box(&b);
        for (int i = 0; i < n; i++)
            submit(&b, 500, 20, 0);
        struct forecast wide = ask(&b, 1, 4), narrow = ask(&b, 4, 1);
        assert_true(n == 1 ? wide.sum_ns < narrow.sum_ns : narrow.sum_ns < wide.sum_ns);
        assert_true(n == 1 ? wide.queue_ns < narrow.queue_ns : narrow.queue_ns < wide.queue_ns);
        assert_true(narrow.step_tokens[0] >= 1 && narrow.step_tokens[0] <= 4096);
        struct forecast again = ask(&b, 4, 1);
        assert_memory_equal(&again, &narrow, sizeof again);
        assert_true(world_check(&b.w));
        close_box(&b);
    }
}

static void those_to_come_and_missed_wishes_count(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    struct request *r = submit(&b, 1000, 10, 2000);
    double met = ask(&b, 4, 1).sum_ns;
    r->spec->slo_ttft_ms = 1000; /* it takes 1010 */
    near(ask(&b, 4, 1).sum_ns - met, 10);
    b.w.arrival_rate = 2;
    b.w.last_arrival_ns = NOW;
    struct forecast f;
    struct forecast_ask a = {.sizes = {4}, .n = 1, .most = 4096, .now_ns = NOW};
    assert_null(forecast_make(&b.w, &a, &f));
    double alone = f.sum_ns;
    a.prompt = 1000;
    a.ahead_ns = 1e10;
    assert_null(forecast_make(&b.w, &a, &f));
    assert_true(f.sum_ns > alone);
    close_box(&b);
}

/* What answers of 50 tokens instead of one add to the forecast. */
static double of_answers(struct box *b, struct forecast_ask a)
{
    struct forecast few, many;
    a.output = 1;
    assert_null(forecast_make(&b->w, &a, &few));
    a.output = 50;
    assert_null(forecast_make(&b->w, &a, &many));
    return many.sum_ns - few.sum_ns;
}

/* In steps of 64 rows, 30.8 ms each instead of 10.325: 20 requests come in the 10 s, all of which have prompts in them.
 * Their first tokens are after 1000 * 30.8 / 64 ms, so the answers have half of 9518 ms beside prompts: 50 tokens find
 * room there. After ten gaps of half a second in which none came, fewer are expected; their prompts are so long that
 * these few still fill the 10 s. */
static void those_to_come_crowd_one_another(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    submit(&b, 1000, 1, 0);
    b.w.arrival_rate = 2;
    b.w.last_arrival_ns = NOW;
    struct forecast_ask a = {.sizes = {4}, .n = 1, .most = 64, .now_ns = NOW, .prompt = 1000, .ahead_ns = 1e10};
    double ms = 20 * (50 - 1) * (30.8 - 10.325);
    near(of_answers(&b, a), ms);
    a.tpot = 49; /* twice what they take longer: once as above, 49 times for 49 tokens */
    near(of_answers(&b, a), ms + 20 * 50 * (30.8 - 10.325));
    a.tpot = 0;
    a.prompt = 4000;
    a.now_ns += 5000 * MS;
    near(of_answers(&b, a), ms / (1 + 1 + 1 / 2.0 + 1 / 6.0));
    close_box(&b);
}

static void answers_that_settle_take_the_same_in_any_partition(void **state)
{
    (void)state;
    struct box b;
    struct forecast f;
    struct forecast_ask a = {.sizes = {1, 1, 1, 1}, .n = 4, .most = 4096, .now_ns = NOW, .settles = true};
    open_box(&b);
    submit(&b, 100, 11, 0);
    /* As by hand above, but a token takes 10.325 ms once the prompt is done, as in the group of four. */
    assert_null(forecast_make(&b.w, &a, &f));
    near(f.sum_ns, 2 * 110 + 10 * 10.325);
    a = (struct forecast_ask){.sizes = {4}, .n = 1, .most = 4096, .now_ns = NOW, .settles = true};
    assert_null(forecast_make(&b.w, &a, &f));
    near(f.sum_ns, 2 * 42.5 + 10 * 10.325);
    /* One rank has failed, and three make no group: the pair that there is keeps the answer. */
    b.w.shape.tokens_per_block[3] = 0;
    a = (struct forecast_ask){.sizes = {2, 1}, .n = 2, .most = 4096, .now_ns = NOW, .settles = true};
    assert_null(forecast_make(&b.w, &a, &f));
    near(f.sum_ns, 2 * 65 + 10 * 10.55);
    close_box(&b);
}

/* What it brings that answers settle, where so many requests of 100 tokens come in a second: each of the four ranks
 * computes about 960 tokens of prompts in a second. */
static double of_settling(struct box *b, double arrivals, bool moves)
{
    struct forecast stay, settle;
    struct forecast_ask a = {.sizes = {1, 1, 1, 1}, .n = 4, .most = 4096, .now_ns = NOW, .moves = moves};
    a.prompt = 100;
    a.ahead_ns = 1e10;
    b->w.arrival_rate = arrivals;
    b->w.last_arrival_ns = NOW;
    assert_null(forecast_make(&b->w, &a, &stay));
    a.settles = true;
    assert_null(forecast_make(&b->w, &a, &settle));
    return stay.sum_ns - settle.sum_ns;
}

static void in_groups_that_have_prompts_most_of_the_time_answers_stay(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    submit(&b, 100, 200, 0);
    assert_true(of_settling(&b, 10, false) > 0);
    near(of_settling(&b, 30, false), 0);
    assert_true(of_settling(&b, 30, true) > 0);
    close_box(&b);
}

/* One rank holds 6,400 tokens, so the ranks beside the pair are of no use to these three, not for answers either. */
static void requests_go_to_groups_that_hold_them(void **state)
{
    (void)state;
    struct box b;
    struct forecast alone, beside;
    struct forecast_ask a = {.sizes = {2}, .n = 1, .most = 4096, .now_ns = NOW, .prompt = 7000, .ahead_ns = 1e10};
    open_box(&b);
    for (int i = 0; i < 3; i++)
        submit(&b, 7000, 20, 0);
    assert_null(forecast_make(&b.w, &a, &alone));
    a.sizes[1] = a.sizes[2] = 1;
    a.n = 3;
    assert_null(forecast_make(&b.w, &a, &beside));
    near(beside.sum_ns, alone.sum_ns * 1e-6);
    b.w.arrival_rate = 1;
    b.w.last_arrival_ns = NOW;
    assert_null(forecast_make(&b.w, &a, &beside));
    a.n = 1;
    assert_null(forecast_make(&b.w, &a, &alone));
    near(beside.sum_ns, alone.sum_ns * 1e-6);
    a.prompt = 20000; /* no group holds it: those that come count all the same */
    assert_null(forecast_make(&b.w, &a, &beside));
    b.w.arrival_rate = 0;
    assert_null(forecast_make(&b.w, &a, &alone));
    assert_true(beside.sum_ns > alone.sum_ns);
    close_box(&b);
}

static void what_finds_no_room_is_refused(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    submit(&b, BLOCKS * TOKENS + 1, 4, 0);
    struct forecast f;
    struct forecast_ask a = {.sizes = {1, 1, 1, 1}, .n = 4, .most = 4096, .now_ns = NOW};
    assert_string_equal(forecast_make(&b.w, &a, &f), "no group holds the longest request");
    ask(&b, 1, 4);
    close_box(&b);
}

static void steps_smaller_than_the_answers_are_no_trap(void **state)
{
    (void)state;
    struct box b;
    open_box(&b);
    for (int i = 0; i < 40; i++)
        submit(&b, 20, 5, 0);
    struct forecast f;
    struct forecast_ask a = {.sizes = {1, 1, 1, 1}, .n = 4, .most = 1, .now_ns = NOW};
    assert_null(forecast_make(&b.w, &a, &f));
    assert_true(f.sum_ns > 0 && f.sum_ns < 1e15);
    close_box(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_counts_as_by_hand),
        cmocka_unit_test(time_per_token_counts_as_often_as_asked),
        cmocka_unit_test(requests_share_groups_in_their_order),
        cmocka_unit_test(a_crowd_is_sooner_done_in_narrow_groups),
        cmocka_unit_test(those_to_come_and_missed_wishes_count),
        cmocka_unit_test(those_to_come_crowd_one_another),
        cmocka_unit_test(answers_that_settle_take_the_same_in_any_partition),
        cmocka_unit_test(in_groups_that_have_prompts_most_of_the_time_answers_stay),
        cmocka_unit_test(requests_go_to_groups_that_hold_them),
        cmocka_unit_test(what_finds_no_room_is_refused),
        cmocka_unit_test(steps_smaller_than_the_answers_are_no_trap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
