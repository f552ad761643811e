/* Replicas and their line: every request ends exactly once, whatever fails, leaves or stops. */
#include "tests/rig/embed_rig.h"

#include "engine/base/rng.h"
#include "engine/base/thread.h"

static void post(struct rig_job *j)
{
    struct err e = {0};
    if (embedder_post(j->rig->embedder, &j->job, &e))
        fail_msg("%s", e.text);
}

static struct embed_counts counts(const struct embed_rig *g)
{
    struct embed_counts n;
    embedder_count(g->embedder, &n);
    return n;
}

static void every_vector_finds_its_text(void **state)
{
    (void)state;
    struct embed_rig g;
    struct rng r;
    struct rig_job *jobs[100];
    rng_init(&r, 1);
    rig_begin(&g, 3, 128);
    rig_start(&g);
    rig_permit(&g, -1);
    for (int k = 0; k < 100; k++) {
        int lengths[80], n = 1 + (int)(rng_next(&r) % 80);
        for (int i = 0; i < n; i++)
            lengths[i] = 1 + (int)(rng_next(&r) % 128);
        jobs[k] = rig_job(&g, k % 3 ? "a" : "b", n, lengths);
        post(jobs[k]);
        embedder_collect(g.embedder);
    }
    uint64_t inputs = 0, tokens = 0;
    for (int k = 0; k < 100; k++) {
        rig_wait(jobs[k]);
        rig_check(jobs[k]);
        inputs += (uint64_t)jobs[k]->job.n;
        tokens += (uint64_t)jobs[k]->job.n_tokens;
    }
    struct embed_counts n = counts(&g);
    assert_true(n.jobs == 100 && n.inputs == inputs && n.tokens == tokens && n.batch_tokens == tokens);
    assert_true(!n.inputs_waiting && !n.tokens_waiting && !n.jobs_waiting && !n.inputs_flying && !n.failed_batches);
    assert_int_equal(n.tokens_flying, 0); /* no replica's load has drifted */
    for (int k = 0; k < 100; k++)
        rig_free(jobs[k]);
    rig_end(&g);
}

static void a_short_request_overtakes_a_large_one(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 1, 500);
    rig_start(&g);
    struct rig_job *large = rig_equal(&g, "", 2048, 50), *small = rig_equal(&g, "", 1, 8);
    post(large);
    post(small);
    rig_permit(&g, 3); /* two batches were under way when it came; the third has it */
    rig_wait(small);
    rig_check(small);
    assert_int_equal(large->done, 0);
    assert_true(g.seqs < 40);
    rig_permit(&g, -1);
    rig_wait(large);
    rig_check(large);
    rig_free(large);
    rig_free(small);
    rig_end(&g);
}

static void replicas_share_the_work(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 4, 100);
    rig_start(&g);
    struct rig_job *j = rig_equal(&g, "", 200, 10);
    post(j);
    assert_int_equal(counts(&g).inputs_flying, 80); /* two batches on each */
    rig_permit(&g, -1);
    rig_wait(j);
    rig_check(j);
    rig_free(j);
    rig_end(&g);
}

static void too_much_is_refused(void **state)
{
    (void)state;
    struct embed_rig g;
    struct err e = {0};
    rig_begin(&g, 1, 10);
    g.setup.max_tokens = 100;
    g.setup.max_inputs = 12;
    rig_start(&g);
    struct rig_job *huge = rig_equal(&g, "", 30, 10), *more = rig_equal(&g, "", 1, 1), *few = rig_equal(&g, "", 11, 1);
    post(huge); /* nothing waits: it is taken, however large */
    assert_int_equal(embedder_post(g.embedder, &more->job, &e), E_FULL);
    assert_int_equal(more->done, 0);
    rig_permit(&g, -1);
    rig_wait(huge);
    rig_check(huge);
    g.permits = 0;
    struct rig_job *first = rig_equal(&g, "", 4, 10); /* two run, two wait */
    post(first);
    assert_int_equal(embedder_post(g.embedder, &few->job, &e), E_FULL); /* 13 texts */
    post(more);
    rig_permit(&g, -1);
    rig_wait(more);
    rig_wait(first);
    rig_check(more);
    rig_check(first);
    rig_free(huge);
    rig_free(more);
    rig_free(few);
    rig_free(first);
    rig_end(&g);
}

static void what_nobody_waits_for_is_not_computed(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 1, 100);
    rig_start(&g);
    struct rig_job *gone = rig_equal(&g, "", 1000, 10), *waiting = rig_equal(&g, "", 5, 10),
                   *stays = rig_equal(&g, "", 5, 10);
    post(gone);
    post(waiting);
    post(stays);
    embedder_cancel(g.embedder, &waiting->job);
    assert_int_equal(waiting->done, 1); /* no batch has any of it */
    assert_int_equal(waiting->job.rc, E_GONE);
    embedder_cancel(g.embedder, &gone->job);
    embedder_cancel(g.embedder, &gone->job);
    assert_int_equal(gone->done, 0); /* two batches hold what it points to */
    assert_int_equal(counts(&g).inputs_waiting, 5);
    rig_permit(&g, -1);
    rig_wait(stays);
    rig_check(stays);
    assert_int_equal(gone->done, 1);
    assert_int_equal(gone->job.rc, E_GONE);
    assert_int_equal(g.seqs, 25);
    assert_int_equal(counts(&g).jobs, 1);
    rig_free(gone);
    rig_free(waiting);
    rig_free(stays);
    rig_end(&g);
}

static void a_failed_batch_is_tried_again(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 1, 100);
    rig_start(&g);
    g.fail_next = 2; /* in a row: one more, and the replica would be left out */
    struct rig_job *a = rig_equal(&g, "", 3, 10), *b = rig_equal(&g, "", 30, 10);
    post(a);
    post(b);
    rig_permit(&g, -1);
    rig_wait(a);
    rig_wait(b);
    rig_check(a);
    rig_check(b);
    assert_true(counts(&g).failed_batches == 2 && counts(&g).replicas_alive == 1);
    rig_free(a);
    rig_free(b);
    rig_end(&g);
}

/* Who shares a batch with it is computed; it alone fails. */
static void one_that_always_fails_takes_nobody_along(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 1, 100);
    rig_start(&g);
    g.fail_poison = true;
    struct rig_job *first = rig_equal(&g, "", 1, 10), *second = rig_equal(&g, "", 1, 10),
                   *bad = rig_equal(&g, "x", 2, 10), *good = rig_equal(&g, "y", 2, 10);
    bad->ids[10] = RIG_POISON;
    post(first);
    post(second); /* both places of the replica are taken: the next two share a batch */
    post(bad);
    post(good);
    rig_permit(&g, -1);
    rig_wait(bad);
    rig_wait(good);
    rig_check(first);
    rig_check(second);
    rig_check(good);
    assert_int_equal(bad->done, 1);
    assert_int_equal(bad->job.rc, E_DEVICE);
    assert_string_equal(bad->job.why, "poison");
    assert_int_equal(counts(&g).replicas_alive, 1);
    rig_free(first);
    rig_free(second);
    rig_free(bad);
    rig_free(good);
    rig_end(&g);
}

static void when_all_replicas_have_failed_everybody_is_told(void **state)
{
    (void)state;
    struct embed_rig g;
    struct err e = {0};
    struct rig_job *jobs[20];
    rig_begin(&g, 2, 20);
    rig_start(&g);
    g.fail_next = 1000;
    for (int i = 0; i < 20; i++) {
        jobs[i] = rig_equal(&g, "", 3, 10);
        post(jobs[i]);
    }
    rig_permit(&g, -1);
    for (int i = 0; i < 20; i++) {
        rig_wait(jobs[i]);
        assert_int_equal(jobs[i]->done, 1);
        assert_int_equal(jobs[i]->job.rc, E_DEVICE);
        assert_string_equal(jobs[i]->job.why, "the device failed");
    }
    assert_true(embedder_is_down(g.embedder));
    assert_int_equal(embedder_post(g.embedder, &jobs[0]->job, &e), E_DEVICE);
    for (int i = 0; i < 20; i++)
        rig_free(jobs[i]);
    rig_end(&g);
}

static void the_end_tells_everybody(void **state)
{
    (void)state;
    struct embed_rig g;
    struct rig_job *jobs[10];
    rig_begin(&g, 2, 20);
    rig_start(&g);
    for (int i = 0; i < 10; i++) {
        jobs[i] = rig_equal(&g, "", 3, 10);
        post(jobs[i]);
    }
    rig_permit(&g, 1);
    embedder_fail_all(g.embedder, "stopped");
    assert_int_equal(jobs[9]->done, 1);
    rig_end(&g);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(jobs[i]->done, 1);
        assert_int_equal(jobs[i]->job.rc, E_GONE);
        assert_string_equal(jobs[i]->job.why, "stopped");
        rig_free(jobs[i]);
    }
}

static void what_cannot_be_opened_leaves_nothing(void **state)
{
    (void)state;
    struct embed_rig g;
    struct err e = {0};
    for (int at = 1; at <= 3; at++) {
        rig_begin(&g, 3, 20);
        g.fail_open_at = at;
        assert_int_equal(embedder_create(&g.embedder, &g.setup, &e), E_FULL);
        assert_null(g.embedder);
        rig_end(&g);
    }
}

/* Requests, cancels and failures in any order: as many endings as requests, and no vector is another's. */
static void chaos(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 99);
    for (int round = 0; round < 20; round++) {
        struct embed_rig g;
        struct rig_job *jobs[60];
        int n = 0;
        rig_begin(&g, 1 + round % 4, 64);
        rig_start(&g);
        rig_permit(&g, -1);
        while (n < 60) {
            int lengths[40], m = 1 + (int)(rng_next(&r) % 40);
            for (int i = 0; i < m; i++)
                lengths[i] = 1 + (int)(rng_next(&r) % 64);
            struct err e = {0};
            char owner[] = {(char)('a' + rng_next(&r) % 3), 0};
            jobs[n] = rig_job(&g, owner, m, lengths);
            if (embedder_post(g.embedder, &jobs[n]->job, &e)) {
                assert_true(embedder_is_down(g.embedder));
                jobs[n]->done = 1;
                jobs[n]->job.rc = E_DEVICE;
            }
            n++;
            if (rng_next(&r) % 4 == 0 && !jobs[n - 1]->done)
                embedder_cancel(g.embedder, &jobs[n - 1]->job);
            if (rng_next(&r) % 8 == 0)
                g.fail_next = 1;
            embedder_collect(g.embedder);
        }
        if (round % 2)
            for (int i = 0; i < n; i++)
                if (!jobs[i]->done)
                    rig_wait(jobs[i]);
        rig_end(&g);
        for (int i = 0; i < n; i++) {
            assert_int_equal(jobs[i]->done, 1);
            if (!jobs[i]->job.rc)
                rig_check(jobs[i]);
            rig_free(jobs[i]);
        }
    }
}

/* ---- by a rule */

static struct embed_facts facts(const struct embed_rig *g)
{
    struct embed_facts f;
    embed_link_see(&g->link, &f);
    return f;
}

static void only_those_that_may_run_take_batches(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 3, 100);
    rig_start(&g);
    embedder_route(g.embedder, (struct embed_rule){.replicas = 1});
    struct rig_job *j = rig_equal(&g, "", 8, 100);
    post(j);
    struct embed_facts f = facts(&g);
    assert_true(f.running_tokens[0] == 200 && f.running_tokens[1] == 0 && f.running_tokens[2] == 0);
    assert_true(f.waiting_texts == 6 && f.waiting_tokens == 600 && f.n_alive == 3 && f.n_replicas == 3);
    assert_int_equal(counts(&g).replicas_allowed, 1);
    embedder_route(g.embedder, (struct embed_rule){0}); /* at once, not when the next batch is back */
    f = facts(&g);
    assert_true(f.running_tokens[1] == 200 && f.running_tokens[2] == 200 && f.waiting_texts == 2);
    rig_permit(&g, -1);
    rig_wait(j);
    rig_check(j);
    f = facts(&g);
    assert_true(!f.waiting_texts && !f.running_tokens[0] && !f.running_tokens[1] && !f.running_tokens[2]);
    rig_free(j);
    rig_end(&g);
}

static void one_after_the_other(void **state)
{
    (void)state;
    struct embed_rig g;
    struct rig_job *jobs[4];
    rig_begin(&g, 4, 100);
    rig_start(&g);
    embedder_route(g.embedder, (struct embed_rule){.way = EMBED_ROUND_ROBIN, .replicas = 3});
    static const int lengths[] = {90, 1, 90, 1}, want[][4] = {{0, 90}, {0, 90, 1}, {90, 90, 1}, {90, 91, 1}};
    for (int i = 0; i < 4; i++) {
        jobs[i] = rig_equal(&g, "", 1, lengths[i]);
        post(jobs[i]);
        struct embed_facts f = facts(&g);
        for (int k = 0; k < 4; k++)
            assert_int_equal(f.running_tokens[k], want[i][k]);
    }
    rig_permit(&g, -1);
    for (int i = 0; i < 4; i++) {
        rig_wait(jobs[i]);
        rig_check(jobs[i]);
        rig_free(jobs[i]);
    }
    rig_end(&g);
}

static void long_texts_leave_short_ones_their_own(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 3, 100);
    rig_start(&g);
    embedder_route(g.embedder, (struct embed_rule){EMBED_BY_LENGTH, 0, 10, 1});
    struct rig_job *long_ones = rig_equal(&g, "a", 50, 100), *small = rig_equal(&g, "a", 3, 10);
    post(long_ones);
    assert_true(facts(&g).running_tokens[0] == 0 && facts(&g).running_tokens[1] == 200);
    post(small);
    assert_int_equal(facts(&g).running_tokens[0], 30);
    struct rig_job *more = rig_equal(&g, "a", 2, 10);
    rig_permit(&g, -1);
    rig_wait(small);
    rig_wait(long_ones);
    post(more); /* and nobody keeps a replica idle for ever: one that is not kept takes short ones, too */
    rig_wait(more);
    rig_check(small);
    rig_check(long_ones);
    rig_check(more);
    rig_free(small);
    rig_free(long_ones);
    rig_free(more);
    rig_end(&g);
}

/* The only one that may run fails, then all but one, which is then kept for nobody. */
static void a_lost_replica_is_left_out_of_the_rule(void **state)
{
    (void)state;
    struct embed_rig g;
    rig_begin(&g, 3, 100);
    rig_start(&g);
    embedder_route(g.embedder, (struct embed_rule){EMBED_BY_LENGTH, 2, 10, 1});
    for (int lost = 1; lost <= 2; lost++) {
        struct rig_job *a = rig_equal(&g, "a", 1, 50), *b = rig_equal(&g, "b", 1, 50);
        g.fail_next = EMBED_STRIKES;
        post(a);
        post(b);
        rig_permit(&g, -1);
        rig_wait(a);
        rig_wait(b);
        rig_check(a);
        rig_check(b);
        assert_int_equal(facts(&g).n_alive, 3 - lost);
        assert_int_equal(counts(&g).replicas_allowed, lost == 1 ? 2 : 1);
        rig_free(a);
        rig_free(b);
    }
    struct rig_job *mixed = rig_job(&g, "", 4, (const int[]){90, 5, 70, 3});
    post(mixed);
    rig_wait(mixed);
    rig_check(mixed);
    rig_free(mixed);
    rig_end(&g);
}

/* Rules change at random while requests of all lengths come: whatever is ruled, all are done. */
static void no_rule_leaves_a_text_behind(void **state)
{
    (void)state;
    enum { JOBS = 200 };
    struct embed_rig g;
    struct rng r;
    struct rig_job *jobs[JOBS];
    rng_init(&r, 12);
    rig_begin(&g, 5, 128);
    g.setup.longest = 300;
    rig_start(&g);
    rig_permit(&g, -1);
    for (int k = 0; k < JOBS; k++) {
        int lengths[20], n = 1 + (int)(rng_next(&r) % 20);
        for (int i = 0; i < n; i++)
            lengths[i] = 1 + (int)(rng_next(&r) % (rng_next(&r) % 4 ? 30 : 300));
        embedder_route(g.embedder, (struct embed_rule){.way = (enum embed_way)(rng_next(&r) % EMBED_WAYS),
                                                       .replicas = (int)(rng_next(&r) % 6),
                                                       .short_tokens = 1 + (int)(rng_next(&r) % 100),
                                                       .n_short = (int)(rng_next(&r) % 6)});
        jobs[k] = rig_job(&g, k % 3 ? "a" : "b", n, lengths);
        post(jobs[k]);
        embedder_collect(g.embedder);
    }
    for (int k = 0; k < JOBS; k++) {
        rig_wait(jobs[k]);
        rig_check(jobs[k]);
        rig_free(jobs[k]);
    }
    struct embed_facts f = facts(&g);
    assert_true(!f.waiting_texts && !f.waiting_tokens);
    rig_end(&g);
}

static void a_rule_is_one_number(void **state)
{
    (void)state;
    for (int way = 0; way < EMBED_WAYS; way++)
        for (int n = 0; n <= EMBED_MAX_REPLICAS; n += 16) {
            struct embed_rule r = {(enum embed_way)way, n, n ? EMBED_MOST_SHORT : 0, n ? n - 1 : 0};
            struct embed_rule back = embed_rule_unpack(embed_rule_pack(r));
            assert_true(back.way == r.way && back.replicas == r.replicas && back.short_tokens == r.short_tokens &&
                        back.n_short == r.n_short);
        }
    assert_int_equal(embed_rule_pack((struct embed_rule){0}), 0);
    struct embed_rule r = {EMBED_BY_LENGTH, 4, 10, 3};
    assert_true(embed_rule_allowed(r, 8) == 4 && embed_rule_allowed(r, 2) == 2 && embed_rule_allowed(r, 0) == 0);
    assert_true(embed_rule_kept(r, 8) == 3 && embed_rule_kept(r, 2) == 1 && embed_rule_kept(r, 1) == 0);
    assert_int_equal(embed_rule_kept(r, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_finds_its_text),
        cmocka_unit_test(a_short_request_overtakes_a_large_one),
        cmocka_unit_test(replicas_share_the_work),
        cmocka_unit_test(too_much_is_refused),
        cmocka_unit_test(what_nobody_waits_for_is_not_computed),
        cmocka_unit_test(a_failed_batch_is_tried_again),
        cmocka_unit_test(one_that_always_fails_takes_nobody_along),
        cmocka_unit_test(when_all_replicas_have_failed_everybody_is_told),
        cmocka_unit_test(the_end_tells_everybody),
        cmocka_unit_test(what_cannot_be_opened_leaves_nothing),
        cmocka_unit_test(chaos),
        cmocka_unit_test(only_those_that_may_run_take_batches),
        cmocka_unit_test(one_after_the_other),
        cmocka_unit_test(long_texts_leave_short_ones_their_own),
        cmocka_unit_test(a_lost_replica_is_left_out_of_the_rule),
        cmocka_unit_test(no_rule_leaves_a_text_behind),
        cmocka_unit_test(a_rule_is_one_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
