/* Whom the policy holds back (act.hold): waits, is no work that could run, and is let go in time. */
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/world/world.h"

/* The place of a reason. Where all are taken, one that holds nobody now makes room, the rarest first; where there is
 * none such, it is counted with the others. */
static int place_of(struct holds *h, const char *why)
{
    int spare = HOLD_REASONS;
    for (int i = 0; i < h->n; i++) {
        if (!strcmp(h->items[i].why, why))
            return i;
        bool rarer = spare == HOLD_REASONS || h->items[i].times < h->items[spare].times;
        if (!h->items[i].now && rarer)
            spare = i;
    }
    if (h->n < HOLD_REASONS)
        spare = h->n++;
    if (spare == HOLD_REASONS)
        return spare;
    h->items[HOLD_REASONS].times += h->items[spare].times;
    h->items[spare] = (struct hold_reason){0};
    snprintf(h->items[spare].why, sizeof h->items[spare].why, "%s", why);
    return spare;
}

static void count(struct world *w, struct request *r, const char *why)
{
    char cut[REASON_BYTES];
    snprintf(cut, sizeof cut, "%s", why);
    r->held_for = (int8_t)place_of(&w->holds, cut);
    w->holds.items[r->held_for].now++;
    w->holds.items[r->held_for].times++;
    w->n_held++;
}

void world_forget_hold(struct world *w, struct request *r)
{
    if (!r->held_until_ns)
        return;
    w->holds.items[r->held_for].now--;
    w->n_held--;
    r->held_until_ns = 0;
}

void world_hold(struct world *w, struct request *r, int64_t until_ns, const char *why, int64_t now_ns)
{
    ASSERT(r->state == REQ_WAITING);
    bool goes_on = until_ns && r->held_until_ns && !strncmp(r->held_why, why, REASON_BYTES - 1);
    if (!goes_on)
        world_forget_hold(w, r);
    if (until_ns && !goes_on)
        count(w, r, why);
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

struct request *world_head_of(const struct world *w, enum side s)
{
    for (int i = 0; i < w->waiting.n; i++) {
        struct request *r = w->waiting.items[i];
        if (!r->held_until_ns && !r->parent && side_has(s, r->canary))
            return r;
    }
    return NULL;
}

struct request *world_head(const struct world *w)
{
    return world_head_of(w, SIDE_ALL);
}
