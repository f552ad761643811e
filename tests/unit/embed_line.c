/* Which sequences go into the next batch: nothing is lost or computed twice, budgets hold, and turns are fair. */
#include "tests/rig/embed_rig.h"

#include "engine/base/rng.h"

static struct embed_rig rig; /* for its jobs only */

static struct embed_batch *take(struct embed_line *l, int tokens, int slice)
{
    static struct embed_batch b;
    embed_line_take(l, &(struct embed_take){.max_tokens = tokens, .slice = slice}, &b);
    return &b;
}

static void end(struct embed_line *l, struct rig_job *j)
{
    embed_line_drop(l, &j->job);
    embed_line_forget(&j->job);
    rig_free(j);
}

static int of(const struct embed_batch *b, const struct rig_job *j)
{
    int n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->pieces[i].job == &j->job;
    return n;
}

static void one_request_goes_longest_first(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *j = rig_job(&rig, "a", 5, (const int[]){3, 9, 1, 9, 5});
    embed_line_add(&l, &j->job);
    assert_int_equal(l.inputs, 5);
    assert_int_equal(l.tokens, 27);
    static const int order[] = {1, 3, 4, 0, 2};
    struct embed_batch *b = take(&l, 100, 100);
    assert_int_equal(b->n, 5);
    assert_int_equal(b->tokens, 27);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(b->pieces[i].i, order[i]);
        assert_ptr_equal(b->seqs[i].ids, j->job.seqs[order[i]].ids);
    }
    assert_int_equal(l.inputs, 0);
    assert_int_equal(l.jobs, 0);
    assert_int_equal(take(&l, 100, 100)->n, 0);
    end(&l, j);
}

/* One with 2000 texts came first: the short one is in the very next batch. */
static void a_large_request_delays_a_short_one_by_a_slice(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *large = rig_equal(&rig, "", 2000, 50), *small = rig_equal(&rig, "", 1, 10);
    embed_line_add(&l, &large->job);
    assert_int_equal(of(take(&l, 1000, 125), large), 20);
    embed_line_add(&l, &small->job);
    struct embed_batch *b = take(&l, 1000, 125);
    assert_int_equal(of(b, small), 1);
    assert_int_equal(of(b, large), 19);
    end(&l, large);
    end(&l, small);
}

/* One owner with many requests gets no more than one with a single request. */
static void owners_share_whatever_they_ask(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *many[9], *one = rig_equal(&rig, "one", 1000, 10);
    for (int i = 0; i < 9; i++) {
        many[i] = rig_equal(&rig, "many", 1000, 10);
        embed_line_add(&l, &many[i]->job);
    }
    embed_line_add(&l, &one->job);
    int taken = 0, of_many = 0;
    for (int k = 0; k < 20; k++) {
        struct embed_batch *b = take(&l, 1000, 100);
        assert_int_equal(b->tokens, 1000);
        taken += of(b, one);
        for (int i = 0; i < 9; i++)
            of_many += of(b, many[i]);
    }
    assert_int_equal(taken, 1000);
    assert_int_equal(of_many, 1000);
    for (int i = 0; i < 9; i++)
        end(&l, many[i]);
    end(&l, one);
}

/* A sequence as long as a batch does not wait for ever behind short ones. */
static void what_does_not_fit_is_first_in_the_next(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *small = rig_equal(&rig, "s", 400, 10), *long_one = rig_equal(&rig, "l", 1, 1000);
    embed_line_add(&l, &small->job);
    embed_line_add(&l, &long_one->job);
    assert_int_equal(of(take(&l, 1000, 100), long_one), 0);
    struct embed_batch *b = take(&l, 1000, 100);
    assert_int_equal(b->n, 1);
    assert_int_equal(of(b, long_one), 1);
    end(&l, small);
    end(&l, long_one);
}

/* It waits for a batch of its own, behind those who came before it. */
static void who_failed_joins_no_batch(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *first = rig_equal(&rig, "", 2, 10), *failed = rig_equal(&rig, "", 1, 10),
                   *last = rig_equal(&rig, "", 2, 10);
    embed_line_add(&l, &first->job);
    embed_line_add(&l, &failed->job);
    embed_line_add(&l, &last->job);
    failed->job.alone = true;
    assert_int_equal(of(take(&l, 100, 100), first), 2);
    struct embed_batch *b = take(&l, 100, 100);
    assert_true(b->n == 1 && of(b, failed) == 1);
    assert_int_equal(of(take(&l, 100, 100), last), 2);
    end(&l, first);
    end(&l, failed);
    end(&l, last);
}

static void what_is_returned_is_taken_again(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *j = rig_equal(&rig, "", 6, 10), *other = rig_equal(&rig, "", 2, 10);
    embed_line_add(&l, &j->job);
    struct embed_batch b = *take(&l, 40, 40);
    assert_int_equal(b.n, 4);
    assert_int_equal(take(&l, 40, 40)->n, 2);
    assert_int_equal(l.jobs, 0);
    j->job.alone = true;
    embed_line_return(&l, &b.pieces[0]);
    embed_line_return(&l, &b.pieces[3]);
    assert_int_equal(l.inputs, 2);
    assert_int_equal(l.tokens, 20);
    embed_line_add(&l, &other->job);
    struct embed_batch *again = take(&l, 40, 40);
    assert_int_equal(again->n, 2); /* alone, though two more would fit */
    assert_int_equal(of(again, j), 2);
    assert_true((again->pieces[0].i == b.pieces[0].i && again->pieces[1].i == b.pieces[3].i) ||
                (again->pieces[0].i == b.pieces[3].i && again->pieces[1].i == b.pieces[0].i));
    assert_int_equal(of(take(&l, 40, 40), other), 2);
    end(&l, j);
    end(&l, other);
}

/* Random requests, owners, budgets, drops and returns: each sequence is in exactly one batch, or was dropped. */
static void nothing_is_lost_or_taken_twice(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 7);
    for (int round = 0; round < 200; round++) {
        struct embed_line l;
        struct rig_job *jobs[20];
        int *seen[20], n_jobs = 0, budget = 64 + (int)(rng_next(&r) % 200), slice = 1 + (int)(rng_next(&r) % 64);
        embed_line_init(&l);
        for (int left = 0; n_jobs < 20 || left;) {
            if (n_jobs < 20 && rng_next(&r) % 2) {
                int lengths[64], n = 1 + (int)(rng_next(&r) % 64);
                for (int i = 0; i < n; i++)
                    lengths[i] = 1 + (int)(rng_next(&r) % 64);
                char owner[] = {(char)('a' + rng_next(&r) % 4), 0};
                jobs[n_jobs] = rig_job(&rig, owner, n, lengths);
                seen[n_jobs] = mem_new_array((size_t)n, sizeof(int));
                embed_line_add(&l, &jobs[n_jobs++]->job);
            }
            if (n_jobs && rng_next(&r) % 16 == 0) {
                struct rig_job *j = jobs[rng_next(&r) % (unsigned)n_jobs];
                embed_line_drop(&l, &j->job);
                j->job.cancelled = true;
            }
            struct embed_batch *b = take(&l, budget, slice);
            int tokens = 0;
            for (int i = 0; i < b->n; i++) {
                tokens += b->seqs[i].n;
                assert_true(!i || b->seqs[i].n <= b->seqs[i - 1].n);
                assert_false(b->pieces[i].job->cancelled);
                int k = 0;
                while (&jobs[k]->job != b->pieces[i].job)
                    k++;
                if (rng_next(&r) % 8 == 0)
                    embed_line_return(&l, &b->pieces[i]);
                else
                    assert_int_equal(seen[k][b->pieces[i].i]++, 0);
            }
            assert_int_equal(tokens, b->tokens);
            assert_true(tokens <= budget);
            left = l.inputs;
            assert_true(!left == !l.jobs && !left == !l.tokens);
        }
        for (int k = 0; k < n_jobs; k++) {
            for (int i = 0; i < jobs[k]->job.n && !jobs[k]->job.cancelled; i++)
                assert_int_equal(seen[k][i], 1);
            mem_free(seen[k]);
            end(&l, jobs[k]);
        }
        assert_true(list_empty(&l.owners));
    }
}

static struct embed_batch *take_some(struct embed_line *l, enum embed_lengths lengths, int tokens)
{
    static struct embed_batch b;
    struct embed_take t = {.max_tokens = tokens, .slice = 100, .lengths = lengths, .short_tokens = 10};
    embed_line_take(l, &t, &b);
    return &b;
}

static void short_and_long_ones_by_themselves(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *mixed = rig_job(&rig, "a", 5, (const int[]){50, 3, 40, 10, 7}),
                   *long_ones = rig_equal(&rig, "b", 2, 11);
    embed_line_add(&l, &mixed->job);
    embed_line_add(&l, &long_ones->job);
    struct embed_batch *b = take_some(&l, EMBED_SHORT, 13);
    assert_true(b->n == 2 && b->tokens == 10 && of(b, mixed) == 2); /* 7 and 3; with the 10 it would be too many */
    struct embed_piece back[] = {b->pieces[0], b->pieces[1]};
    b = take_some(&l, EMBED_SHORT, 1000);
    assert_true(b->n == 1 && b->tokens == 10);
    assert_int_equal(take_some(&l, EMBED_SHORT, 1000)->n, 0); /* though jobs wait */
    embed_line_return(&l, &back[0]);
    embed_line_return(&l, &back[1]);
    b = take_some(&l, EMBED_SHORT, 1000);
    assert_true(b->n == 2 && b->tokens == 10);
    embed_line_return(&l, &b->pieces[0]);
    b = take_some(&l, EMBED_LONG, 1000);
    assert_true(b->n == 4 && b->tokens == 112 && of(b, long_ones) == 2);
    assert_int_equal(take_some(&l, EMBED_LONG, 1000)->n, 0);
    assert_int_equal(take_some(&l, EMBED_ANY, 1000)->tokens, 7);
    assert_int_equal(l.jobs, 0);
    end(&l, mixed);
    end(&l, long_ones);
}

static void one_that_is_too_long_goes_alone(void **state)
{
    (void)state;
    struct embed_line l;
    embed_line_init(&l);
    struct rig_job *j = rig_job(&rig, "", 3, (const int[]){500, 400, 30});
    embed_line_add(&l, &j->job);
    assert_int_equal(take(&l, 100, 12)->tokens, 500);
    assert_int_equal(take(&l, 100, 12)->tokens, 400);
    assert_int_equal(take(&l, 100, 12)->tokens, 30);
    end(&l, j);
}

/* Whatever is asked for, in whatever order, and returned: each sequence goes once, and short batches have none that is
 * long. */
static void no_mixture_loses_or_repeats_any(void **state)
{
    (void)state;
    enum { JOBS = 40, MOST = 30 };
    struct rng r;
    rng_init(&r, 9);
    for (int round = 0; round < 50; round++) {
        struct embed_line l;
        struct rig_job *jobs[JOBS];
        int taken[JOBS][MOST] = {0}, total = 0, seen = 0;
        embed_line_init(&l);
        for (int i = 0; i < JOBS; i++) {
            int lengths[MOST], n = 1 + (int)(rng_next(&r) % MOST);
            for (int k = 0; k < n; k++)
                lengths[k] = 1 + (int)(rng_next(&r) % 20);
            jobs[i] = rig_job(&rig, i % 3 ? "a" : "b", n, lengths);
            embed_line_add(&l, &jobs[i]->job);
            total += n;
        }
        for (int empty = 0; l.jobs; empty++) {
            enum embed_lengths want = (enum embed_lengths)(rng_next(&r) % 3);
            struct embed_batch *b = take_some(&l, want, 60);
            assert_true(b->n || want != EMBED_ANY);
            for (int i = 0; i < b->n; i++) {
                if (want == EMBED_SHORT)
                    assert_true(b->seqs[i].n <= 10);
                int job = 0;
                while (&jobs[job]->job != b->pieces[i].job)
                    job++;
                if (rng_next(&r) % 5 == 0) {
                    struct embed_piece p = b->pieces[i];
                    embed_line_return(&l, &p);
                    continue;
                }
                assert_int_equal(taken[job][b->pieces[i].i]++, 0);
                b->pieces[i].job->n_flying--;
                seen++;
            }
        }
        assert_true(seen == total && !l.inputs && !l.tokens);
        for (int i = 0; i < JOBS; i++)
            end(&l, jobs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_goes_longest_first),
        cmocka_unit_test(a_large_request_delays_a_short_one_by_a_slice),
        cmocka_unit_test(owners_share_whatever_they_ask),
        cmocka_unit_test(what_does_not_fit_is_first_in_the_next),
        cmocka_unit_test(who_failed_joins_no_batch),
        cmocka_unit_test(what_is_returned_is_taken_again),
        cmocka_unit_test(nothing_is_lost_or_taken_twice),
        cmocka_unit_test(short_and_long_ones_by_themselves),
        cmocka_unit_test(one_that_is_too_long_goes_alone),
        cmocka_unit_test(no_mixture_loses_or_repeats_any),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
