/* Threads: they run, they carry their name, they block every signal, they are joined. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>

#include <cmocka.h>

#include "engine/base/thread.h"

struct seen {
    char name[17];
    int blocked_term, blocked_int, cores, pinned;
};

static void look(void *p)
{
    struct seen *s = p;
    sigset_t set;
    prctl(PR_GET_NAME, s->name);
    sigprocmask(SIG_BLOCK, NULL, &set);
    s->blocked_term = sigismember(&set, SIGTERM);
    s->blocked_int = sigismember(&set, SIGINT);
    s->pinned = thread_pin_self(1);
    s->cores = thread_cores();
}

static void a_thread_is_what_was_asked_for(void **state)
{
    (void)state;
    struct seen s = {0};
    struct thread *t;
    int before = thread_cores();
    assert_true(before >= 1);
    assert_int_equal(thread_start(&t, "a-rather-long-name-of-it", look, &s, NULL), 0);
    thread_join(t);
    assert_string_equal(s.name, "a-rather-long-n");
    assert_true(s.blocked_term == 1 && s.blocked_int == 1);
    if (s.pinned)
        assert_int_equal(s.cores, 1);
    assert_int_equal(thread_cores(), before); /* only itself was pinned */
    sigset_t set;
    sigprocmask(SIG_BLOCK, NULL, &set);
    assert_int_equal(sigismember(&set, SIGTERM), 0);
    thread_join(NULL);
}

static void add(void *p)
{
    __atomic_fetch_add((int *)p, 1, __ATOMIC_RELAXED);
}

static void many_threads(void **state)
{
    (void)state;
    struct thread *t[64];
    int sum = 0;
    for (int i = 0; i < 64; i++)
        assert_int_equal(thread_start(&t[i], "adder", add, &sum, NULL), 0);
    for (int i = 0; i < 64; i++)
        thread_join(t[i]);
    assert_int_equal(sum, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_is_what_was_asked_for),
        cmocka_unit_test(many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
