#include "models/forward/shard.h"

#include "engine/base/check.h"

struct heads shard_heads(const struct model_config *c)
{
    return (struct heads){c->n_heads, c->n_kv_heads, c->head_dim};
}

struct span columns_of(struct leaf_range r, int cols)
{
    int first = r.leaf0 * SUM_LEAF, end = r.leaf1 * SUM_LEAF < cols ? r.leaf1 * SUM_LEAF : cols;
    return (struct span){first < end ? first : end, end > first ? end - first : 0};
}

/* Whole groups of weight rows, as even as can be. */
static struct span vocab_of(int vocab, int n, int share)
{
    int groups = (vocab + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    struct leaf_range r = tree_share(groups, n, share);
    int first = r.leaf0 * WEIGHT_GROUP, end = r.leaf1 * WEIGHT_GROUP;
    first = first < vocab ? first : vocab;
    end = end < vocab ? end : vocab;
    return (struct span){first, end - first};
}

struct shard shard_of(const struct model_config *c, struct layout l, int share)
{
    int n = l.sp * l.tp, s = share_s(l, share), t = share_t(l, share), dim = c->head_dim;
    struct shard x = {.layout = l, .n = n, .share = share, .s = s, .t = t, .heads = shard_heads(c)};
    ASSERT(!layout_refusal(&x.heads, l) && share >= 0 && share < n);
    x.own = head_span(&x.heads, n, share, 1);
    x.tp = head_span(&x.heads, n, t * l.sp, l.sp);
    x.down = tree_share(tree_leaves(c->intermediate), l.tp, t);
    x.ffn = columns_of(x.down, c->intermediate);
    x.vocab = vocab_of(c->vocab, n, share);
    x.o = (struct leaf_range){x.tp.q0 * dim / SUM_LEAF, tree_leaves((x.tp.q0 + x.tp.n_q) * dim)};
    return x;
}
