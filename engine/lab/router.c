#include "engine/lab/router.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/map.h"
#include "engine/base/mem.h"

enum { KNOWN_PREFIXES = 1 << 18, SLACK = 8 };

struct router {
    enum router_kind kind;
    int n_nodes, last;
    int64_t under_way[ROUTER_MAX_NODES];
    uint64_t n_chosen, chosen_at[ROUTER_MAX_NODES];
    struct map prefixes[2]; /* prefix -> node; what was used since the last turn of the tables, and before it */
};

struct router *router_new(enum router_kind kind, int n_nodes)
{
    struct router *r = mem_new(sizeof *r);
    ASSERT(n_nodes >= 1 && n_nodes <= ROUTER_MAX_NODES);
    r->kind = kind;
    r->n_nodes = n_nodes;
    r->last = n_nodes - 1;
    map_init(&r->prefixes[0]);
    map_init(&r->prefixes[1]);
    return r;
}

void router_free(struct router *r)
{
    if (!r)
        return;
    map_free(&r->prefixes[0]);
    map_free(&r->prefixes[1]);
    mem_free(r);
}

static int least_loaded(const struct router *r)
{
    int best = 0;
    for (int i = 1; i < r->n_nodes; i++)
        if (r->under_way[i] < r->under_way[best] ||
            (r->under_way[i] == r->under_way[best] && r->chosen_at[i] < r->chosen_at[best]))
            best = i;
    return best;
}

/* Tenants share no KV. */
static uint64_t key_of(const struct trace_row *row, int i)
{
    return map_hash(row->hashes[i] ^ map_hash_bytes(row->tenant, strlen(row->tenant)));
}

/* The node that got the longest prefix last; -1: none did. */
static int who_has(const struct router *r, const struct trace_row *row)
{
    uint64_t node;
    for (int i = row->n_hashes - 1; i >= 0; i--)
        for (int k = 0; k < 2; k++)
            if (map_find(&r->prefixes[k], key_of(row, i), &node))
                return (int)node;
    return -1;
}

static void remember(struct router *r, const struct trace_row *row, int node)
{
    for (int i = 0; i < row->n_hashes; i++)
        map_set(&r->prefixes[0], key_of(row, i), (uint64_t)node);
    if (r->prefixes[0].count < KNOWN_PREFIXES)
        return;
    map_free(&r->prefixes[1]); /* what has not been seen for long is forgotten */
    r->prefixes[1] = r->prefixes[0];
    map_init(&r->prefixes[0]);
}

static int by_affinity(struct router *r, const struct trace_row *row)
{
    int least = least_loaded(r), known = row->hashes ? who_has(r, row) : -1;
    bool crowded = known >= 0 && r->under_way[known] > 2 * r->under_way[least] + SLACK;
    int node = known >= 0 && !crowded ? known : least;
    if (row->hashes)
        remember(r, row, node);
    return node;
}

int router_choose(struct router *r, const struct trace_row *row)
{
    int node = r->kind == ROUTER_ROUND_ROBIN    ? (r->last + 1) % r->n_nodes
               : r->kind == ROUTER_LEAST_LOADED ? least_loaded(r)
                                                : by_affinity(r, row);
    r->last = node;
    r->under_way[node]++;
    r->chosen_at[node] = ++r->n_chosen;
    return node;
}

void router_ended(struct router *r, int node)
{
    ASSERT(r->under_way[node] > 0);
    r->under_way[node]--;
}

static const char *const words[] = {"round-robin", "least-loaded", "prefix-affinity"};

const char *router_word(enum router_kind kind)
{
    return words[kind];
}

int router_parse(const char *word, enum router_kind *out, struct err *e)
{
    for (int i = 0; i < 3; i++)
        if (!strcmp(word, words[i])) {
            *out = (enum router_kind)i;
            return 0;
        }
    return err_set(e, E_INPUT, "no router '%.40s' (round-robin, least-loaded, prefix-affinity)", word);
}
