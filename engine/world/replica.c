#include "engine/world/replica.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/world.h"

uint64_t replica_ranks(const struct world *w, int layer)
{
    uint64_t ranks = rank_range(0, w->kv.n_ranks) & ~w->partition.dead_ranks;
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (ffn_owns(w->ffn, layer, r))
            ranks &= ~(1ull << r);
    return ranks;
}

/* Blocks of a rank that must not be lent while this request lives: all that it will need on one rank, as far as is
 * known, and what is kept for those that run. */
static int64_t needed_blocks(const struct world *w, const struct request *r)
{
    int64_t most = w->limits.max_model_len,
            tokens = r->spec->n_prompt + (r->spec->open_ended ? 1 : r->spec->max_tokens);
    int per_block = w->shape.tokens_per_block[1];
    tokens = tokens > r->n_tokens ? tokens : r->n_tokens;
    return ((tokens < most ? tokens : most) + per_block - 1) / per_block + kv_reserve(&w->kv);
}

/* Of the living rank that will have fewest. */
static int64_t least_left(const struct world *w, const int *need)
{
    int64_t least = w->kv.n_blocks;
    for (int r = 0; r < w->kv.n_ranks; r++) {
        int64_t left = (int64_t)w->kv.n_blocks - w->kv.ranks[r].n_lent - (need ? need[r] : 0);
        least = w->partition.dead_ranks >> r & 1 || left > least ? least : left;
    }
    return least;
}

void replica_needs(const struct world *w, int from, int to, int need[MAX_RANKS])
{
    memset(need, 0, MAX_RANKS * sizeof *need);
    for (int l = from; l < to; l++)
        for (int r = 0; r < w->kv.n_ranks && w->replicas.layers[l].state == REPLICA_NONE; r++)
            need[r] += replica_ranks(w, l) >> r & 1 ? w->replicas.blocks : 0;
}

const char *replica_refusal(const struct world *w, const int need[MAX_RANKS])
{
    int64_t left = least_left(w, need);
    if (w->replicas.blocks == 0)
        return "this machine cannot lend KV blocks to layers";
    if (left <= kv_reserve(&w->kv))
        return "the copies would take all KV blocks of a rank";
    for (int i = 0; i < w->requests.n_slots; i++)
        if (w->requests.slots[i] && left < needed_blocks(w, w->requests.slots[i]))
            return "a request would not fit a rank beside the copies";
    return NULL;
}

void replica_make_room(struct world *w, const struct request *r)
{
    if (least_left(w, NULL) < w->kv.n_blocks && least_left(w, NULL) < needed_blocks(w, r))
        world_pool(w, 0, w->ffn->n_layers);
}

void world_replicate(struct world *w, int layer)
{
    struct replica *x = &w->replicas.layers[layer];
    int n = w->replicas.blocks, at = 0;
    ASSERT(x->state == REPLICA_NONE && n > 0);
    *x = (struct replica){.state = REPLICA_COMING, .ranks = replica_ranks(w, layer)};
    x->lent = mem_new_array((size_t)__builtin_popcountll(x->ranks) * (size_t)n + 1, sizeof *x->lent);
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (x->ranks >> r & 1) {
            bool lent = kv_lend(&w->kv, r, n, x->lent + at);
            ASSERT(lent);
            at += n;
        }
    w->replicas.wanted[layer / 64] |= 1ull << (layer % 64);
}

void world_pool(struct world *w, int from, int to)
{
    for (int l = from; l < to; l++)
        w->replicas.wanted[l / 64] &= ~(1ull << (l % 64));
}

/* The blocks of its copies are KV cache again. */
static void take_back(struct world *w, struct replica *x)
{
    int at = 0;
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (x->ranks >> r & 1) {
            kv_take_back(&w->kv, r, w->replicas.blocks, x->lent + at);
            at += w->replicas.blocks;
        }
    mem_free(x->lent);
    *x = (struct replica){.state = REPLICA_NONE};
}

void world_replica_done(struct world *w, int layer, bool ok)
{
    struct replica *x = &w->replicas.layers[layer];
    ASSERT(x->posted && (x->state == REPLICA_COMING || x->state == REPLICA_GOING));
    x->posted = false;
    if (x->state == REPLICA_GOING) {
        take_back(w, x);
        return;
    }
    x->state = ok ? REPLICA_HERE : REPLICA_GOING;
    if (!ok)
        world_pool(w, layer, layer + 1);
}

bool world_replica_due(struct world *w, int layer)
{
    struct replica *x = &w->replicas.layers[layer];
    if (x->state == REPLICA_HERE && !replica_is_wanted(&w->replicas, layer))
        x->state = REPLICA_GOING;
    return !x->posted && (x->state == REPLICA_COMING || x->state == REPLICA_GOING);
}

int world_count_replicas(const struct world *w, enum replica_state state)
{
    int n = 0;
    for (int l = 0; w->ffn && l < w->ffn->n_layers; l++)
        n += w->replicas.layers[l].state == state;
    return n;
}

void world_free_replicas(struct world *w)
{
    for (int l = 0; l < FFN_MAX_LAYERS; l++)
        mem_free(w->replicas.layers[l].lent);
    memset(&w->replicas, 0, sizeof w->replicas);
}
