#include "engine/world/embed.h"

enum { WAY_BITS = 2, COUNT_BITS = 7, SHORT_BITS = 21 };

uint64_t embed_rule_pack(struct embed_rule r)
{
    return (uint64_t)r.way | (uint64_t)r.replicas << WAY_BITS | (uint64_t)r.n_short << (WAY_BITS + COUNT_BITS) |
           (uint64_t)r.short_tokens << (WAY_BITS + 2 * COUNT_BITS);
}

static int take(uint64_t *from, int bits)
{
    int v = (int)(*from & ((1u << bits) - 1));
    *from >>= bits;
    return v;
}

struct embed_rule embed_rule_unpack(uint64_t packed)
{
    struct embed_rule r;
    r.way = (enum embed_way)take(&packed, WAY_BITS);
    r.replicas = take(&packed, COUNT_BITS);
    r.n_short = take(&packed, COUNT_BITS);
    r.short_tokens = take(&packed, SHORT_BITS);
    return r;
}

int embed_rule_allowed(struct embed_rule r, int n_alive)
{
    return r.replicas && r.replicas < n_alive ? r.replicas : n_alive;
}

int embed_rule_kept(struct embed_rule r, int n_alive)
{
    int most = embed_rule_allowed(r, n_alive) - 1;
    if (r.way != EMBED_BY_LENGTH || most < 0)
        return 0;
    return r.n_short < most ? r.n_short : most;
}

const char *embed_way_name(enum embed_way w)
{
    static const char *const names[EMBED_WAYS] = {"least_loaded", "round_robin", "by_length"};
    return names[w];
}

void embed_link_init(struct embed_link *l, int n_replicas)
{
    l->n_replicas = n_replicas;
    atomic_init(&l->n_alive, n_replicas);
    atomic_init(&l->waiting_texts, 0);
    atomic_init(&l->waiting_tokens, 0);
    for (int i = 0; i < EMBED_MAX_REPLICAS; i++)
        atomic_init(&l->running_tokens[i], 0);
}

void embed_link_put(struct embed_link *l, const struct embed_facts *f)
{
    atomic_store_explicit(&l->n_alive, f->n_alive, memory_order_relaxed);
    atomic_store_explicit(&l->waiting_texts, f->waiting_texts, memory_order_relaxed);
    atomic_store_explicit(&l->waiting_tokens, f->waiting_tokens, memory_order_relaxed);
    for (int i = 0; i < l->n_replicas; i++)
        atomic_store_explicit(&l->running_tokens[i], f->running_tokens[i], memory_order_relaxed);
}

void embed_link_see(const struct embed_link *l, struct embed_facts *out)
{
    out->n_replicas = l->n_replicas;
    out->n_alive = atomic_load_explicit(&l->n_alive, memory_order_relaxed);
    out->waiting_texts = atomic_load_explicit(&l->waiting_texts, memory_order_relaxed);
    out->waiting_tokens = atomic_load_explicit(&l->waiting_tokens, memory_order_relaxed);
    for (int i = 0; i < l->n_replicas; i++)
        out->running_tokens[i] = atomic_load_explicit(&l->running_tokens[i], memory_order_relaxed);
}
