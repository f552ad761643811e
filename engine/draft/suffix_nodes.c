#include "engine/draft/suffix_nodes.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { FIRST_NODES = 64 };

void suffix_nodes_init(struct suffix_nodes *s)
{
    memset(s, 0, sizeof *s);
    s->cap = s->cap_groups = FIRST_NODES;
    s->table_cap = 4 * FIRST_NODES;
    s->items = mem_new_array(s->cap, sizeof *s->items);
    s->groups = mem_new_array(s->cap_groups, sizeof *s->groups);
    s->table = mem_new_array(s->table_cap, sizeof *s->table);
    s->n = s->n_groups = 1;
}

void suffix_nodes_free(struct suffix_nodes *s)
{
    mem_free(s->items);
    mem_free(s->groups);
    mem_free(s->table);
    memset(s, 0, sizeof *s);
}

/* ---- children by token */

static uint32_t home(const struct suffix_nodes *s, uint32_t parent, int32_t first)
{
    uint64_t x = ((uint64_t)parent << 32 | (uint32_t)first) * 0x9e3779b97f4a7c15u;
    return (uint32_t)((x ^ x >> 29) * 0xbf58476d1ce4e5b9u >> 32) & (s->table_cap - 1);
}

static uint32_t place_of(const struct suffix_nodes *s, uint32_t parent, int32_t first)
{
    uint32_t at = home(s, parent, first), x;
    while ((x = s->table[at]) && (s->items[x].parent != parent || s->items[x].first != first))
        at = (at + 1) & (s->table_cap - 1);
    return at;
}

uint32_t suffix_nodes_find(const struct suffix_nodes *s, uint32_t parent, int32_t first)
{
    return s->table[place_of(s, parent, first)];
}

static void enter(struct suffix_nodes *s, uint32_t x)
{
    s->table[place_of(s, s->items[x].parent, s->items[x].first)] = x;
}

/* What stood behind it, and would be found no more, moves up. */
static void leave(struct suffix_nodes *s, uint32_t x)
{
    uint32_t mask = s->table_cap - 1, hole = place_of(s, s->items[x].parent, s->items[x].first), at = hole;
    ASSERT(s->table[hole] == x);
    while (s->table[at = (at + 1) & mask]) {
        const struct suffix_node *y = &s->items[s->table[at]];
        if (((at - home(s, y->parent, y->first)) & mask) >= ((at - hole) & mask)) {
            s->table[hole] = s->table[at];
            hole = at;
        }
    }
    s->table[hole] = 0;
}

/* ---- memory */

/* Twice as many places, in which all that had one are entered anew. */
static void grow_table(struct suffix_nodes *s)
{
    uint32_t *old = s->table, n = s->table_cap;
    s->table_cap = 2 * n;
    s->table = mem_new_array(s->table_cap, sizeof *s->table);
    for (uint32_t i = 0; i < n; i++)
        if (old[i])
            enter(s, old[i]);
    mem_free(old);
}

uint32_t suffix_nodes_new(struct suffix_nodes *s)
{
    uint32_t x = s->free;
    if (x) {
        s->free = s->items[x].next;
    } else {
        if (s->n == s->cap) {
            s->cap += s->cap / 2;
            s->items = mem_resize(s->items, s->cap, sizeof *s->items);
        }
        x = s->n++;
    }
    memset(&s->items[x], 0, sizeof s->items[x]);
    if (2 * ++s->n_live > s->table_cap)
        grow_table(s);
    return x;
}

void suffix_nodes_release(struct suffix_nodes *s, uint32_t x)
{
    s->items[x].next = s->free;
    s->free = x;
    s->n_live--;
}

size_t suffix_nodes_bytes(const struct suffix_nodes *s)
{
    /* a group for each node at the most; counting those in use would say little less */
    return s->n_live * (sizeof *s->items + sizeof *s->groups) + s->table_cap * sizeof *s->table;
}

size_t suffix_nodes_held(const struct suffix_nodes *s)
{
    return s->cap * sizeof *s->items + s->cap_groups * sizeof *s->groups + s->table_cap * sizeof *s->table;
}

/* ---- siblings by count */

static uint32_t new_group(struct suffix_nodes *s, uint32_t x)
{
    uint32_t g = s->free_group;
    if (g) {
        s->free_group = s->groups[g].head;
    } else {
        if (s->n_groups == s->cap_groups) {
            s->cap_groups += s->cap_groups / 2;
            s->groups = mem_resize(s->groups, s->cap_groups, sizeof *s->groups);
        }
        g = s->n_groups++;
    }
    s->groups[g] = (struct suffix_group){x, x};
    return g;
}

/* The list alone; at 0: behind the last one. */
static void link_before(struct suffix_nodes *s, uint32_t x, uint32_t at)
{
    struct suffix_node *items = s->items, *p = &items[items[x].parent];
    items[x].next = at;
    if (!p->child) {
        p->child = items[x].prev = x;
        return;
    }
    uint32_t last = items[p->child].prev, before = at ? items[at].prev : last;
    items[x].prev = before;
    if (at)
        items[at].prev = x;
    else
        items[p->child].prev = x;
    if (at == p->child)
        p->child = x; /* and its prev is the last one: `before` was */
    else
        items[before].next = x;
}

static void unlink_sibling(struct suffix_nodes *s, uint32_t x)
{
    struct suffix_node *items = s->items, *p = &items[items[x].parent];
    uint32_t next = items[x].next, prev = items[x].prev;
    if (p->child == x)
        p->child = next;
    else
        items[prev].next = next;
    if (next)
        items[next].prev = prev;
    else if (p->child)
        items[p->child].prev = prev;
}

static void leave_group(struct suffix_nodes *s, uint32_t x)
{
    uint32_t g = s->items[x].group;
    if (s->groups[g].head == s->groups[g].tail) {
        s->groups[g].head = s->free_group;
        s->free_group = g;
    } else if (s->groups[g].head == x) {
        s->groups[g].head = s->items[x].next;
    } else if (s->groups[g].tail == x) {
        s->groups[g].tail = s->items[x].prev;
    }
}

/* x, which is in no list, becomes the first of `group`, or of a group of its own before `at`. */
static void join(struct suffix_nodes *s, uint32_t x, uint32_t group, uint32_t at)
{
    if (group) {
        link_before(s, x, s->groups[group].head);
        s->groups[group].head = x;
    } else {
        link_before(s, x, at);
        group = new_group(s, x);
    }
    s->items[x].group = group;
}

static uint32_t group_with(const struct suffix_nodes *s, uint32_t sibling, uint32_t count)
{
    return sibling && s->items[sibling].count == count ? s->items[sibling].group : 0;
}

void suffix_nodes_add(struct suffix_nodes *s, uint32_t x)
{
    uint32_t child = s->items[s->items[x].parent].child, last = child ? s->items[child].prev : 0;
    join(s, x, group_with(s, last, s->items[x].count), 0);
    enter(s, x);
}

void suffix_nodes_only(struct suffix_nodes *s, uint32_t x)
{
    s->items[s->items[x].parent].child = 0;
    join(s, x, 0, 0);
    enter(s, x);
}

void suffix_nodes_raise(struct suffix_nodes *s, uint32_t x)
{
    struct suffix_node *items = s->items;
    uint32_t head = s->groups[items[x].group].head, count = items[x].count + 1,
             before = items[items[x].parent].child == head ? 0 : items[head].prev,
             at = head == x ? items[x].next : head, group = group_with(s, before, count);
    leave_group(s, x);
    unlink_sibling(s, x);
    join(s, x, group, at);
    items[x].count = count;
}

void suffix_nodes_lower(struct suffix_nodes *s, uint32_t x)
{
    struct suffix_node *items = s->items;
    uint32_t at = items[s->groups[items[x].group].tail].next, count = items[x].count - 1,
             group = group_with(s, at, count);
    leave_group(s, x);
    unlink_sibling(s, x);
    join(s, x, group, at);
    items[x].count = count;
}

void suffix_nodes_replace(struct suffix_nodes *s, uint32_t old, uint32_t x)
{
    struct suffix_node *items = s->items, *o = &items[old], *n = &items[x];
    struct suffix_group *g = &s->groups[o->group];
    uint32_t at = place_of(s, o->parent, o->first), first = items[o->parent].child;
    ASSERT(s->table[at] == old);
    s->table[at] = x;
    n->parent = o->parent;
    n->first = o->first;
    n->count = o->count;
    n->group = o->group;
    n->next = o->next;
    n->prev = o->prev == old ? x : o->prev; /* an only child is its own last one */
    if (first == old)
        items[o->parent].child = x;
    else
        items[o->prev].next = x;
    if (o->next)
        items[o->next].prev = x;
    else
        items[items[o->parent].child].prev = x;
    g->head = g->head == old ? x : g->head;
    g->tail = g->tail == old ? x : g->tail;
}

void suffix_nodes_unlink(struct suffix_nodes *s, uint32_t x)
{
    leave(s, x);
    leave_group(s, x);
    unlink_sibling(s, x);
}
