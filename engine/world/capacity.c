/* What the node can hold: of one request, and in the queue. */
#include "engine/world/world.h"

/* Tokens that the widest group of these ranks can cache. */
static int64_t capacity_without(const struct world *w, uint64_t dead)
{
    int most = 0;
    for (int i = 0; i < w->shape.n_sets; i++) {
        int n = __builtin_popcountll(w->shape.sets[i]);
        bool may_be = !(w->shape.sets[i] & dead) && shape_runs(&w->shape, n);
        most = may_be && w->shape.tokens_per_block[n] > most ? w->shape.tokens_per_block[n] : most;
    }
    return (int64_t)w->kv.n_blocks * most;
}

int64_t world_capacity(const struct world *w)
{
    return capacity_without(w, w->partition.dead_ranks);
}

int64_t world_group_capacity(const struct world *w, enum side s)
{
    int most = 0;
    for (int i = 0; i < w->partition.n_groups; i++) {
        const struct group *g = partition_group(&w->partition, i);
        int tpb = kv_place(&w->kv, g->place)->tokens_per_block;
        most = side_has(s, g->canary) && tpb > most ? tpb : most;
    }
    return (int64_t)w->kv.n_blocks * most;
}

bool world_suffices(const struct world *w, const struct request *r)
{
    int need = request_output(r) ? r->n_tokens : r->spec->n_prompt + r->spec->max_tokens;
    return need <= world_capacity(w);
}

/* Can this request ever run here? */
static int check_fits(const struct world *w, const struct request_spec *s, struct err *e)
{
    const struct limits *l = &w->limits;
    int64_t all = capacity_without(w, 0), left = world_capacity(w);
    if (s->n_prompt >= l->max_model_len + (s->max_tokens == 0))
        return err_set(e, E_INPUT, "the prompt has %d tokens; the model's context is %d tokens", s->n_prompt,
                       l->max_model_len);
    int n =
        s->n_prompt + (s->max_tokens < l->max_model_len - s->n_prompt ? s->max_tokens : l->max_model_len - s->n_prompt);
    if (n > all)
        return err_set(e, E_INPUT, "the request needs KV cache for %d tokens; the whole cache holds %lld", n,
                       (long long)all);
    if (n > left)
        return err_set(e, E_DEVICE,
                       "the request needs KV cache for %d tokens; ranks have failed, and those that are left hold %lld",
                       n, (long long)left);
    return 0;
}

/* Is there a place in the queue? Lines of batches take none from requests that somebody waits for. */
static int check_queue(const struct world *w, const struct request_spec *s, struct err *e)
{
    const struct limits *l = &w->limits;
    int max = l->max_num_queued_reqs ? l->max_num_queued_reqs : MAX_REQUESTS, n = w->waiting.n - w->n_probes_waiting;
    int64_t tokens = w->waiting_tokens, max_tokens = l->max_num_queued_tokens ? l->max_num_queued_tokens : INT64_MAX;
    if (n < max && (n == 0 || tokens + s->n_prompt <= max_tokens))
        return 0;
    for (int i = 0; i < w->waiting.n && !s->offline; i++)
        if (w->waiting.items[i]->spec->offline && !w->waiting.items[i]->parent) {
            n--;
            tokens -= w->waiting.items[i]->n_tokens;
        }
    if (n >= max)
        return err_set(e, E_FULL, "the queue is full: %d requests are waiting (--max-num-queued-reqs)", n);
    if (n && tokens + s->n_prompt > max_tokens)
        return err_set(e, E_FULL, "the queue is full: %lld prompt tokens are waiting (--max-num-queued-tokens)",
                       (long long)tokens);
    return 0;
}

int world_may_take(const struct world *w, const struct request_spec *s, struct err *e)
{
    TRY(check_fits(w, s, e));
    return check_queue(w, s, e);
}
