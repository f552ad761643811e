/* Pooling on demand in the world's books: blocks that ranks lend for copies of FFN layers are conserved over random
 * orders, endings and failures of copies; what a plan accepts can be carried out; what it refuses says why and changes
 * nothing; steps count on a copy only while it is whole everywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/plan.h"

enum { RANKS = 4, LAYERS = 10, BLOCKS = 40, PER_COPY = 3 };

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    struct ffn_setup ffn;
};

static void set_up(struct bench *b, int max_model_len)
{
    struct node_shape shape;
    struct limits l = {.max_num_seqs = 16, .max_num_batched_tokens = 512, .max_model_len = max_model_len};
    memset(b, 0, sizeof *b);
    metrics_init(&b->m);
    node_shape_uniform(&shape, RANKS, &(struct heads){16, 8, 64}, 8, 16);
    world_init(&b->w, &l, &shape, BLOCKS, &b->m);
    b->ffn = (struct ffn_setup){.n_ranks = RANKS, .n_layers = LAYERS, .n_slots = 2};
    assert_int_equal(ffn_parse_owners(&b->ffn, "layer-mod", NULL), 0);
    b->w.ffn = &b->ffn;
    b->w.replicas.blocks = PER_COPY;
    for (int r = 0; r < RANKS; r++) {
        int place = kv_place_open(&b->w.kv, &(struct kv_place_setup){&r, 1, 1, 1, 16});
        assert_int_equal(place, r);
    }
    plan_init(&b->p, &b->w);
    plan_begin(&b->p, 0);
}

static void tear_down(struct bench *b)
{
    plan_free(&b->p);
    world_free(&b->w);
}

static bool carry_out(struct bench *b, int from, int to, bool replicated)
{
    plan_begin(&b->p, 0);
    bool ok = plan_weights(&b->p, from, to, replicated);
    plan_apply(&b->p);
    return ok;
}

/* The ranks are told of what is due and do it at once. */
static void settle(struct bench *b, bool ok)
{
    for (int again = 0; again < 2; again++) /* what failed goes again */
        for (int l = 0; l < LAYERS; l++)
            if (world_replica_due(&b->w, l)) {
                b->w.replicas.layers[l].posted = true;
                world_replica_done(&b->w, l, ok || again);
            }
}

static struct request *submit(struct bench *b, int prompt, int output)
{
    struct request *r = NULL;
    struct request_spec *s = mem_new(sizeof *s);
    s->prompt = mem_new_array((size_t)prompt, sizeof *s->prompt);
    s->n_prompt = prompt;
    s->max_tokens = output;
    assert_int_equal(world_submit(&b->w, s, 0, &r, NULL), 0);
    return r;
}

static int lent(const struct bench *b, int rank)
{
    return b->w.kv.ranks[rank].n_lent;
}

static void a_layer_costs_blocks_where_it_is_not_owned(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64);
    assert_true(carry_out(&b, 1, 3, true)); /* owned by 1 and 2 */
    assert_int_equal(lent(&b, 0), 2 * PER_COPY);
    assert_int_equal(lent(&b, 1), PER_COPY);
    assert_int_equal(lent(&b, 3), 2 * PER_COPY);
    assert_int_equal(kv_available(&b.w.kv, 0), BLOCKS - 2 * PER_COPY);
    struct ffn_modes cas = {0};
    ffn_set(&cas, 0, LAYERS, FFN_CAS);
    struct ffn_modes step = ffn_of_step(&b.w, &cas, (struct layout){1, 1, 1});
    assert_int_equal(ffn_count_here(&step, LAYERS), 0); /* the copies are not whole yet */
    settle(&b, true);
    step = ffn_of_step(&b.w, &cas, (struct layout){1, 1, 1});
    assert_true(ffn_is_here(&step, 1) && ffn_is_here(&step, 2) && ffn_count_here(&step, LAYERS) == 2);
    assert_int_equal(ffn_count_cas(&step, LAYERS), LAYERS - 2);
    step = ffn_of_step(&b.w, &cas, (struct layout){1, 2, 1});
    assert_true(ffn_count_here(&step, LAYERS) == 2 && ffn_count_cas(&step, LAYERS) == 0);
    assert_true(carry_out(&b, 0, LAYERS, false));
    assert_int_equal(lent(&b, 0), 2 * PER_COPY); /* steps may still use them */
    assert_true(carry_out(&b, 1, 2, true));      /* not gone yet: it stays */
    assert_int_equal(lent(&b, 0), 2 * PER_COPY);
    settle(&b, true);
    assert_int_equal(lent(&b, 0), PER_COPY);
    assert_true(carry_out(&b, 0, LAYERS, false));
    settle(&b, true);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(lent(&b, r), 0);
    assert_true(kv_check(&b.w.kv));
    tear_down(&b);
}

static void refusals_say_why_and_change_nothing(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 24 * 16);
    assert_false(carry_out(&b, 0, LAYERS + 1, true));
    assert_non_null(strstr(b.p.reason, "no such layers"));
    b.w.replicas.blocks = 2 * PER_COPY;
    assert_false(carry_out(&b, 0, LAYERS, true));
    assert_non_null(strstr(b.p.reason, "all KV blocks"));
    b.w.replicas.blocks = PER_COPY;
    struct request *r = submit(&b, 300, 84);
    assert_false(carry_out(&b, 0, LAYERS, true)); /* 24 of 40 blocks, and it needs as many */
    assert_non_null(strstr(b.p.reason, "a request would not fit"));
    world_end(&b.w, r, END_ABORT);
    int32_t held[BLOCKS];
    for (int i = 0; i < BLOCKS - PER_COPY; i++)
        held[i] = kv_take(&b.w.kv, 2);
    assert_false(carry_out(&b, 0, 2, true));
    assert_non_null(strstr(b.p.reason, "sequences hold"));
    assert_int_equal(lent(&b, 0) + lent(&b, 1) + lent(&b, 2) + lent(&b, 3), 0);
    assert_true(carry_out(&b, 0, 1, true));
    for (int i = 0; i < BLOCKS - PER_COPY; i++)
        kv_drop(&b.w.kv, 2, held[i]);
    plan_begin(&b.p, 0);
    assert_true(plan_weights(&b.p, 0, 1, true)); /* it is so already */
    assert_int_equal(b.p.n_verbs, 0);
    assert_true(plan_weights(&b.p, 0, 1, false));
    assert_false(plan_weights(&b.p, 0, 2, true));
    assert_non_null(strstr(b.p.reason, "already said"));
    b.w.replicas.blocks = 0;
    assert_false(carry_out(&b, 5, 6, true));
    assert_non_null(strstr(b.p.reason, "cannot lend"));
    b.w.ffn = NULL;
    assert_false(carry_out(&b, 0, 1, true));
    assert_non_null(strstr(b.p.reason, "--weights pooled"));
    b.w.ffn = &b.ffn;
    tear_down(&b);
}

/* What comes back when copies could not be made, and when the order is withdrawn before they are. */
static void copies_that_fail_or_are_not_wanted_give_their_blocks_back(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64);
    assert_true(carry_out(&b, 0, 4, true));
    settle(&b, false);
    assert_int_equal(world_count_replicas(&b.w, REPLICA_NONE), LAYERS);
    assert_false(replica_is_wanted(&b.w.replicas, 0));
    assert_true(carry_out(&b, 0, 4, true));
    assert_true(carry_out(&b, 0, 4, false)); /* while they come */
    assert_int_equal(world_count_replicas(&b.w, REPLICA_COMING), 4);
    settle(&b, true);
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(lent(&b, r), 0);
    tear_down(&b);
}

/* A request that comes later takes back what it would need; one that is small does not. */
static void a_request_that_needs_them_takes_the_blocks_back(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 40 * 16);
    assert_true(carry_out(&b, 0, 4, true));
    settle(&b, true);
    struct request *small = submit(&b, 100, 50), *large;
    assert_true(replica_is_wanted(&b.w.replicas, 0));
    large = submit(&b, 400, 120);
    assert_false(replica_is_wanted(&b.w.replicas, 0));
    settle(&b, true);
    assert_int_equal(lent(&b, 0), 0);
    assert_false(carry_out(&b, 0, 4, true));
    world_end(&b.w, small, END_ABORT);
    world_end(&b.w, large, END_ABORT);
    assert_true(carry_out(&b, 0, 4, true));
    tear_down(&b);
}

static void a_failed_rank_lends_nothing(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 64);
    b.w.partition.dead_ranks = 1ull << 3;
    assert_int_equal(replica_ranks(&b.w, 0), 0x6);
    assert_true(carry_out(&b, 0, 1, true));
    assert_int_equal(lent(&b, 3), 0);
    tear_down(&b);
}

static void blocks_are_conserved_over_random_orders(void **state)
{
    (void)state;
    struct bench b;
    struct rng rng;
    int32_t held[RANKS][BLOCKS];
    int n_held[RANKS] = {0}, n_kept = 0, n_refused = 0;
    rng_init(&rng, 5);
    set_up(&b, 64);
    for (int i = 0; i < 20000; i++) {
        int r = (int)rng_below(&rng, RANKS), from = (int)rng_below(&rng, LAYERS);
        switch (rng_below(&rng, 4)) {
        case 0:
            if (kv_available(&b.w.kv, r))
                held[r][n_held[r]++] = kv_take(&b.w.kv, r);
            break;
        case 1:
            if (n_held[r])
                kv_drop(&b.w.kv, r, held[r][--n_held[r]]);
            break;
        case 2:
            if (carry_out(&b, from, from + 1 + (int)rng_below(&rng, (uint64_t)(LAYERS - from)), rng_below(&rng, 2)))
                n_kept++;
            else
                n_refused++;
            break;
        default:
            if (world_replica_due(&b.w, from) || b.w.replicas.layers[from].posted) {
                b.w.replicas.layers[from].posted = true;
                world_replica_done(&b.w, from, rng_below(&rng, 8) > 0);
            }
        }
        if (i % 64 == 0)
            assert_true(kv_check(&b.w.kv));
        int copies = 0;
        for (int l = 0; l < LAYERS; l++)
            copies += b.w.replicas.layers[l].state != REPLICA_NONE && b.ffn.owner[l] != r;
        assert_int_equal(lent(&b, r), copies * PER_COPY);
    }
    assert_true(n_kept > 100 && n_refused > 100);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_costs_blocks_where_it_is_not_owned),
        cmocka_unit_test(refusals_say_why_and_change_nothing),
        cmocka_unit_test(copies_that_fail_or_are_not_wanted_give_their_blocks_back),
        cmocka_unit_test(a_request_that_needs_them_takes_the_blocks_back),
        cmocka_unit_test(a_failed_rank_lends_nothing),
        cmocka_unit_test(blocks_are_conserved_over_random_orders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
