#include "engine/exec/move.h"

#include "engine/base/check.h"
#include "engine/exec/rank.h"

struct move *move_new(void)
{
    struct move *m = mem_new(sizeof *m);
    arena_init(&m->arena);
    return m;
}

void move_free(struct move *m)
{
    if (!m)
        return;
    arena_free(&m->arena);
    mem_free(m);
}

static void find_spaces(struct move_end *end, struct rank *const *ranks, const struct kv_space *host)
{
    for (int i = 0; i < end->n; i++)
        end->spaces[i] = end->host ? host : rank_kv(ranks[end->ranks[i]], end->stages);
}

const struct move_end *move_mover(const struct move *m)
{
    return m->to.host ? &m->from : &m->to;
}

void move_post(struct move *m, struct rank *const *ranks, const struct kv_space *host)
{
    const struct move_end *mover = move_mover(m);
    int n = mover->n;
    ASSERT(n > 0 && m->from.n > 0 && m->to.n > 0 && !mover->host && m->first_token >= 0 &&
           m->first_token <= m->n_tokens);
    ASSERT(m->n_tokens <= m->from.n_blocks * m->from.tokens_per_block &&
           m->n_tokens <= m->to.n_blocks * m->to.tokens_per_block);
    find_spaces(&m->from, ranks, host);
    find_spaces(&m->to, ranks, host);
    m->n_layers = rank_kv(ranks[mover->ranks[0]], 1)->n_layers;
    m->element_bits = rank_kv_bits(ranks[mover->ranks[0]]);
    atomic_store(&m->left, n);
    for (int i = 0; i < n; i++) { /* after the last of them the move may be gone */
        struct rank *r = ranks[mover->ranks[i]];
        rank_post_move(r, m, i);
    }
}

/* What one share of an end holds: layers and kv heads. */
struct holding {
    struct layer_span layers;
    struct head_span heads;
};

static struct holding holding_of(const struct move *m, const struct move_end *end, int share)
{
    int width = end->n / end->stages;
    return (struct holding){stage_layers(m->n_layers, end->stages, share / width),
                            head_span(&m->heads, width, share % width, 1)};
}

static bool holds(const struct holding *h, int layer, int kv)
{
    return layer >= h->layers.first && layer < h->layers.first + h->layers.n && kv >= h->heads.kv0 &&
           kv < h->heads.kv0 + h->heads.n_kv;
}

/* The source share to copy this head of this layer from: on the same rank when that has it, else the first that has it.
 */
static int source_of(const struct move *m, int layer, int kv, int rank)
{
    int found = -1;
    for (int i = 0; i < m->from.n; i++) {
        struct holding h = holding_of(m, &m->from, i);
        if (!holds(&h, layer, kv))
            continue;
        if (!m->from.host && m->from.ranks[i] == rank)
            return i;
        found = found < 0 ? i : found;
    }
    ASSERT(found >= 0);
    return found;
}

static struct kv_end end_of(const struct move *m, const struct move_end *end, int share, int layer, int kv)
{
    struct holding h = holding_of(m, end, share);
    return (struct kv_end){.space = end->spaces[share],
                           .blocks = end->blocks + (size_t)share * (size_t)end->n_blocks,
                           .tokens_per_block = end->tokens_per_block,
                           .host = end->host,
                           .layer = layer - h.layers.first,
                           .head = kv - h.heads.kv0};
}

/* Source and destination shares of what starts at this layer and head; a share that copies to the host copies what no
 * share before it has. */
struct route {
    int from, to;
};

static struct route route_of(const struct move *m, int share, int layer, int kv)
{
    if (m->to.host)
        return (struct route){source_of(m, layer, kv, -1), 0};
    return (struct route){source_of(m, layer, kv, m->to.ranks[share]), share};
}

/* The largest rectangle of layers and heads from here on that comes from one source share. */
static struct kv_move part_at(const struct move *m, int share, int layer, int kv)
{
    struct holding own = holding_of(m, move_mover(m), share);
    struct route at = route_of(m, share, layer, kv);
    int layers = 1, heads = 1;
    while (layer + layers < own.layers.first + own.layers.n && route_of(m, share, layer + layers, kv).from == at.from)
        layers++;
    while (kv + heads < own.heads.kv0 + own.heads.n_kv && route_of(m, share, layer, kv + heads).from == at.from)
        heads++;
    return (struct kv_move){.from = end_of(m, &m->from, at.from, layer, kv),
                            .to = end_of(m, &m->to, at.to, layer, kv),
                            .n_layers = layers,
                            .n_heads = heads,
                            .head_dim = m->heads.head_dim,
                            .first_token = m->first_token,
                            .end_token = m->n_tokens};
}

void move_run(struct move *m, int share, const struct backend_ops *ops, struct device *d)
{
    struct holding own = holding_of(m, move_mover(m), share);
    int64_t ns = 0, slowest = atomic_load(&m->ns), elements = 0;
    struct kv_move part = {0};
    bool any = m->first_token < m->n_tokens && own.heads.n_kv > 0;
    for (int l = own.layers.first; any && l < own.layers.first + own.layers.n; l += part.n_layers)
        for (int kv = own.heads.kv0; kv < own.heads.kv0 + own.heads.n_kv; kv += part.n_heads) {
            part = part_at(m, share, l, kv);
            if (m->to.host && route_of(m, share, l, kv).from != share)
                continue;
            if (ops->kv_move)
                ops->kv_move(d, &part);
            int64_t takes = ops->kv_move_ns ? ops->kv_move_ns(d, &part) : 0;
            ns += takes > 0 ? takes : 0;
            elements += (int64_t)part.n_heads * m->heads.head_dim * 2 * part.n_layers * (m->n_tokens - m->first_token);
        }
    while (ns > slowest && !atomic_compare_exchange_weak(&m->ns, &slowest, ns))
        ;
    atomic_fetch_add(&m->bytes, elements * m->element_bits / 8);
}
