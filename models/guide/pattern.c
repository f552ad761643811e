#include "models/guide/pattern.h"

#include <string.h>

#include "engine/base/utf8.h"

int pattern_bad(const struct pattern *p, const char *why)
{
    return p->how->bad(p, p->at, why);
}

static void skip(struct pattern *p)
{
    if (p->how->skip)
        p->how->skip(p);
}

int pattern_plain(struct pattern *p, uint32_t *out)
{
    int n = utf8_decode(p->s + p->at, p->n - p->at, out);
    if (n <= 0)
        return pattern_bad(p, "this is no UTF-8");
    p->at += (size_t)n;
    return 0;
}

static int read_members(struct pattern *p, struct char_class *c)
{
    for (size_t first = p->at; !pattern_is_next(p, ']') || (p->how->first_counts && p->at == first);) {
        uint32_t from, to;
        if (p->at >= p->n)
            return pattern_bad(p, "a class has no end");
        if (p->how->kind && p->s[p->at] == '[' && p->at + 1 < p->n && p->s[p->at + 1] == ':')
            return pattern_bad(p, "named classes are not supported");
        if (p->how->kind && p->how->kind(p, c))
            continue;
        TRY(p->how->character(p, &from));
        to = from;
        if (pattern_is_next(p, '-') && p->at + 1 < p->n && p->s[p->at + 1] != ']') {
            p->at++;
            TRY(p->how->character(p, &to));
        }
        if (to < from)
            return pattern_bad(p, "a range runs backwards");
        char_class_add(c, from, to);
    }
    p->at++;
    return 0;
}

int pattern_class(struct pattern *p, int *out)
{
    struct char_class c = {0};
    bool inverted = pattern_is_next(p, '^');
    p->at += inverted;
    int rc = read_members(p, &c);
    if (!rc)
        *out = parts_class(&p->parts, &c, inverted);
    char_class_free(&c);
    return rc;
}

static int read_group(struct pattern *p, int *out)
{
    p->at++;
    TRY(p->how->open(p));
    if (++p->depth > PARTS_MOST_DEPTH)
        return pattern_bad(p, "groups are nested too deeply");
    TRY(pattern_read(p, out));
    p->depth--;
    if (!pattern_is_next(p, ')'))
        return pattern_bad(p, "a group has no end");
    p->at++;
    return 0;
}

static int read_number(struct pattern *p, int *out)
{
    size_t first = p->at;
    for (*out = 0; p->at < p->n && p->s[p->at] >= '0' && p->s[p->at] <= '9'; p->at++)
        if ((*out = *out * 10 + p->s[p->at] - '0') > PARTS_MOST_REPEATS)
            return pattern_bad(p, "too many repetitions; 1000 is the most");
    return p->at == first ? pattern_bad(p, "a number is missing") : 0;
}

/* {m}, {m,}, {m,n} */
static int read_counts(struct pattern *p, int *min, int *max)
{
    TRY(read_number(p, min));
    *max = *min;
    if (pattern_is_next(p, ',')) {
        p->at++;
        *max = -1;
        if (!pattern_is_next(p, '}'))
            TRY(read_number(p, max));
    }
    if (!pattern_is_next(p, '}'))
        return pattern_bad(p, "a } is missing");
    p->at++;
    return *max >= 0 && *max < *min ? pattern_bad(p, "the second number is less than the first") : 0;
}

static bool is_quantifier(const struct pattern *p)
{
    return p->at < p->n && strchr("?*+{", p->s[p->at]);
}

static int read_repeated(struct pattern *p, int *out)
{
    if (is_quantifier(p))
        return pattern_bad(p, "there is nothing to repeat");
    TRY(pattern_is_next(p, '(') ? read_group(p, out) : p->how->atom(p, out));
    skip(p);
    if (!is_quantifier(p))
        return 0;
    char c = p->s[p->at++];
    int min = c == '+', max = c == '?' ? 1 : -1;
    if (c == '{')
        TRY(read_counts(p, &min, &max));
    skip(p);
    if (is_quantifier(p))
        return pattern_bad(p, "a quantifier behind another one is not supported");
    int repeat = parts_add(&p->parts, PART_REPEAT);
    p->parts.list[repeat].min = min;
    p->parts.list[repeat].max = max;
    parts_hang(&p->parts, repeat, *out);
    *out = repeat;
    return 0;
}

static int read_sequence(struct pattern *p, int *out)
{
    *out = parts_add(&p->parts, PART_ALL_OF);
    for (skip(p);
         p->at < p->n && !pattern_is_next(p, '|') && !pattern_is_next(p, ')') && (p->depth || !p->how->ends(p));
         skip(p)) {
        int child;
        TRY(read_repeated(p, &child));
        parts_hang(&p->parts, *out, child);
    }
    return 0;
}

int pattern_read(struct pattern *p, int *out)
{
    *out = parts_add(&p->parts, PART_ONE_OF);
    for (;; p->at++) {
        int child;
        TRY(read_sequence(p, &child));
        parts_hang(&p->parts, *out, child);
        if (!pattern_is_next(p, '|'))
            return 0;
    }
}
