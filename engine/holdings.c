#include "engine/holdings.h"

#include <stdio.h>

#include "engine/base/log.h"

/* Of one rank. */
struct holding {
    size_t memory, weights, ffn, slots, rows, scratch, draft;
};

bool holdings_are_private(const struct engine_setup *s)
{
    return s->rank_memory > 0 || s->ffn || s->sharded;
}

static size_t sum_of(const struct holding *h)
{
    return h->weights + h->slots + h->rows + h->scratch + h->draft;
}

static int ranks_beside(const struct engine_setup *s, int rank)
{
    int n = 0;
    for (int i = 0; i < s->n_ranks; i++)
        n += s->devices[i] == s->devices[rank];
    return n;
}

/* Its share of the memory that it lives in. A described machine's devices each have their own. */
static size_t memory_of(const struct engine_setup *s, const struct device_facts *f, int rank)
{
    double all = (double)f->memory_bytes * s->memory_share;
    if (s->rank_memory)
        return s->rank_memory;
    return (size_t)((s->ffn || s->sharded) && !f->budget.weight_tp ? all / ranks_beside(s, rank) : all);
}

/* Of the layers' matrices, by themselves. */
static size_t layers_of(const struct node *n, int rank)
{
    size_t described = rank_facts(n->ranks[rank])->budget.layers;
    return described ? described : weights_layers_bytes(rank_weights(n->ranks[rank]));
}

size_t holdings_weights(const struct node *n, int rank)
{
    struct cut all = {.layout = {1, 1, 1}};
    size_t bytes = rank_weight_bytes(n->ranks[rank]);
    return n->residency ? bytes - layers_of(n, rank) + residency_bytes(n->residency, &all) : bytes;
}

static struct holding holding_of(const struct node *n, const struct engine_setup *s, int rank)
{
    const struct rank *r = n->ranks[rank];
    struct holding h = {
        .memory = memory_of(s, rank_facts(r), rank), .weights = rank_weight_bytes(r), .scratch = rank_scratch_bytes(r)};
    if (n->drafter) /* one for all of them: an even part */
        h.draft = (drafter_bytes(n->drafter) + (size_t)n->n_ranks - 1) / (size_t)n->n_ranks;
    if (n->residency)
        h.weights += n->residency->room - layers_of(n, rank);
    if (!n->pool)
        return h;
    h.ffn = weights_ffn_bytes(rank_weights(r));
    h.slots = ffn_pool_slot_bytes(n->pool);
    h.rows = ffn_pool_row_bytes(n->pool);
    return h;
}

/* Those of all ranks that live in the memory of rank `first`. */
static struct holding shared_holding(const struct node *n, const struct engine_setup *s, int first, size_t *sharers)
{
    bool shared = s->ops->shares_memory && !rank_facts(n->ranks[first])->budget.weight_tp && !holdings_are_private(s);
    struct holding all = {0};
    *sharers = 0;
    for (int i = 0; i < n->n_ranks; i++)
        if (i == first || (shared && s->devices[i] == s->devices[first])) {
            struct holding h = holding_of(n, s, i);
            all.memory = h.memory;
            all.weights += h.weights;
            all.slots += h.slots;
            all.rows += h.rows;
            all.scratch += h.scratch;
            all.draft += h.draft;
            ++*sharers;
        }
    return all;
}

/* What could be done, where ranks have memories of their own or share one. */
static const char *remedy(const struct holding *h, const struct engine_setup *s, size_t sharers)
{
    if (h->draft)
        return ", or lower --draft-kv-memory";
    if (s->sharded)
        return ", or lower --shard-memory";
    if (sharers > 1)
        return ", or lower --max-num-batched-tokens or --ranks";
    if (s->ffn || s->n_ranks == 1)
        return "";
    return ", or pool the FFN weights with --weights pooled, or cut them with --weights sharded";
}

/* Nothing is left for KV, and a larger KV cache is no remedy. */
static int lacks_memory(const struct holding *h, const struct engine_setup *s, int rank, size_t sharers, struct err *e)
{
    char who[64];
    if (sharers > 1)
        snprintf(who, sizeof who, "%zu ranks that share a memory need", sharers);
    else
        snprintf(who, sizeof who, "rank %d needs", rank);
    return err_set(e, E_FULL, "%s %.1f MiB for weights (%.1f), slots and working memory, and %s gives %.1f: raise it%s",
                   who, (double)sum_of(h) / 0x1p20, (double)h->weights / 0x1p20,
                   s->rank_memory ? "--rank-memory" : "--gpu-memory-utilization", (double)h->memory / 0x1p20,
                   remedy(h, s, sharers));
}

int holdings_for_kv(const struct node *n, const struct engine_setup *s, size_t *bytes, struct err *e)
{
    *bytes = SIZE_MAX;
    for (int i = 0; i < n->n_ranks; i++) {
        size_t sharers;
        struct holding h = shared_holding(n, s, i, &sharers);
        if (s->rank_memory ? sum_of(&h) > h.memory : !s->kv_bytes && sum_of(&h) >= h.memory)
            return lacks_memory(&h, s, i, sharers, e);
        size_t left = h.memory > sum_of(&h) ? (h.memory - sum_of(&h)) / sharers : 0;
        *bytes = left < *bytes ? left : *bytes;
    }
    return 0;
}

size_t holdings_spare(const struct node *n, const struct engine_setup *s, int rank)
{
    struct holding h = holding_of(n, s, rank);
    size_t used = sum_of(&h) + n->kv_block_bytes * (size_t)n->n_blocks;
    return h.memory > used ? h.memory - used : 0;
}

/* FFN bytes of the whole model. */
static size_t all_ffn(const struct node *n)
{
    size_t bytes = 0;
    for (int i = 0; i < n->n_ranks; i++)
        bytes += weights_ffn_bytes(rank_weights(n->ranks[i]));
    return bytes;
}

void holdings_of_pool(const struct node *n, size_t *layer, size_t *freed)
{
    *layer = rank_facts(n->ranks[0])->budget.ffn_layer;
    *freed = rank_facts(n->ranks[0])->budget.ffn_freed;
    if (!n->pool)
        return;
    size_t all = all_ffn(n), slots = ffn_pool_slot_bytes(n->pool);
    *layer = ffn_pool_layer_bytes(n->pool);
    *freed = SIZE_MAX;
    for (int i = 0; i < n->n_ranks; i++) {
        size_t elsewhere = all - weights_ffn_bytes(rank_weights(n->ranks[i]));
        size_t bytes = elsewhere > slots ? elsewhere - slots : 0;
        *freed = bytes < *freed ? bytes : *freed;
    }
}

int holdings_replica_blocks(const struct node *n, const struct engine_setup *s)
{
    size_t layer = rank_facts(n->ranks[0])->budget.ffn_layer;
    if (n->pool)
        layer = ffn_pool_slot_bytes(n->pool) / (size_t)s->ffn->n_slots;
    if (!n->kv_block_bytes || (n->pool && !s->ops->forget))
        return 0;
    return layer ? (int)((layer + n->kv_block_bytes - 1) / n->kv_block_bytes) : 1; /* no description says how large */
}

/* KV blocks that a rank would have if all weights lay on it, at most what it has. */
static int blocks_if_replicated(const struct node *n, const struct holding *h, size_t ffn)
{
    size_t used = h->weights - h->ffn + ffn + h->scratch + h->draft;
    size_t blocks = h->memory > used ? (h->memory - used) / n->kv_block_bytes : 0;
    return blocks < (size_t)n->n_blocks ? (int)blocks : n->n_blocks;
}

void holdings_print(const struct node *n, const struct engine_setup *s)
{
    if (!holdings_are_private(s) || !s->ops->computes)
        return;
    size_t ffn = n->pool ? all_ffn(n) : 0;
    for (int i = 0; i < n->n_ranks; i++) {
        struct holding h = holding_of(n, s, i);
        log_info(
            "node",
            "Rank %d holds %zu bytes of weights (%zu of them FFN matrices), %zu of slots, %zu for rows that others "
            "send, %zu of working memory, and %d KV blocks of %zu",
            i, h.weights, h.ffn, h.slots, h.rows, h.scratch, n->n_blocks, n->kv_block_bytes);
    }
    struct holding h = holding_of(n, s, 0);
    if (n->pool)
        log_info("node", "Pooled weights leave each rank KV for %lld tokens; replicated they would leave it %lld",
                 (long long)n->n_blocks * s->block_size, (long long)blocks_if_replicated(n, &h, ffn) * s->block_size);
}
