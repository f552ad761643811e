#include "engine/world/side.h"

#include "engine/base/check.h"
#include "engine/world/world.h"

enum side world_live_side(const struct world *w)
{
    return w->sides.ranks ? SIDE_LIVE : SIDE_ALL;
}

/* Of a count, of which the canary has so much. */
static int64_t part(enum side s, int64_t all, int64_t canary)
{
    return s == SIDE_ALL ? all : s == SIDE_CANARY ? canary : all - canary;
}

int side_waiting(const struct world *w, enum side s)
{
    return (int)part(s, w->waiting.n, w->sides.n_waiting);
}

int side_running(const struct world *w, enum side s)
{
    return (int)part(s, w->running.n, w->sides.n_running);
}

int64_t side_waiting_tokens(const struct world *w, enum side s)
{
    return part(s, w->waiting_tokens, w->sides.waiting_tokens);
}

int side_seats(const struct world *w, enum side s)
{
    int all = w->limits.max_num_seqs;
    if (s == SIDE_ALL)
        return all;
    int canary = (int)((int64_t)all * w->sides.n_ranks / w->sides.n_all),
        mine = s == SIDE_CANARY ? canary : all - canary;
    return mine > 0 ? mine : 1;
}

uint64_t side_ranks(const struct world *w, enum side s)
{
    uint64_t all = rank_range(0, w->shape.n_ranks);
    return s == SIDE_ALL ? all : s == SIDE_CANARY ? w->sides.ranks : all & ~w->sides.ranks;
}

double side_share(const struct world *w, enum side s)
{
    double canary = w->sides.n_all ? (double)w->sides.n_ranks / w->sides.n_all : 0;
    return s == SIDE_ALL ? 1 : s == SIDE_CANARY ? canary : 1 - canary;
}

/* ---- counts */

void world_count_waiting(struct world *w, struct request *r, int sign)
{
    w->sides.n_waiting += r->canary ? sign : 0;
    if (r->parent) {
        w->n_probes_waiting += sign;
        return;
    }
    w->waiting_tokens += sign * r->n_tokens;
    r->tenant->n_waiting += sign;
    r->tenant->waiting_tokens += sign * r->n_tokens;
    if (!r->canary)
        return;
    w->sides.waiting_tokens += sign * r->n_tokens;
    r->tenant->canary.n_waiting += sign;
    r->tenant->canary.waiting_tokens += sign * r->n_tokens;
}

void world_count_running(struct world *w, struct request *r, int sign)
{
    w->sides.n_running += r->canary ? sign : 0;
    if (r->parent) {
        w->n_probes_running += sign;
        return;
    }
    r->tenant->n_running += sign;
    r->tenant->canary.n_running += r->canary ? sign : 0;
}

bool side_check(const struct world *w)
{
    const struct world_sides *s = &w->sides;
    int n_waiting = 0, n_running = 0;
    int64_t tokens = 0;
    for (int i = 0; i < w->waiting.n; i++) {
        const struct request *r = w->waiting.items[i];
        n_waiting += r->canary;
        tokens += r->canary && !r->parent ? r->n_tokens : 0;
    }
    for (int i = 0; i < w->running.n; i++) {
        const struct request *r = w->running.items[i];
        const struct group *g = partition_find(&w->partition, r->group);
        n_running += r->canary;
        if (!g || g->canary != r->canary)
            return false;
    }
    uint64_t ranks = 0;
    for (int i = 0; i < w->partition.n_groups; i++)
        ranks |= partition_group(&w->partition, i)->canary ? partition_group(&w->partition, i)->mask : 0;
    return ranks == s->ranks && n_waiting == s->n_waiting && n_running == s->n_running && tokens == s->waiting_tokens;
}

/* ---- who is on which side */

/* Multiples of the golden ratio lie evenly however many there are, and no rhythm of what comes keeps step with them. */
static bool deal(struct world_sides *s)
{
    uint64_t x = s->n_dealt++ * 0x9e3779b97f4a7c15u;
    return (int)((unsigned __int128)x * (unsigned)s->n_all >> 64) < s->n_ranks;
}

/* No group of this side holds so many tokens, and one of the other does. */
static bool is_too_long(const struct world *w, bool canary, int64_t n_tokens)
{
    enum side mine = canary ? SIDE_CANARY : SIDE_LIVE, others = canary ? SIDE_LIVE : SIDE_CANARY;
    return n_tokens > world_group_capacity(w, mine) && n_tokens <= world_group_capacity(w, others);
}

/* The side of one that goes by itself: with all that it may become it has to fit there, or else as it is. */
static bool choose(struct world *w, int64_t n_tokens, int64_t n_most)
{
    bool canary = deal(&w->sides);
    if (is_too_long(w, canary, n_most))
        canary = !canary;
    return is_too_long(w, canary, n_tokens) ? !canary : canary;
}

bool side_of_new(struct world *w, const struct request_spec *s)
{
    if (!w->sides.ranks)
        return false;
    const struct request *leader = s->leader && s->leader != s->tag ? request_find_tag(&w->requests, s->leader) : NULL;
    return leader ? leader->canary : choose(w, s->n_prompt, (int64_t)s->n_prompt + s->max_tokens);
}

bool side_fits_head(const struct world *w, enum side s)
{
    const struct request *r = world_head_of(w, s);
    return !r || r->n_tokens <= world_group_capacity(w, s);
}

static void move(struct world *w, struct request *r, bool canary, int64_t now_ns)
{
    if (r->canary == canary)
        return;
    bool waits = r->state == REQ_WAITING;
    if (r->held_until_ns)
        world_hold(w, r, 0, "", now_ns);
    (waits ? world_count_waiting : world_count_running)(w, r, -1);
    r->canary = canary;
    (waits ? world_count_waiting : world_count_running)(w, r, 1);
}

/* Whom does it go with? A probe with its parent, a sibling with the first; NULL: it goes by itself. */
static const struct request *goes_with(const struct world *w, const struct request *r)
{
    if (r->parent)
        return request_find(&w->requests, r->parent);
    const struct request *leader = r->spec->leader ? request_find_tag(&w->requests, r->spec->leader) : NULL;
    return leader == r ? NULL : leader;
}

/* One that waits and keeps KV on ranks. */
static bool lies_on_ranks(const struct world *w, const struct request *r)
{
    return r->parked && r->n_blocks && !world_in_host(w, r);
}

/* Those that have a place first, then those that go by themselves in the queue's order, then those that go with them.
 */
static void deal_waiting(struct world *w, int64_t now_ns)
{
    for (int i = 0; i < w->waiting.n; i++) {
        struct request *r = w->waiting.items[i];
        if (lies_on_ranks(w, r))
            move(w, r, !(kv_place(&w->kv, r->place)->mask & ~w->sides.ranks), now_ns);
        else if (!goes_with(w, r))
            move(w, r, choose(w, r->n_tokens, (int64_t)r->spec->n_prompt + r->spec->max_tokens), now_ns);
    }
    for (int i = 0; i < w->waiting.n; i++) {
        struct request *r = w->waiting.items[i];
        const struct request *with = goes_with(w, r);
        if (with && !lies_on_ranks(w, r))
            move(w, r, with->canary, now_ns);
    }
}

static void own_groups(struct world *w)
{
    for (int i = 0; i < w->partition.n_groups; i++) {
        struct group *g = partition_slot(&w->partition, i);
        bool canary = g->mask & w->sides.ranks;
        if (canary == g->canary)
            continue;
        g->canary = canary;
        g->shut = false;
        g->ffn = canary ? (struct ffn_modes){0} : w->ffn_usual;
    }
}

void side_open_groups(struct world *w, enum side s)
{
    for (int i = 0; i < w->partition.n_groups; i++)
        partition_slot(&w->partition, i)->shut &= !side_has(s, partition_group(&w->partition, i)->canary);
}

void side_split(struct world *w, uint64_t ranks, int64_t now_ns)
{
    struct world_sides *s = &w->sides;
    ASSERT(ranks && !s->ranks);
    s->ranks = ranks;
    s->epoch++;
    s->n_dealt = 0;
    s->n_ranks = __builtin_popcountll(ranks);
    s->n_all = 0;
    for (int i = 0; i < w->partition.n_groups; i++)
        s->n_all += partition_group(&w->partition, i)->n_ranks;
    own_groups(w);
    for (int i = 0; i < w->running.n; i++)
        move(w, w->running.items[i], partition_find(&w->partition, w->running.items[i]->group)->canary, now_ns);
    deal_waiting(w, now_ns);
}

void side_join(struct world *w, int64_t now_ns)
{
    const struct req_queue *queues[] = {&w->waiting, &w->running};
    w->sides.ranks = 0;
    w->sides.epoch++;
    own_groups(w);
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < queues[q]->n; i++) {
            struct request *r = queues[q]->items[i];
            r->left_behind |= r->canary && r->parked;
            move(w, r, false, now_ns);
        }
}
