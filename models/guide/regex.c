#include "models/guide/regex.h"

#include <string.h>

#include "engine/base/utf8.h"
#include "models/guide/parts.h"

struct reader {
    const char *s;
    size_t n, at;
    int depth;
    struct parts parts;
    struct err *e;
};

static int bad(const struct reader *r, const char *why)
{
    return err_set(r->e, E_INPUT, "the regular expression, at byte %zu: %s", r->at + 1, why);
}

static bool is_next(const struct reader *r, char c)
{
    return r->at < r->n && r->s[r->at] == c;
}

/* ---- reading */

/* \d, \w, \s and their opposites, at a backslash. */
static bool read_kind(struct reader *r, struct char_class *c)
{
    char kind = r->at + 1 < r->n && is_next(r, '\\') ? r->s[r->at + 1] : 0;
    switch (kind) {
    case 'd':
        char_class_add(c, '0', '9');
        break;
    case 'D':
        char_class_add(c, 0, '0' - 1);
        char_class_add(c, '9' + 1, CODE_MOST);
        break;
    case 's':
        char_class_add(c, '\t', '\r');
        char_class_add(c, ' ', ' ');
        break;
    case 'S':
        char_class_add(c, 0, '\t' - 1);
        char_class_add(c, '\r' + 1, ' ' - 1);
        char_class_add(c, ' ' + 1, CODE_MOST);
        break;
    case 'w':
        char_class_add(c, '0', '9');
        char_class_add(c, 'A', 'Z');
        char_class_add(c, '_', '_');
        char_class_add(c, 'a', 'z');
        break;
    case 'W':
        char_class_add(c, 0, '0' - 1);
        char_class_add(c, '9' + 1, 'A' - 1);
        char_class_add(c, 'Z' + 1, '_' - 1);
        char_class_add(c, '_' + 1, 'a' - 1);
        char_class_add(c, 'z' + 1, CODE_MOST);
        break;
    default:
        return false;
    }
    r->at += 2;
    return true;
}

/* Behind a backslash: one ASCII character, into *out. */
static int read_escape(struct reader *r, uint32_t *out)
{
    static const char names[] = "ntrfv0", values[] = "\n\t\r\f\v";
    if (r->at == r->n)
        return bad(r, "a backslash is the last of it");
    char c = r->s[r->at];
    const char *name = strchr(names, c);
    if (name)
        *out = (uint32_t)values[name - names];
    else if ((unsigned char)c < 0x80 && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        *out = (uint32_t)c;
    else
        return bad(r, "this escape is not supported");
    r->at++;
    return 0;
}

/* A character as it stands, of one byte or more. */
static int read_plain(struct reader *r, uint32_t *out)
{
    int n = utf8_decode(r->s + r->at, r->n - r->at, out);
    if (n <= 0)
        return bad(r, "this is no UTF-8");
    r->at += (size_t)n;
    return 0;
}

static int read_class_char(struct reader *r, uint32_t *out)
{
    if (!is_next(r, '\\'))
        return read_plain(r, out);
    r->at++;
    return read_escape(r, out);
}

static int read_members(struct reader *r, struct char_class *c)
{
    for (size_t first = r->at; !is_next(r, ']') || r->at == first;) {
        uint32_t from, to;
        if (r->at >= r->n)
            return bad(r, "a class has no end");
        if (r->s[r->at] == '[' && r->at + 1 < r->n && r->s[r->at + 1] == ':')
            return bad(r, "named classes are not supported");
        if (read_kind(r, c))
            continue;
        TRY(read_class_char(r, &from));
        to = from;
        if (is_next(r, '-') && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            TRY(read_class_char(r, &to));
        }
        if (to < from)
            return bad(r, "a range runs backwards");
        char_class_add(c, from, to);
    }
    r->at++;
    return 0;
}

static int read_class(struct reader *r, int *out)
{
    struct char_class c = {0};
    bool inverted = is_next(r, '^');
    r->at += inverted;
    int rc = read_members(r, &c);
    if (!rc)
        *out = parts_class(&r->parts, &c, inverted);
    char_class_free(&c);
    return rc;
}

static int read_alternatives(struct reader *r, int *out);

static int read_group(struct reader *r, int *out)
{
    if (is_next(r, '?')) {
        if (r->at + 1 >= r->n || r->s[r->at + 1] != ':')
            return bad(r, "of groups that begin with ?, only (?:...) is supported");
        r->at += 2;
    }
    if (++r->depth > PARTS_MOST_DEPTH)
        return bad(r, "groups are nested too deeply");
    TRY(read_alternatives(r, out));
    r->depth--;
    if (!is_next(r, ')'))
        return bad(r, "a group has no end");
    r->at++;
    return 0;
}

/* \d and the like, or any character but a line break. */
static bool read_any_of(struct reader *r, int *out)
{
    struct char_class c = {0};
    bool dot = is_next(r, '.'), found = dot || read_kind(r, &c);
    r->at += dot;
    if (dot)
        char_class_add(&c, '\n', '\n');
    if (found)
        *out = parts_class(&r->parts, &c, dot);
    char_class_free(&c);
    return found;
}

static int read_atom(struct reader *r, int *out)
{
    char c = r->s[r->at];
    uint32_t one;
    if (c == '(') {
        r->at++;
        return read_group(r, out);
    }
    if (strchr("?*+{", c))
        return bad(r, "there is nothing to repeat");
    if (c == '^' || c == '$')
        return bad(r, "^ and $ may only stand at the ends");
    if (c == '[') {
        r->at++;
        return read_class(r, out);
    }
    if (read_any_of(r, out))
        return 0;
    TRY(read_class_char(r, &one));
    *out = parts_code(&r->parts, one);
    return 0;
}

static int read_number(struct reader *r, int *out)
{
    size_t first = r->at;
    for (*out = 0; r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        if ((*out = *out * 10 + r->s[r->at] - '0') > PARTS_MOST_REPEATS)
            return bad(r, "too many repetitions; 1000 is the most");
    return r->at == first ? bad(r, "a number is missing") : 0;
}

/* {m}, {m,}, {m,n} */
static int read_counts(struct reader *r, int *min, int *max)
{
    TRY(read_number(r, min));
    *max = *min;
    if (is_next(r, ',')) {
        r->at++;
        *max = -1;
        if (!is_next(r, '}'))
            TRY(read_number(r, max));
    }
    if (!is_next(r, '}'))
        return bad(r, "a } is missing");
    r->at++;
    return *max >= 0 && *max < *min ? bad(r, "the second number is less than the first") : 0;
}

static int read_repeated(struct reader *r, int *out)
{
    TRY(read_atom(r, out));
    if (r->at == r->n || !strchr("?*+{", r->s[r->at]))
        return 0;
    char c = r->s[r->at++];
    int min = c == '+', max = c == '?' ? 1 : -1;
    if (c == '{')
        TRY(read_counts(r, &min, &max));
    if (r->at < r->n && strchr("?*+{", r->s[r->at]))
        return bad(r, "lazy, possessive and repeated quantifiers are not supported");
    int repeat = parts_add(&r->parts, PART_REPEAT);
    r->parts.list[repeat].min = min;
    r->parts.list[repeat].max = max;
    parts_hang(&r->parts, repeat, *out);
    *out = repeat;
    return 0;
}

static bool is_last_dollar(const struct reader *r)
{
    return is_next(r, '$') && r->at + 1 == r->n && !r->depth;
}

static int read_sequence(struct reader *r, int *out)
{
    *out = parts_add(&r->parts, PART_ALL_OF);
    while (r->at < r->n && !is_next(r, '|') && !is_next(r, ')') && !is_last_dollar(r)) {
        int child;
        TRY(read_repeated(r, &child));
        parts_hang(&r->parts, *out, child);
    }
    return 0;
}

static int read_alternatives(struct reader *r, int *out)
{
    *out = parts_add(&r->parts, PART_ONE_OF);
    for (;; r->at++) {
        int child;
        TRY(read_sequence(r, &child));
        parts_hang(&r->parts, *out, child);
        if (!is_next(r, '|'))
            return 0;
    }
}

int regex_make(struct grammar_maker *m, const char *text, bool in_string, int32_t next, int32_t *out, struct err *e)
{
    struct reader r = {.s = text, .n = strlen(text), .parts.in_string = in_string, .e = e};
    int whole;
    r.at = is_next(&r, '^');
    int rc = read_alternatives(&r, &whole);
    if (!rc && is_last_dollar(&r))
        r.at++;
    if (!rc && r.at < r.n)
        rc = bad(&r, "a ) has no group");
    if (!rc)
        *out = parts_make(&r.parts, m, whole, next);
    parts_free(&r.parts);
    return rc;
}
