/* Memory with several owners. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/shared.h"
#include "engine/base/thread.h"

static void holds_and_drops(void *arg)
{
    for (int i = 0; i < 100000; i++)
        shared_drop(shared_hold(arg));
    shared_drop(arg);
}

static void the_last_owner_frees(void **state)
{
    (void)state;
    enum { OWNERS = 4 };
    struct thread *threads[OWNERS];
    int *p = shared_new(1000, sizeof *p);
    p[999] = 5;
    for (int i = 0; i < OWNERS; i++)
        assert_int_equal(thread_start(&threads[i], "owner", holds_and_drops, shared_hold(p), NULL), 0);
    for (int i = 0; i < OWNERS; i++)
        thread_join(threads[i]);
    assert_int_equal(p[999], 5);
    assert_int_equal(p[0], 0);
    shared_drop(p);
    assert_null(shared_hold(NULL));
    shared_drop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_last_owner_frees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
