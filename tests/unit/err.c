/* Error values: codes pass through, texts are cut and never overrun, a NULL holder is allowed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"

static void set_returns_the_code(void **state)
{
    (void)state;
    struct err e = {0};
    assert_int_equal(err_set(&e, E_INPUT, "line %d: %s", 7, "bad"), E_INPUT);
    assert_int_equal(e.code, E_INPUT);
    assert_string_equal(e.text, "line 7: bad");
    assert_int_equal(err_set(NULL, E_FULL, "dropped"), E_FULL);
    assert_int_equal(err_prefix(NULL, E_GONE, "dropped"), E_GONE);
}

static void prefixes_stack_up(void **state)
{
    (void)state;
    struct err e = {0};
    err_set(&e, E_SYS, "no space");
    assert_int_equal(err_prefix(&e, E_INPUT, "tensor %s", "a"), E_SYS);
    err_prefix(&e, E_INPUT, "file %s", "m.gguf");
    assert_string_equal(e.text, "file m.gguf: tensor a: no space");
    struct err none = {0};
    assert_int_equal(err_prefix(&none, E_DEVICE, "head"), E_DEVICE);
}

static void long_texts_are_cut(void **state)
{
    (void)state;
    struct {
        struct err e;
        char guard[16];
    } box;
    memset(&box, 0x55, sizeof box);
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    err_set(&box.e, E_INPUT, "%s", big);
    assert_int_equal(strlen(box.e.text), sizeof box.e.text - 1);
    for (int i = 0; i < 4; i++)
        err_prefix(&box.e, E_INPUT, "head%d %s", i, big);
    assert_int_equal(strlen(box.e.text), sizeof box.e.text - 1);
    assert_int_equal(strncmp(box.e.text, "head3 x", 7), 0);
    for (size_t i = 0; i < sizeof box.guard; i++)
        assert_int_equal(box.guard[i], 0x55);
}

static void every_code_has_a_name(void **state)
{
    (void)state;
    for (int c = E_PEER; c <= 0; c++)
        for (int d = E_PEER; d < c; d++)
            assert_string_not_equal(err_name(c), err_name(d));
    assert_string_equal(err_name(12345), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_returns_the_code),
        cmocka_unit_test(prefixes_stack_up),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(every_code_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
