#include "models/guide/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/shared.h"

void grammar_maker_free(struct grammar_maker *m)
{
    mem_free(m->nodes);
    mem_free(m->sets);
    mem_free(m->rules);
    map_free(&m->by_set);
    *m = (struct grammar_maker){0};
}

uint64_t grammar_key(const void *p, size_t n)
{
    struct sha256 all = hash_sha256(p, n);
    uint64_t key;
    memcpy(&key, all.bytes, sizeof key);
    return key;
}

static int32_t add(struct grammar_maker *m, enum grammar_kind kind, int32_t a, int32_t b)
{
    if (m->n_nodes == GRAMMAR_MOST_NODES) {
        m->over = true;
        return 0;
    }
    if (m->n_nodes == m->cap_nodes) {
        m->cap_nodes = m->cap_nodes ? 2 * m->cap_nodes : 64;
        m->nodes = mem_resize(m->nodes, (size_t)m->cap_nodes, sizeof *m->nodes);
    }
    m->nodes[m->n_nodes] = (struct grammar_node){kind, a, b};
    return m->n_nodes++;
}

int32_t grammar_rule(struct grammar_maker *m)
{
    if (m->n_rules == m->cap_rules) {
        m->cap_rules = m->cap_rules ? 2 * m->cap_rules : 16;
        m->rules = mem_resize(m->rules, (size_t)m->cap_rules, sizeof *m->rules);
    }
    m->rules[m->n_rules] = -1;
    return m->n_rules++;
}

void grammar_make_rule(struct grammar_maker *m, int32_t rule, int32_t first)
{
    m->rules[rule] = first;
}

int32_t grammar_end(struct grammar_maker *m)
{
    return add(m, GRAMMAR_END, 0, 0);
}

int32_t grammar_byte(struct grammar_maker *m, unsigned char b, int32_t next)
{
    return add(m, GRAMMAR_BYTE, b, next);
}

/* Its place; equal sets have one. */
static int32_t place_of(struct grammar_maker *m, const struct grammar_set *s)
{
    uint64_t key = grammar_key(s, sizeof *s), found;
    for (; map_find(&m->by_set, key, &found); key++)
        if (memcmp(&m->sets[found], s, sizeof *s) == 0)
            return (int32_t)found;
    if (m->n_sets == m->cap_sets) {
        m->cap_sets = m->cap_sets ? 2 * m->cap_sets : 16;
        m->sets = mem_resize(m->sets, (size_t)m->cap_sets, sizeof *m->sets);
    }
    map_set(&m->by_set, key, (uint64_t)m->n_sets);
    m->sets[m->n_sets] = *s;
    return m->n_sets++;
}

int32_t grammar_set(struct grammar_maker *m, const struct grammar_set *s, int32_t next)
{
    int n = 0, last = 0;
    for (int b = 0; b < 256; b++)
        if (grammar_set_has(s, (unsigned char)b)) {
            last = b;
            n++;
        }
    if (n == 1) /* what has to come is told by its kind (guide.c) */
        return grammar_byte(m, (unsigned char)last, next);
    return add(m, GRAMMAR_SET, place_of(m, s), next);
}

int32_t grammar_range(struct grammar_maker *m, unsigned char from, unsigned char to, int32_t next)
{
    struct grammar_set s = {{0}};
    for (int b = from; b <= to; b++)
        s.bits[b >> 6] |= (uint64_t)1 << (b & 63);
    return from == to ? grammar_byte(m, from, next) : grammar_set(m, &s, next);
}

int32_t grammar_text(struct grammar_maker *m, const char *s, size_t n, int32_t next)
{
    while (n && !m->over)
        next = grammar_byte(m, (unsigned char)s[--n], next);
    return next;
}

int32_t grammar_split(struct grammar_maker *m, int32_t a, int32_t b)
{
    return add(m, GRAMMAR_SPLIT, a, b);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of sorted texts, which are alike in their first `at` bytes; the depth is that of ways that branch. */
static int32_t one_of(struct grammar_maker *m, char *const *texts, int n, size_t at, int32_t next)
{
    size_t alike = at;
    if (n == 1)
        return grammar_text(m, texts[0] + at, strlen(texts[0] + at), next);
    while (texts[0][alike] && texts[0][alike] == texts[n - 1][alike]) /* so the ones between are, too */
        alike++;
    int first = 0;
    while (first < n && !texts[first][alike])
        first++;
    int32_t ways = first ? next : -1;
    for (int i = first, end; i < n && !m->over; i = end) {
        for (end = i + 1; end < n && texts[end][alike] == texts[i][alike]; end++)
            ;
        int32_t way = one_of(m, texts + i, end - i, alike, next);
        ways = ways < 0 ? way : grammar_split(m, ways, way);
    }
    return grammar_text(m, texts[0] + at, alike - at, ways);
}

int32_t grammar_one_of(struct grammar_maker *m, struct strings *texts, int32_t next)
{
    qsort(texts->items, (size_t)texts->n, sizeof *texts->items, by_bytes);
    return one_of(m, texts->items, texts->n, 0, next);
}

int32_t grammar_call(struct grammar_maker *m, int32_t rule, int32_t next)
{
    return add(m, GRAMMAR_CALL, rule, next);
}

int32_t grammar_open(struct grammar_maker *m, int32_t other)
{
    return add(m, GRAMMAR_SPLIT, other, other);
}

void grammar_close(struct grammar_maker *m, int32_t split, int32_t way)
{
    if (!m->over)
        m->nodes[split].a = way;
}

int32_t grammar_include(struct grammar_maker *m, const struct grammar *g)
{
    int32_t node = m->n_nodes, rule = m->n_rules;
    for (int i = 0; i < g->n_rules; i++)
        grammar_make_rule(m, grammar_rule(m), node + g->rules[i]);
    for (int i = 0; i < g->n_nodes && !m->over; i++) {
        struct grammar_node x = g->nodes[i];
        bool jumps = x.kind != GRAMMAR_END, splits = x.kind == GRAMMAR_SPLIT;
        int32_t a = splits                   ? node + x.a
                    : x.kind == GRAMMAR_CALL ? rule + x.a
                    : x.kind == GRAMMAR_SET  ? place_of(m, &g->sets[x.a])
                                             : x.a;
        add(m, x.kind, a, jumps ? node + x.b : x.b);
    }
    return rule;
}

int32_t grammar_wide(struct grammar_maker *m, int32_t next)
{
    int32_t one = grammar_range(m, 0x80, 0xBF, next), two = grammar_range(m, 0x80, 0xBF, one),
            three = grammar_range(m, 0x80, 0xBF, two);
    int32_t ways[] = {
        grammar_range(m, 0xC2, 0xDF, one),   grammar_byte(m, 0xE0, grammar_range(m, 0xA0, 0xBF, one)),
        grammar_range(m, 0xE1, 0xEC, two),   grammar_byte(m, 0xED, grammar_range(m, 0x80, 0x9F, one)),
        grammar_range(m, 0xEE, 0xEF, two),   grammar_byte(m, 0xF0, grammar_range(m, 0x90, 0xBF, two)),
        grammar_range(m, 0xF1, 0xF3, three), grammar_byte(m, 0xF4, grammar_range(m, 0x80, 0x8F, two)),
    };
    int32_t all = ways[0];
    for (size_t i = 1; i < sizeof ways / sizeof *ways; i++)
        all = grammar_split(m, all, ways[i]);
    return all;
}

/* ---- does a rule call itself before it takes a byte? */

struct calls {
    const struct grammar_maker *m;
    bool *empty;           /* by node: its rule can end from there without a byte */
    int32_t *seen, *stack; /* by node: seen in the look at the rule numbered so, plus 1; nodes yet to look at */
    int32_t *to, *from;    /* rules that are called first, by caller; from[r]: where those of rule r begin */
    int32_t *n_callers;
    int n;
};

/* Nodes that wait for another one to be empty, as lists. */
struct waiting {
    int32_t *first; /* by node: of its list; -1: none */
    int32_t *next;  /* by entry, two for each node: 2 * node, and 2 * node + 1 */
    int8_t *need;   /* by node: how many of those that it waits for have to be empty yet */
};

static void wait_for(struct waiting *w, int32_t entry, int32_t node)
{
    w->next[entry] = w->first[node];
    w->first[node] = entry;
}

/* A split is empty if a way is, a call if its rule is and what stands behind it. Each is found once, from the ends on.
 */
static void find_empty(struct calls *c)
{
    size_t n_nodes = (size_t)c->m->n_nodes;
    struct waiting w = {mem_new_array(n_nodes, sizeof(int32_t)), mem_new_array(2 * n_nodes, sizeof(int32_t)),
                        mem_new_array(n_nodes, 1)};
    int n = 0;
    memset(w.first, 0xFF, n_nodes * sizeof *w.first);
    for (int32_t i = 0; i < c->m->n_nodes; i++) {
        const struct grammar_node *x = &c->m->nodes[i];
        bool call = x->kind == GRAMMAR_CALL;
        w.need[i] = call ? 2 : 1;
        if (call || x->kind == GRAMMAR_SPLIT) {
            wait_for(&w, 2 * i, call ? c->m->rules[x->a] : x->a);
            wait_for(&w, 2 * i + 1, x->b);
        }
        c->empty[i] = x->kind == GRAMMAR_END;
        if (c->empty[i])
            c->stack[n++] = i;
    }
    while (n)
        for (int32_t e = w.first[c->stack[--n]], next; e >= 0; e = next) {
            next = w.next[e];
            if (!c->empty[e / 2] && --w.need[e / 2] == 0) {
                c->empty[e / 2] = true;
                c->stack[n++] = e / 2;
            }
        }
    mem_free(w.first);
    mem_free(w.next);
    mem_free(w.need);
}

static void look_at(struct calls *c, int32_t node, int32_t rule, int *n)
{
    if (c->seen[node] == rule + 1)
        return;
    c->seen[node] = rule + 1;
    c->stack[(*n)++] = node;
}

/* Rules that this one may call before it takes a byte. */
static void find_calls(struct calls *c, int32_t rule)
{
    int n = 0;
    look_at(c, c->m->rules[rule], rule, &n);
    while (n) {
        const struct grammar_node *x = &c->m->nodes[c->stack[--n]];
        if (x->kind == GRAMMAR_CALL) {
            c->n_callers[x->a]++;
            c->to[c->n++] = x->a;
            if (c->empty[c->m->rules[x->a]])
                look_at(c, x->b, rule, &n);
        } else if (x->kind == GRAMMAR_SPLIT) {
            look_at(c, x->a, rule, &n);
            look_at(c, x->b, rule, &n);
        }
    }
}

/* Rules are taken away that no rule calls first; what is left calls itself. */
static bool has_circle(struct calls *c)
{
    int n = 0, taken = 0;
    for (int32_t r = 0; r < c->m->n_rules; r++)
        if (!c->n_callers[r])
            c->stack[n++] = r;
    for (; n; taken++) {
        int32_t r = c->stack[--n];
        for (int32_t i = c->from[r]; i < c->from[r + 1]; i++)
            if (!--c->n_callers[c->to[i]])
                c->stack[n++] = c->to[i];
    }
    return taken < c->m->n_rules;
}

static bool calls_itself_first(const struct grammar_maker *m)
{
    size_t n_nodes = (size_t)m->n_nodes, n_rules = (size_t)m->n_rules;
    struct calls c = {.m = m,
                      .empty = mem_new_array(n_nodes, sizeof(bool)),
                      .seen = mem_new_array(n_nodes, sizeof(int32_t)),
                      .stack = mem_new_array(n_nodes + n_rules, sizeof(int32_t)),
                      .to = mem_new_array(n_nodes, sizeof(int32_t)),
                      .from = mem_new_array(n_rules + 1, sizeof(int32_t)),
                      .n_callers = mem_new_array(n_rules, sizeof(int32_t))};
    find_empty(&c);
    for (int32_t r = 0; r < m->n_rules; r++) {
        c.from[r] = c.n;
        find_calls(&c, r);
    }
    c.from[m->n_rules] = c.n;
    bool circle = has_circle(&c);
    mem_free(c.empty);
    mem_free(c.seen);
    mem_free(c.stack);
    mem_free(c.to);
    mem_free(c.from);
    mem_free(c.n_callers);
    return circle;
}

/* ---- one piece of memory */

size_t grammar_bytes(const struct grammar *g)
{
    return sizeof *g + (size_t)g->n_sets * sizeof *g->sets + (size_t)g->n_nodes * sizeof *g->nodes +
           (size_t)g->n_rules * sizeof *g->rules;
}

static struct grammar *copy(const struct grammar_maker *m)
{
    size_t sets = (size_t)m->n_sets * sizeof *m->sets, nodes = (size_t)m->n_nodes * sizeof *m->nodes,
           rules = (size_t)m->n_rules * sizeof *m->rules;
    char *at = shared_new(1, sizeof(struct grammar) + sets + nodes + rules);
    struct grammar *g = (struct grammar *)(void *)at;
    at += sizeof *g;
    if (sets)
        memcpy(at, m->sets, sets);
    memcpy(at + sets, m->nodes, nodes);
    memcpy(at + sets + nodes, m->rules, rules);
    *g = (struct grammar){.n_nodes = m->n_nodes,
                          .n_rules = m->n_rules,
                          .n_sets = m->n_sets,
                          .sets = (const struct grammar_set *)(const void *)at,
                          .nodes = (const struct grammar_node *)(const void *)(at + sets),
                          .rules = (const int32_t *)(const void *)(at + sets + nodes)};
    return g;
}

int grammar_finish(struct grammar_maker *m, struct grammar **out, struct err *e)
{
    int rc = 0;
    if (m->over)
        rc = err_set(e, E_INPUT, "it is too large: more than %d parts", GRAMMAR_MOST_NODES);
    else if (calls_itself_first(m))
        rc = err_set(e, E_INPUT, "a part of it is itself, with nothing around it");
    else
        *out = copy(m);
    grammar_maker_free(m);
    return rc;
}
