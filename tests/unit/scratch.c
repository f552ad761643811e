/* Folders for a while: gone with all that is in them, also those of a process that was killed, but not those in use. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/scratch.h"

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void put_file(const char *folder, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("something", f);
    fclose(f);
}

static void put_folder(const char *folder, const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
    put_file(path, "deep");
}

static void make(struct scratch *s)
{
    struct err e = {0};
    if (scratch_open(s, &e))
        fail_msg("%s", e.text);
    put_file(s->path, "file");
    put_folder(s->path, "folder");
}

/* As if nothing had been written there for so many seconds. */
static void age(const char *path, int seconds)
{
    struct timespec then = {.tv_sec = time(NULL) - seconds}, both[2] = {then, then};
    assert_int_equal(utimensat(AT_FDCWD, path, both, 0), 0);
}

static void it_goes_with_all_that_is_in_it(void **state)
{
    (void)state;
    struct scratch s;
    struct stat st;
    char path[SCRATCH_PATH];
    make(&s);
    memcpy(path, s.path, sizeof path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_true(scratch_close(&s));
    assert_false(is_there(path));
    assert_true(scratch_close(&s)); /* again: there is none */
}

/* Makes one and dies; its path. */
static void make_and_die(char path[SCRATCH_PATH])
{
    int ends[2], status;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        struct scratch s;
        make(&s);
        if (write(ends[1], s.path, SCRATCH_PATH) == SCRATCH_PATH)
            raise(SIGKILL);
    }
    assert_int_equal(read(ends[0], path, SCRATCH_PATH), SCRATCH_PATH);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    close(ends[0]), close(ends[1]);
}

static void what_the_killed_leave_is_removed(void **state)
{
    (void)state;
    struct scratch own, next;
    char old[SCRATCH_PATH], young[SCRATCH_PATH];
    make(&own);
    make_and_die(old);
    make_and_die(young);
    assert_true(is_there(old) && is_there(young));
    age(own.path, 3600);
    age(old, 3600);
    make(&next);
    assert_false(is_there(old));
    assert_true(is_there(young)); /* whoever made it may be about to lock it */
    assert_true(is_there(own.path));
    age(young, 3600);
    assert_true(scratch_close(&next));
    make(&next);
    assert_false(is_there(young));
    assert_true(scratch_close(&next) && scratch_close(&own));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_goes_with_all_that_is_in_it),
        cmocka_unit_test(what_the_killed_leave_is_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
