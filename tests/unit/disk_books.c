/* The disk below host memory in the books, without an engine: all that is cached goes down, what a prompt would find
 * comes up before it starts, and what becomes of both when the disk fails, the cache is reset or the client leaves. */
#include "tests/rig/kv_rig.h"

#include "engine/base/rng.h"

enum { DISK = 48 };

static int on_disk(const struct bench *b)
{
    return kv_place(&b->w.kv, b->w.kv.disk_place)->n_cached;
}

/* Until nothing is left to be saved. */
static void save_all(struct bench *b)
{
    do {
        land(b);
        world_save_cached(&b->w, MOST);
    } while (b->w.n_copies);
}

/* The prompt's beginning is on the disk, as after a restart. */
static void restart(struct bench *b, int n_blocks, int first_token)
{
    serve(b, n_blocks, first_token);
    save_all(b);
    int32_t phys[DISK];
    struct kv_key keys[DISK];
    struct request *r = submit(b, n_blocks * 16, first_token);
    for (int i = 0; i < n_blocks; i++) {
        phys[i] = DISK - 1 - 2 * i; /* anywhere */
        keys[n_blocks - 1 - i] = world_keys(&b->w, r)[i];
    }
    world_end(&b->w, r, END_ABORT);
    tear_down(b);
    set_up_disk(b, 1, HOST, DISK);
    kv_adopt_disk(&b->w.kv, phys, keys, n_blocks);
    assert_true(kv_check(&b->w.kv));
    assert_int_equal(on_disk(b), n_blocks);
}

static void all_that_is_cached_goes_down_at_once(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    serve(&b, 7, 1000);
    save_all(&b);
    assert_int_equal(host_cached(&b), 7);
    assert_int_equal(on_disk(&b), 7);
    assert_int_equal(b.w.kv.ranks[0].n_unsaved, 0);
    assert_int_equal((int)b.m.counters[C_DISK_WRITTEN_TOKENS], 7 * 16);
    serve(&b, 7, 1000); /* all are there already */
    world_save_cached(&b.w, MOST);
    assert_int_equal(b.w.n_copies, 0);
    tear_down(&b);
}

static void a_prompt_waits_for_what_the_disk_has(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 8, 1000);
    struct request *r = submit(&b, 8 * 16, 1000), *other = submit(&b, 16, 9000);
    world_fetch(&b.w);
    assert_int_equal(b.w.n_copies, 1);
    assert_int_equal(b.w.n_fetching, 7); /* the last block is computed: its logits are wanted */
    assert_int_equal(tries(&b, r), 0);
    assert_string_equal(b.p.reason, "its KV is being copied");
    assert_true(tries(&b, other) > 0); /* nobody else waits */
    world_fetch(&b.w);
    assert_int_equal(b.w.n_copies, 1); /* once */
    land(&b);
    assert_int_equal(b.w.n_fetching, 0);
    assert_int_equal((int)b.m.counters[C_DISK_READ_TOKENS], 7 * 16);
    assert_int_equal(start(&b, r), 16);
    world_end(&b.w, r, END_LENGTH);
    world_end(&b.w, other, END_ABORT);
    tear_down(&b);
}

static void only_what_is_missing_is_fetched(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 9, 1000);
    assert_int_equal(serve(&b, 3, 1000), 48); /* nobody looked: it is computed, and on the ranks now */
    struct request *r = submit(&b, 9 * 16, 1000);
    world_fetch(&b.w);
    assert_int_equal(b.w.n_fetching, 5);
    land(&b);
    assert_int_equal(start(&b, r), 16);
    world_end(&b.w, r, END_LENGTH);
    tear_down(&b);
}

static void a_block_that_is_not_whole_is_computed_and_not_tried_again(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 8, 1000);
    struct request *r = submit(&b, 8 * 16, 1000);
    world_fetch(&b.w);
    b.landing = 3;
    land(&b);
    b.landing = -1;
    assert_int_equal((int)b.m.counters[C_DISK_FAILURES], 1);
    assert_int_equal(on_disk(&b), 7);
    assert_int_equal(start(&b, r), 5 * 16);
    world_end(&b.w, r, END_LENGTH);
    tear_down(&b);
}

static void a_disk_that_takes_no_more_is_left_alone(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 4, 1000);
    serve(&b, 6, 2000);
    world_save_cached(&b.w, MOST);
    land(&b);
    world_save_cached(&b.w, MOST);
    b.landing = 0;
    land(&b);
    b.landing = -1;
    assert_true(b.w.disk_is_read_only);
    save_all(&b);
    assert_int_equal(on_disk(&b), 4);
    struct request *r = submit(&b, 4 * 16, 1000);
    world_fetch(&b.w); /* what it has it still gives */
    assert_int_equal(b.w.n_fetching, 3);
    land(&b);
    assert_int_equal(start(&b, r), 16);
    world_end(&b.w, r, END_LENGTH);
    tear_down(&b);
}

static void a_reset_forgets_what_is_under_way_both_ways(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 8, 1000);
    struct request *r = submit(&b, 8 * 16, 1000);
    serve(&b, 4, 3000);
    world_save_cached(&b.w, MOST);
    land(&b);
    world_save_cached(&b.w, MOST);
    world_fetch(&b.w);
    assert_true(b.w.n_fetching > 0 && b.w.n_writing > 0);
    kv_forget_cached(&b.w.kv);
    land(&b);
    assert_int_equal(on_disk(&b) + host_cached(&b), 0);
    assert_int_equal(start(&b, r), 8 * 16);
    world_end(&b.w, r, END_LENGTH);
    assert_int_equal(b.w.kv.ranks[1].n_free + b.w.kv.ranks[1].n_cached, HOST);
    assert_int_equal(b.w.kv.ranks[2].n_free + b.w.kv.ranks[2].n_cached, DISK);
    tear_down(&b);
}

static void a_client_leaves_while_its_prefix_is_fetched(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 8, 1000);
    struct request *r = submit(&b, 8 * 16, 1000);
    world_fetch(&b.w);
    world_end(&b.w, r, END_ABORT);
    assert_int_equal(kv_available(&b.w.kv, b.w.kv.host_place), HOST - 7); /* nobody gets what is being written */
    land(&b);
    assert_int_equal(b.w.n_copying, 0);
    assert_int_equal(host_cached(&b), 7); /* who asks next finds it */
    tear_down(&b);
}

static void host_memory_is_not_given_to_the_disk_alone(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 12, 1000);
    struct request *r = submit(&b, 12 * 16, 1000);
    world_fetch(&b.w);
    assert_int_equal(b.w.n_fetching, HOST / 4); /* the beginning; more would be room that others want */
    land(&b);
    assert_int_equal(start(&b, r), 4 * 16);
    world_end(&b.w, r, END_LENGTH);
    tear_down(&b);
}

static void what_takes_longer_than_computing_is_not_fetched(void **state)
{
    (void)state;
    struct bench b;
    set_up_disk(&b, 1, HOST, DISK);
    restart(&b, 8, 1000);
    b.w.cost.disk_ns_per_token = 1500;
    struct request *r = submit(&b, 8 * 16, 1000);
    world_fetch(&b.w);
    assert_int_equal(b.w.n_copies, 0);
    assert_int_equal(start(&b, r), 8 * 16);
    world_end(&b.w, r, END_LENGTH);
    kv_forget_rank(&b.w.kv, 0);
    for (int i = 0; i < 20 && !b.w.n_copies; i++) { /* it may be faster by now, so it is tried in the end */
        r = submit(&b, 8 * 16, 1000);
        world_fetch(&b.w);
        world_fetch(&b.w); /* once for each request */
        assert_true(i || !b.w.n_copies);
        world_end(&b.w, r, END_ABORT);
    }
    assert_int_equal(b.w.n_copies, 1);
    land(&b);
    tear_down(&b);
}

/* As in host_kv.c, with a disk that fails to read now and then. */
static void random_traffic_conserves(void **state)
{
    (void)state;
    struct bench b;
    struct rng rng;
    set_up_disk(&b, 1, HOST, DISK);
    rng_init(&rng, 5);
    for (int i = 0; i < 4000; i++) {
        int n = 1 + (int)rng_below(&rng, BLOCKS - 1), first = 1000 * (1 + (int)rng_below(&rng, 12));
        switch (rng_below(&rng, 8)) {
        case 0:
            land(&b);
            break;
        case 1:
            if (rng_below(&rng, 40) == 0)
                kv_forget_cached(&b.w.kv);
            break;
        case 2:
            world_save_cached(&b.w, MOST);
            break;
        case 3:
            save_all(&b);
            break;
        default:
            if (kv_available(&b.w.kv, place_of(&b)) >= n) {
                struct request *r = submit(&b, n * 16, first);
                world_fetch(&b.w);
                b.landing = !b.w.n_writing && rng_below(&rng, 4) == 0 ? (int)rng_below(&rng, 3) : -1;
                if (r->n_moving)
                    land(&b);
                b.landing = -1;
                start(&b, r);
                world_end(&b.w, r, END_LENGTH);
            }
        }
        assert_true(world_check(&b.w));
        assert_true(b.w.n_writing <= MOST / 16 && b.w.n_fetching <= HOST / 4);
    }
    assert_true(b.m.counters[C_DISK_READ_TOKENS] > 0 && b.m.counters[C_DISK_FAILURES] > 0);
    assert_false(b.w.disk_is_read_only);
    land(&b);
    assert_int_equal(b.w.n_saving + b.w.n_writing + b.w.n_fetching + b.w.n_copying, 0);
    tear_down(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_that_is_cached_goes_down_at_once),
        cmocka_unit_test(a_prompt_waits_for_what_the_disk_has),
        cmocka_unit_test(only_what_is_missing_is_fetched),
        cmocka_unit_test(a_block_that_is_not_whole_is_computed_and_not_tried_again),
        cmocka_unit_test(a_disk_that_takes_no_more_is_left_alone),
        cmocka_unit_test(a_reset_forgets_what_is_under_way_both_ways),
        cmocka_unit_test(a_client_leaves_while_its_prefix_is_fetched),
        cmocka_unit_test(host_memory_is_not_given_to_the_disk_alone),
        cmocka_unit_test(what_takes_longer_than_computing_is_not_fetched),
        cmocka_unit_test(random_traffic_conserves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
