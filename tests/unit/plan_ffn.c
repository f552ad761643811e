/* Which way pooled FFN layers take: what a plan accepts and refuses, whose modes change and from when on, what a step
 * and the estimator are told, and that nothing happens where weights are replicated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/exec/step.h"
#include "engine/world/plan.h"

enum { RANKS = 4, LAYERS = 70 }; /* more than a word of bits */

struct bench {
    struct world w;
    struct metrics m;
    struct plan p;
    struct ffn_setup ffn;
    int groups[RANKS]; /* ids, by first rank */
};

static void note_groups(struct bench *b)
{
    for (int i = 0; i < b->w.partition.n_groups; i++)
        b->groups[i] = partition_group(&b->w.partition, i)->id;
}

static void bind(struct bench *b, uint64_t ranks)
{
    partition_ask(&b->w, &(struct switch_order){.mask = ranks, .base = {__builtin_popcountll(ranks), 1, 1}}, 0);
    partition_advance(&b->w, 0);
    note_groups(b);
}

/* A group of each rank; layer l lies on rank l mod 4. */
static void set_up(struct bench *b, bool pooled)
{
    memset(b, 0, sizeof *b);
    struct limits l = {.max_num_seqs = 16, .max_num_batched_tokens = 512, .max_model_len = 512};
    metrics_init(&b->m);
    struct node_shape shape;
    node_shape_uniform(&shape, RANKS, &(struct heads){16, 8, 64}, 8, 16);
    world_init(&b->w, &l, &shape, 64, &b->m);
    b->ffn = (struct ffn_setup){.n_ranks = RANKS, .n_layers = LAYERS, .n_slots = 2};
    assert_int_equal(ffn_parse_owners(&b->ffn, "layer-mod", NULL), 0);
    b->w.ffn = pooled ? &b->ffn : NULL;
    for (int r = 0; r < RANKS; r++)
        bind(b, 1ull << r);
    plan_init(&b->p, &b->w);
    plan_begin(&b->p, 0);
}

static void tear_down(struct bench *b)
{
    for (int i = 0; i < b->w.requests.n_slots; i++)
        if (b->w.requests.slots[i])
            world_end(&b->w, b->w.requests.slots[i], END_ABORT);
    plan_free(&b->p);
    world_free(&b->w);
}

static void submit(struct bench *b, int n_prompt)
{
    struct request_spec *s = mem_new(sizeof *s);
    struct request *r;
    s->tag = b->w.n_submitted + 1;
    s->n_prompt = n_prompt;
    s->prompt = mem_new_array((size_t)n_prompt, sizeof(int32_t));
    s->max_tokens = 4;
    s->sampling.n_logprobs = s->sampling.n_prompt_logprobs = -1;
    assert_int_equal(world_submit(&b->w, s, 0, &r, NULL), 0);
}

static int cas_of(const struct bench *b, int rank)
{
    return ffn_count_cas(&partition_find(&b->w.partition, b->groups[rank])->ffn, LAYERS);
}

static void refused(struct bench *b, int group, int from, int to, enum ffn_mode mode, const char *why)
{
    int n = b->p.n_verbs;
    assert_false(plan_ffn(&b->p, group, from, to, mode));
    if (!strstr(b->p.reason, why))
        fail_msg("'%s' says nothing of '%s'", b->p.reason, why);
    assert_int_equal(b->p.n_verbs, n);
}

static void a_mode_counts_once_the_plan_is_applied(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    assert_true(plan_ffn(&b.p, b.groups[1], 10, 68, FFN_CAS));
    assert_int_equal(cas_of(&b, 1), 0);
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 1), 58);
    assert_int_equal(cas_of(&b, 0) + cas_of(&b, 2) + cas_of(&b, 3), 0);
    plan_begin(&b.p, 0);
    assert_true(plan_ffn(&b.p, b.groups[1], 0, 64, FFN_WAS));
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 1), 4);
    tear_down(&b);
}

static void what_is_refused_says_why_and_changes_nothing(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    refused(&b, 4711, 0, LAYERS, FFN_CAS, "no such group");
    refused(&b, b.groups[0], -1, 3, FFN_CAS, "layers 0 to 69");
    refused(&b, b.groups[0], 3, 3, FFN_CAS, "layers 0 to 69");
    refused(&b, b.groups[0], 5, 3, FFN_WAS, "layers 0 to 69");
    refused(&b, PLAN_ALL_GROUPS, 0, LAYERS + 1, FFN_CAS, "layers 0 to 69");
    refused(&b, b.groups[1], 0, LAYERS, FFN_LOCAL, "layer 0 lies on rank 0");
    refused(&b, b.groups[1], 1, 3, FFN_LOCAL, "layer 2 lies on rank 2");
    refused(&b, PLAN_ALL_GROUPS, 1, 2, FFN_LOCAL, "layer 1 lies on rank 1");
    assert_true(plan_ffn(&b.p, b.groups[1], 5, 6, FFN_LOCAL));
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 0) + cas_of(&b, 1), 0);
    tear_down(&b);
    set_up(&b, true);
    bind(&b, 3);
    refused(&b, b.groups[0], 0, 1, FFN_LOCAL, "lies on rank 0, so for rank 1");
    tear_down(&b);
    set_up(&b, false);
    refused(&b, b.groups[0], 0, LAYERS, FFN_WAS, "--weights pooled");
    refused(&b, PLAN_ALL_GROUPS, 0, LAYERS, FFN_LOCAL, "--weights pooled");
    tear_down(&b);
}

static int way_of(const struct bench *b, int nth)
{
    return ffn_way(&b->w, partition_find(&b->w.partition, b->groups[nth]));
}

/* Rows cannot be sent to a layer that lies in shares, and no rank has all of it; the other layers take any way. */
static void a_layer_in_shares_is_fetched(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    b.ffn.n_more[2] = 1;
    ffn_give(&b.ffn, 2, 0, 0);
    ffn_give(&b.ffn, 2, 1, 1);
    refused(&b, b.groups[0], 0, LAYERS, FFN_CAS, "layer 2 is cut into shares on 2 ranks");
    refused(&b, b.groups[0], 2, 3, FFN_LOCAL, "layer 2 is cut into shares on 2 ranks");
    assert_true(plan_ffn(&b.p, b.groups[0], 2, 3, FFN_WAS));
    assert_true(plan_ffn(&b.p, b.groups[0], 3, LAYERS, FFN_CAS));
    plan_apply(&b.p);
    assert_int_equal(way_of(&b, 0), FFN_MIXED);
    memset(b.ffn.owner, 0, sizeof b.ffn.owner);
    assert_int_equal(way_of(&b, 0), FFN_WAS); /* of the shared one it has a share only */
    tear_down(&b);
}

static void what_is_so_is_not_said_again(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    assert_true(plan_ffn(&b.p, PLAN_ALL_GROUPS, 0, LAYERS, FFN_WAS));
    assert_int_equal(b.p.n_verbs, 0);
    for (int i = 0; i < 3; i++) /* again, and of one of all: the plan knows already */
        assert_true(plan_ffn(&b.p, i < 2 ? PLAN_ALL_GROUPS : b.groups[2], 0, LAYERS, FFN_CAS));
    assert_int_equal(b.p.n_verbs, 1);
    assert_true(plan_ffn(&b.p, b.groups[2], 0, LAYERS, FFN_WAS));
    assert_true(plan_ffn(&b.p, b.groups[2], 0, LAYERS, FFN_CAS));
    assert_int_equal(b.p.n_verbs, 3);
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 2), LAYERS);
    tear_down(&b);
}

static void groups_to_come_have_what_all_were_given(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    assert_true(plan_ffn(&b.p, PLAN_ALL_GROUPS, 0, LAYERS, FFN_CAS));
    assert_true(plan_ffn(&b.p, b.groups[0], 0, LAYERS, FFN_WAS));
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 0), 0);
    assert_int_equal(cas_of(&b, 3), LAYERS);
    bind(&b, 3); /* what one group was told goes with it */
    assert_int_equal(b.w.partition.n_groups, 3);
    assert_int_equal(cas_of(&b, 0), LAYERS);
    partition_lose(&b.w, 0, 0);
    note_groups(&b);
    for (int i = 0; i < b.w.partition.n_groups; i++)
        assert_int_equal(cas_of(&b, i), LAYERS);
    tear_down(&b);
}

/* A dropped plan leaves nothing behind, and the next one does not know of it. */
static void a_plan_that_is_dropped_leaves_no_mode(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    assert_true(plan_ffn(&b.p, PLAN_ALL_GROUPS, 0, LAYERS, FFN_CAS));
    plan_begin(&b.p, 0);
    assert_true(plan_ffn(&b.p, b.groups[0], 0, 1, FFN_CAS));
    plan_apply(&b.p);
    assert_int_equal(cas_of(&b, 0), 1);
    assert_int_equal(cas_of(&b, 1), 0);
    assert_int_equal(ffn_count_cas(&b.w.ffn_usual, LAYERS), 0);
    tear_down(&b);
}

static struct plan_batch *forward(struct bench *b, int rank, struct layout l)
{
    struct plan_batch *batch = plan_batch(&b->p, b->groups[rank]);
    assert_non_null(batch);
    batch->anybody = true;
    assert_true(plan_prefill(batch, NULL, 0, 8) > 0);
    assert_true(plan_forward(batch, l));
    return batch;
}

static void a_step_carries_its_groups_modes_and_who_works(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    bind(&b, 12); /* 0 | 1 | 2 and 3 */
    for (int i = 0; i < 3; i++)
        submit(&b, 8);
    const struct layout one = {1, 1, 1}, sp = {2, 1, 1}, tp = {1, 2, 1};
    struct plan_batch *first = forward(&b, 0, one);
    assert_int_equal(plan_size(first).pool_ranks, 1);
    assert_int_equal(plan_size(first).cas_layers, 0);
    struct plan_batch *second = forward(&b, 2, sp);
    assert_true(plan_ffn(&b.p, PLAN_ALL_GROUPS, 0, 7, FFN_CAS));
    assert_int_equal(plan_size(first).pool_ranks, 3);
    assert_int_equal(plan_size(first).cas_layers, 7);
    assert_int_equal(plan_size(second).cas_layers, 7);
    struct step_size s = plan_size(second);
    plan_size_ffn(&b.w, &b.p, second->group, tp, &s);
    assert_int_equal(s.cas_layers, 0); /* where tp > 1 all layers are fetched */
    assert_int_equal(s.pool_ranks, 3);
    plan_apply(&b.p);
    struct step_context at = {.world = &b.w, .group = first->group};
    struct step *step = step_build(first, &at);
    assert_int_equal(ffn_count_cas(&step->ffn, LAYERS), 7);
    assert_int_equal(step->size.cas_layers, 7);
    assert_int_equal(step->size.pool_ranks, 3);
    first->group->idle = second->group->idle = false;
    struct step *behind = step_follow(step, &at);
    assert_int_equal(ffn_count_cas(&behind->ffn, LAYERS), 7);
    assert_int_equal(behind->size.cas_layers, 7);
    assert_int_equal(behind->size.pool_ranks, 3);
    second->layout = tp;
    at.group = second->group;
    struct step *wide = step_build(second, &at);
    assert_int_equal(ffn_count_cas(&wide->ffn, LAYERS) + wide->size.cas_layers, 0);
    step_free(wide);
    step_free(behind);
    tear_down(&b);
}

static void the_way_of_a_group_is_that_of_layers_it_does_not_own(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, true);
    assert_int_equal(way_of(&b, 1), FFN_WAS);
    assert_true(plan_ffn(&b.p, b.groups[1], 0, LAYERS, FFN_CAS));
    assert_true(plan_ffn(&b.p, b.groups[1], 5, 6, FFN_LOCAL)); /* its own */
    assert_true(plan_ffn(&b.p, b.groups[2], 5, 6, FFN_CAS));
    plan_apply(&b.p);
    assert_int_equal(way_of(&b, 1), FFN_CAS);
    assert_int_equal(way_of(&b, 2), FFN_MIXED);
    assert_string_equal(ffn_way_name(way_of(&b, 2)), "mixed");
    assert_string_equal(ffn_way_name(way_of(&b, 1)), "cas");
    memset(b.ffn.owner, 3, sizeof b.ffn.owner);
    assert_int_equal(way_of(&b, 3), FFN_LOCAL);
    assert_int_equal(way_of(&b, 1), FFN_MIXED); /* now that layer 5 is not its own */
    b.w.ffn = NULL;
    assert_int_equal(way_of(&b, 2), FFN_LOCAL);
    tear_down(&b);
}

static void replicated_weights_say_nothing_to_a_step(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, false);
    submit(&b, 8);
    struct plan_batch *batch = forward(&b, 0, (struct layout){1, 1, 1});
    struct step_size s = plan_size(batch);
    assert_int_equal(s.pool_ranks + s.cas_layers, 0);
    plan_apply(&b.p);
    struct step *step = step_build(batch, &(struct step_context){.world = &b.w, .group = batch->group});
    assert_int_equal(ffn_count_cas(&step->ffn, LAYERS), 0);
    step_free(step);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mode_counts_once_the_plan_is_applied),
        cmocka_unit_test(what_is_refused_says_why_and_changes_nothing),
        cmocka_unit_test(a_layer_in_shares_is_fetched),
        cmocka_unit_test(what_is_so_is_not_said_again),
        cmocka_unit_test(groups_to_come_have_what_all_were_given),
        cmocka_unit_test(a_plan_that_is_dropped_leaves_no_mode),
        cmocka_unit_test(a_step_carries_its_groups_modes_and_who_works),
        cmocka_unit_test(the_way_of_a_group_is_that_of_layers_it_does_not_own),
        cmocka_unit_test(replicated_weights_say_nothing_to_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
