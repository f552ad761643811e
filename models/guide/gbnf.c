#include "models/guide/gbnf.h"

#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "models/guide/parts.h"

/* A rule that was named; first: where, for messages. */
struct name {
    const char *text;
    size_t n, first;
    int32_t rule;
    int body; /* part; -1: not read yet */
};

struct reader {
    const char *s;
    size_t n, at;
    int depth;
    struct parts parts;
    struct name *names;
    int n_names, cap_names;
    struct map by_name; /* by grammar_key of its text, or the next free number behind it */
    struct grammar_maker *m;
    struct err *e;
};

static int bad_at(const struct reader *r, size_t at, const char *why)
{
    int line = 1;
    for (size_t i = 0; i < at && i < r->n; i++)
        line += r->s[i] == '\n';
    return err_set(r->e, E_INPUT, "the grammar, in line %d: %s", line, why);
}

static int bad(const struct reader *r, const char *why)
{
    return bad_at(r, r->at, why);
}

static bool is_next(const struct reader *r, char c)
{
    return r->at < r->n && r->s[r->at] == c;
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip_blanks(struct reader *r)
{
    for (bool comment = false; r->at < r->n; r->at++) {
        char c = r->s[r->at];
        comment = c == '#' || (comment && c != '\n');
        if (!comment && c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return;
    }
}

/* ---- names */

static struct name *add_name(struct reader *r, const char *text, size_t n)
{
    if (r->n_names == r->cap_names) {
        r->cap_names = r->cap_names ? 2 * r->cap_names : 16;
        r->names = mem_resize(r->names, (size_t)r->cap_names, sizeof *r->names);
    }
    r->names[r->n_names] = (struct name){text, n, r->at, grammar_rule(r->m), -1};
    return &r->names[r->n_names++];
}

static struct name *name_of(struct reader *r, const char *text, size_t n)
{
    uint64_t key = grammar_key(text, n), found;
    for (; map_find(&r->by_name, key, &found); key++) {
        struct name *x = &r->names[found];
        if (x->n == n && memcmp(x->text, text, n) == 0)
            return x;
    }
    map_set(&r->by_name, key, (uint64_t)r->n_names);
    return add_name(r, text, n);
}

/* At a name, which it goes past. */
static size_t name_length(struct reader *r)
{
    size_t first = r->at;
    while (r->at < r->n && is_name(r->s[r->at]))
        r->at++;
    return r->at - first;
}

/* A name and ::= , which it goes past. */
static bool begins_rule(struct reader *r, size_t *name)
{
    *name = name_length(r);
    skip_blanks(r);
    if (!*name || r->n - r->at < 3 || memcmp(r->s + r->at, "::=", 3) != 0)
        return false;
    r->at += 3;
    return true;
}

static bool is_at_rule(struct reader *r)
{
    size_t at = r->at, n;
    bool found = begins_rule(r, &n);
    r->at = at;
    return found;
}

/* ---- characters */

static int read_hex(struct reader *r, int digits, uint32_t *out)
{
    for (*out = 0; digits; digits--, r->at++) {
        char c = r->at < r->n ? r->s[r->at] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            return bad(r, "a hexadecimal digit is missing");
        *out = *out << 4 | (uint32_t)d;
    }
    return *out > CODE_MOST || (*out >= 0xD800 && *out <= 0xDFFF) ? bad(r, "there is no such character") : 0;
}

static int read_char(struct reader *r, uint32_t *out)
{
    static const char names[] = "ntr\\\"[]-^", values[] = "\n\t\r\\\"[]-^";
    if (!is_next(r, '\\')) {
        int n = utf8_decode(r->s + r->at, r->n - r->at, out);
        if (n <= 0)
            return bad(r, "this is no UTF-8");
        r->at += (size_t)n;
        return 0;
    }
    char c = ++r->at < r->n ? r->s[r->at++] : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (name)
        *out = (uint32_t)values[name - names];
    else if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    else
        return bad(r, "there is no such escape");
    return 0;
}

/* ---- rules */

static int read_alternatives(struct reader *r, int *out);

static int read_literal(struct reader *r, int *out)
{
    *out = parts_add(&r->parts, PART_ALL_OF);
    for (r->at++; !is_next(r, '"');) {
        uint32_t code;
        if (r->at >= r->n || is_next(r, '\n'))
            return bad(r, "a literal has no end");
        TRY(read_char(r, &code));
        parts_hang(&r->parts, *out, parts_code(&r->parts, code));
    }
    r->at++;
    return 0;
}

static int read_members(struct reader *r, struct char_class *c)
{
    while (!is_next(r, ']')) {
        uint32_t from, to;
        if (r->at >= r->n)
            return bad(r, "a class has no end");
        TRY(read_char(r, &from));
        to = from;
        if (is_next(r, '-') && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            TRY(read_char(r, &to));
        }
        if (to < from)
            return bad(r, "a range runs backwards");
        char_class_add(c, from, to);
    }
    r->at++;
    return 0;
}

/* [...] or the dot, which is any character. */
static int read_class(struct reader *r, int *out)
{
    struct char_class c = {0};
    bool dot = is_next(r, '.'), inverted = dot;
    r->at++;
    if (!dot && is_next(r, '^')) {
        inverted = true;
        r->at++;
    }
    int rc = dot ? 0 : read_members(r, &c);
    if (!rc)
        *out = parts_class(&r->parts, &c, inverted);
    char_class_free(&c);
    return rc;
}

static int read_group(struct reader *r, int *out)
{
    r->at++;
    if (++r->depth > PARTS_MOST_DEPTH)
        return bad(r, "groups are nested too deeply");
    TRY(read_alternatives(r, out));
    r->depth--;
    if (!is_next(r, ')'))
        return bad(r, "a group has no end");
    r->at++;
    return 0;
}

static int read_call(struct reader *r, int *out)
{
    const char *text = r->s + r->at;
    size_t n = name_length(r);
    if (!n)
        return bad(r, "a literal, a class, a group or the name of a rule is missing");
    *out = parts_add(&r->parts, PART_CALL);
    r->parts.list[*out].rule = name_of(r, text, n)->rule;
    return 0;
}

static int read_atom(struct reader *r, int *out)
{
    char c = r->s[r->at];
    return c == '"'               ? read_literal(r, out)
           : c == '[' || c == '.' ? read_class(r, out)
           : c == '('             ? read_group(r, out)
                                  : read_call(r, out);
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
static int read_counts(struct reader *r, struct part *repeat)
{
    TRY(read_number(r, &repeat->min));
    repeat->max = repeat->min;
    if (is_next(r, ',')) {
        r->at++;
        repeat->max = -1;
        if (!is_next(r, '}'))
            TRY(read_number(r, &repeat->max));
    }
    if (!is_next(r, '}'))
        return bad(r, "a } is missing");
    r->at++;
    return repeat->max >= 0 && repeat->max < repeat->min ? bad(r, "the second number is less than the first") : 0;
}

static bool is_quantifier(const struct reader *r)
{
    return r->at < r->n && strchr("?*+{", r->s[r->at]);
}

static int read_repeated(struct reader *r, int *out)
{
    TRY(read_atom(r, out));
    skip_blanks(r);
    if (!is_quantifier(r))
        return 0;
    char c = r->s[r->at++];
    struct part counts = {.min = c == '+', .max = c == '?' ? 1 : -1};
    if (c == '{')
        TRY(read_counts(r, &counts));
    skip_blanks(r);
    if (is_quantifier(r))
        return bad(r, "what is repeated is repeated again; put it in a group");
    int repeat = parts_add(&r->parts, PART_REPEAT);
    r->parts.list[repeat].min = counts.min;
    r->parts.list[repeat].max = counts.max;
    parts_hang(&r->parts, repeat, *out);
    *out = repeat;
    return 0;
}

static int read_sequence(struct reader *r, int *out)
{
    *out = parts_add(&r->parts, PART_ALL_OF);
    for (skip_blanks(r); r->at < r->n && !is_next(r, '|') && !is_next(r, ')') && (r->depth || !is_at_rule(r));
         skip_blanks(r)) {
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

static int read_rule(struct reader *r)
{
    const char *text = r->s + r->at;
    size_t n, at = r->at;
    int body;
    if (!begins_rule(r, &n))
        return bad_at(r, at, "a rule is missing: name ::= ...");
    struct name *own = name_of(r, text, n);
    if (own->body >= 0)
        return bad_at(r, at, "this rule is there already");
    int rule = (int)(own - r->names);
    TRY(read_alternatives(r, &body));
    r->names[rule].body = body;
    return r->at < r->n && is_next(r, ')') ? bad(r, "a ) has no group") : 0;
}

static int make_rules(struct reader *r)
{
    if (r->names[0].body < 0)
        return err_set(r->e, E_INPUT, "the grammar has no rule 'root'");
    for (int i = 0; i < r->n_names; i++) {
        const struct name *x = &r->names[i];
        if (x->body < 0)
            return bad_at(r, x->first, "a rule is named that is not there");
        grammar_make_rule(r->m, x->rule, parts_make(&r->parts, r->m, x->body, grammar_end(r->m)));
    }
    return 0;
}

int gbnf_make(struct grammar_maker *m, const char *text, struct err *e)
{
    struct reader r = {.s = text, .n = strlen(text), .m = m, .e = e};
    int rc = 0;
    map_init(&r.by_name);
    name_of(&r, "root", 4);
    for (skip_blanks(&r); r.at < r.n && !rc; skip_blanks(&r))
        rc = read_rule(&r);
    if (!rc)
        rc = make_rules(&r);
    parts_free(&r.parts);
    map_free(&r.by_name);
    mem_free(r.names);
    return rc;
}
