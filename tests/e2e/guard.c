/* The end of the server has a bound whatever hangs: a process whose main thread never looks is ended by its guard, by
 * the second signal or by the time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/serve/guard.h"

static int64_t now_ms(void)
{
    struct clock c;
    clock_init_real(&c);
    return clock_now(&c) / 1000000;
}

/* A child whose main thread is busy for ever with something else. */
static pid_t start_busy(int timeout_s)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) {
        struct guard *g;
        if (guard_start(&g, timeout_s, NULL) || write(ready[1], "x", 1) != 1)
            _exit(9);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

/* Its exit status; -1: a signal killed it. */
static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void a_second_signal_ends_it_at_once(void **state)
{
    (void)state;
    pid_t pid = start_busy(600);
    int64_t begun = now_ms();
    kill(pid, SIGTERM);
    usleep(300000);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0); /* one signal only drains */
    kill(pid, SIGINT);
    assert_int_equal(wait_for(pid), 1);
    assert_true(now_ms() - begun < 60000);
}

static void the_time_ends_it(void **state)
{
    (void)state;
    pid_t pid = start_busy(1);
    int64_t begun = now_ms();
    kill(pid, SIGTERM);
    assert_int_equal(wait_for(pid), 1);
    assert_true(now_ms() - begun >= 1000 + GUARD_GRACE_S * 1000 - 100);
    assert_true(now_ms() - begun < 60000);
}

static void a_third_signal_does_not_wait(void **state)
{
    (void)state;
    pid_t pid = start_busy(600);
    for (int i = 0; i < 3; i++) {
        kill(pid, i % 2 ? SIGINT : SIGTERM);
        usleep(200000);
    }
    assert_int_equal(wait_for(pid), 1);
}

/* What the server hears, and that an end in time leaves nothing behind. */
static void the_server_is_told(void **state)
{
    (void)state;
    struct guard *g;
    assert_int_equal(guard_start(&g, 600, NULL), 0);
    assert_int_equal(guard_take(g), GUARD_NOTHING);
    kill(getpid(), SIGTERM);
    enum guard_word w = GUARD_NOTHING;
    for (int i = 0; i < 1000 && w == GUARD_NOTHING; i++, usleep(10000))
        w = guard_take(g);
    assert_int_equal(w, GUARD_DRAIN);
    guard_note_drain(g);
    kill(getpid(), SIGTERM);
    for (w = GUARD_NOTHING; w == GUARD_NOTHING; usleep(10000))
        w = guard_take(g);
    assert_int_equal(w, GUARD_STOP);
    guard_end(g);
    guard_end(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_signal_ends_it_at_once),
        cmocka_unit_test(the_time_ends_it),
        cmocka_unit_test(a_third_signal_does_not_wait),
        cmocka_unit_test(the_server_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
