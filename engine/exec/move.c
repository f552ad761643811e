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

static void find_spaces(struct move_end *end, struct rank *const *ranks)
{
    for (int i = 0; i < end->n; i++)
        end->spaces[i] = rank_kv(ranks[end->ranks[i]]);
}

void move_post(struct move *m, struct rank *const *ranks)
{
    int n = m->to.n;
    ASSERT(n > 0 && m->from.n > 0 && m->first_token >= 0 && m->first_token <= m->n_tokens);
    ASSERT(m->n_tokens <= m->from.n_blocks * m->from.tokens_per_block &&
           m->n_tokens <= m->to.n_blocks * m->to.tokens_per_block);
    find_spaces(&m->from, ranks);
    find_spaces(&m->to, ranks);
    m->element_bits = rank_kv_bits(ranks[m->to.ranks[0]]);
    atomic_store(&m->left, n);
    for (int i = 0; i < n; i++) { /* after the last of them the move may be gone */
        struct rank *r = ranks[m->to.ranks[i]];
        rank_post_move(r, m, i);
    }
}

/* The source share to copy kv head `kv` from: on the same rank when that has it, else the first that has it. */
static int source_of(const struct move *m, int kv, int rank)
{
    int found = -1;
    for (int i = 0; i < m->from.n; i++) {
        struct head_span s = head_span(&m->heads, m->from.n, i, 1);
        if (kv < s.kv0 || kv >= s.kv0 + s.n_kv)
            continue;
        if (m->from.ranks[i] == rank)
            return i;
        found = found < 0 ? i : found;
    }
    ASSERT(found >= 0);
    return found;
}

static struct kv_end end_of(const struct move *m, const struct move_end *end, int share, int kv)
{
    return (struct kv_end){.space = end->spaces[share],
                           .blocks = end->blocks + (size_t)share * (size_t)end->n_blocks,
                           .tokens_per_block = end->tokens_per_block,
                           .head = kv - head_span(&m->heads, end->n, share, 1).kv0};
}

void move_run(struct move *m, int share, const struct backend_ops *ops, struct device *d)
{
    struct head_span own = head_span(&m->heads, m->to.n, share, 1);
    int rank = m->to.ranks[share], end = own.kv0 + own.n_kv, n;
    const struct kv_space *space = m->to.spaces[share];
    int64_t ns = 0, slowest = atomic_load(&m->ns);
    for (int kv = own.kv0; kv < end && m->first_token < m->n_tokens; kv += n) {
        int from = source_of(m, kv, rank);
        for (n = 1; kv + n < end && source_of(m, kv + n, rank) == from; n++)
            ;
        struct kv_move part = {.from = end_of(m, &m->from, from, kv),
                               .to = end_of(m, &m->to, share, kv),
                               .n_heads = n,
                               .head_dim = m->heads.head_dim,
                               .first_token = m->first_token,
                               .end_token = m->n_tokens};
        if (ops->kv_move)
            ops->kv_move(d, &part);
        int64_t takes = ops->kv_move_ns ? ops->kv_move_ns(d, &part) : 0;
        ns += takes > 0 ? takes : 0;
    }
    while (ns > slowest && !atomic_compare_exchange_weak(&m->ns, &slowest, ns))
        ;
    int64_t elements = (int64_t)own.n_kv * m->heads.head_dim * 2 * space->n_layers * (m->n_tokens - m->first_token);
    atomic_fetch_add(&m->bytes, elements * m->element_bits / 8);
}
