#include "lua/scalars.h"

#include "lua/orders.h"

const char *const scalar_names[SCALAR_COUNT] = {
    "now",
    "step",
    "n_waiting",
    "n_running",
    "waiting_tokens",
    "kv_free",
    "kv_total",
    "tokens_per_block",
    "arrival_rate",
    "max_num_seqs",
    "max_num_batched_tokens",
    "last_step_tokens",
    "last_step_ms",
    "last_switch_ms",
    "head_tokens",
    "group_capacity",
    "fetch_ms",
    "was_wait_ms",
    "replicas",
    "host_free",
    "host_total",
    "copies",
    "starvation_s",
};

/* Of the rank that has the fewest. */
static int least_free(const struct world *w, uint64_t ranks)
{
    int least = w->kv.n_blocks;
    for (int r = 0; r < w->kv.n_ranks; r++) {
        int n = w->kv.ranks[r].n_free + w->kv.ranks[r].n_cached;
        if (ranks >> r & 1 && n < least)
            least = n;
    }
    return least;
}

/* Of the rank that has lent the most. */
static int least_total(const struct world *w, uint64_t ranks)
{
    int least = w->kv.n_blocks;
    for (int r = 0; r < w->kv.n_ranks; r++)
        if (ranks >> r & 1 && w->kv.n_blocks - w->kv.ranks[r].n_lent < least)
            least = w->kv.n_blocks - w->kv.ranks[r].n_lent;
    return least;
}

static int wanted_replicas(const struct world *w)
{
    int n = 0;
    for (int l = 0; w->ffn && l < w->ffn->n_layers; l++)
        n += replica_is_wanted(&w->replicas, l);
    return n;
}

/* The group of a side whose step ended last; NULL: there is no group. */
static const struct group *last_to_step(const struct partition *p, enum side s)
{
    const struct group *last = NULL;
    for (int i = 0; i < p->n_groups; i++) {
        const struct group *g = &p->groups[p->order[i]];
        if (!side_has(s, g->canary))
            continue;
        if (!last || g->busy_since_ns + g->last_step_ns > last->busy_since_ns + last->last_step_ns)
            last = g;
    }
    return last;
}

double scalars_head_tokens(const struct view *v)
{
    const struct request *head = world_head_of(v->world, v->side);
    return head ? head->n_tokens : 0;
}

void scalars_read(const struct view *v, double out[SCALAR_COUNT])
{
    const struct world *w = v->world;
    const struct group *g = last_to_step(&w->partition, v->side);
    uint64_t ranks = side_ranks(w, v->side) & ~w->partition.dead_ranks;
    out[S_NOW] = (double)v->now_ns * 1e-9;
    out[S_STEP] = (double)w->step;
    out[S_WAITING] = side_waiting(w, v->side);
    out[S_RUNNING] = side_running(w, v->side);
    out[S_WAITING_TOKENS] = (double)side_waiting_tokens(w, v->side);
    out[S_KV_FREE] = least_free(w, ranks);
    out[S_KV_TOTAL] = least_total(w, ranks);
    out[S_TOKENS_PER_BLOCK] = w->shape.tokens_per_block[1];
    out[S_ARRIVAL_RATE] = w->arrival_rate * side_share(w, v->side);
    out[S_MAX_SEQS] = side_seats(w, v->side);
    out[S_MAX_TOKENS] = w->limits.max_num_batched_tokens;
    out[S_LAST_TOKENS] = g ? g->last_step_tokens : 0;
    out[S_LAST_MS] = g ? (double)g->last_step_ns * 1e-6 : 0;
    out[S_LAST_SWITCH_MS] = orders_last_switch_ms(v);
    out[S_HEAD_TOKENS] = scalars_head_tokens(v);
    out[S_GROUP_CAPACITY] = (double)world_group_capacity(w, v->side);
    out[S_FETCH_MS] = w->ffn_measured.fetch_ns * 1e-6;
    out[S_WAS_WAIT_MS] = w->ffn_measured.wait_ns * 1e-6;
    out[S_REPLICAS] = wanted_replicas(w);
    out[S_STARVATION_S] = (double)w->limits.starvation_ns * 1e-9;
    int host = w->kv.host_place;
    out[S_COPIES] = w->n_copying;
    out[S_HOST_FREE] = host < 0 ? 0 : kv_available(&w->kv, host);
    out[S_HOST_TOTAL] = host < 0 ? 0 : kv_place(&w->kv, host)->n_blocks;
}
