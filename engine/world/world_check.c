#include "engine/world/world.h"

/* Recounts what is counted. All of it is for tests and the end of a simulation: a server with millions of KV blocks
 * looks at a part of those at a time. */

static bool tenants_check(const struct world *w)
{
    int n_waiting = 0, n_running = 0;
    int64_t tokens = 0;
    bool idle = false;
    for (int i = 0; i < w->tenants.n; i++) {
        const struct tenant *t = w->tenants.items[i];
        n_waiting += t->n_waiting;
        n_running += t->n_running;
        tokens += t->waiting_tokens;
        idle = idle || t->n_waiting + t->n_running <= 0;
    }
    return !idle && n_waiting + w->n_probes_waiting == w->waiting.n &&
           n_running + w->n_probes_running == w->running.n && tokens == w->waiting_tokens;
}

static int held_by_reason(const struct holds *h)
{
    int n = h->items[HOLD_REASONS].now;
    for (int i = 0; i < h->n; i++)
        n += h->items[i].now;
    return n;
}

/* All but the KV blocks: by the requests that are here. */
static bool requests_check(const struct world *w)
{
    int64_t waiting_tokens = 0;
    int held = 0, parked = 0;
    for (int i = 0; i < w->waiting.n; i++) {
        waiting_tokens += w->waiting.items[i]->parent ? 0 : w->waiting.items[i]->n_tokens;
        held += w->waiting.items[i]->held_until_ns != 0;
        parked += w->waiting.items[i]->parked;
        if (w->waiting.items[i]->n_blocks && !w->waiting.items[i]->parked)
            return false; /* find_victim counts on it */
    }
    return partition_check(w) && side_check(w) && queue_check(&w->waiting, REQ_WAITING) &&
           queue_check(&w->running, REQ_RUNNING) && w->waiting.n + w->running.n == w->requests.n_live &&
           waiting_tokens == w->waiting_tokens && tenants_check(w) && held == w->n_held &&
           held == held_by_reason(&w->holds) && parked == w->n_parked &&
           w->n_submitted == w->n_ended + (uint64_t)w->requests.n_live;
}

bool world_check(const struct world *w)
{
    return kv_check(&w->kv) && requests_check(w);
}

bool world_check_part(const struct world *w, struct kv_cursor *at)
{
    return kv_check_part(&w->kv, at) && requests_check(w);
}
