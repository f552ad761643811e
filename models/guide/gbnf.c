#include "models/guide/gbnf.h"

#include <string.h>

#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "models/guide/pattern.h"

/* A rule that was named; first: where, for messages. */
struct name {
    const char *text;
    size_t n, first;
    int32_t rule;
    int body; /* part; -1: not read yet */
};

/* What the rules of a grammar share. */
struct rules {
    struct name *names;
    int n_names, cap_names;
    struct map by_name; /* by grammar_key of its text, or the next free number behind it */
    struct grammar_maker *m;
};

static int bad_at(const struct pattern *p, size_t at, const char *why)
{
    int line = 1;
    for (size_t i = 0; i < at && i < p->n; i++)
        line += p->s[i] == '\n';
    return err_set(p->e, E_INPUT, "the grammar, in line %d: %s", line, why);
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static void skip_blanks(struct pattern *r)
{
    for (bool comment = false; r->at < r->n; r->at++) {
        char c = r->s[r->at];
        comment = c == '#' || (comment && c != '\n');
        if (!comment && c != ' ' && c != '\t' && c != '\r' && c != '\n')
            return;
    }
}

/* ---- names */

static struct name *add_name(struct rules *r, const char *text, size_t n, size_t at)
{
    if (r->n_names == r->cap_names) {
        r->cap_names = r->cap_names ? 2 * r->cap_names : 16;
        r->names = mem_resize(r->names, (size_t)r->cap_names, sizeof *r->names);
    }
    r->names[r->n_names] = (struct name){text, n, at, grammar_rule(r->m), -1};
    return &r->names[r->n_names++];
}

static struct name *name_of(struct pattern *p, const char *text, size_t n)
{
    struct rules *r = p->ctx;
    uint64_t key = grammar_key(text, n), found;
    for (; map_find(&r->by_name, key, &found); key++) {
        struct name *x = &r->names[found];
        if (x->n == n && memcmp(x->text, text, n) == 0)
            return x;
    }
    map_set(&r->by_name, key, (uint64_t)r->n_names);
    return add_name(r, text, n, p->at);
}

/* At a name, which it goes past. */
static size_t name_length(struct pattern *r)
{
    size_t first = r->at;
    while (r->at < r->n && is_name(r->s[r->at]))
        r->at++;
    return r->at - first;
}

/* A name and ::= , which it goes past. */
static bool begins_rule(struct pattern *r, size_t *name)
{
    *name = name_length(r);
    skip_blanks(r);
    if (!*name || r->n - r->at < 3 || memcmp(r->s + r->at, "::=", 3) != 0)
        return false;
    r->at += 3;
    return true;
}

static bool is_at_rule(struct pattern *r)
{
    size_t at = r->at, n;
    bool found = begins_rule(r, &n);
    r->at = at;
    return found;
}

/* ---- characters */

static int read_hex(struct pattern *r, int digits, uint32_t *out)
{
    for (*out = 0; digits; digits--, r->at++) {
        char c = r->at < r->n ? r->s[r->at] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0)
            return pattern_bad(r, "a hexadecimal digit is missing");
        *out = *out << 4 | (uint32_t)d;
    }
    return *out > CODE_MOST || (*out >= 0xD800 && *out <= 0xDFFF) ? pattern_bad(r, "there is no such character") : 0;
}

static int read_char(struct pattern *r, uint32_t *out)
{
    static const char names[] = "ntr\\\"[]-^", values[] = "\n\t\r\\\"[]-^";
    if (!pattern_is_next(r, '\\'))
        return pattern_plain(r, out);
    char c = ++r->at < r->n ? r->s[r->at++] : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (name)
        *out = (uint32_t)values[name - names];
    else if (c == 'x' || c == 'u' || c == 'U')
        return read_hex(r, c == 'x' ? 2 : c == 'u' ? 4 : 8, out);
    else
        return pattern_bad(r, "there is no such escape");
    return 0;
}

/* ---- rules */

static int read_literal(struct pattern *r, int *out)
{
    *out = parts_add(&r->parts, PART_ALL_OF);
    for (r->at++; !pattern_is_next(r, '"');) {
        uint32_t code;
        if (r->at >= r->n || pattern_is_next(r, '\n'))
            return pattern_bad(r, "a literal has no end");
        TRY(read_char(r, &code));
        parts_hang(&r->parts, *out, parts_code(&r->parts, code));
    }
    r->at++;
    return 0;
}

/* The dot: any character. */
static int read_dot(struct pattern *r, int *out)
{
    struct char_class none = {0};
    r->at++;
    *out = parts_class(&r->parts, &none, true);
    char_class_free(&none);
    return 0;
}

static int read_call(struct pattern *r, int *out)
{
    const char *text = r->s + r->at;
    size_t n = name_length(r);
    if (!n)
        return pattern_bad(r, "a literal, a class, a group or the name of a rule is missing");
    *out = parts_add(&r->parts, PART_CALL);
    r->parts.list[*out].rule = name_of(r, text, n)->rule;
    return 0;
}

static int read_atom(struct pattern *r, int *out)
{
    char c = r->s[r->at];
    if (c == '[') {
        r->at++;
        return pattern_class(r, out);
    }
    return c == '"' ? read_literal(r, out) : c == '.' ? read_dot(r, out) : read_call(r, out);
}

static int open_group(struct pattern *r)
{
    (void)r;
    return 0;
}

static const struct notation notation = {.bad = bad_at,
                                         .atom = read_atom,
                                         .character = read_char,
                                         .open = open_group,
                                         .ends = is_at_rule,
                                         .skip = skip_blanks};

static int read_rule(struct pattern *p)
{
    struct rules *r = p->ctx;
    const char *text = p->s + p->at;
    size_t n, at = p->at;
    int body;
    if (!begins_rule(p, &n))
        return bad_at(p, at, "a rule is missing: name ::= ...");
    struct name *own = name_of(p, text, n);
    if (own->body >= 0)
        return bad_at(p, at, "this rule is there already");
    int rule = (int)(own - r->names);
    TRY(pattern_read(p, &body));
    r->names[rule].body = body;
    return pattern_is_next(p, ')') ? pattern_bad(p, "a ) has no group") : 0;
}

static int make_rules(struct pattern *p)
{
    struct rules *r = p->ctx;
    if (r->names[0].body < 0)
        return err_set(p->e, E_INPUT, "the grammar has no rule 'root'");
    for (int i = 0; i < r->n_names; i++) {
        const struct name *x = &r->names[i];
        if (x->body < 0)
            return bad_at(p, x->first, "a rule is named that is not there");
        grammar_make_rule(r->m, x->rule, parts_make(&p->parts, r->m, x->body, grammar_end(r->m)));
    }
    return 0;
}

int gbnf_make(struct grammar_maker *m, const char *text, struct err *e)
{
    struct rules r = {.m = m};
    struct pattern p = {.how = &notation, .s = text, .n = strlen(text), .ctx = &r, .e = e};
    int rc = 0;
    map_init(&r.by_name);
    name_of(&p, "root", 4);
    for (skip_blanks(&p); p.at < p.n && !rc; skip_blanks(&p))
        rc = read_rule(&p);
    if (!rc)
        rc = make_rules(&p);
    parts_free(&p.parts);
    map_free(&r.by_name);
    mem_free(r.names);
    return rc;
}
