#include "engine/world/replica.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/world.h"

uint64_t replica_ranks(const struct world *w, int layer)
{
    uint64_t ranks = rank_range(0, w->kv.n_ranks) & ~w->partition.dead_ranks;
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (w->ffn->owner[layer] == r)
            ranks &= ~(1ull << r);
    return ranks;
}

/* Blocks that no rank may lend: those of the longest sequence, and what is kept for those that run. */
static int needed_blocks(const struct world *w)
{
    int tokens = w->shape.tokens_per_block[1];
    return (w->limits.max_model_len + tokens - 1) / tokens + kv_reserve(&w->kv);
}

const char *replica_refusal(const struct world *w, int n)
{
    if (w->replicas.blocks == 0)
        return "this machine cannot lend KV blocks to layers";
    for (int r = 0; r < w->kv.n_ranks; r++) {
        int64_t left = (int64_t)w->kv.n_blocks - w->kv.ranks[r].n_lent - (int64_t)n * w->replicas.blocks;
        if (!(w->partition.dead_ranks >> r & 1) && left < needed_blocks(w))
            return "a sequence of max_model_len tokens would not fit beside the copies (a smaller --max-model-len "
                   "leaves more)";
    }
    return NULL;
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
