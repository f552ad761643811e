/* Expressions to nodes, with jinja2's precedence: if/else, or, and, not, comparisons, + -, ~, * / // %, **,
 * unary, then postfix, filters and tests. */
#include <string.h>

#include "models/template/ast.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filter);

static struct node *join(struct parser *p, enum node_type type, int op, struct node *a, struct node *b)
{
    struct node *n = p_node(p, type, a->line);
    n->op = op;
    return p_with(p, n, a, b, NULL);
}

struct node *p_expression(struct parser *p, bool with_condition)
{
    if (!p_enter(p)) {
        p->depth--;
        return p_node(p, N_CONST, 0);
    }
    struct node *n = parse_or(p);
    while (with_condition && p_skip_name(p, "if")) {
        struct node *cond = p_node(p, N_COND, n->line), *test = parse_or(p);
        struct node *other = p_skip_name(p, "else") ? p_expression(p, true) : NULL;
        n = p_with(p, cond, test, n, other);
    }
    p->depth--;
    return n;
}

static struct node *parse_not(struct parser *p);

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (p_skip_name(p, "and"))
        n = join(p, N_AND, 0, n, parse_not(p));
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (p_skip_name(p, "or"))
        n = join(p, N_OR, 0, n, parse_and(p));
    return n;
}

static struct node *binary_chain(struct parser *p, struct node *(*operand)(struct parser *), const enum token_type *ops)
{
    struct node *n = operand(p);
    for (;;) {
        const enum token_type *op = ops;
        while (*op && !p_is(p, *op))
            op++;
        if (!*op)
            return n;
        p_next(p);
        n = join(p, N_BINARY, (int)*op, n, operand(p));
    }
}

static struct node *full_unary(struct parser *p)
{
    return parse_unary(p, true);
}

static struct node *parse_pow(struct parser *p)
{
    static const enum token_type ops[] = {T_POW, T_EOF};
    return binary_chain(p, full_unary, ops);
}

static struct node *parse_product(struct parser *p)
{
    static const enum token_type ops[] = {T_MUL, T_DIV, T_FLOORDIV, T_MOD, T_EOF};
    return binary_chain(p, parse_pow, ops);
}

static struct node *parse_concat(struct parser *p)
{
    struct node *first = parse_product(p);
    if (!p_is(p, T_TILDE))
        return first;
    struct node *n = p_node(p, N_CONCAT, first->line);
    p_append(p, n, &n->list, first);
    while (p_skip(p, T_TILDE))
        p_append(p, n, &n->list, parse_product(p));
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    static const enum token_type ops[] = {T_ADD, T_SUB, T_EOF};
    return binary_chain(p, parse_concat, ops);
}

/* The comparison that stands here, taken; 0: none. */
static int comparison(struct parser *p)
{
    enum token_type t = p_token(p)->type;
    if (t >= T_EQ && t <= T_GE) {
        p_next(p);
        return (int)t;
    }
    if (p_skip_name(p, "in"))
        return OP_IN;
    struct token *after = p_look(p);
    if (p_is_name(p, "not") && after->type == T_NAME && after->len == 2 && memcmp(after->text, "in", 2) == 0) {
        p_next(p);
        p_next(p);
        return OP_NOT_IN;
    }
    return 0;
}

static struct node *parse_compare(struct parser *p)
{
    struct node *first = parse_sum(p), *n = NULL;
    for (int op; (op = comparison(p)) != 0;) {
        if (!n)
            n = p_with(p, p_node(p, N_COMPARE, first->line), first, NULL, NULL);
        struct node *operand = p_node(p, N_OPERAND, p_token(p)->line);
        operand->op = op;
        p_append(p, n, &n->list, p_with(p, operand, parse_sum(p), NULL, NULL));
    }
    return n ? n : first;
}

static struct node *parse_not(struct parser *p)
{
    if (!p_is_name(p, "not"))
        return parse_compare(p);
    struct node *n = p_node(p, N_NOT, p_next(p)->line);
    bool deeper = p_enter(p);
    p_with(p, n, deeper ? parse_not(p) : p_node(p, N_CONST, 0), NULL, NULL);
    p->depth--;
    return n;
}

/* ---- arguments, subscripts, filters, tests ---- */

static void arguments(struct parser *p, struct node *n)
{
    bool comma = false;
    p_expect(p, T_LPAREN);
    while (!p_is(p, T_RPAREN) && !c_failed(&p->c)) {
        if (comma) {
            p_expect(p, T_COMMA);
            if (p_is(p, T_RPAREN))
                break;
        }
        comma = true;
        bool bad;
        if (p_skip(p, T_MUL)) {
            bad = n->b || n->c;
            p_with(p, n, n->a, p_expression(p, true), n->c);
        } else if (p_skip(p, T_POW)) {
            bad = n->c;
            p_with(p, n, n->a, n->b, p_expression(p, true));
        } else if (p_is(p, T_NAME) && p_look(p)->type == T_ASSIGN) {
            bad = n->c;
            struct token *name = p_next(p);
            p_next(p);
            struct node *kw = p_node(p, N_KEYWORD, name->line);
            kw->value = p_string(p, name->text, name->len);
            p_append(p, n, &n->list2, p_with(p, kw, p_expression(p, true), NULL, NULL));
        } else {
            bad = n->b || n->c || n->list2.n;
            p_append(p, n, &n->list, p_expression(p, true));
        }
        if (bad)
            p_fail(p, E_INPUT, "arguments of a call in the wrong order");
    }
    p_expect(p, T_RPAREN);
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = p_with(p, p_node(p, N_CALL, p_token(p)->line), callee, NULL, NULL);
    if (callee->type == N_GETATTR && method_refused(callee->value.u.s->data, callee->value.u.s->len))
        p_fail(p, E_UNSUPPORTED, "the method '%.*s' is not offered", (int)callee->value.u.s->len,
               callee->value.u.s->data);
    if (callee->type == N_NAME && callee->name.n == 6 && memcmp(callee->name.s, "lipsum", 6) == 0)
        p_fail(p, E_UNSUPPORTED, "lipsum() is not offered");
    arguments(p, n);
    return n;
}

static struct node *parse_subscribed(struct parser *p)
{
    struct node *n = p_node(p, N_SLICE, p_token(p)->line), *part[3] = {NULL, NULL, NULL};
    if (!p_is(p, T_COLON)) {
        part[0] = p_expression(p, true);
        if (!p_is(p, T_COLON))
            return part[0];
    }
    p_expect(p, T_COLON);
    if (!p_is(p, T_COLON) && !p_is(p, T_RBRACKET) && !p_is(p, T_COMMA))
        part[1] = p_expression(p, true);
    if (p_skip(p, T_COLON) && !p_is(p, T_RBRACKET) && !p_is(p, T_COMMA))
        part[2] = p_expression(p, true);
    return p_with(p, n, part[0], part[1], part[2]);
}

static struct node *parse_dot(struct parser *p, struct node *of, int line)
{
    struct token *t = p_next(p);
    struct node *n = p_node(p, t->type == T_NAME ? N_GETATTR : N_GETITEM, line);
    if (t->type == T_NAME) {
        n->value = p_string(p, t->text, t->len);
        return p_with(p, n, of, NULL, NULL);
    }
    if (t->type != T_INTEGER)
        return p_fail(p, E_INPUT, "expected a name or a number after '.'");
    struct node *i = p_node(p, N_CONST, line);
    i->value = t->value;
    return p_with(p, n, of, i, NULL);
}

static struct node *parse_brackets(struct parser *p, struct node *of, int line)
{
    struct node *n = p_node(p, N_GETITEM, line), *several = p_node(p, N_TUPLE, line);
    while (!p_is(p, T_RBRACKET) && !c_failed(&p->c)) {
        if (several->list.n)
            p_expect(p, T_COMMA);
        struct node *arg = parse_subscribed(p);
        if (arg->type == N_SLICE && (several->list.n || !p_is(p, T_RBRACKET)))
            return p_fail(p, E_INPUT, "a slice beside other subscripts");
        p_append(p, several, &several->list, arg);
    }
    p_expect(p, T_RBRACKET);
    return p_with(p, n, of, several->list.n == 1 ? several->list.at[0] : several, NULL);
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    for (;;) {
        struct token *t = p_token(p);
        if (p_skip(p, T_DOT))
            n = parse_dot(p, n, t->line);
        else if (p_skip(p, T_LBRACKET))
            n = parse_brackets(p, n, t->line);
        else if (p_is(p, T_LPAREN))
            n = parse_call(p, n);
        else
            return n;
    }
}

/* The name of a filter named by a constant in map("..."), or a test in select("...") and the like, is known
 * now. */
static void check_named(struct parser *p, const struct node *n)
{
    static const struct {
        const char *filter;
        int argument;
        bool names_filter;
    } takers[] = {{"map", 0, true},
                  {"select", 0, false},
                  {"reject", 0, false},
                  {"selectattr", 1, false},
                  {"rejectattr", 1, false}};
    for (size_t i = 0; i < sizeof takers / sizeof *takers; i++) {
        if (strcmp(n->builtin->name, takers[i].filter) != 0 || n->list.n <= takers[i].argument)
            continue;
        struct value v = n->list.at[takers[i].argument]->value;
        if (n->list.at[takers[i].argument]->type != N_CONST || v.kind != J_STRING)
            continue;
        const char *s = v.u.s->data;
        if (takers[i].names_filter ? !filter_find(s, v.u.s->len) : !test_find(s, v.u.s->len))
            p_fail(p, E_UNSUPPORTED, "no %s named '%.*s'", takers[i].names_filter ? "filter" : "test",
                   (int)(v.u.s->len < 60 ? v.u.s->len : 60), s);
    }
}

static const struct builtin *known_builtin(struct parser *p, bool filter)
{
    struct token *t = p_expect(p, T_NAME);
    const struct builtin *b = filter ? filter_find(t->text, t->len) : test_find(t->text, t->len);
    int n = (int)(t->len < 60 ? t->len : 60);
    if (p_is(p, T_DOT)) {
        p_fail(p, E_UNSUPPORTED,
               "no %s named '%.*s.%.*s'; a method of the result needs brackets around what is before the dot",
               filter ? "filter" : "test", n, t->text, (int)(p_look(p)->len < 60 ? p_look(p)->len : 60),
               p_look(p)->text);
        return NULL;
    }
    if (!b && filter && filter_refused(t->text, t->len))
        p_fail(p, E_UNSUPPORTED, "the filter '%.*s' is not offered", n, t->text);
    else if (!b)
        p_fail(p, E_UNSUPPORTED, "no %s named '%.*s'", filter ? "filter" : "test", n, t->text);
    return b;
}

struct node *p_filters(struct parser *p, struct node *subject, bool inline_start)
{
    while (p_is(p, T_PIPE) || inline_start) {
        if (!inline_start)
            p_next(p);
        inline_start = false;
        struct node *n = p_with(p, p_node(p, N_FILTER, p_token(p)->line), subject, NULL, NULL);
        n->builtin = known_builtin(p, true);
        if (!n->builtin)
            return n;
        if (p_is(p, T_LPAREN))
            arguments(p, n);
        check_named(p, n);
        subject = n;
    }
    return subject;
}

static bool starts_argument(struct parser *p)
{
    switch (p_token(p)->type) {
    case T_NAME:
        return !p_is_name(p, "else") && !p_is_name(p, "or") && !p_is_name(p, "and");
    case T_STRING:
    case T_INTEGER:
    case T_FLOAT:
    case T_LBRACKET:
    case T_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct node *parse_test(struct parser *p, struct node *subject)
{
    struct node *n = p_with(p, p_node(p, N_TEST, p_next(p)->line), subject, NULL, NULL);
    bool negated = p_skip_name(p, "not");
    n->builtin = known_builtin(p, false);
    if (!n->builtin)
        return n;
    if (p_is(p, T_LPAREN)) {
        arguments(p, n);
    } else if (starts_argument(p)) {
        if (p_is_name(p, "is"))
            return p_fail(p, E_INPUT, "tests with 'is' cannot be chained");
        p_append(p, n, &n->list, parse_postfix(p, p_primary(p, false)));
    }
    return negated ? p_with(p, p_node(p, N_NOT, n->line), n, NULL, NULL) : n;
}

static struct node *parse_filters_and_tests(struct parser *p, struct node *n)
{
    while (!c_failed(&p->c)) {
        if (p_is(p, T_PIPE))
            n = p_filters(p, n, false);
        else if (p_is_name(p, "is"))
            n = parse_test(p, n);
        else if (p_is(p, T_LPAREN))
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

static struct node *parse_unary(struct parser *p, bool with_filter)
{
    struct node *n;
    if (p_is(p, T_SUB) || p_is(p, T_ADD)) {
        n = p_node(p, p_is(p, T_SUB) ? N_NEG : N_POS, p_token(p)->line);
        p_next(p);
        bool deeper = p_enter(p);
        p_with(p, n, deeper ? parse_unary(p, false) : p_node(p, N_CONST, 0), NULL, NULL);
        p->depth--;
    } else {
        n = p_primary(p, false);
    }
    n = parse_postfix(p, n);
    return with_filter ? parse_filters_and_tests(p, n) : n;
}

/* ---- primaries ---- */

static bool tuple_end(struct parser *p, const char *end_name)
{
    return p_is(p, T_PRINT_END) || p_is(p, T_BLOCK_END) || p_is(p, T_RPAREN) || (end_name && p_is_name(p, end_name));
}

struct node *p_tuple(struct parser *p, bool with_condition, const char *end_name, bool parentheses)
{
    struct node *n = p_node(p, N_TUPLE, p_token(p)->line);
    bool tuple = false;
    while (!c_failed(&p->c)) {
        if (n->list.n)
            p_expect(p, T_COMMA);
        if (tuple_end(p, end_name))
            break;
        p_append(p, n, &n->list, p_expression(p, with_condition));
        if (!p_is(p, T_COMMA))
            break;
        tuple = true;
    }
    if (!tuple && n->list.n)
        return n->list.at[0];
    if (!tuple && !parentheses)
        return p_fail(p, E_INPUT, "expected an expression, got %s", token_name(p_token(p)->type));
    return n;
}

static struct node *parse_list(struct parser *p, int line)
{
    struct node *n = p_node(p, N_LIST, line);
    while (!p_is(p, T_RBRACKET) && !c_failed(&p->c)) {
        if (n->list.n)
            p_expect(p, T_COMMA);
        if (p_is(p, T_RBRACKET))
            break;
        p_append(p, n, &n->list, p_expression(p, true));
    }
    p_expect(p, T_RBRACKET);
    return n;
}

static struct node *parse_dict(struct parser *p, int line)
{
    struct node *n = p_node(p, N_DICT, line);
    while (!p_is(p, T_RBRACE) && !c_failed(&p->c)) {
        if (n->list.n)
            p_expect(p, T_COMMA);
        if (p_is(p, T_RBRACE))
            break;
        p_append(p, n, &n->list, p_expression(p, true));
        p_expect(p, T_COLON);
        p_append(p, n, &n->list2, p_expression(p, true));
    }
    p_expect(p, T_RBRACE);
    return n;
}

static bool literal_name(const struct token *t, struct value *v)
{
    static const struct {
        const char *name;
        enum kind kind;
        bool b;
    } words[] = {{"true", J_BOOL, true},   {"True", J_BOOL, true},  {"false", J_BOOL, false},
                 {"False", J_BOOL, false}, {"none", J_NONE, false}, {"None", J_NONE, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (t->len == strlen(words[i].name) && memcmp(t->text, words[i].name, t->len) == 0) {
            *v = words[i].kind == J_BOOL ? j_bool(words[i].b) : j_none();
            return true;
        }
    return false;
}

static struct node *parse_name(struct parser *p, bool namespace_target)
{
    struct token *t = p_next(p);
    struct node *n = p_node(p, N_NAME, t->line);
    if (literal_name(t, &n->value)) {
        n->type = N_CONST;
        return n;
    }
    n->name = (struct name){t->text, t->len};
    if (namespace_target && p_skip(p, T_DOT)) {
        struct token *attr = p_expect(p, T_NAME);
        n->type = N_NSREF;
        n->value = p_string(p, attr->text, attr->len);
    }
    return n;
}

static struct node *parse_strings(struct parser *p)
{
    struct node *n = p_node(p, N_CONST, p_token(p)->line);
    struct buf all = {0};
    while (p_is(p, T_STRING)) {
        struct token *t = p_next(p);
        buf_put(&all, t->text, t->len);
    }
    n->value = p_string(p, arena_copy(p->c.arena, all.data ? all.data : "", all.len), all.len);
    buf_free(&all);
    return n;
}

struct node *p_primary(struct parser *p, bool namespace_target)
{
    struct token *t = p_token(p);
    struct node *n;
    switch (t->type) {
    case T_NAME:
        return parse_name(p, namespace_target);
    case T_STRING:
        return parse_strings(p);
    case T_INTEGER:
    case T_FLOAT:
        n = p_node(p, N_CONST, t->line);
        n->value = p_next(p)->value;
        return n;
    case T_LPAREN:
        p_next(p);
        n = p_tuple(p, true, NULL, true);
        p_expect(p, T_RPAREN);
        return n;
    case T_LBRACKET:
        p_next(p);
        return parse_list(p, t->line);
    case T_LBRACE:
        p_next(p);
        return parse_dict(p, t->line);
    default:
        return p_fail(p, E_INPUT, "unexpected %s in an expression", token_name(t->type));
    }
}
