#include "engine/decisions.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

enum { MOST_CHUNKS = 4096, MOST_VERBS = 256 };

void decisions_init(struct decisions *d, size_t bytes)
{
    memset(d, 0, sizeof *d);
    d->cap = bytes / 8 * 8;
    if (d->cap < 4096)
        d->cap = 0;
    if (d->cap)
        d->ring = mem_new_array(d->cap, 1);
}

void decisions_free(struct decisions *d)
{
    mem_free(d->ring);
    memset(d, 0, sizeof *d);
}

struct decision *decisions_at(const struct decisions *d, uint64_t *at)
{
    size_t left = d->cap - *at % d->cap;
    uint32_t size = 0;
    if (left >= sizeof size)
        memcpy(&size, d->ring + *at % d->cap, sizeof size);
    if (!size)
        *at += left;
    return (struct decision *)(void *)(d->ring + *at % d->cap);
}

/* Room for a record of this size, zeroed. */
static struct decision *begin(struct decisions *d, size_t size)
{
    size_t left = d->cap - d->next % d->cap, skipped = left < size ? left : 0;
    while (d->oldest < d->next && d->next + skipped + size - d->oldest > d->cap) {
        const struct decision *x = decisions_at(d, &d->oldest);
        d->oldest += x->size;
    }
    if (skipped)
        memset(d->ring + d->next % d->cap, 0, skipped);
    d->next += skipped;
    if (d->oldest > d->next)
        d->oldest = d->next;
    struct decision *x = (struct decision *)(void *)(d->ring + d->next % d->cap);
    memset(x, 0, size);
    x->size = (uint32_t)size;
    d->next += size;
    d->n++;
    return x;
}

static struct decision_group *groups_of(struct decision *x)
{
    return (struct decision_group *)(void *)(x + 1);
}

/* ---- what goes in */

static bool is_chunk(const struct plan_item *it)
{
    return it->starts || !request_decoding(it->request);
}

struct sizes {
    int groups, chunks, verbs;
};

static struct sizes count(const struct plan *p)
{
    struct sizes n = {0};
    for (int i = 0; i < p->n_batches; i++) {
        const struct plan_batch *b = p->batches[i];
        n.groups += b->forwarded;
        for (int k = 0; b->forwarded && k < b->n_items; k++)
            n.chunks += is_chunk(&b->items[k]);
    }
    for (int i = 0; i < p->n_verbs; i++)
        n.verbs += p->verbs[i].kind != PLAN_LOG;
    n.chunks = n.chunks < MOST_CHUNKS ? n.chunks : MOST_CHUNKS;
    n.verbs = n.verbs < MOST_VERBS ? n.verbs : MOST_VERBS;
    return n;
}

static void note_facts(struct decisions *d, struct decision *x, const struct world *w)
{
    const uint64_t *c = w->metrics->counters;
    uint64_t refused = c[C_REFUSED_FULL] + c[C_REFUSED_POLICY] + c[C_REFUSED_INPUT];
    x->waiting = w->waiting.n;
    x->running = w->running.n;
    x->held = w->n_held;
    x->parked = w->n_parked;
    x->pending = w->partition.n_pending;
    x->seats = w->limits.max_num_seqs > w->running.n ? w->limits.max_num_seqs - w->running.n : 0;
    for (int i = 0; i < w->kv.n_ranks; i++) {
        x->blocks_free += w->kv.ranks[i].n_free + w->kv.ranks[i].n_cached;
        x->blocks += w->kv.n_blocks - w->kv.ranks[i].n_lent;
    }
    x->came = (int32_t)(w->n_submitted - d->n_came);
    x->refused = (int32_t)(refused - d->n_refused);
    d->n_came = w->n_submitted;
    d->n_refused = refused;
}

static struct decision_chunk *note_group(struct decision_group *g, const struct plan_batch *b, int index,
                                         struct decision_chunk *c, const struct decision_chunk *end)
{
    *g = (struct decision_group){.id = b->group_id,
                                 .rows = b->n_tokens,
                                 .sp = (int16_t)b->layout.sp,
                                 .tp = (int16_t)b->layout.tp,
                                 .pp = (int16_t)b->layout.pp};
    for (int k = 0; k < b->n_items; k++) {
        const struct plan_item *it = &b->items[k];
        g->drafts += it->drafts.n;
        g->starts += it->starts;
        if (!is_chunk(it))
            g->decodes++;
        else if (c < end)
            *c++ = (struct decision_chunk){
                .tag = it->request->spec->tag, .tokens = it->n_tokens, .group = (int16_t)index, .starts = it->starts};
    }
    return c;
}

static void note_verb(struct decision_verb *to, const struct plan_verb *v)
{
    const char *words = v->order ? v->order->reason : v->text ? v->text : "";
    *to = (struct decision_verb){.tag = v->request ? v->request->spec->tag : 0,
                                 .ranks = v->order ? v->order->mask : v->ranks,
                                 .until_ns = v->until_ns,
                                 .group = v->group,
                                 .code = v->code,
                                 .kind = (uint8_t)v->kind};
    snprintf(to->words, sizeof to->words, "%.*s", DECISIONS_WORDS - 1, words);
}

static void note_policy(struct decisions *d, const struct policy *p)
{
    uint64_t i = p->generation % DECISIONS_POLICIES;
    if (d->policies[i].generation == p->generation)
        return;
    d->policies[i].generation = p->generation;
    snprintf(d->policies[i].name, sizeof d->policies[i].name, "%s", p->name);
}

void decisions_note(struct decisions *d, const struct plan *p, const struct live *l, int64_t call_ns)
{
    if (!d->cap)
        return;
    struct sizes n = count(p);
    size_t fixed = sizeof(struct decision) + (size_t)n.groups * sizeof(struct decision_group);
    size_t chunks = (size_t)n.chunks * sizeof(struct decision_chunk);
    size_t verbs = (size_t)n.verbs * sizeof(struct decision_verb);
    if (fixed + chunks + verbs > d->cap / 4) { /* a small ring is for more than one decision */
        n.chunks = n.verbs = 0;
        chunks = verbs = 0;
    }
    if (fixed > d->cap / 4)
        return;
    uint64_t wrap = d->cap - d->next % d->cap < fixed + chunks + verbs ? d->cap - d->next % d->cap : 0;
    uint64_t place = d->next + wrap;
    struct decision *x = begin(d, fixed + chunks + verbs);
    struct decision_group *g = groups_of(x);
    struct decision_chunk *c = (struct decision_chunk *)(void *)(g + n.groups), *end = c + n.chunks;
    struct decision_verb *v = (struct decision_verb *)(void *)end;
    x->n_groups = (uint16_t)n.groups;
    x->n_chunks = (uint16_t)n.chunks;
    x->n_verbs = (uint16_t)n.verbs;
    x->verdict = (uint8_t)l->last_verdict;
    x->native = l->last_native;
    x->step = p->world->step;
    x->generation = l->active.generation;
    x->now_ns = p->now_ns;
    x->call_ns = call_ns;
    x->wake_ns = p->wake_ns;
    note_facts(d, x, p->world);
    note_policy(d, &l->active);
    for (int i = 0, k = 0; i < p->n_batches; i++) {
        if (!p->batches[i]->forwarded)
            continue;
        c = note_group(&g[k], p->batches[i], k, c, end);
        int slot = p->batches[i]->group->ranks[0]; /* no two groups have the same first rank */
        d->groups[slot] = p->batches[i]->group_id;
        d->at[slot] = place + 1;
        k++;
    }
    for (int i = 0, k = 0; i < p->n_verbs && k < n.verbs; i++)
        if (p->verbs[i].kind != PLAN_LOG)
            note_verb(&v[k++], &p->verbs[i]);
}

void decisions_measured(struct decisions *d, int group, int64_t predicted_ns, int64_t ns)
{
    for (int i = 0; i < MAX_RANKS && d->cap; i++) {
        uint64_t at = d->at[i] - 1;
        if (!d->at[i] || d->groups[i] != group)
            continue;
        if (at < d->oldest)
            return; /* so old that it is gone */
        struct decision *x = decisions_at(d, &at);
        for (int k = 0; k < x->n_groups; k++)
            if (groups_of(x)[k].id == group) {
                groups_of(x)[k].steps++;
                groups_of(x)[k].predicted_ns += predicted_ns;
                groups_of(x)[k].measured_ns += ns;
            }
        return;
    }
}
