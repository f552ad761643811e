/* The word that a wrong one stands for: by letters put in, left out, replaced, or in the wrong order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/nearest.h"

static void the_nearest_is_found(void **state)
{
    static const char *const words[] = {"from", "port", "host", "max-num-seqs", "ms", "s", "tokens/step"};
    static const struct {
        const char *wrong, *right;
    } cases[] = {
        {"prot", "port"},
        {"prt", "port"},
        {"poort", "port"},
        {"hose", "host"},
        {"form", "from"},
        {"max-nums-eqs", "max-num-seqs"},
        {"token/step", "tokens/step"},
        {"sm", "ms"},
        {"mss", "ms"},
        {"port", "port"},
        {"furlongs", NULL},
        {"", NULL},
        {"a-word-that-is-longer-than-any-of-those-that-are-known", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = nearest_word(cases[i].wrong, words, sizeof words / sizeof *words);
        if ((found == NULL) != (cases[i].right == NULL) || (found && strcmp(found, cases[i].right) != 0))
            fail_msg("%s: %s", cases[i].wrong, found ? found : "nothing");
    }
}

/* Of those that are as near the first one, so that the same is said everywhere. */
static void ties_go_to_the_first(void **state)
{
    static const char *const words[] = {"cat", "car", "can"};
    (void)state;
    assert_string_equal(nearest_word("cab", words, 3), "cat");
    assert_null(nearest_word("cab", words, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_is_found),
        cmocka_unit_test(ties_go_to_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
