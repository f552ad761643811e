#include "models/template/lex.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "models/template/string.h"
#include "models/template/unicode.h"

struct lexer {
    struct compile *c;
    const char *s;
    size_t n, at;
    int line;
    bool line_start; /* the last match ended with a newline, or there was none */
    char open[200];  /* brackets that wait for their partner */
    int n_open;
};

int c_fail(struct compile *c, int code, int line, const char *fmt, ...)
{
    if (c->error.code)
        return c->error.code;
    char text[sizeof c->error.text];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[utf8_whole(text, strlen(text))] = 0;
    return err_set(&c->error, code, "line %d: %s", line, text);
}

void c_check_size(struct compile *c, int line)
{
    if (c->arena->used > (size_t)256 << 20)
        c_fail(c, E_UNSUPPORTED, line, "the template is too large");
}

const char *token_name(enum token_type t)
{
    static const char *const names[] = {
        "the end of the template",
        "text",
        "'{{'",
        "'}}'",
        "'{%'",
        "'%}'",
        "a name",
        "a string",
        "an integer",
        "a number",
        "'+'",
        "'-'",
        "'*'",
        "'/'",
        "'//'",
        "'%'",
        "'**'",
        "'~'",
        "'['",
        "']'",
        "'('",
        "')'",
        "'{'",
        "'}'",
        "'=='",
        "'!='",
        "'<'",
        "'<='",
        "'>'",
        "'>='",
        "'='",
        "'.'",
        "':'",
        "'|'",
        "','",
        "';'",
    };
    return names[t];
}

static struct token *push(struct lexer *l, enum token_type type, const char *text, size_t len)
{
    struct compile *c = l->c;
    if (c->n_tokens == c->cap_tokens) {
        size_t cap = c->cap_tokens ? 2 * c->cap_tokens : 256;
        struct token *more = arena_new(c->arena, cap * sizeof *more);
        if (c->n_tokens)
            memcpy(more, c->tokens, c->n_tokens * sizeof *more);
        c->tokens = more;
        c->cap_tokens = cap;
    }
    c->tokens[c->n_tokens] = (struct token){.type = type, .line = l->line, .text = text, .len = len};
    return &c->tokens[c->n_tokens++];
}

static void advance(struct lexer *l, size_t to)
{
    for (; l->at < to; l->at++)
        l->line += l->s[l->at] == '\n';
}

static bool starts(const struct lexer *l, size_t at, const char *with)
{
    size_t n = strlen(with);
    return at + n <= l->n && memcmp(l->s + at, with, n) == 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
    return at + unicode_skip_space(l->s + at, l->n - at);
}

/* If an end tag ("%}", "#}", "}}") stands at `at`, returns where the text goes on, else 0. plus: "+%}" is one
 * too. trim: a newline behind it goes with it. */
static size_t end_tag(const struct lexer *l, size_t at, const char *tag, bool plus, bool trim)
{
    if (at < l->n && l->s[at] == '-' && starts(l, at + 1, tag))
        return skip_space(l, at + 3);
    if (plus && at < l->n && l->s[at] == '+' && starts(l, at + 1, tag))
        return at + 3;
    if (!starts(l, at, tag))
        return 0;
    return at + 2 + (trim && at + 2 < l->n && l->s[at + 2] == '\n');
}

static void finish_match(struct lexer *l, size_t to)
{
    advance(l, to);
    l->line_start = to > 0 && l->s[to - 1] == '\n';
}

/* Emits the text [at, to) before a tag with that sign, and moves to the tag. */
static void push_data(struct lexer *l, size_t to, char sign, bool may_lstrip)
{
    size_t from = l->at, keep = to - from;
    const char *text = l->s + from;
    if (sign == '-') {
        keep = unicode_strip_space(text, keep);
    } else if (sign != '+' && may_lstrip) {
        size_t line = keep;
        while (line > 0 && text[line - 1] != '\n')
            line--;
        if ((line > 0 || l->line_start) && unicode_skip_space(text + line, keep - line) == keep - line)
            keep = line;
    }
    if (keep)
        push(l, T_DATA, text, keep);
    advance(l, to);
}

/* Where "{%", sign?, space, `word`, space, and an end tag stand at `at`: the end of all that; else 0. */
static size_t word_tag(const struct lexer *l, size_t at, const char *word, bool plus, bool trim)
{
    if (!starts(l, at, "{%"))
        return 0;
    at += 2;
    if (at < l->n && (l->s[at] == '-' || l->s[at] == '+'))
        at++;
    at = skip_space(l, at);
    if (!starts(l, at, word))
        return 0;
    return end_tag(l, skip_space(l, at + strlen(word)), "%}", plus, trim);
}

static char sign_at(const struct lexer *l, size_t at)
{
    return at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
}

static int lex_raw(struct lexer *l, size_t body)
{
    finish_match(l, body);
    for (size_t at = body; at < l->n; at++) {
        size_t end = word_tag(l, at, "endraw", true, true);
        if (end) {
            push_data(l, at, sign_at(l, at + 2), true);
            finish_match(l, end);
            return 0;
        }
    }
    return c_fail(l->c, E_INPUT, l->line, "a raw block without {%% endraw %%}");
}

static int lex_comment(struct lexer *l)
{
    size_t at = l->at + 2 + (sign_at(l, l->at + 2) != 0);
    for (; at < l->n; at++) {
        size_t end = end_tag(l, at, "#}", true, true);
        if (end) {
            finish_match(l, end);
            return 0;
        }
    }
    return c_fail(l->c, E_INPUT, l->line, "a comment without '#}'");
}

/* ---- inside a tag ---- */

static bool digit_in(char c, int base)
{
    int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
    return d < base;
}

/* Digits of a base with single '_' between them; returns their end, or `at` when there are none. */
static size_t digits(const struct lexer *l, size_t at, int base, bool leading_underscore)
{
    size_t to = at;
    for (;;) {
        size_t next = to;
        if (next < l->n && l->s[next] == '_' && (to > at || leading_underscore))
            next++;
        if (next >= l->n || !digit_in(l->s[next], base))
            return to;
        to = next + 1;
    }
}

static size_t float_end(const struct lexer *l)
{
    if (l->at > 0 && l->s[l->at - 1] == '.')
        return 0;
    size_t to = digits(l, l->at, 10, false), end = 0;
    if (to == l->at)
        return 0;
    if (to < l->n && l->s[to] == '.' && digits(l, to + 1, 10, false) > to + 1)
        end = to = digits(l, to + 1, 10, false);
    if (to < l->n && (l->s[to] | 32) == 'e') {
        size_t e = to + 1 + (to + 1 < l->n && (l->s[to + 1] == '+' || l->s[to + 1] == '-'));
        if (digits(l, e, 10, false) > e)
            end = digits(l, e, 10, false);
    }
    return end;
}

static size_t integer_end(const struct lexer *l, int *base)
{
    static const char marks[] = "box";
    static const int bases[] = {2, 8, 16};
    *base = 10;
    if (l->s[l->at] != '0')
        return digits(l, l->at, 10, false);
    char mark = l->at + 1 < l->n ? (char)(l->s[l->at + 1] | 32) : 0;
    const char *m = mark ? strchr(marks, mark) : NULL;
    if (m && digits(l, l->at + 2, bases[m - marks], true) > l->at + 2) {
        *base = bases[m - marks];
        return digits(l, l->at + 2, *base, true);
    }
    size_t to = l->at;
    while (to < l->n && (l->s[to] == '0' || (l->s[to] == '_' && to + 1 < l->n && l->s[to + 1] == '0')))
        to++;
    return to;
}

static int lex_number(struct lexer *l)
{
    size_t end = float_end(l);
    bool is_float = end != 0;
    int base = 10;
    if (!is_float)
        end = integer_end(l, &base);
    if (end - l->at > 300)
        return c_fail(l->c, E_UNSUPPORTED, l->line, "a number of more than 300 characters");
    char text[304];
    size_t n = 0;
    for (size_t i = l->at + (base == 10 ? 0 : 2); i < end; i++)
        if (l->s[i] != '_')
            text[n++] = l->s[i];
    text[n] = 0;
    struct token *t = push(l, is_float ? T_FLOAT : T_INTEGER, l->s + l->at, end - l->at);
    errno = 0;
    t->value = is_float ? j_float(strtod(text, NULL)) : j_int(strtoll(text, NULL, base));
    if (!is_float && errno == ERANGE)
        return c_fail(l->c, E_UNSUPPORTED, l->line, "an integer past 64 bits");
    l->at = end;
    return 0;
}

static size_t name_end(const struct lexer *l)
{
    size_t at = l->at;
    uint32_t cp;
    while (at < l->n) {
        int len = utf8_decode(l->s + at, l->n - at, &cp);
        if (len <= 0 || !unicode_is(cp, UNI_WORD | UNI_ALNUM))
            break;
        at += (size_t)len;
    }
    return at;
}

static int lex_string(struct lexer *l)
{
    char quote = l->s[l->at];
    size_t at = l->at + 1;
    while (at < l->n && l->s[at] != quote)
        at += l->s[at] == '\\' ? 2 : 1;
    if (at >= l->n)
        return c_fail(l->c, E_INPUT, l->line, "a string without its closing quote");
    struct buf out = {0};
    const char *why = jinja_unescape(&out, l->s + l->at + 1, at - l->at - 1);
    if (why)
        c_fail(l->c, E_INPUT, l->line, "%s", why);
    else
        push(l, T_STRING, arena_copy(l->c->arena, out.data ? out.data : "", out.len), out.len);
    buf_free(&out);
    advance(l, at + 1);
    return l->c->error.code;
}

static int check_bracket(struct lexer *l, char c)
{
    const char *open = strchr("([{", c), *close = strchr(")]}", c);
    if (open) {
        if (l->n_open == (int)sizeof l->open)
            return c_fail(l->c, E_UNSUPPORTED, l->line, "brackets nested too deeply");
        l->open[l->n_open++] = c;
    } else if (close) {
        if (!l->n_open || l->open[l->n_open - 1] != "([{"[close - ")]}"])
            return c_fail(l->c, E_INPUT, l->line, "unexpected '%c'", c);
        l->n_open--;
    }
    return 0;
}

static int lex_operator(struct lexer *l)
{
    static const struct {
        const char *text;
        enum token_type type;
    } ops[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
        {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
        {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
        {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
        {",", T_COMMA},     {";", T_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (starts(l, l->at, ops[i].text)) {
            size_t n = strlen(ops[i].text);
            TRY(n == 1 ? check_bracket(l, ops[i].text[0]) : 0);
            push(l, ops[i].type, l->s + l->at, n);
            l->at += n;
            return 0;
        }
    unsigned char c = (unsigned char)l->s[l->at];
    if (c < 0x20 || c >= 0x7F)
        return c_fail(l->c, E_INPUT, l->line, "unexpected character in a tag (byte 0x%02x)", c);
    return c_fail(l->c, E_INPUT, l->line, "unexpected character '%c'", c);
}

static int lex_word(struct lexer *l, size_t end)
{
    unsigned char c = (unsigned char)l->s[l->at];
    uint32_t cp = 0;
    utf8_decode(l->s + l->at, l->n - l->at, &cp);
    if (c != '_' && !unicode_is(cp, UNI_ALPHA))
        return c_fail(l->c, E_INPUT, l->line, "invalid character at the start of a name");
    push(l, T_NAME, l->s + l->at, end - l->at);
    l->at = end;
    return 0;
}

/* Tokens up to the end tag; at stands behind the opening one. */
static int lex_tag(struct lexer *l, bool block)
{
    int first_line = l->line;
    l->n_open = 0;
    while (l->at < l->n) {
        size_t end = l->n_open ? 0
                     : block   ? end_tag(l, l->at, "%}", true, true)
                               : end_tag(l, l->at, "}}", false, false);
        if (end) {
            push(l, block ? T_BLOCK_END : T_PRINT_END, l->s + l->at, end - l->at);
            finish_match(l, end);
            return 0;
        }
        char c = l->s[l->at];
        size_t space = skip_space(l, l->at), word;
        if (space > l->at)
            advance(l, space);
        else if (c >= '0' && c <= '9')
            TRY(lex_number(l));
        else if ((word = name_end(l)) > l->at)
            TRY(lex_word(l, word));
        else if (c == '\'' || c == '"')
            TRY(lex_string(l));
        else
            TRY(lex_operator(l));
    }
    return c_fail(l->c, E_INPUT, first_line, "a tag without its end '%s'", block ? "%}" : "}}");
}

static int lex_root(struct lexer *l)
{
    while (l->at < l->n) {
        size_t at = l->at;
        while (at < l->n && !(l->s[at] == '{' && at + 1 < l->n && strchr("{%#", l->s[at + 1]) && l->s[at + 1]))
            at++;
        if (at >= l->n) {
            push(l, T_DATA, l->s + l->at, l->n - l->at);
            l->at = l->n;
            return 0;
        }
        char kind = l->s[at + 1], sign = sign_at(l, at + 2);
        size_t raw = word_tag(l, at, "raw", false, false);
        push_data(l, at, sign, kind != '{');
        if (raw) {
            TRY(lex_raw(l, raw));
        } else if (kind == '#') {
            TRY(lex_comment(l));
        } else {
            push(l, kind == '{' ? T_PRINT_BEGIN : T_BLOCK_BEGIN, l->s + at, 2);
            advance(l, at + 2 + (sign != 0));
            TRY(lex_tag(l, kind == '%'));
        }
    }
    return 0;
}

/* One kind of line end, and the last one gone: what jinja2 reads. */
static char *normal_newlines(struct compile *c, const char *s, size_t *n)
{
    char *out = arena_new(c->arena, *n + 1);
    size_t to = 0;
    for (size_t i = 0; i < *n; i++) {
        bool pair = s[i] == '\r' && i + 1 < *n && s[i + 1] == '\n';
        out[to++] = s[i] == '\r' ? '\n' : s[i];
        i += pair;
    }
    if (to && out[to - 1] == '\n')
        to--;
    *n = to;
    return out;
}

int jinja_lex(struct compile *c, const char *source, size_t n)
{
    struct lexer l = {.c = c, .line = 1, .line_start = true};
    l.s = normal_newlines(c, source, &n);
    l.n = n;
    if (!utf8_valid(l.s, l.n))
        c_fail(c, E_INPUT, 1, "the template is not UTF-8");
    else
        lex_root(&l);
    push(&l, T_EOF, "", 0);
    return c->error.code;
}
