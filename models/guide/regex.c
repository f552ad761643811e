#include "models/guide/regex.h"

#include <string.h>

#include "engine/base/mem.h"

/* The parts of a pattern, as a tree. Children hang together backwards, since what follows a part has to be made first.
 */
enum kind { CHARS, ALL_OF, ONE_OF, REPEAT };

struct part {
    enum kind kind;
    int last, prev; /* its last child; the one before it under the same parent; -1: none */
    int min, max;   /* REPEAT; max -1: any number */
    struct grammar_set set;
    bool wide; /* CHARS: and all beyond ASCII */
};

struct reader {
    struct grammar_maker *m;
    const char *s;
    size_t n, at;
    bool in_string;
    int depth;
    struct part *parts;
    int n_parts, cap_parts;
    struct err *e;
};

static int bad(const struct reader *r, const char *why)
{
    return err_set(r->e, E_INPUT, "the regular expression, at byte %zu: %s", r->at + 1, why);
}

static int add(struct reader *r, enum kind kind)
{
    if (r->n_parts == r->cap_parts) {
        r->cap_parts = r->cap_parts ? 2 * r->cap_parts : 32;
        r->parts = mem_resize(r->parts, (size_t)r->cap_parts, sizeof *r->parts);
    }
    r->parts[r->n_parts] = (struct part){.kind = kind, .last = -1, .prev = -1};
    return r->n_parts++;
}

static void hang(struct reader *r, int parent, int child)
{
    r->parts[child].prev = r->parts[parent].last;
    r->parts[parent].last = child;
}

static bool is_next(const struct reader *r, char c)
{
    return r->at < r->n && r->s[r->at] == c;
}

static void set_add(struct grammar_set *s, int from, int to)
{
    for (int b = from; b <= to; b++)
        s->bits[b >> 6] |= (uint64_t)1 << (b & 63);
}

/* Of ASCII. */
static void set_invert(struct grammar_set *s)
{
    s->bits[0] = ~s->bits[0];
    s->bits[1] = ~s->bits[1];
}

/* ---- reading */

/* \d, \w, \s and their opposites. */
static bool read_kind(char c, struct grammar_set *s, bool *wide)
{
    struct grammar_set k = {{0}};
    switch (c | 0x20) {
    case 'd':
        set_add(&k, '0', '9');
        break;
    case 'w':
        set_add(&k, '0', '9');
        set_add(&k, 'A', 'Z');
        set_add(&k, 'a', 'z');
        set_add(&k, '_', '_');
        break;
    case 's':
        set_add(&k, '\t', '\r');
        set_add(&k, ' ', ' ');
        break;
    default:
        return false;
    }
    if (!(c & 0x20)) {
        set_invert(&k);
        *wide = true;
    }
    s->bits[0] |= k.bits[0];
    s->bits[1] |= k.bits[1];
    return true;
}

/* Behind a backslash: one ASCII character, into *out. */
static int read_escape(struct reader *r, int *out)
{
    static const char names[] = "ntrfv0", values[] = "\n\t\r\f\v";
    if (r->at == r->n)
        return bad(r, "a backslash is the last of it");
    char c = r->s[r->at];
    const char *name = strchr(names, c);
    if (name)
        *out = values[name - names];
    else if ((unsigned char)c < 0x80 && !(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        *out = c;
    else
        return bad(r, "this escape is not supported");
    r->at++;
    return 0;
}

static int read_class_char(struct reader *r, int *out)
{
    unsigned char c = (unsigned char)r->s[r->at];
    if (c >= 0x80)
        return bad(r, "a class may list ASCII characters alone");
    r->at++;
    if (c == '\\')
        return read_escape(r, out);
    *out = c;
    return 0;
}

static int read_class(struct reader *r, int part)
{
    struct grammar_set set = {{0}};
    bool inverted = is_next(r, '^'), wide = false;
    r->at += inverted;
    for (size_t first = r->at; !is_next(r, ']') || r->at == first;) {
        int from, to;
        if (r->at >= r->n)
            return bad(r, "a class has no end");
        if (r->s[r->at] == '[' && r->at + 1 < r->n && r->s[r->at + 1] == ':')
            return bad(r, "named classes are not supported");
        if (r->s[r->at] == '\\' && r->at + 1 < r->n && read_kind(r->s[r->at + 1], &set, &wide)) {
            r->at += 2;
            continue;
        }
        TRY(read_class_char(r, &from));
        to = from;
        if (is_next(r, '-') && r->at + 1 < r->n && r->s[r->at + 1] != ']') {
            r->at++;
            TRY(read_class_char(r, &to));
        }
        if (to < from)
            return bad(r, "a range runs backwards");
        set_add(&set, from, to);
    }
    r->at++;
    if (inverted)
        set_invert(&set);
    r->parts[part].set = set;
    r->parts[part].wide = inverted != wide;
    return 0;
}

/* A character beyond ASCII stands for its bytes, one behind the other. */
static int read_literal(struct reader *r, int part)
{
    unsigned char c = (unsigned char)r->s[r->at++];
    r->parts[part].set.bits[c >> 6] |= (uint64_t)1 << (c & 63);
    return 0;
}

static int read_alternatives(struct reader *r, int *out);

static int read_group(struct reader *r, int *out)
{
    if (is_next(r, '?')) {
        if (r->at + 1 >= r->n || r->s[r->at + 1] != ':')
            return bad(r, "of groups that begin with ?, only (?:...) is supported");
        r->at += 2;
    }
    if (++r->depth > REGEX_MOST_DEPTH)
        return bad(r, "groups are nested too deeply");
    TRY(read_alternatives(r, out));
    r->depth--;
    if (!is_next(r, ')'))
        return bad(r, "a group has no end");
    r->at++;
    return 0;
}

/* The bytes of a character beyond ASCII hang together: a quantifier is of all of them. */
static int read_wide(struct reader *r, int *out)
{
    *out = add(r, ALL_OF);
    do {
        int byte = add(r, CHARS);
        TRY(read_literal(r, byte));
        hang(r, *out, byte);
    } while (r->at < r->n && ((unsigned char)r->s[r->at] & 0xC0) == 0x80);
    return 0;
}

static int read_atom(struct reader *r, int *out)
{
    char c = r->s[r->at];
    int one;
    if (c == '(') {
        r->at++;
        return read_group(r, out);
    }
    if (strchr("?*+{", c))
        return bad(r, "there is nothing to repeat");
    if (c == '^' || c == '$')
        return bad(r, "^ and $ may only stand at the ends");
    if ((unsigned char)c >= 0x80)
        return read_wide(r, out);
    *out = add(r, CHARS);
    struct part *p = &r->parts[*out];
    if (c == '.') {
        r->at++;
        set_add(&p->set, '\n', '\n');
        set_invert(&p->set);
        p->wide = true;
        return 0;
    }
    if (c == '[') {
        r->at++;
        return read_class(r, *out);
    }
    if (c != '\\')
        return read_literal(r, *out);
    r->at++;
    if (r->at < r->n && read_kind(r->s[r->at], &p->set, &p->wide)) {
        r->at++;
        return 0;
    }
    TRY(read_escape(r, &one));
    set_add(&p->set, one, one);
    return 0;
}

static int read_number(struct reader *r, int *out)
{
    size_t first = r->at;
    for (*out = 0; r->at < r->n && r->s[r->at] >= '0' && r->s[r->at] <= '9'; r->at++)
        if ((*out = *out * 10 + r->s[r->at] - '0') > REGEX_MOST_REPEATS)
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
    int repeat = add(r, REPEAT);
    r->parts[repeat].min = min;
    r->parts[repeat].max = max;
    hang(r, repeat, *out);
    *out = repeat;
    return 0;
}

static bool is_last_dollar(const struct reader *r)
{
    return is_next(r, '$') && r->at + 1 == r->n && !r->depth;
}

static int read_sequence(struct reader *r, int *out)
{
    *out = add(r, ALL_OF);
    while (r->at < r->n && !is_next(r, '|') && !is_next(r, ')') && !is_last_dollar(r)) {
        int child;
        TRY(read_repeated(r, &child));
        hang(r, *out, child);
    }
    return 0;
}

static int read_alternatives(struct reader *r, int *out)
{
    *out = add(r, ONE_OF);
    for (;; r->at++) {
        int child;
        TRY(read_sequence(r, &child));
        hang(r, *out, child);
        if (!is_next(r, '|'))
            return 0;
    }
}

/* ---- making */

static void take_out(struct grammar_set *s, int from, int to)
{
    for (int b = from; b <= to; b++)
        s->bits[b >> 6] &= ~((uint64_t)1 << (b & 63));
}

/* In a JSON string these come as two characters. */
static int32_t make_escapes(const struct reader *r, const struct grammar_set *s, int32_t all, int32_t next)
{
    static const char plain[] = "\"\\\n\t\r", escaped[] = "\"\\ntr";
    for (int i = 0; plain[i]; i++)
        if (grammar_set_has(s, (unsigned char)plain[i])) {
            char two[] = {'\\', escaped[i]};
            all = grammar_split(r->m, all, grammar_text(r->m, two, 2, next));
        }
    return all;
}

static int32_t make_chars(const struct reader *r, const struct part *p, int32_t next)
{
    struct grammar_set s = p->set;
    if (r->in_string) {
        take_out(&s, 0, 0x1F);
        take_out(&s, '"', '"');
        take_out(&s, '\\', '\\');
    }
    int32_t all = grammar_set(r->m, &s, next);
    if (r->in_string)
        all = make_escapes(r, &p->set, all, next);
    return p->wide ? grammar_split(r->m, all, grammar_wide(r->m, next)) : all;
}

static int32_t make(const struct reader *r, int part, int32_t next);

static int32_t make_repeat(const struct reader *r, const struct part *p, int32_t next)
{
    int32_t first = next;
    if (p->max < 0) {
        first = grammar_open(r->m, next);
        grammar_close(r->m, first, make(r, p->last, first));
    }
    for (int i = p->min; i < p->max && !r->m->over; i++)
        first = grammar_split(r->m, make(r, p->last, first), next);
    for (int i = 0; i < p->min && !r->m->over; i++)
        first = make(r, p->last, first);
    return first;
}

static int32_t make(const struct reader *r, int part, int32_t next)
{
    const struct part *p = &r->parts[part];
    int32_t first = -1;
    switch (p->kind) {
    case CHARS:
        return make_chars(r, p, next);
    case REPEAT:
        return make_repeat(r, p, next);
    case ALL_OF:
        for (int c = p->last; c >= 0; c = r->parts[c].prev)
            next = make(r, c, next);
        return next;
    case ONE_OF:
        for (int c = p->last; c >= 0; c = r->parts[c].prev) {
            int32_t way = make(r, c, next);
            first = first < 0 ? way : grammar_split(r->m, way, first);
        }
        return first;
    }
    return next;
}

int regex_make(struct grammar_maker *m, const char *text, bool in_string, int32_t next, int32_t *out, struct err *e)
{
    struct reader r = {.m = m, .s = text, .n = strlen(text), .in_string = in_string, .e = e};
    int whole;
    r.at = is_next(&r, '^');
    int rc = read_alternatives(&r, &whole);
    if (!rc && is_last_dollar(&r))
        r.at++;
    if (!rc && r.at < r.n)
        rc = bad(&r, "a ) has no group");
    if (!rc)
        *out = make(&r, whole, next);
    mem_free(r.parts);
    return rc;
}
