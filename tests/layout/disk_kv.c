/* KV on disk, live: engines that really compute, one after the other, over one file. Whatever layout the next one has,
 * whatever was done to the file in between, and whatever happens to ranks, requests and the cache meanwhile: each text
 * is the one that the request has on a single rank without any of it, and the books balance. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/engine.h"
#include "tests/rig/switch_rig.h"

enum { DISK_BYTES = 64 << 20 };

static char path[4096];

static int fresh(void **state)
{
    (void)state;
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/layout_disk_kv.%d", folder ? folder : "/tmp", (int)getpid());
    unlink(path);
    return 0;
}

static int gone(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static const uint64_t *counters(const struct run *t)
{
    return engine_world(t->engine)->metrics->counters;
}

static void end(struct run *t, const char *what)
{
    stop_run(t);
    const struct world *w = engine_world(t->engine);
    print_message("%s: %llu tokens written, %llu read, %llu failures; %llu found in host memory\n", what,
                  (unsigned long long)counters(t)[C_DISK_WRITTEN_TOKENS],
                  (unsigned long long)counters(t)[C_DISK_READ_TOKENS], (unsigned long long)counters(t)[C_DISK_FAILURES],
                  (unsigned long long)counters(t)[C_HOST_HITS]);
    assert_int_equal(w->n_saving + w->n_writing + w->n_fetching + w->n_copying, 0);
    assert_false(w->disk_is_read_only);
}

/* A disk of its own, a few blocks of host memory, so that what is found comes from the disk. */
static struct run_opts opts_of(struct layout l, int n)
{
    return (struct run_opts){.n_requests = n,
                             .ranks = l.sp * l.tp * l.pp,
                             .start = l,
                             .kv_blocks = 64,
                             .host_blocks = 48,
                             .disk = path,
                             .disk_bytes = DISK_BYTES};
}

static void each_layout_finds_what_another_left(void **state)
{
    (void)state;
    static const struct layout layouts[] = {{1, 1, 1}, {1, 2, 1}, {2, 1, 1}, {1, 1, 2}, {2, 2, 1}, {1, 1, 1}};
    static struct run quiet, t;
    int n = N < 40 ? N : 40;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i += N < 100 ? 3 : 1) {
        struct run_opts o = opts_of(layouts[i], n);
        start_run(&t, m, &o);
        serve_all(&t, model_config(m)->vocab, NULL);
        end(&t, "a layout");
        compare(&t, &quiet, NULL);
        if (i)
            assert_true(counters(&t)[C_DISK_READ_TOKENS] > 0 && !counters(&t)[C_DISK_FAILURES]);
        else
            assert_true(counters(&t)[C_DISK_WRITTEN_TOKENS] > 0);
        engine_destroy(t.engine);
    }
    model_close(m);
}

/* Bits of a file, here and there. */
static void damage(struct rng *r)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    off_t size = lseek(fd, 0, SEEK_END);
    for (int i = 0; i < 60; i++) {
        off_t at = 4096 + (off_t)rng_below(r, (uint64_t)size - 4096);
        unsigned char c;
        assert_int_equal(pread(fd, &c, 1, at), 1);
        c ^= (unsigned char)(1 << rng_below(r, 8));
        assert_int_equal(pwrite(fd, &c, 1, at), 1);
    }
    close(fd);
}

static void damage_is_never_served(void **state)
{
    (void)state;
    static struct run quiet, t;
    static bool cancelled[N + 1];
    struct rng r;
    int n = N < 60 ? N : 60;
    uint64_t failures = 0;
    struct model *m = open_model("tests/data/layout_9_3.json", DT_F32);
    rng_init(&r, 11);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    for (int round = 0; round < (N < 100 ? 2 : 4); round++) {
        struct run_opts o = opts_of((struct layout){1, 1, 1}, n);
        memset(cancelled, 0, sizeof cancelled);
        start_run(&t, m, &o);
        serve_all(&t, model_config(m)->vocab, cancelled);
        end(&t, "a damaged file");
        compare(&t, &quiet, cancelled);
        failures += counters(&t)[C_DISK_FAILURES];
        engine_destroy(t.engine);
        damage(&r);
    }
    assert_true(N < 40 || failures > 0);
    model_close(m);
}

/* Sequences go to host memory and back, groups change, the cache is reset, clients leave. */
static void nothing_of_it_shows_while_everything_changes(void **state)
{
    (void)state;
    static struct run quiet, t;
    static bool cancelled[N + 1];
    int n = N < 100 ? N : 120;
    struct model *m = open_model("tests/data/layout_deep.json", DT_Q8_0);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    for (int round = 0; round < (N < 100 ? 1 : 2); round++) {
        struct chaos c = {.every = N < 100 ? 8 : 20, .budget = 48, .base_orders = true, .stages = true, .host = true};
        struct run_opts o = opts_of((struct layout){1, 4, 1}, n);
        rng_init(&c.rng, 4);
        chaos_partitions(&c, 4);
        o.policy = chaos_policy(&c);
        memset(cancelled, 0, sizeof cancelled);
        start_run(&t, m, &o);
        t.n = n / 2;
        serve_all(&t, model_config(m)->vocab, cancelled);
        send(&t, IN_RESET_PREFIX_CACHE, 0, NULL);
        while (!t.n_replies)
            listen_to(&t, 100000000);
        t.n_replies = 0;
        for (uint64_t tag = (uint64_t)n / 2 + 1; tag <= (uint64_t)n; tag++)
            send(&t, IN_SUBMIT, tag, spec_new(&t, tag, model_config(m)->vocab));
        t.n = n;
        while (t.n_ends < t.n)
            listen_to(&t, 100000000);
        end(&t, "changes");
        compare(&t, &quiet, cancelled);
        engine_destroy(t.engine);
    }
    model_close(m);
}

static void a_rank_fails_over_a_disk(void **state)
{
    (void)state;
    static struct run quiet, t;
    int n = N < 40 ? N : 40;
    struct model *m = open_model("tests/data/layout_gqa.json", DT_F16);
    one_rank(&quiet, m, &(struct run_opts){.n_requests = n});
    for (int i = 0; i < (N < 100 ? 2 : 4); i++) {
        struct run_opts o = opts_of((struct layout){1, 2, 1}, n);
        o.fail_rank = i % 2;
        o.fail_at_step = 6 + 4 * (uint64_t)i;
        start_run(&t, m, &o);
        serve_all(&t, model_config(m)->vocab, NULL);
        end(&t, "a rank that failed");
        compare(&t, &quiet, NULL);
        engine_destroy(t.engine);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_layout_finds_what_another_left, fresh, gone),
        cmocka_unit_test_setup_teardown(damage_is_never_served, fresh, gone),
        cmocka_unit_test_setup_teardown(nothing_of_it_shows_while_everything_changes, fresh, gone),
        cmocka_unit_test_setup_teardown(a_rank_fails_over_a_disk, fresh, gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
