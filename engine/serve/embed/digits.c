#include "engine/serve/embed/digits.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats go out as they lie in memory");

static const char hundred[] =
    "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445"
    "46474849505152535455565758596061626364656667686970717273747576777879808182838485868788899091"
    "9293949596979899";

/* 10^k is exact in a double up to 22. */
static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Nine digits, the first of which is not 0. */
static void put_nine(char *out, uint32_t m)
{
    for (int i = 7; i >= 1; i -= 2) {
        memcpy(out + i, hundred + 2 * (m % 100), 2);
        m /= 100;
    }
    out[0] = (char)('0' + m);
}

/* v in [1e-5, 1): 0.000123456789. The product with a power of ten is rounded once, by 2^-53, so the ninth digit is off
 * by a little more than half of one at most: 0.51e-8 of v, where floats are 5.9e-8 of v apart (2.9e-8 to the middle,
 * below a power of two). Nor does it become a tenth: the float below 10^-k is further away from it. */
static size_t put_fraction(char *out, double v)
{
    int zeros = v >= 0.1 ? 0 : v >= 0.01 ? 1 : v >= 0.001 ? 2 : v >= 0.0001 ? 3 : 4;
    uint32_t m = (uint32_t)(v * tens[9 + zeros] + 0.5);
    memcpy(out, "0.0000", 6);
    size_t n = 2 + (size_t)zeros;
    put_nine(out + n, m);
    n += 9;
    while (out[n - 1] == '0')
        n--;
    return n;
}

size_t digits_put(char *out, float v)
{
    double a = fabs((double)v);
    size_t sign = signbit(v) != 0;
    ASSERT(isfinite(v));
    if (a >= 1e-5 && a < 1) {
        out[0] = '-';
        return sign + put_fraction(out + sign, a);
    }
    char text[32];
    int n = snprintf(text, sizeof text, "%.9g", (double)v);
    if (!memchr(text, '.', (size_t)n) && !memchr(text, 'e', (size_t)n)) {
        memcpy(text + n, ".0", 2);
        n += 2;
    }
    memcpy(out, text, (size_t)n);
    return (size_t)n;
}

void digits_put_floats(struct buf *out, const float *v, int n)
{
    buf_putc(out, '[');
    if (!buf_reserve(out, (size_t)n * (DIGITS_FLOAT + 1)))
        return;
    for (int i = 0; i < n; i++) {
        if (i)
            out->data[out->len++] = ',';
        out->len += digits_put(out->data + out->len, v[i]);
    }
    buf_putc(out, ']');
}

void digits_put_base64(struct buf *out, const float *v, int n)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *in = (const uint8_t *)v;
    size_t bytes = (size_t)n * sizeof *v, i = 0;
    buf_putc(out, '"');
    if (!buf_reserve(out, (bytes + 2) / 3 * 4))
        return;
    char *to = out->data + out->len;
    for (; i + 3 <= bytes; i += 3, to += 4) {
        uint32_t x = (uint32_t)in[i] << 16 | (uint32_t)in[i + 1] << 8 | in[i + 2];
        to[0] = alphabet[x >> 18];
        to[1] = alphabet[x >> 12 & 63];
        to[2] = alphabet[x >> 6 & 63];
        to[3] = alphabet[x & 63];
    }
    if (i < bytes) {
        uint32_t x = (uint32_t)in[i] << 16 | (i + 1 < bytes ? (uint32_t)in[i + 1] << 8 : 0);
        to[0] = alphabet[x >> 18];
        to[1] = alphabet[x >> 12 & 63];
        to[2] = i + 1 < bytes ? alphabet[x >> 6 & 63] : '=';
        to[3] = '=';
        to += 4;
    }
    out->len = (size_t)(to - out->data);
    buf_putc(out, '"');
}
