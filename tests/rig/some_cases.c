/* Which cases of a program run: MOONSHIFT_TEST_ONLY names those that do where all would take too long;
 * MOONSHIFT_TEST_SOME the same, but for `./test wide`. tests/CMakeLists.txt links it and sets them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

__attribute__((constructor)) static void choose_cases(void)
{
    const char *only = getenv("MOONSHIFT_TEST_ONLY"), *some = getenv("MOONSHIFT_TEST_SOME");
    if (some && *some && !getenv("MOONSHIFT_WIDE"))
        cmocka_set_test_filter(some);
    if (only && *only)
        cmocka_set_test_filter(only);
}
