#include "engine/timetable.h"

#include <string.h>

#include "engine/base/check.h"

static int64_t begin(const struct timetable *t, const int *ranks, int n, int64_t posted_ns)
{
    int64_t at = posted_ns;
    for (int i = 0; i < n; i++)
        at = t->busy_ns[ranks[i]] > at ? t->busy_ns[ranks[i]] : at;
    return at;
}

static void add(struct timetable *t, struct timetable_entry what, const int *ranks, int n)
{
    if (t->n == t->cap) {
        t->cap = t->cap ? 2 * t->cap : MAX_RANKS;
        t->entries = mem_resize(t->entries, (size_t)t->cap, sizeof *t->entries);
    }
    int i = t->n++;
    for (; i > 0 && t->entries[i - 1].done_ns > what.done_ns; i--)
        t->entries[i] = t->entries[i - 1];
    t->entries[i] = what;
    for (int k = 0; k < n; k++)
        t->busy_ns[ranks[k]] = what.done_ns;
}

void timetable_add_step(struct timetable *t, struct step *s, int64_t lag_ns)
{
    s->done_ns = begin(t, s->ranks, s->n_ranks, s->posted_ns) + step_ns(s) + lag_ns;
    add(t, (struct timetable_entry){.done_ns = s->done_ns, .step = s}, s->ranks, s->n_ranks);
}

/* When the links of these ranks are free; then they are taken for so long. Returns when that ends. */
static int64_t take_links(struct timetable *t, uint64_t ranks, int64_t from_ns, int64_t ns)
{
    for (int i = 0; i < MAX_RANKS; i++)
        if (ranks >> i & 1 && t->link_ns[i] > from_ns)
            from_ns = t->link_ns[i];
    for (int i = 0; i < MAX_RANKS; i++)
        if (ranks >> i & 1)
            t->link_ns[i] = from_ns + ns;
    return from_ns + ns;
}

void timetable_add_move(struct timetable *t, struct move *m)
{
    const struct move_end *mover = move_mover(m);
    int64_t ns = atomic_load(&m->ns), at = m->beside ? m->posted_ns : begin(t, mover->ranks, mover->n, m->posted_ns);
    bool far = m->to.host || m->from.host;
    uint64_t ranks = 0;
    for (int i = 0; i < mover->n; i++)
        ranks |= 1ull << mover->ranks[i];
    int64_t done = far ? take_links(t, ranks, at, ns) : at + ns;
    add(t, (struct timetable_entry){.done_ns = done, .move = m}, mover->ranks, m->beside ? 0 : mover->n);
}

void timetable_add_reshard(struct timetable *t, struct reshard_task *r)
{
    int ranks[MAX_RANKS], n = 0;
    for (int i = 0; i < MAX_RANKS; i++)
        if (r->ranks >> i & 1)
            ranks[n++] = i;
    bool waits = r->kind == RESHARD_TAKE;
    int64_t at = waits ? begin(t, ranks, n, r->posted_ns) : r->posted_ns, ns = atomic_load(&r->ns);
    int64_t done = ns ? take_links(t, r->ranks, at, ns) : at;
    add(t, (struct timetable_entry){.done_ns = done, .reshard = r}, ranks, waits ? n : 0);
}

void timetable_add_replica(struct timetable *t, struct replica_task *r)
{
    add(t, (struct timetable_entry){.done_ns = r->posted_ns + atomic_load(&r->ns), .replica = r}, NULL, 0);
}

void timetable_occupy(struct timetable *t, uint64_t ranks, int64_t now_ns, int64_t ns)
{
    for (int i = 0; i < MAX_RANKS; i++)
        if (ranks >> i & 1 && t->busy_ns[i] < now_ns + ns)
            t->busy_ns[i] = now_ns + ns;
}

void timetable_hold(struct timetable *t, struct timetable_entry what)
{
    what.done_ns = INT64_MAX;
    add(t, what, NULL, 0);
}

static void release(struct timetable *t, int i, struct timetable_entry *out)
{
    *out = t->entries[i];
    memmove(t->entries + i, t->entries + i + 1, (size_t)(--t->n - i) * sizeof *t->entries);
}

bool timetable_release(struct timetable *t, int group, uint64_t move, struct timetable_entry *out)
{
    for (int i = 0; i < t->n; i++) {
        const struct timetable_entry *x = &t->entries[i];
        if (x->step ? x->step->group != group : !x->move || x->move->serial != move)
            continue;
        release(t, i, out);
        return true;
    }
    return false;
}

bool timetable_release_replica(struct timetable *t, int layer, struct timetable_entry *out)
{
    for (int i = 0; i < t->n; i++)
        if (t->entries[i].replica && t->entries[i].replica->layer == layer) {
            release(t, i, out);
            return true;
        }
    return false;
}

bool timetable_release_reshard(struct timetable *t, uint64_t ranks, struct timetable_entry *out)
{
    for (int i = 0; i < t->n; i++)
        if (t->entries[i].reshard && t->entries[i].reshard->ranks == ranks) {
            release(t, i, out);
            return true;
        }
    return false;
}

int timetable_steps(const struct timetable *t)
{
    int n = 0;
    for (int i = 0; i < t->n; i++)
        n += t->entries[i].step != NULL;
    return n;
}

int64_t timetable_next_ns(const struct timetable *t)
{
    return t->n ? t->entries[0].done_ns : INT64_MAX;
}

bool timetable_take(struct timetable *t, int64_t now_ns, struct timetable_entry *out)
{
    if (!t->n || t->entries[0].done_ns > now_ns)
        return false;
    *out = t->entries[0];
    memmove(t->entries, t->entries + 1, (size_t)--t->n * sizeof *t->entries);
    return true;
}

void timetable_free(struct timetable *t)
{
    ASSERT(t->n == 0);
    mem_free(t->entries);
    *t = (struct timetable){0};
}
