#include "models/guide/regex.h"

#include <string.h>

#include "models/guide/pattern.h"

static int bad(const struct pattern *p, size_t at, const char *why)
{
    return err_set(p->e, E_INPUT, "the regular expression, at byte %zu: %s", at + 1, why);
}

/* \d, \w, \s and their opposites, at a backslash. */
static bool read_kind(struct pattern *r, struct char_class *c)
{
    char kind = r->at + 1 < r->n && pattern_is_next(r, '\\') ? r->s[r->at + 1] : 0;
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
static int read_escape(struct pattern *r, uint32_t *out)
{
    static const char names[] = "ntrfv0", values[] = "\n\t\r\f\v";
    if (r->at == r->n)
        return pattern_bad(r, "a backslash is the last of it");
    char c = r->s[r->at];
    const char *name = strchr(names, c);
    if (name)
        *out = (uint32_t)values[name - names];
    else if ((unsigned char)c < 0x80 && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        *out = (uint32_t)c;
    else
        return pattern_bad(r, "this escape is not supported");
    r->at++;
    return 0;
}

static int read_character(struct pattern *r, uint32_t *out)
{
    if (!pattern_is_next(r, '\\'))
        return pattern_plain(r, out);
    r->at++;
    return read_escape(r, out);
}

static int open_group(struct pattern *r)
{
    if (!pattern_is_next(r, '?'))
        return 0;
    if (r->at + 1 >= r->n || r->s[r->at + 1] != ':')
        return pattern_bad(r, "of groups that begin with ?, only (?:...) is supported");
    r->at += 2;
    return 0;
}

/* \d and the like, or any character but a line break. */
static bool read_any_of(struct pattern *r, int *out)
{
    struct char_class c = {0};
    bool dot = pattern_is_next(r, '.'), found = dot || read_kind(r, &c);
    r->at += dot;
    if (dot)
        char_class_add(&c, '\n', '\n');
    if (found)
        *out = parts_class(&r->parts, &c, dot);
    char_class_free(&c);
    return found;
}

static int read_atom(struct pattern *r, int *out)
{
    uint32_t one;
    if (pattern_is_next(r, '^') || pattern_is_next(r, '$'))
        return pattern_bad(r, "^ and $ may only stand at the ends");
    if (pattern_is_next(r, '[')) {
        r->at++;
        return pattern_class(r, out);
    }
    if (read_any_of(r, out))
        return 0;
    TRY(read_character(r, &one));
    *out = parts_code(&r->parts, one);
    return 0;
}

static bool is_last_dollar(struct pattern *r)
{
    return pattern_is_next(r, '$') && r->at + 1 == r->n;
}

static const struct notation notation = {.bad = bad,
                                         .atom = read_atom,
                                         .character = read_character,
                                         .open = open_group,
                                         .ends = is_last_dollar,
                                         .kind = read_kind,
                                         .first_counts = true};

int regex_make(struct grammar_maker *m, const char *text, bool in_string, int32_t next, int32_t *out, struct err *e)
{
    struct pattern r = {.how = &notation, .s = text, .n = strlen(text), .parts.in_string = in_string, .e = e};
    int whole;
    r.at = pattern_is_next(&r, '^');
    int rc = pattern_read(&r, &whole);
    if (!rc && is_last_dollar(&r))
        r.at++;
    if (!rc && r.at < r.n)
        rc = pattern_bad(&r, "a ) has no group");
    if (!rc)
        *out = parts_make(&r.parts, m, whole, next);
    parts_free(&r.parts);
    return rc;
}
