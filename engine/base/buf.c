#include "engine/base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"

void buf_init(struct buf *b)
{
    memset(b, 0, sizeof *b);
}

void buf_free(struct buf *b)
{
    mem_free(b->data);
    *b = (struct buf){.limit = b->limit};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->over = false;
    if (b->data)
        b->data[0] = 0;
}

/* Within its limit, where it has one: then no memory is no bug. */
static bool try_grow(struct buf *b, size_t need, size_t cap)
{
    size_t most = b->limit + 1;
    cap = cap < most ? cap : most;
    char *p = need <= most ? mem_try_resize(b->data, cap, 1) : NULL;
    b->over = p == NULL;
    if (p) {
        b->data = p;
        b->cap = cap;
    }
    return p != NULL;
}

bool buf_reserve(struct buf *b, size_t more)
{
    size_t need = b->len + more + 1;
    ASSERT(need > more && need < SIZE_MAX / 4);
    if (b->over || need <= b->cap)
        return !b->over;
    size_t cap = b->cap ? b->cap * 2 : 64;
    while (cap < need)
        cap *= 2;
    if (b->limit)
        return try_grow(b, need, cap);
    b->data = mem_resize(b->data, cap, 1);
    b->cap = cap;
    return true;
}

void buf_put(struct buf *b, const void *p, size_t n)
{
    if (!buf_reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, p, n);
    b->len += n;
    b->data[b->len] = 0;
}

void buf_puts(struct buf *b, const char *s)
{
    buf_put(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c)
{
    buf_put(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    ASSERT(n >= 0);
    if (buf_reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_put_u64(struct buf *b, unsigned long long v)
{
    char tmp[20];
    int i = 20;
    do
        tmp[--i] = (char)('0' + v % 10);
    while (v /= 10);
    buf_put(b, tmp + i, (size_t)(20 - i));
}

/* Writes the escape of one ASCII character that may not stand bare in a JSON string. */
static void put_escape(struct buf *b, unsigned char c)
{
    static const char short_form[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (int i = 0; short_form[i]; i += 2)
        if ((unsigned char)short_form[i] == c) {
            buf_putc(b, '\\');
            buf_putc(b, short_form[i + 1]);
            return;
        }
    static const char hex[] = "0123456789abcdef";
    char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
    buf_put(b, u, 6);
}

void buf_put_json(struct buf *b, const char *s, size_t n)
{
    buf_reserve(b, n + 2);
    buf_putc(b, '"');
    size_t run = 0;
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)s[i];
        uint32_t cp = c;
        int len = c < 0x80 ? 1 : utf8_decode(s + i, n - i, &cp);
        bool control = cp < 0x20 || (cp >= 0x7F && cp < 0xA0); /* C1 too: a terminal may obey it */
        if (len >= 1 && !control && c != '"' && c != '\\') {
            i += (size_t)len;
            continue;
        }
        buf_put(b, s + run, i - run);
        if (len >= 1)
            put_escape(b, (unsigned char)cp);
        else
            buf_puts(b, "\xEF\xBF\xBD");
        run = i += len >= 1 ? (size_t)len : 1;
    }
    if (run < n)
        buf_put(b, s + run, n - run);
    buf_putc(b, '"');
}

void buf_cut(struct buf *b, size_t n)
{
    ASSERT(n <= b->len);
    if (!n)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

char *buf_take(struct buf *b)
{
    b->over = false;
    b->limit = 0;
    buf_reserve(b, 0);
    b->data[b->len] = 0;
    char *p = b->data;
    buf_init(b);
    return p;
}

bool buf_equals(const struct buf *b, const char *s)
{
    return b->len == strlen(s) && (b->len == 0 || memcmp(b->data, s, b->len) == 0);
}
