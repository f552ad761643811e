#include "engine/base/utf8.h"

#include <stdio.h>
#include <string.h>

int utf8_decode(const char *str, size_t n, uint32_t *cp)
{
    const unsigned char *s = (const unsigned char *)str;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    int len = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4)
        return -1;
    uint32_t v = s[0] & (0x7F >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        unsigned lo = 0x80, hi = 0xBF;
        if (i == 1) { /* the second byte rules out overlong forms, surrogates and values past U+10FFFF */
            lo = s[0] == 0xE0 ? 0xA0 : s[0] == 0xF0 ? 0x90 : 0x80;
            hi = s[0] == 0xED ? 0x9F : s[0] == 0xF4 ? 0x8F : 0xBF;
        }
        if (s[i] < lo || s[i] > hi)
            return -1;
        v = v << 6 | (s[i] & 0x3F);
    }
    *cp = v;
    return len;
}

int utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool utf8_valid(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0)
            return false;
        i += (size_t)len;
    }
    return true;
}

size_t utf8_whole(const char *s, size_t n)
{
    uint32_t cp;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = (unsigned char)s[n - back];
        if ((c & 0xC0) == 0x80)
            continue;
        return utf8_decode(s + n - back, back, &cp) == 0 ? n - back : n;
    }
    return n;
}

bool utf8_is_seen(uint32_t cp)
{
    int lo = 0, hi = n_utf8_unseen;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (utf8_unseen[mid][1] < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo == n_utf8_unseen || cp < utf8_unseen[lo][0];
}

size_t utf8_show(char *out, size_t cap, const char *text, size_t n)
{
    size_t o = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        char escaped[16];
        const char *shown = escaped;
        int len = utf8_decode(text + i, n - i, &cp), need = len;
        if (len > 0 && utf8_is_seen(cp))
            shown = text + i;
        else if (len > 1)
            need = snprintf(escaped, sizeof escaped, "\\u{%x}", (unsigned)cp);
        else
            need = snprintf(escaped, sizeof escaped, "\\x%02x", (unsigned char)text[i]);
        if (o + (size_t)need + 4 > cap) {
            memcpy(out + o, "...", 3);
            o += 3;
            break;
        }
        memcpy(out + o, shown, (size_t)need);
        o += (size_t)need;
        i += len > 0 ? (size_t)len : 1;
    }
    out[o] = 0;
    return o;
}
