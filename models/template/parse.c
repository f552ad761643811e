/* Statements to nodes, as jinja2's parser reads them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "models/template/ast.h"

struct token *p_token(struct parser *p)
{
    return &p->c.tokens[c_failed(&p->c) ? p->c.n_tokens - 1 : p->at];
}

struct token *p_look(struct parser *p)
{
    return &p->c.tokens[p->at + 1 < p->c.n_tokens ? p->at + 1 : p->c.n_tokens - 1];
}

struct token *p_next(struct parser *p)
{
    struct token *t = p_token(p);
    if (p->at + 1 < p->c.n_tokens)
        p->at++;
    return t;
}

bool p_is(struct parser *p, enum token_type type)
{
    return p_token(p)->type == type;
}

static bool token_is_name(const struct token *t, const char *name)
{
    return t->type == T_NAME && t->len == strlen(name) && memcmp(t->text, name, t->len) == 0;
}

bool p_is_name(struct parser *p, const char *name)
{
    return token_is_name(p_token(p), name);
}

bool p_skip(struct parser *p, enum token_type type)
{
    bool is = p_is(p, type);
    if (is)
        p_next(p);
    return is;
}

bool p_skip_name(struct parser *p, const char *name)
{
    bool is = p_is_name(p, name);
    if (is)
        p_next(p);
    return is;
}

struct token *p_expect(struct parser *p, enum token_type type)
{
    if (!p_is(p, type))
        p_fail(p, E_INPUT, "expected %s, got %s", token_name(type), token_name(p_token(p)->type));
    return p_next(p);
}

struct node *p_fail(struct parser *p, int code, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    c_fail(&p->c, code, p_token(p)->line, "%s", text);
    return p_node(p, N_CONST, 0);
}

bool p_enter(struct parser *p)
{
    if (p->depth >= NODE_DEPTH_MAX) {
        p_fail(p, E_UNSUPPORTED, "nested too deeply");
        return false;
    }
    p->depth++;
    return !c_failed(&p->c);
}

struct node *p_node(struct parser *p, enum node_type type, int line)
{
    struct node *n = arena_new(p->c.arena, sizeof *n);
    n->type = type;
    n->line = line;
    n->value = j_none();
    c_check_size(&p->c, line);
    n->slot_loop = n->slot_caller = n->slot_kwargs = n->slot_varargs = -1;
    return n;
}

static void adopt(struct parser *p, struct node *n, const struct node *child)
{
    if (child && child->depth >= n->depth)
        n->depth = child->depth + 1;
    if (n->depth > NODE_DEPTH_MAX)
        p_fail(p, E_UNSUPPORTED, "nested too deeply");
}

struct node *p_with(struct parser *p, struct node *n, struct node *a, struct node *b, struct node *c)
{
    n->a = a;
    n->b = b;
    n->c = c;
    adopt(p, n, a);
    adopt(p, n, b);
    adopt(p, n, c);
    return n;
}

void p_append(struct parser *p, struct node *n, struct nodes *list, struct node *item)
{
    if (list->n == list->cap) {
        list->cap = list->cap ? 2 * list->cap : 4;
        struct node **more = arena_new(p->c.arena, (size_t)list->cap * sizeof *more);
        if (list->n)
            memcpy(more, list->at, (size_t)list->n * sizeof *more);
        list->at = more;
    }
    list->at[list->n++] = item;
    if (n)
        adopt(p, n, item);
}

struct value p_string(struct parser *p, const char *s, size_t n)
{
    struct string *x = arena_new(p->c.arena, sizeof *x);
    *x = (struct string){.data = s, .len = n};
    for (size_t i = 0; i < n; i++) /* counted now: a template is shared by threads, and may not change later */
        x->chars += ((unsigned char)s[i] & 0xC0) != 0x80;
    return (struct value){.kind = J_STRING, .u.s = x};
}

/* ---- statements ---- */

static void statements(struct parser *p, struct node *owner, struct nodes *into, const char *const *ends);

/* The body of a block statement up to one of the names in ends (NULL-terminated), which becomes the current
 * token. */
static void body(struct parser *p, struct node *owner, struct nodes *into, const char *const *ends)
{
    p_skip(p, T_COLON);
    p_expect(p, T_BLOCK_END);
    statements(p, owner, into, ends);
    if (p_is(p, T_EOF))
        p_fail(p, E_INPUT, "the template ends where '%s' is missing (for line %d)", ends[0], owner->line);
}

static void last_body(struct parser *p, struct node *owner, struct nodes *into, const char *end)
{
    const char *const ends[] = {end, NULL};
    body(p, owner, into, ends);
    p_next(p);
}

/* Marks names as targets. False: something in it cannot be assigned to. */
static bool make_target(struct node *n, enum name_use use)
{
    if (n->type == N_NAME)
        n->op = use;
    else if (n->type == N_TUPLE)
        for (int i = 0; i < n->list.n; i++)
            if (!make_target(n->list.at[i], use))
                return false;
    return n->type == N_NAME || n->type == N_TUPLE || n->type == N_NSREF;
}

static struct node *target(struct parser *p, const char *end_name, bool namespaces, enum name_use use)
{
    int line = p_token(p)->line;
    struct node *t = p_node(p, N_TUPLE, line);
    bool tuple = false;
    while (!c_failed(&p->c)) {
        if (t->list.n)
            p_expect(p, T_COMMA);
        if (p_is(p, T_PRINT_END) || p_is(p, T_BLOCK_END) || p_is(p, T_RPAREN) || (end_name && p_is_name(p, end_name)))
            break;
        p_append(p, t, &t->list, p_primary(p, namespaces));
        if (!p_is(p, T_COMMA))
            break;
        tuple = true;
    }
    if (!t->list.n)
        return p_fail(p, E_INPUT, "expected a name to assign to, got %s", token_name(p_token(p)->type));
    if (!tuple)
        t = t->list.at[0];
    if (!make_target(t, use))
        p_fail(p, E_INPUT, "cannot assign to this");
    return t;
}

static struct node *name_target(struct parser *p, enum name_use use)
{
    struct node *n = p_node(p, N_NAME, p_token(p)->line);
    struct token *t = p_token(p);
    if (t->type == T_NAME)
        n = p_primary(p, false);
    else
        p_expect(p, T_NAME);
    if (n->type != N_NAME)
        return p_fail(p, E_INPUT, "cannot assign to this");
    n->op = use;
    return n;
}

static struct node *parse_set(struct parser *p, int line)
{
    struct node *t = target(p, NULL, true, USE_STORE);
    if (p_skip(p, T_ASSIGN))
        return p_with(p, p_node(p, N_SET, line), t, p_tuple(p, true, NULL, false), NULL);
    struct node *n = p_node(p, N_SET_BLOCK, line);
    p_with(p, n, t, p_filters(p, NULL, false), NULL);
    last_body(p, n, &n->list, "endset");
    return n;
}

static struct node *parse_for(struct parser *p, int line)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    struct node *n = p_node(p, N_FOR, line), *t = target(p, "in", false, USE_STORE);
    if (!p_skip_name(p, "in"))
        return p_fail(p, E_INPUT, "expected 'in' in a for");
    struct node *iter = p_tuple(p, false, "recursive", false);
    struct node *test = p_skip_name(p, "if") ? p_expression(p, true) : NULL;
    n->flag = p_skip_name(p, "recursive");
    p_with(p, n, t, iter, test);
    p->loops++;
    body(p, n, &n->list, ends);
    p->loops--;
    if (token_is_name(p_next(p), "else")) {
        int outer = p->loops; /* a break in the else branch means the loop around; a recursive loop is a function */
        p->loops = n->flag ? 0 : p->loops;
        last_body(p, n, &n->list2, "endfor");
        p->loops = outer;
    }
    return n;
}

static struct node *parse_if(struct parser *p, int line)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    struct node *first = p_node(p, N_IF, line), *n = first;
    while (!c_failed(&p->c)) {
        p_with(p, n, p_tuple(p, false, NULL, false), NULL, NULL);
        body(p, n, &n->list, ends);
        if (n != first)
            p_append(p, first, &first->list2, n);
        struct token *t = p_next(p);
        if (token_is_name(t, "else"))
            last_body(p, first, &first->list3, "endif");
        if (!token_is_name(t, "elif"))
            break;
        n = p_node(p, N_IF, t->line);
    }
    return first;
}

static void signature(struct parser *p, struct node *n)
{
    p_expect(p, T_LPAREN);
    while (!p_is(p, T_RPAREN) && !c_failed(&p->c)) {
        if (n->list.n)
            p_expect(p, T_COMMA);
        struct node *param = name_target(p, USE_PARAM);
        if (p_skip(p, T_ASSIGN))
            p_append(p, n, &n->list2, p_expression(p, true));
        else if (n->list2.n)
            p_fail(p, E_INPUT, "a parameter without default after one with");
        p_append(p, n, &n->list, param);
    }
    p_expect(p, T_RPAREN);
}

/* Macros and call blocks are functions: no loop of outside can be left from inside. */
static struct node *function_body(struct parser *p, struct node *n, const char *end)
{
    int outer = p->loops;
    p->loops = 0;
    last_body(p, n, &n->list3, end);
    p->loops = outer;
    return n;
}

static struct node *parse_macro(struct parser *p, int line)
{
    struct node *n = p_node(p, N_MACRO, line);
    n->name = name_target(p, USE_STORE)->name;
    signature(p, n);
    return function_body(p, n, "endmacro");
}

static struct node *parse_call_block(struct parser *p, int line)
{
    struct node *n = p_node(p, N_CALL_BLOCK, line);
    if (p_is(p, T_LPAREN))
        signature(p, n);
    struct node *call = p_expression(p, true);
    if (call->type != N_CALL)
        return p_fail(p, E_INPUT, "expected a call after 'call'");
    p_with(p, n, call, NULL, NULL);
    return function_body(p, n, "endcall");
}

static struct node *parse_generation(struct parser *p, int line)
{
    return function_body(p, p_node(p, N_CALL_BLOCK, line), "endgeneration");
}

static struct node *parse_filter_block(struct parser *p, int line)
{
    struct node *n = p_node(p, N_FILTER_BLOCK, line);
    p_with(p, n, NULL, p_filters(p, NULL, true), NULL);
    last_body(p, n, &n->list, "endfilter");
    return n;
}

static struct node *parse_with(struct parser *p, int line)
{
    struct node *n = p_node(p, N_WITH, line);
    while (!p_is(p, T_BLOCK_END) && !c_failed(&p->c)) {
        if (n->list.n)
            p_expect(p, T_COMMA);
        p_append(p, n, &n->list, target(p, NULL, false, USE_PARAM));
        p_expect(p, T_ASSIGN);
        p_append(p, n, &n->list2, p_expression(p, true));
    }
    last_body(p, n, &n->list3, "endwith");
    return n;
}

static struct node *parse_jump(struct parser *p, int line)
{
    bool is_break = token_is_name(&p->c.tokens[p->at - 1], "break");
    if (!p->loops)
        return p_fail(p, E_INPUT, "'%s' outside of a loop", is_break ? "break" : "continue");
    return p_node(p, is_break ? N_BREAK : N_CONTINUE, line);
}

/* {% print a, b %} makes several nodes. */
static void parse_print(struct parser *p, struct node *owner, struct nodes *into, int line)
{
    bool first = true;
    while (!p_is(p, T_BLOCK_END) && !c_failed(&p->c)) {
        if (!first)
            p_expect(p, T_COMMA);
        first = false;
        struct node *n = p_node(p, N_PRINT, line);
        p_append(p, owner, into, p_with(p, n, p_expression(p, true), NULL, NULL));
    }
}

static void refuse_tag(struct parser *p, const struct token *tag)
{
    static const char *const known[] = {"include",    "import", "from",  "extends", "block",
                                        "autoescape", "do",     "trans", "debug",   "pluralize"};
    int n = (int)(tag->len < 60 ? tag->len : 60);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (token_is_name(tag, known[i])) {
            p_fail(p, E_UNSUPPORTED, "the tag '%s' is not offered in chat templates", known[i]);
            return;
        }
    p_fail(p, E_INPUT, "unknown tag '%.*s', or one that closes nothing", n, tag->text);
}

static void statement(struct parser *p, struct node *owner, struct nodes *into)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *, int line);
    } tags[] = {
        {"set", parse_set},         {"for", parse_for},
        {"if", parse_if},           {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block},
        {"with", parse_with},       {"break", parse_jump},
        {"continue", parse_jump},   {"generation", parse_generation},
    };
    struct token *tag = p_token(p);
    if (tag->type != T_NAME) {
        p_fail(p, E_INPUT, "expected the name of a tag");
        return;
    }
    if (p_is_name(p, "print")) {
        p_next(p);
        parse_print(p, owner, into, tag->line);
        return;
    }
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (token_is_name(tag, tags[i].name)) {
            p_next(p);
            if (p_enter(p))
                p_append(p, owner, into, tags[i].parse(p, tag->line));
            p->depth--;
            return;
        }
    refuse_tag(p, tag);
}

static bool at_end(struct parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (p_is_name(p, *ends))
            return true;
    return false;
}

static void statements(struct parser *p, struct node *owner, struct nodes *into, const char *const *ends)
{
    while (!p_is(p, T_EOF)) {
        struct token *t = p_next(p);
        struct node *n;
        switch (t->type) {
        case T_DATA:
            n = p_node(p, N_DATA, t->line);
            n->value = p_string(p, t->text, t->len);
            p_append(p, owner, into, n);
            break;
        case T_PRINT_BEGIN:
            n = p_node(p, N_PRINT, t->line);
            p_append(p, owner, into, p_with(p, n, p_tuple(p, true, NULL, false), NULL, NULL));
            p_expect(p, T_PRINT_END);
            break;
        default:
            if (at_end(p, ends))
                return;
            statement(p, owner, into);
            p_expect(p, T_BLOCK_END);
        }
    }
}

int jinja_parse(struct parser *p)
{
    statements(p, NULL, &p->t->body, NULL);
    return p->c.error.code;
}
