/* Where what was tried on a machine is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/places.h"

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static void the_cache_is_where_it_was_asked_for(void **state)
{
    char home[] = "/tmp/moonshift-places-XXXXXX", should[PATH_MAX], is[PATH_MAX];
    (void)state;
    assert_non_null(mkdtemp(home));
    static const char *const ends[] = {"/a/b", "/moonshift", "/.cache/moonshift"};
    for (int i = 0; i < 3; i++) {
        snprintf(should, sizeof should, "%s%s", home, ends[i]);
        places_cache(i == 0 ? should : NULL, i <= 1 ? home : NULL, home, is);
        assert_string_equal(is, should);
        assert_true(is_folder(is));
    }
    assert_int_equal(rmdir(is), 0);
    static const char *const made[] = {"/.cache", "/moonshift", "/a/b", "/a", ""};
    for (int i = 0; i < 5; i++) {
        snprintf(should, sizeof should, "%s%s", home, made[i]);
        assert_int_equal(rmdir(should), 0);
    }
}

static void without_a_home_there_is_none(void **state)
{
    char is[PATH_MAX], *longest = malloc(2 * PATH_MAX);
    (void)state;
    places_cache(NULL, NULL, NULL, is);
    assert_string_equal(is, "");
    places_cache(NULL, "relative", "also", is);
    assert_string_equal(is, "");
    memset(longest, 'x', 2 * PATH_MAX);
    longest[2 * PATH_MAX - 1] = 0;
    places_cache(longest, NULL, NULL, is);
    assert_string_equal(is, "");
    free(longest);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_cache_is_where_it_was_asked_for),
                                       cmocka_unit_test(without_a_home_there_is_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
