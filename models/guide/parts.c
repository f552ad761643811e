#include "models/guide/parts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"

void parts_free(struct parts *p)
{
    mem_free(p->list);
}

int parts_add(struct parts *p, enum part_kind kind)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 32;
        p->list = mem_resize(p->list, (size_t)p->cap, sizeof *p->list);
    }
    p->list[p->n] = (struct part){.kind = kind, .last = -1, .prev = -1};
    return p->n++;
}

void parts_hang(struct parts *p, int parent, int child)
{
    p->list[child].prev = p->list[parent].last;
    p->list[parent].last = child;
}

static void set_add(struct grammar_set *s, int from, int to)
{
    for (int b = from; b <= to; b++)
        s->bits[b >> 6] |= (uint64_t)1 << (b & 63);
}

static int add_bytes(struct parts *p, int from, int to)
{
    int part = parts_add(p, PART_CHARS);
    set_add(&p->list[part].set, from, to);
    return part;
}

int parts_byte(struct parts *p, unsigned char b)
{
    return add_bytes(p, b, b);
}

int parts_code(struct parts *p, uint32_t code)
{
    char bytes[4];
    int n = utf8_encode(code, bytes);
    if (n == 1)
        return parts_byte(p, (unsigned char)bytes[0]);
    int all = parts_add(p, PART_ALL_OF);
    for (int i = 0; i < n; i++)
        parts_hang(p, all, parts_byte(p, (unsigned char)bytes[i]));
    return all;
}

/* ---- classes */

void char_class_add(struct char_class *c, uint32_t from, uint32_t to)
{
    if (c->n == c->cap) {
        c->cap = c->cap ? 2 * c->cap : 8;
        c->ranges = mem_resize(c->ranges, (size_t)c->cap, sizeof *c->ranges);
    }
    c->ranges[c->n++] = (struct char_range){from, to};
}

void char_class_free(struct char_class *c)
{
    mem_free(c->ranges);
}

static int by_from(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void sort_out(struct char_class *c)
{
    int n = 0;
    if (c->n)
        qsort(c->ranges, (size_t)c->n, sizeof *c->ranges, by_from);
    for (int i = 0; i < c->n; i++) {
        struct char_range r = c->ranges[i];
        if (n && r.from <= c->ranges[n - 1].to + 1)
            c->ranges[n - 1].to = r.to > c->ranges[n - 1].to ? r.to : c->ranges[n - 1].to;
        else
            c->ranges[n++] = r;
    }
    c->n = n;
}

static void invert(struct char_class *c)
{
    struct char_class other = {0};
    uint32_t next = 0;
    for (int i = 0; i < c->n; i++) {
        if (c->ranges[i].from > next)
            char_class_add(&other, next, c->ranges[i].from - 1);
        next = c->ranges[i].to + 1;
    }
    if (next <= CODE_MOST)
        char_class_add(&other, next, CODE_MOST);
    char_class_free(c);
    *c = other;
}

/* Code points whose bytes are as many, and of which each byte's range is free of the others': one behind the other. */
static void hang_bytes(struct parts *p, int ways, uint32_t from, uint32_t to)
{
    char low[4], high[4];
    int n = utf8_encode(from, low), all = parts_add(p, PART_ALL_OF);
    utf8_encode(to, high);
    for (int i = 0; i < n; i++)
        parts_hang(p, all, add_bytes(p, (unsigned char)low[i], (unsigned char)high[i]));
    parts_hang(p, ways, all);
}

/* Cuts a range where the number of bytes changes, and where a byte would depend on the one before it. */
static void hang_range(struct parts *p, int ways, uint32_t from, uint32_t to)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF};
    if (from > to || (from >= 0xD800 && to <= 0xDFFF)) /* surrogates are no characters */
        return;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (from <= ends[i] && to > ends[i]) {
            hang_range(p, ways, from, ends[i]);
            hang_range(p, ways, ends[i] + 1, to);
            return;
        }
    for (int bits = 6; bits <= 18 && to > 0x7F; bits += 6) {
        uint32_t below = (1u << bits) - 1;
        if ((from & ~below) == (to & ~below))
            break;
        uint32_t cut = from & below ? from | below : (to & below) != below ? (to & ~below) - 1 : to;
        if (cut < to) {
            hang_range(p, ways, from, cut);
            hang_range(p, ways, cut + 1, to);
            return;
        }
    }
    hang_bytes(p, ways, from, to);
}

int parts_class(struct parts *p, struct char_class *c, bool inverted)
{
    sort_out(c);
    if (inverted)
        invert(c);
    struct grammar_set set = {{0}};
    int n = 0;
    for (; n < c->n && c->ranges[n].from < 0x80; n++)
        set_add(&set, (int)c->ranges[n].from, c->ranges[n].to < 0x7F ? (int)c->ranges[n].to : 0x7F);
    int ascii = parts_add(p, PART_CHARS);
    p->list[ascii].set = set;
    if (n && c->ranges[n - 1].to > 0x7F)
        c->ranges[--n].from = 0x80;
    p->list[ascii].wide = n < c->n && c->ranges[n].from == 0x80 && c->ranges[n].to == CODE_MOST;
    if (n == c->n || p->list[ascii].wide)
        return ascii;
    int ways = parts_add(p, PART_ONE_OF);
    parts_hang(p, ways, ascii);
    for (; n < c->n; n++)
        hang_range(p, ways, c->ranges[n].from, c->ranges[n].to);
    return ways;
}

/* ---- making */

static void take_out(struct grammar_set *s, int from, int to)
{
    for (int b = from; b <= to; b++)
        s->bits[b >> 6] &= ~((uint64_t)1 << (b & 63));
}

/* In a JSON string these come as two characters. */
static int32_t make_escapes(struct grammar_maker *m, const struct grammar_set *s, int32_t all, int32_t next)
{
    static const char plain[] = "\"\\\n\t\r", escaped[] = "\"\\ntr";
    for (int i = 0; plain[i]; i++)
        if (grammar_set_has(s, (unsigned char)plain[i])) {
            char two[] = {'\\', escaped[i]};
            all = grammar_split(m, all, grammar_text(m, two, 2, next));
        }
    return all;
}

static int32_t make_chars(const struct parts *parts, struct grammar_maker *m, const struct part *p, int32_t next)
{
    struct grammar_set s = p->set;
    if (parts->in_string) {
        take_out(&s, 0, 0x1F);
        take_out(&s, '"', '"');
        take_out(&s, '\\', '\\');
    }
    int32_t all = grammar_set(m, &s, next);
    if (parts->in_string)
        all = make_escapes(m, &p->set, all, next);
    return p->wide ? grammar_split(m, all, grammar_wide(m, next)) : all;
}

static int32_t make_repeat(const struct parts *parts, struct grammar_maker *m, const struct part *p, int32_t next)
{
    int32_t first = next;
    if (p->max < 0) {
        first = grammar_open(m, next);
        grammar_close(m, first, parts_make(parts, m, p->last, first));
    }
    for (int i = p->min; i < p->max && !m->over; i++)
        first = grammar_split(m, parts_make(parts, m, p->last, first), next);
    for (int i = 0; i < p->min && !m->over; i++)
        first = parts_make(parts, m, p->last, first);
    return first;
}

int32_t parts_make(const struct parts *parts, struct grammar_maker *m, int part, int32_t next)
{
    const struct part *p = &parts->list[part];
    int32_t first = -1;
    switch (p->kind) {
    case PART_CHARS:
        return make_chars(parts, m, p, next);
    case PART_REPEAT:
        return make_repeat(parts, m, p, next);
    case PART_CALL:
        return grammar_call(m, p->rule, next);
    case PART_ALL_OF:
        for (int c = p->last; c >= 0; c = parts->list[c].prev)
            next = parts_make(parts, m, c, next);
        return next;
    case PART_ONE_OF:
        for (int c = p->last; c >= 0; c = parts->list[c].prev) {
            int32_t way = parts_make(parts, m, c, next);
            first = first < 0 ? way : grammar_split(m, way, first);
        }
        return first;
    }
    return next;
}
