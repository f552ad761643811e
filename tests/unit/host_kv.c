/* Host memory in the books, without an engine. Cached blocks on their way there: who goes and when, what is found
 * afterwards, and what becomes of a copy when the cache is reset or a rank fails while it is under way. Sequences on
 * their way back: nobody gets the blocks that are being written. */
#include "tests/rig/kv_rig.h"

#include "engine/base/rng.h"

static void nothing_is_saved_while_there_is_room(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    serve(&b, 10, 1000);
    assert_int_equal(b.w.kv.ranks[0].n_unsaved, 10);
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 0);
    tear_down(&b);
}

static void the_oldest_go_when_little_is_left_and_no_more_than_allowed(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    serve(&b, 7, 1000);
    serve(&b, 7, 2000);
    assert_int_equal(b.w.kv.ranks[0].n_free, 2);
    world_save_cached(&b.w, 48);
    assert_int_equal(b.w.n_copies, 1);
    assert_int_equal(b.w.n_saving, 3);
    assert_int_equal(b.w.copies[0]->n_from, 3);
    world_save_cached(&b.w, 48); /* the bound holds while they are under way */
    assert_int_equal(b.w.n_copies, 1);
    assert_int_equal(kv_available(&b.w.kv, place_of(&b)), BLOCKS - 3);
    land(&b);
    assert_int_equal(b.w.n_saving, 0);
    assert_int_equal(host_cached(&b), 3);
    assert_int_equal(kv_available(&b.w.kv, place_of(&b)), BLOCKS);
    assert_int_equal(b.w.kv.ranks[0].n_unsaved, 11);
    world_save_cached(&b.w, 48); /* 2 free and 3 saved are a quarter of it */
    assert_int_equal(b.w.n_copies, 0);
    assert_int_equal(serve(&b, 4, 3000), 64); /* takes the free ones, and the oldest, which are saved: none is lost */
    assert_int_equal(host_cached(&b) + b.w.kv.ranks[0].n_unsaved, 3 + 11 + 4);
    tear_down(&b);
}

static void what_ranks_have_evicted_is_found_again(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    serve(&b, 12, 1000);
    for (int i = 0; i < 6; i++) { /* others come until nothing of it is left */
        world_save_cached(&b.w, MOST);
        land(&b);
        serve(&b, 3, 2000 + 100 * i);
    }
    uint64_t hits = b.m.counters[C_HOST_HITS];
    assert_int_equal(serve(&b, 12, 1000), 16); /* the last block is computed again: its logits are wanted */
    assert_int_equal((int)(b.m.counters[C_HOST_HITS] - hits), 11 * 16);
    tear_down(&b);
}

/* The end of a chain is evicted first, so ranks have the beginning and host memory the rest. */
static void a_prefix_goes_on_where_that_of_the_ranks_ends(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    serve(&b, 14, 1000);
    world_save_cached(&b.w, MOST);
    land(&b);
    assert_int_equal(host_cached(&b), 4);
    serve(&b, 5, 5000); /* takes the two that are free, and the three that would be missed least */
    struct request *r = submit(&b, 14 * 16, 1000);
    int at_hand = world_prefix(&b.w, r, place_of(&b)), n = 0;
    int place = world_prefix_elsewhere(&b.w, r, place_of(&b), at_hand * 16, &n);
    assert_int_equal(at_hand, 11);
    assert_int_equal(place, b.w.kv.host_place);
    assert_int_equal(n, 13);
    assert_int_equal(world_prefix(&b.w, r, place), 0); /* its beginning was never saved */
    assert_int_equal(start(&b, r), (14 - n) * 16);
    world_end(&b.w, r, END_LENGTH);
    tear_down(&b);
}

static void a_reset_while_they_are_under_way_forgets_them(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    serve(&b, 15, 1000);
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 1);
    kv_forget_cached(&b.w.kv);
    land(&b);
    assert_int_equal(host_cached(&b), 0);
    assert_int_equal(b.w.kv.ranks[0].n_free, BLOCKS);
    assert_int_equal(serve(&b, 15, 1000), 15 * 16);
    tear_down(&b);
}

static void what_a_failed_rank_had_a_part_of_is_not_found(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 2, HOST);
    serve(&b, 30, 1000); /* a block of two ranks has twice as many tokens */
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 1);
    assert_int_equal(b.w.copies[0]->n_to, 2 * b.w.copies[0]->n_from);
    partition_lose(&b.w, 1, ++b.now);
    land(&b);
    assert_int_equal(host_cached(&b), 0);
    for (int r = 0; r < 2; r++)
        assert_int_equal(b.w.kv.ranks[r].n_free, BLOCKS);
    tear_down(&b);
}

static void host_memory_that_sequences_need_is_left_to_them(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, 4);
    int32_t held[2];
    for (int i = 0; i < 2; i++)
        held[i] = kv_take(&b.w.kv, b.w.kv.host_place);
    serve(&b, 15, 1000);
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 0);
    for (int i = 0; i < 2; i++)
        kv_drop(&b.w.kv, b.w.kv.host_place, held[i]);
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 1);
    land(&b);
    tear_down(&b);
}

static void without_host_memory_nothing_happens(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, 0);
    serve(&b, 15, 1000);
    assert_int_equal(b.w.kv.ranks[0].n_unsaved, 0);
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 0);
    tear_down(&b);
}

/* A request that waits is brought back beside the steps of others. When its client leaves, or its rank fails, what is
 * being copied still goes to its blocks: a step of somebody else may not write there. */
static void nobody_gets_the_blocks_that_are_written(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct bench b;
        set_up(&b, 1, HOST);
        struct request *r = submit(&b, 8 * 16, 1000);
        start(&b, r);
        assert_true(world_swap_out(&b.w, r, 0, ++b.now));
        land(&b);
        kv_forget_cached(&b.w.kv);
        assert_true(world_migrate(&b.w, r, partition_slot(&b.w.partition, 0), 0));
        assert_true(b.w.copies[0]->beside);
        if (how == 0)
            world_end(&b.w, r, END_ABORT);
        else if (how == 1)
            world_preempt(&b.w, r, false, ++b.now);
        assert_int_equal(kv_available(&b.w.kv, place_of(&b)), BLOCKS - 8);
        if (how == 2) { /* nor does it give way to somebody before it */
            struct request *before = submit(&b, 12 * 16, 5000);
            world_rekey(&b.w, before, -1);
            plan_begin(&b.p, ++b.now);
            assert_int_equal(plan_add(plan_batch(&b.p, 1), before->id, 0), 0);
            world_end(&b.w, before, END_ABORT);
        }
        land(&b);
        assert_int_equal(kv_available(&b.w.kv, place_of(&b)), how == 2 ? BLOCKS - 8 : BLOCKS);
        if (how)
            world_end(&b.w, r, END_ABORT);
        assert_int_equal(kv_available(&b.w.kv, place_of(&b)), BLOCKS);
        assert_int_equal(kv_available(&b.w.kv, b.w.kv.host_place), HOST);
        tear_down(&b);
    }
}

/* So it is with copies that wait in a rank's inbox: others, beside the steps, would not wait for them. */
static void nor_those_that_an_inbox_has_a_copy_for(void **state)
{
    (void)state;
    struct bench b;
    set_up(&b, 1, HOST);
    struct request *r = submit(&b, 9 * 16, 1000);
    start(&b, r);
    assert_true(world_swap_out(&b.w, r, 0, ++b.now));
    land(&b);
    world_end(&b.w, r, END_ABORT);
    kv_forget_rank(&b.w.kv, 0);
    r = submit(&b, 9 * 16, 1000);
    assert_true(tries(&b, r) > 0); /* finds eight blocks in host memory */
    assert_true(plan_forward(b.p.batches[0], (struct layout){1, 1, 1}));
    plan_apply(&b.p);
    assert_int_equal(b.w.n_copies, 1);
    assert_false(b.w.copies[0]->beside);
    world_end(&b.w, r, END_ABORT);
    assert_true(kv_available(&b.w.kv, place_of(&b)) <= BLOCKS - 8);
    land(&b);
    assert_int_equal(kv_available(&b.w.kv, place_of(&b)), BLOCKS);
    tear_down(&b);
}

/* However long it was away: its time to be parked begins when it is back. */
static void who_comes_back_has_its_time_to_start(void **state)
{
    (void)state;
    struct bench b;
    int64_t due;
    set_up(&b, 1, HOST);
    b.w.limits.park_ns = 1000;
    struct request *r = submit(&b, 8 * 16, 1000);
    start(&b, r);
    assert_true(world_swap_out(&b.w, r, 0, ++b.now));
    land(&b);
    b.now += 100000;
    assert_int_equal(world_unpark(&b.w, b.now, &due), 0);
    assert_true(due == INT64_MAX);
    assert_true(world_migrate(&b.w, r, partition_slot(&b.w.partition, 0), 0));
    assert_int_equal(world_unpark(&b.w, b.now += 5000, &due), 0);
    land(&b);
    assert_int_equal(world_unpark(&b.w, b.now, &due), 0);
    assert_int_equal(due - b.now, 1000);
    assert_int_equal(world_unpark(&b.w, b.now + 999, &due), 0);
    assert_true(r->parked && r->n_computed == 8 * 16);
    assert_int_equal(world_unpark(&b.w, b.now + 1000, &due), 1);
    assert_false(r->parked);
    world_end(&b.w, r, END_ABORT);
    tear_down(&b);
}

/* One token for each that can have one. Returns how many. */
static int decode(struct bench *b)
{
    plan_begin(&b->p, ++b->now);
    struct plan_batch *batch = plan_batch(&b->p, 1);
    int n = plan_decodes(batch);
    if (n)
        assert_true(plan_forward(batch, (struct layout){1, 1, 1}));
    plan_apply(&b->p);
    assert_true(world_check(&b->w));
    return n;
}

/* KV runs out in the middle of answers. Where copying costs less than computing again, who came last goes to host
 * memory, and who wants its room goes on when the copy has ended: nobody else gives way for it, and nobody begins. */
static void who_gives_way_does_what_costs_less(void **state)
{
    (void)state;
    for (int cheap = 0; cheap < 2; cheap++) {
        struct bench b;
        set_up(&b, 1, HOST);
        b.w.cost.swap_ns_per_token = cheap ? 1 : 1000;
        struct request *first = submit(&b, 5 * 16, 1000), *second = submit(&b, 5 * 16, 2000),
                       *last = submit(&b, 6 * 16, 3000);
        first->spec->max_tokens = second->spec->max_tokens = last->spec->max_tokens = 9;
        struct request *all[] = {first, second, last};
        for (int i = 0; i < 3; i++) {
            start(&b, all[i]);
            request_append(all[i], 7);
        }
        struct request *next = submit(&b, 16, 4000);
        assert_int_equal(decode(&b), cheap ? 0 : 2);
        assert_int_equal(last->state, REQ_WAITING);
        assert_int_equal(world_in_host(&b.w, last), cheap);
        assert_int_equal(last->n_computed, cheap ? 6 * 16 : 0);
        assert_int_equal(b.w.n_leaving[0], cheap);
        if (cheap) {
            assert_int_equal(tries(&b, next), 0);
            assert_string_equal(b.p.reason, "room in the KV cache is being made: some of it goes to host memory");
            assert_int_equal(decode(&b), 0);
            assert_int_equal(second->state, REQ_RUNNING);
            land(&b);
            assert_int_equal(b.w.n_leaving[0], 0);
            assert_int_equal(decode(&b), 2);
            world_end(&b.w, first, END_LENGTH);
            assert_int_equal(start(&b, last), 1); /* comes back, and computes nothing again */
        } else {
            world_end(&b.w, first, END_LENGTH);
        }
        world_end(&b.w, second, END_ABORT);
        world_end(&b.w, last, END_ABORT);
        world_end(&b.w, next, END_ABORT);
        tear_down(&b);
    }
}

/* Prompts with common beginnings come and go at random, copies land at any time, caches are reset: the books balance
 * after each event, and a prompt that comes twice in a row is cached. */
static void random_traffic_conserves(void **state)
{
    (void)state;
    struct bench b;
    struct rng rng;
    set_up(&b, 1, HOST);
    rng_init(&rng, 3);
    for (int i = 0; i < 4000; i++) {
        int n = 1 + (int)rng_below(&rng, BLOCKS - 1), first = 1000 * (1 + (int)rng_below(&rng, 8));
        switch (rng_below(&rng, 8)) {
        case 0:
            land(&b);
            break;
        case 1:
            if (rng_below(&rng, 20) == 0)
                kv_forget_cached(&b.w.kv);
            break;
        case 2:
        case 3:
            world_save_cached(&b.w, MOST);
            break;
        default:
            if (kv_available(&b.w.kv, place_of(&b)) >= n) {
                serve(&b, n, first);
                assert_int_equal(serve(&b, n, first), 16);
            }
        }
        assert_true(world_check(&b.w));
        assert_true(b.w.n_saving <= MOST / 16);
    }
    assert_true(b.m.counters[C_HOST_HITS] > 0 && b.m.counters[C_SAVED_TOKENS] > 0);
    land(&b);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_saved_while_there_is_room),
        cmocka_unit_test(the_oldest_go_when_little_is_left_and_no_more_than_allowed),
        cmocka_unit_test(what_ranks_have_evicted_is_found_again),
        cmocka_unit_test(a_prefix_goes_on_where_that_of_the_ranks_ends),
        cmocka_unit_test(a_reset_while_they_are_under_way_forgets_them),
        cmocka_unit_test(what_a_failed_rank_had_a_part_of_is_not_found),
        cmocka_unit_test(host_memory_that_sequences_need_is_left_to_them),
        cmocka_unit_test(without_host_memory_nothing_happens),
        cmocka_unit_test(nobody_gets_the_blocks_that_are_written),
        cmocka_unit_test(nor_those_that_an_inbox_has_a_copy_for),
        cmocka_unit_test(who_gives_way_does_what_costs_less),
        cmocka_unit_test(who_comes_back_has_its_time_to_start),
        cmocka_unit_test(random_traffic_conserves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
