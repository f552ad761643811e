/* Whom the policy holds back (act.hold): waits, is no work that could run, and is let go in time. */
#include <stdio.h>

#include "engine/base/check.h"
#include "engine/world/world.h"

void world_hold(struct world *w, struct request *r, int64_t until_ns, const char *why, int64_t now_ns)
{
    ASSERT(r->state == REQ_WAITING);
    w->n_held += (until_ns != 0) - (r->held_until_ns != 0);
    r->held_until_ns = until_ns;
    r->progress_ns = now_ns; /* from when it may run again it counts how long it does not */
    if (!until_ns)
        return;
    r->held_first_ns = r->held_first_ns ? r->held_first_ns : now_ns;
    snprintf(r->held_why, sizeof r->held_why, "%s", why);
}

int world_let_go(struct world *w, int64_t now_ns, bool all, int64_t *next_ns)
{
    int n = 0;
    *next_ns = INT64_MAX;
    for (int i = 0; i < w->waiting.n && w->n_held; i++) {
        struct request *r = w->waiting.items[i];
        if (!r->held_until_ns)
            continue;
        if (r->held_until_ns > now_ns && !all) {
            *next_ns = r->held_until_ns < *next_ns ? r->held_until_ns : *next_ns;
            continue;
        }
        world_hold(w, r, 0, "", now_ns);
        n++;
    }
    return n;
}

struct request *world_head(const struct world *w)
{
    for (int i = 0; i < w->waiting.n; i++)
        if (!w->waiting.items[i]->held_until_ns && !w->waiting.items[i]->parent)
            return w->waiting.items[i];
    return NULL;
}
