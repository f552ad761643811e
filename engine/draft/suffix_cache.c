#include "engine/draft/suffix_cache.h"

#include <string.h>

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"
#include "engine/world/ids.h"

enum { SLICE = 24, BYTES_A_TOKEN = 128 /* more than any token takes */ };

struct tenant_tree {
    char name[NAME_BYTES];
    uint32_t root;
    struct list entries; /* the oldest first */
    int64_t n_tokens;
};

struct entry {
    struct list in_tenant, by_age, by_use;
    struct tenant_tree *tenant;
    uint32_t seq;
};

struct suffix_cache {
    struct suffix_tree *tree;
    size_t bytes;
    enum draft_evict rule;
    struct tenant_tree **tenants;
    int n_tenants, cap_tenants;
    struct map by_seq;          /* tree's handle -> struct entry * */
    struct list by_age, by_use; /* of all entries: the oldest first, the one that was used least lately first */
    int64_t n_evicted;
    bool emptying;
    struct entry *coming, *going; /* under way; NULL: none */
    const int32_t *tokens;        /* of what comes */
    int n_tokens, n_added;
};

struct suffix_cache *suffix_cache_new(size_t bytes)
{
    struct suffix_cache *c = mem_new(sizeof *c);
    c->tree = suffix_tree_new();
    c->bytes = bytes;
    list_init(&c->by_age);
    list_init(&c->by_use);
    map_init(&c->by_seq);
    return c;
}

void suffix_cache_free(struct suffix_cache *c)
{
    if (!c)
        return;
    LIST_EACH_SAFE(at, next, &c->by_age)
    mem_free(LIST_ENTRY(at, struct entry, by_age));
    for (int i = 0; i < c->n_tenants; i++)
        mem_free(c->tenants[i]);
    mem_free(c->coming);
    mem_free(c->going);
    mem_free(c->tenants);
    map_free(&c->by_seq);
    suffix_tree_free(c->tree);
    mem_free(c);
}

void suffix_cache_set_rule(struct suffix_cache *c, enum draft_evict rule)
{
    c->rule = rule;
}

void suffix_cache_empty(struct suffix_cache *c)
{
    c->emptying = true;
}

/* ---- tenants, in the order of their names */

static int place_of(const struct suffix_cache *c, const char *name)
{
    int low = 0, high = c->n_tenants;
    while (low < high) {
        int mid = (low + high) / 2;
        if (strcmp(c->tenants[mid]->name, name) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static struct tenant_tree *find(const struct suffix_cache *c, const char *name)
{
    int at = place_of(c, name);
    return at < c->n_tenants && strcmp(c->tenants[at]->name, name) == 0 ? c->tenants[at] : NULL;
}

static struct tenant_tree *enter(struct suffix_cache *c, const char *name)
{
    struct tenant_tree *t = find(c, name);
    int at = place_of(c, name);
    if (t)
        return t;
    if (c->n_tenants == c->cap_tenants) {
        c->cap_tenants = c->cap_tenants ? 2 * c->cap_tenants : 4;
        c->tenants = mem_resize(c->tenants, (size_t)c->cap_tenants, sizeof(struct tenant_tree *));
    }
    t = mem_new(sizeof *t);
    strncpy(t->name, name, sizeof t->name - 1);
    t->root = suffix_tree_root(c->tree);
    list_init(&t->entries);
    memmove(c->tenants + at + 1, c->tenants + at, (size_t)(c->n_tenants++ - at) * sizeof(struct tenant_tree *));
    return c->tenants[at] = t;
}

static void leave(struct suffix_cache *c, struct tenant_tree *t)
{
    int at = place_of(c, t->name);
    bool comes = c->coming && c->coming->tenant == t;
    if (!list_empty(&t->entries) || comes)
        return;
    suffix_tree_drop_root(c->tree, t->root);
    memmove(c->tenants + at, c->tenants + at + 1, (size_t)(--c->n_tenants - at) * sizeof(struct tenant_tree *));
    mem_free(t);
}

/* ---- out */

/* Who goes next; NULL: there is nobody. */
static struct entry *next_out(const struct suffix_cache *c)
{
    const struct tenant_tree *largest = NULL;
    if (list_empty(&c->by_age))
        return NULL;
    if (c->rule == EVICT_OLDEST)
        return LIST_ENTRY(c->by_age.next, struct entry, by_age);
    if (c->rule == EVICT_UNUSED)
        return LIST_ENTRY(c->by_use.next, struct entry, by_use);
    for (int i = 0; i < c->n_tenants; i++)
        if (!list_empty(&c->tenants[i]->entries) && (!largest || c->tenants[i]->n_tokens > largest->n_tokens))
            largest = c->tenants[i];
    return LIST_ENTRY(largest->entries.next, struct entry, in_tenant);
}

static void begin_out(struct suffix_cache *c, struct entry *e)
{
    c->going = e;
    list_remove(&e->in_tenant);
    list_remove(&e->by_age);
    list_remove(&e->by_use);
    map_remove(&c->by_seq, e->seq);
    c->n_evicted++;
}

static void take_slice_out(struct suffix_cache *c)
{
    struct entry *e = c->going;
    int before = suffix_tree_n_tokens(c->tree, e->seq);
    bool gone = suffix_tree_remove(c->tree, e->seq, SLICE);
    e->tenant->n_tokens -= gone ? before : before - suffix_tree_n_tokens(c->tree, e->seq);
    if (!gone)
        return;
    c->going = NULL;
    leave(c, e->tenant);
    mem_free(e);
}

/* ---- in */

void suffix_cache_add(struct suffix_cache *c, const char *tenant, const int32_t *tokens, int n)
{
    struct entry *e = mem_new(sizeof *e);
    int most = (int)(c->bytes / BYTES_A_TOKEN / 2 < INT32_MAX ? c->bytes / BYTES_A_TOKEN / 2 : INT32_MAX);
    int skip = n > most ? n - most : 0; /* of what is longer than half the cache its end */
    e->tenant = enter(c, tenant);
    e->seq = suffix_tree_begin(c->tree, e->tenant->root);
    c->coming = e;
    c->tokens = tokens + skip;
    c->n_tokens = n - skip;
    c->n_added = 0;
}

static void end_in(struct suffix_cache *c)
{
    struct entry *e = c->coming;
    suffix_tree_end(c->tree);
    list_push_back(&e->tenant->entries, &e->in_tenant);
    list_push_back(&c->by_age, &e->by_age);
    list_push_back(&c->by_use, &e->by_use);
    map_set(&c->by_seq, e->seq, (uint64_t)(uintptr_t)e);
    c->coming = NULL;
}

bool suffix_cache_work(struct suffix_cache *c)
{
    if (!c->going && (c->emptying || suffix_tree_stats(c->tree).bytes + SLICE * BYTES_A_TOKEN > c->bytes)) {
        struct entry *e = next_out(c);
        if (e)
            begin_out(c, e);
        c->emptying = e && c->emptying;
    }
    if (c->going) {
        take_slice_out(c);
        return true;
    }
    if (!c->coming)
        return false;
    int n = c->n_tokens - c->n_added < SLICE ? c->n_tokens - c->n_added : SLICE;
    suffix_tree_append(c->tree, c->tokens + c->n_added, n);
    c->coming->tenant->n_tokens += n;
    c->n_added += n;
    if (c->n_added == c->n_tokens)
        end_in(c);
    return true;
}

/* ---- guesses */

int suffix_cache_guess(struct suffix_cache *c, const char *tenant, const int32_t *context, int n_context,
                       struct suffix_want want, struct suffix_guess *g)
{
    const struct tenant_tree *t = find(c, tenant);
    uint64_t at;
    g->n = g->match = 0;
    g->score = 0;
    if (!t)
        return 0;
    want.root = t->root;
    if (suffix_tree_guess(c->tree, &want, context, n_context, g) && map_find(&c->by_seq, g->seq, &at)) {
        struct entry *e = (struct entry *)(uintptr_t)at;
        list_remove(&e->by_use);
        list_push_back(&c->by_use, &e->by_use);
    }
    return g->n;
}

struct suffix_cache_stats suffix_cache_stats(const struct suffix_cache *c)
{
    return (struct suffix_cache_stats){suffix_tree_stats(c->tree), (int)c->by_seq.count, c->n_tenants, c->n_evicted};
}

void suffix_cache_each(const struct suffix_cache *c,
                       bool (*visit)(void *ctx, const char *tenant, const int32_t *tokens, int n), void *ctx)
{
    bool on = true;
    for (const struct list *at = c->by_age.next; on && at != &c->by_age; at = at->next) {
        const struct entry *e = LIST_ENTRY(at, struct entry, by_age);
        int n = suffix_tree_n_tokens(c->tree, e->seq);
        int32_t *tokens = mem_new_array((size_t)n + 1, sizeof *tokens);
        suffix_tree_tokens(c->tree, e->seq, tokens);
        on = visit(ctx, e->tenant->name, tokens, n);
        mem_free(tokens);
    }
}
