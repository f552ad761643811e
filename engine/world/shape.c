#include "engine/world/shape.h"

#include <string.h>

#include "engine/world/kv.h"

void node_shape_uniform(struct node_shape *s, int n_ranks, const struct heads *h, int n_layers, int tokens_per_block)
{
    memset(s, 0, sizeof *s);
    s->n_ranks = n_ranks;
    s->n_layers = n_layers;
    for (int size = 1; size <= n_ranks; size *= 2)
        for (int first = 0; first + size <= n_ranks; first += size)
            s->sets[s->n_sets++] = rank_range(first, size);
    if (n_ranks & (n_ranks - 1))
        s->sets[s->n_sets++] = rank_range(0, n_ranks);
    for (int n = 1; n <= n_ranks; n++) {
        s->tokens_per_block[n] =
            h->n_kv * tokens_per_block / head_max_kv(h, n < h->n_q ? n : h->n_q) / KV_UNIT * KV_UNIT;
        for (int tp = 1; tp <= n; tp++)
            if (n % tp == 0)
                s->refusals[n][tp] = layout_refusal(h, (struct layout){n / tp, tp, 1});
    }
}

int shape_find(const struct node_shape *s, uint64_t mask)
{
    for (int i = 0; i < s->n_sets; i++)
        if (s->sets[i] == mask)
            return i;
    return -1;
}

const char *shape_stages_refusal(const struct node_shape *s, int n_ranks, int pp)
{
    if (pp < 1 || n_ranks % pp)
        return "sp * tp * pp is not the number of ranks of the group";
    if (pp > 1 && s->no_stages)
        return s->no_stages;
    if (pp > 1 && pp > s->n_layers)
        return "pp is more than the layers of the model";
    if (s->weight_stages > 1 && pp != s->weight_stages)
        return "each device holds the layers of one stage: pp must be the number of stages of the weights";
    return NULL;
}

const char *shape_refusal(const struct node_shape *s, int n_ranks, struct layout l)
{
    if (l.sp < 1 || l.tp < 1 || l.pp < 1 || l.sp > MAX_RANKS || l.tp > MAX_RANKS || l.pp > MAX_RANKS)
        return "sp, tp and pp must be from 1 to 64";
    if (layout_size(l) != n_ranks)
        return "sp * tp * pp is not the number of ranks of the group";
    const char *why = shape_stages_refusal(s, n_ranks, l.pp);
    return why ? why : s->refusals[n_ranks / l.pp][l.tp];
}

int shape_tokens_per_block(const struct node_shape *s, int n_ranks, int pp)
{
    return s->tokens_per_block[n_ranks / pp] * (pp > 1 ? stage_pieces(s->n_layers, pp) : 1);
}
