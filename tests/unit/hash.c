/* SHA-256 against the published examples, and the constant-time comparison. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/hash.h"

static void published_examples(void **state)
{
    (void)state;
    static const struct {
        const char *text, *hex;
    } rows[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char hex[65];
        struct sha256 h = hash_sha256(rows[i].text, strlen(rows[i].text));
        hash_hex(&h, hex);
        assert_string_equal(hex, rows[i].hex);
    }
}

static void equality_sees_every_bit(void **state)
{
    (void)state;
    struct sha256 a = hash_sha256("x", 1), b = a;
    assert_true(hash_equal(&a, &b));
    for (int bit = 0; bit < 256; bit++) {
        b.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_false(hash_equal(&a, &b));
        b.bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    struct sha256 none = hash_sha256(NULL, 0), empty = hash_sha256("", 0);
    assert_true(hash_equal(&none, &empty));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples),
        cmocka_unit_test(equality_sees_every_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
