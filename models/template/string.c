#include "models/template/string.h"

#include <stdint.h>
#include <string.h>

#include "engine/base/utf8.h"

static const char *put_code_point(struct buf *out, uint32_t cp)
{
    char bytes[4];
    if (cp > 0x10FFFF)
        return "an escape past the last Unicode character";
    if (cp >= 0xD800 && cp < 0xE000)
        return "an escape that is half a surrogate pair";
    buf_put(out, bytes, (size_t)utf8_encode(cp, bytes));
    return NULL;
}

/* digits hex digits at s. */
static const char *put_hex(struct buf *out, const char *s, size_t n, size_t digits)
{
    uint32_t cp = 0;
    if (n < digits)
        return "a cut escape in a string";
    for (size_t i = 0; i < digits; i++) {
        int d = s[i] >= '0' && s[i] <= '9'                 ? s[i] - '0'
                : (s[i] | 32) >= 'a' && (s[i] | 32) <= 'f' ? (s[i] | 32) - 'a' + 10
                                                           : -1;
        if (d < 0)
            return "an escape in a string with something else than hex digits";
        cp = cp << 4 | (uint32_t)d;
    }
    return put_code_point(out, cp);
}

static size_t octal(const char *s, size_t n, uint32_t *cp)
{
    size_t i = 0;
    for (*cp = 0; i < n && i < 3 && s[i] >= '0' && s[i] <= '7'; i++)
        *cp = *cp << 3 | (uint32_t)(s[i] - '0');
    return i;
}

/* jinja2 turns what is past ASCII into escapes before Python resolves them, so a backslash before such a
 * character meets another backslash, and the character's escape stays as text. */
static void put_unmasked(struct buf *out, uint32_t cp)
{
    buf_printf(out, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)cp);
}

/* The escape whose letter is s[0]; *used: how many bytes it takes. */
static const char *put_escape(struct buf *out, const char *s, size_t n, size_t *used)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = s[0] ? strchr(from, s[0]) : NULL;
    uint32_t cp;
    *used = 1;
    if (p) {
        buf_putc(out, to[p - from]);
        return NULL;
    }
    switch (s[0]) {
    case '\n':
        return NULL;
    case 'x':
        *used = 3;
        return put_hex(out, s + 1, n - 1, 2);
    case 'u':
        *used = 5;
        return put_hex(out, s + 1, n - 1, 4);
    case 'U':
        *used = 9;
        return put_hex(out, s + 1, n - 1, 8);
    case 'N':
        return "\\N{...} in a string is not offered; write \\u and its number";
    }
    if (s[0] >= '0' && s[0] <= '7') {
        *used = octal(s, n, &cp);
        return put_code_point(out, cp);
    }
    if ((unsigned char)s[0] >= 0x80) {
        *used = (size_t)utf8_decode(s, n, &cp);
        put_unmasked(out, cp);
        return NULL;
    }
    buf_putc(out, '\\');
    buf_putc(out, s[0]);
    return NULL;
}

const char *jinja_unescape(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\' || i + 1 >= n) {
            buf_putc(out, s[i++]);
            continue;
        }
        size_t used;
        const char *why = put_escape(out, s + i + 1, n - i - 1, &used);
        if (why)
            return why;
        i += 1 + used;
    }
    return NULL;
}
