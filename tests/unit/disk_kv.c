/* The file of slots, by itself and with its threads: what was written is found again by whoever opens it next, and
 * nothing else is: not what was torn, by a writer that was killed or by anybody's hand, not another model's, not what
 * was cleared. A file that is somebody else's stays as it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/rng.h"
#include "engine/exec/disk_kv.h"

enum { PAYLOAD = 3 * 4096 + 100, SLOTS = 10, STRIDE = 4 * 4096 };

static char path[64];

static struct disk_slots_setup setup(void)
{
    return (struct disk_slots_setup){path, 4096 + SLOTS * STRIDE, PAYLOAD, {{7, 9}}};
}

static int fresh(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "disk_kv_test.%d", (int)getpid());
    unlink(path);
    return 0;
}

static int gone(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct kv_key key_of(int i)
{
    return (struct kv_key){{1000 + (uint64_t)i, 2 * (uint64_t)i + 1}};
}

static void fill(unsigned char *p, size_t n, int i)
{
    for (size_t k = 0; k < n; k++)
        p[k] = (unsigned char)rng_at((uint64_t)i, k / 64);
}

static void opened(struct disk_slots *d, bool emptied)
{
    struct disk_slots_setup s = setup();
    struct err e;
    bool is = false;
    if (disk_slots_open(d, &s, &is, &e))
        fail_msg("%s", e.text);
    assert_int_equal(is, emptied);
}

static void refused(const struct disk_slots_setup *s, const char *says)
{
    struct disk_slots d;
    struct err e = {0};
    assert_int_equal(disk_slots_open(&d, s, NULL, &e), E_INPUT);
    if (!strstr(e.text, says))
        fail_msg("was to say '%s', said '%s'", says, e.text);
}

static void put(struct disk_slots *d, int slot, int i)
{
    void *room = disk_slots_room(d);
    fill(disk_slot_payload(room), d->payload, i);
    assert_int_equal(disk_slots_write(d, slot, key_of(i), room, NULL), 0);
    mem_free(room);
}

/* 0: it is there, as it was put. */
static int get(const struct disk_slots *d, int slot, int i)
{
    unsigned char *want = mem_new(d->payload);
    void *room = disk_slots_room(d);
    int rc = disk_slots_read(d, slot, key_of(i), room, NULL);
    fill(want, d->payload, i);
    if (!rc)
        assert_memory_equal(disk_slot_payload(room), want, d->payload);
    mem_free(want);
    mem_free(room);
    return rc;
}

static int found(const struct disk_slots *d, struct disk_found *out)
{
    return disk_slots_scan(d, out);
}

static void what_was_written_is_found_by_the_next(void **state)
{
    (void)state;
    struct disk_slots d;
    struct disk_found f[SLOTS];
    struct stat st;
    opened(&d, false);
    assert_int_equal(d.n, SLOTS);
    assert_int_equal(found(&d, f), 0);
    put(&d, 5, 1);
    put(&d, 2, 2);
    put(&d, 9, 3);
    put(&d, 5, 4);
    disk_slots_close(&d);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_true(st.st_size <= 4096 + SLOTS * STRIDE);
    opened(&d, false);
    assert_int_equal(found(&d, f), 3); /* oldest first */
    assert_int_equal(f[0].slot, 2);
    assert_int_equal(f[1].slot, 9);
    assert_int_equal(f[2].slot, 5);
    assert_int_equal(get(&d, 2, 2) | get(&d, 9, 3) | get(&d, 5, 4), 0);
    assert_int_equal(get(&d, 5, 1), E_INPUT); /* no longer */
    assert_int_equal(get(&d, 3, 1), E_INPUT); /* never */
    disk_slots_close(&d);
}

static void a_key_that_is_there_twice_is_the_newer_one(void **state)
{
    (void)state;
    struct disk_slots d;
    struct disk_found f[SLOTS];
    opened(&d, false);
    put(&d, 1, 8);
    put(&d, 4, 8);
    assert_int_equal(found(&d, f), 1);
    assert_int_equal(f[0].slot, 4);
    disk_slots_close(&d);
}

static void another_model_finds_it_empty(void **state)
{
    (void)state;
    struct disk_slots_setup s = setup();
    struct disk_slots d;
    struct disk_found f[SLOTS];
    bool emptied;
    opened(&d, false);
    put(&d, 0, 1);
    disk_slots_close(&d);
    s.model.h[0]++;
    assert_int_equal(disk_slots_open(&d, &s, &emptied, NULL), 0);
    assert_true(emptied);
    assert_int_equal(found(&d, f), 0);
    disk_slots_close(&d);
    opened(&d, true);
    assert_int_equal(found(&d, f), 0);
    disk_slots_close(&d);
}

static void files_that_are_none_of_ours_stay_as_they_are(void **state)
{
    (void)state;
    struct disk_slots_setup s = setup();
    struct disk_slots d;
    struct stat st;
    FILE *out = fopen(path, "we");
    fputs("my thesis", out);
    fclose(out);
    assert_int_equal(chmod(path, 0644), 0);
    refused(&s, "has something else than KV in it, and stays as it is");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 9);
    assert_int_equal(st.st_mode & 0777, 0644);
    unlink(path);
    opened(&d, false);
    refused(&s, "in use by another server");
    disk_slots_close(&d);
    s.path = ".";
    refused(&s, "irectory");
    s.path = "/dev/null";
    refused(&s, "no regular file");
    s.path = "no/such/folder/file";
    refused(&s, "No such file");
    s = setup();
    s.bytes = STRIDE;
    refused(&s, "bytes are not enough: one block takes 20480");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    s = setup();
    refused(&s, "no regular file");
}

static void a_smaller_bound_cuts_it(void **state)
{
    (void)state;
    struct disk_slots_setup s = setup();
    struct disk_slots d;
    struct disk_found f[SLOTS];
    struct stat st;
    opened(&d, false);
    put(&d, 1, 1);
    put(&d, 9, 2);
    disk_slots_close(&d);
    s.bytes = 4096 + 3 * STRIDE + 5;
    assert_int_equal(disk_slots_open(&d, &s, NULL, NULL), 0);
    assert_int_equal(d.n, 3);
    assert_int_equal(found(&d, f), 1);
    assert_int_equal(get(&d, 1, 1), 0);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= 4096 + 3 * STRIDE);
    disk_slots_close(&d);
}

static void what_is_cleared_is_gone(void **state)
{
    (void)state;
    struct disk_slots d;
    struct disk_found f[SLOTS];
    opened(&d, false);
    put(&d, 1, 1);
    assert_int_equal(disk_slots_clear(&d, NULL), 0);
    assert_int_equal(get(&d, 1, 1), E_INPUT);
    put(&d, 3, 2);
    disk_slots_close(&d);
    opened(&d, false);
    assert_int_equal(found(&d, f), 1);
    assert_int_equal(get(&d, 3, 2), 0);
    disk_slots_close(&d);
}

/* Whatever byte of the file is changed, what is read is what was written, or nothing. */
static void no_changed_byte_is_taken_for_kv(void **state)
{
    (void)state;
    struct rng rng;
    rng_init(&rng, 1);
    for (int i = 0; i < 400; i++) {
        struct disk_slots d;
        struct disk_found f[SLOTS];
        unsigned char c;
        unlink(path);
        opened(&d, false);
        for (int k = 0; k < 3; k++)
            put(&d, k, k);
        /* heads of the file and of the slots more often than the rest */
        off_t at = i < 128 ? i : i < 256 ? 4096 + STRIDE + i - 128 : 4096 + (off_t)rng_below(&rng, 3 * STRIDE);
        assert_int_equal(pread(d.fd, &c, 1, at), 1);
        c ^= (unsigned char)(1 << rng_below(&rng, 8));
        assert_int_equal(pwrite(d.fd, &c, 1, at), 1);
        disk_slots_close(&d);
        struct disk_slots_setup s = setup();
        if (disk_slots_open(&d, &s, NULL, NULL)) {
            assert_in_range(at, 0, 15); /* no longer known to be ours */
            continue;
        }
        int whole = 0;
        for (int k = 0, n = found(&d, f); k < n; k++)
            whole += f[k].key.h[0] >= 1000 && f[k].key.h[0] < 1003 && !get(&d, f[k].slot, (int)f[k].key.h[0] - 1000);
        assert_int_equal(whole, at < 80 ? 0 : at < 4096 ? 3 : 2);
        disk_slots_close(&d);
    }
}

/* Writes blocks over each other, and says so after each, for ever. */
static void write_on(const struct disk_slots_setup *s, int first, int say)
{
    struct disk_slots d;
    assert_int_equal(disk_slots_open(&d, s, NULL, NULL), 0);
    for (int i = first;; i++) {
        put(&d, i % SLOTS, i);
        assert_int_equal(write(say, &i, sizeof i), sizeof i);
    }
}

/* A child is killed at any moment: what it has said to be there is whole, and what is torn is not read. The slot that
 * it was writing just then is neither. */
static void a_writer_that_is_killed_leaves_nothing_torn(void **state)
{
    (void)state;
    struct disk_slots_setup s = setup();
    struct disk_found f[SLOTS];
    struct rng rng;
    int n_whole = 0;
    s.payload = 1 << 18;
    s.bytes = 4096 + SLOTS * (s.payload + 4096);
    rng_init(&rng, 2);
    for (int round = 0; round < 20; round++) {
        struct disk_slots d;
        int ends[2], said[SLOTS] = {0}, last = 0, i;
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child)
            write_on(&s, 1 + 10000 * round, ends[1]);
        close(ends[1]);
        if (read(ends[0], &i, sizeof i) == sizeof i) /* it is at work, however slow this machine is */
            said[(last = i) % SLOTS] = i;
        struct timespec t = {.tv_nsec = (long)rng_below(&rng, 20000000)};
        nanosleep(&t, NULL);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(ends[0], &i, sizeof i) == sizeof i)
            said[(last = i) % SLOTS] = i;
        close(ends[0]);
        assert_int_equal(disk_slots_open(&d, &s, NULL, NULL), 0); /* nobody holds it any more */
        for (int k = 0, n = found(&d, f); k < n; k++)
            n_whole += !get(&d, f[k].slot, (int)f[k].key.h[0] - 1000);
        for (int k = 0; k < SLOTS; k++)
            if (said[k] && k != (last + 1) % SLOTS)
                assert_int_equal(get(&d, k, said[k]), 0);
        disk_slots_close(&d);
    }
    assert_true(n_whole > 0);
}

/* ---- with its threads */

static void job_done(void *ctx, struct disk_job *j)
{
    queue_post(ctx, &j);
}

static struct disk_job *awaited(struct queue *q)
{
    struct disk_job *j;
    while (!queue_take(q, &j))
        queue_wait(q, -1);
    return j;
}

static struct disk_job *job(bool write, int n, int host, int slot)
{
    struct disk_job *j = disk_job_new(n);
    j->write = write;
    for (int i = 0; i < n; i++) {
        j->host[i] = host + i;
        j->slots[i] = slot + i;
        j->keys[i] = key_of(slot + i);
    }
    return j;
}

static void blocks_of_host_memory_come_back_whole(void **state)
{
    (void)state;
    enum { LAYERS = 3, BLOCKS = 8, BYTES = 4096 };
    static unsigned char memory[LAYERS][BLOCKS][BYTES], before[LAYERS][BLOCKS][BYTES];
    struct kv_space host = {.base = memory, .block_bytes = BYTES, .n_layers = LAYERS, .n_blocks = BLOCKS};
    struct queue *q = queue_create(sizeof(struct disk_job *), 0, false);
    struct disk_kv_setup s = {.file = setup(), .host = &host, .done = job_done, .ctx = q};
    struct disk_kv *d;
    fill(&memory[0][0][0], sizeof memory, 77);
    memcpy(before, memory, sizeof memory);
    for (int round = 0; round < 2; round++) { /* the second time the server was begun anew */
        assert_int_equal(disk_kv_open(&d, &s, NULL, NULL), 0);
        if (!round)
            disk_kv_post(d, job(true, 4, 0, 3));
        struct disk_job *j = round ? NULL : awaited(q);
        assert_true(!j || j->n_done == 4);
        if (j)
            disk_job_free(j);
        memset(memory, 0, sizeof memory);
        disk_kv_post(d, job(false, 5, 2, 3)); /* the fifth was never written */
        j = awaited(q);
        assert_int_equal(j->n_done, 4);
        assert_int_equal(j->err.code, E_INPUT);
        for (int l = 0; l < LAYERS; l++)
            assert_memory_equal(memory[l][2], before[l][0], 4 * BYTES);
        disk_job_free(j);
        disk_kv_close(d);
    }
    assert_int_equal(disk_kv_open(&d, &s, NULL, NULL), 0);
    disk_kv_clear(d);
    disk_kv_post(d, job(true, 1, 2, 9));
    disk_kv_close(d); /* does what was posted */
    disk_job_free(awaited(q));
    assert_int_equal(disk_kv_open(&d, &s, NULL, NULL), 0);
    struct disk_found f[SLOTS];
    assert_int_equal(disk_slots_scan(disk_kv_slots(d), f), 1);
    assert_int_equal(f[0].slot, 9);
    disk_kv_close(d);
    queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_written_is_found_by_the_next, fresh, gone),
        cmocka_unit_test_setup_teardown(a_key_that_is_there_twice_is_the_newer_one, fresh, gone),
        cmocka_unit_test_setup_teardown(another_model_finds_it_empty, fresh, gone),
        cmocka_unit_test_setup_teardown(files_that_are_none_of_ours_stay_as_they_are, fresh, gone),
        cmocka_unit_test_setup_teardown(a_smaller_bound_cuts_it, fresh, gone),
        cmocka_unit_test_setup_teardown(what_is_cleared_is_gone, fresh, gone),
        cmocka_unit_test_setup_teardown(no_changed_byte_is_taken_for_kv, fresh, gone),
        cmocka_unit_test_setup_teardown(a_writer_that_is_killed_leaves_nothing_torn, fresh, gone),
        cmocka_unit_test_setup_teardown(blocks_of_host_memory_come_back_whole, fresh, gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
