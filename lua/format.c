#include "lua/sandbox.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_RESULT = 16 << 10 };

struct out {
    lua_State *L;
    size_t n;
    char text[MAX_RESULT];
};

static void put(struct out *o, const char *s, size_t n)
{
    if (n > sizeof o->text - o->n)
        luaL_error(o->L, "string.format: the result is longer than %d bytes", MAX_RESULT);
    memcpy(o->text + o->n, s, n);
    o->n += n;
}

/* One conversion: the text of its flags, width and precision, checked. */
struct spec {
    char text[16]; /* "%-08.3" and room for "ll" and the letter */
    size_t n;
    char letter;
};

static const char *parse_digits(const char *p, struct spec *s)
{
    for (int i = 0; i < 2 && *p >= '0' && *p <= '9'; i++)
        s->text[s->n++] = *p++;
    return p;
}

static const char *parse_spec(lua_State *L, const char *p, struct spec *s)
{
    s->n = 0;
    s->text[s->n++] = '%';
    for (int i = 0; i < 4 && *p && strchr("-+ #0", *p); i++)
        s->text[s->n++] = *p++;
    p = parse_digits(p, s);
    if (*p == '.') {
        s->text[s->n++] = *p++;
        p = parse_digits(p, s);
    }
    s->letter = *p;
    if (!*p || !strchr("diuxXocsfFeEgG", *p)) {
        char shown[8] = {*p >= 0x20 && *p < 0x7f ? *p : '?'};
        luaL_error(L, "string.format: '%%%s' is not offered (d i u x X o c s f e g, widths of at most 2 digits)",
                   shown);
    }
    return p + 1;
}

static void finish_spec(struct spec *s, const char *length, char letter)
{
    size_t n = strlen(length);
    memcpy(s->text + s->n, length, n);
    s->text[s->n + n] = letter;
    s->text[s->n + n + 1] = 0;
}

static void put_integer(struct out *o, struct spec *s, double v)
{
    if (!(fabs(v) < 9.2e18))
        luaL_error(o->L, "string.format: %%%c needs a number that fits 64 bits", s->letter);
    char text[128];
    finish_spec(s, "ll", s->letter);
    put(o, text, (size_t)snprintf(text, sizeof text, s->text, (long long)v));
}

static void put_float(struct out *o, struct spec *s, double v)
{
    char text[512]; /* %99.99f of 1e308 */
    finish_spec(s, "", s->letter);
    put(o, text, (size_t)snprintf(text, sizeof text, s->text, v));
}

static void put_text(struct out *o, struct spec *s, int arg)
{
    lua_State *L = o->L;
    size_t n;
    sandbox_tostring(L, arg);
    const char *t = lua_tolstring(L, -1, &n);
    if (s->n == 1)
        put(o, t, n); /* a bare %s keeps every byte, NULs too */
    else {
        char text[256];
        finish_spec(s, "", 's');
        int len = snprintf(text, sizeof text, s->text, t);
        put(o, len < (int)sizeof text ? text : t, len < (int)sizeof text ? (size_t)len : strlen(t));
    }
    lua_pop(L, 1);
}

static void put_argument(struct out *o, struct spec *s, int arg)
{
    lua_State *L = o->L;
    switch (s->letter) {
    case 's':
        luaL_checkany(L, arg);
        put_text(o, s, arg);
        break;
    case 'c': {
        double v = luaL_checknumber(L, arg);
        if (!(v >= 0 && v <= 255))
            luaL_error(L, "string.format: %%c needs a number from 0 to 255");
        char c = (char)(int)v;
        put(o, &c, 1);
        break;
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        put_integer(o, s, luaL_checknumber(L, arg));
        break;
    default:
        put_float(o, s, luaL_checknumber(L, arg));
    }
}

int sandbox_format(lua_State *L)
{
    size_t n;
    const char *p = luaL_checklstring(L, 1, &n), *end = p + n;
    /* On the C stack: it is dropped whole when an argument raises. */
    struct out o;
    o.L = L;
    o.n = 0;
    for (int arg = 1; p < end;) {
        if (*p != '%') {
            const char *q = memchr(p, '%', (size_t)(end - p));
            put(&o, p, (size_t)((q ? q : end) - p));
            p = q ? q : end;
        } else if (p[1] == '%') {
            put(&o, "%", 1);
            p += 2;
        } else {
            struct spec s;
            p = parse_spec(L, p + 1, &s);
            put_argument(&o, &s, ++arg);
        }
    }
    lua_pushlstring(L, o.text, o.n);
    return 1;
}
