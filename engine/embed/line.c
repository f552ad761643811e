#include "engine/embed/line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct embed_owner {
    struct list at, jobs; /* the first job is next */
    char name[EMBED_OWNER_BYTES];
};

void embed_line_init(struct embed_line *l)
{
    *l = (struct embed_line){0};
    list_init(&l->owners);
}

/* ---- in and out */

static struct embed_owner *owner_of(struct embed_line *l, const char *name)
{
    LIST_EACH(at, &l->owners)
    {
        struct embed_owner *o = LIST_ENTRY(at, struct embed_owner, at);
        if (strcmp(o->name, name) == 0)
            return o;
    }
    struct embed_owner *o = mem_new(sizeof *o);
    snprintf(o->name, sizeof o->name, "%s", name);
    list_init(&o->jobs);
    list_push_back(&l->owners, &o->at);
    return o;
}

/* Behind those of its owner who wait already. */
static void enter(struct embed_line *l, struct embed_job *j)
{
    j->line_owner = owner_of(l, j->owner);
    list_push_back(&j->line_owner->jobs, &j->at);
    l->jobs++;
}

static void leave(struct embed_line *l, struct embed_job *j)
{
    struct embed_owner *o = j->line_owner;
    list_remove(&j->at);
    j->line_owner = NULL;
    l->jobs--;
    if (list_empty(&o->jobs)) {
        list_remove(&o->at);
        mem_free(o);
    }
}

struct length {
    int n, i;
};

/* Longest first; of the same length, in the request's order. */
static int by_length(const void *a, const void *b)
{
    const struct length *x = a, *y = b;
    return x->n != y->n ? y->n - x->n : x->i - y->i;
}

void embed_line_add(struct embed_line *l, struct embed_job *j)
{
    ASSERT(j->n > 0 && !j->order);
    struct length *lengths = mem_new_array((size_t)j->n, sizeof *lengths);
    j->order = mem_new_array((size_t)j->n, sizeof *j->order);
    for (int i = 0; i < j->n; i++)
        lengths[i] = (struct length){j->seqs[i].n, i};
    qsort(lengths, (size_t)j->n, sizeof *lengths, by_length);
    for (int i = 0; i < j->n; i++)
        j->order[i] = lengths[i].i;
    mem_free(lengths);
    j->next = j->n_flying = 0;
    j->end = j->n;
    list_init(&j->at);
    l->inputs += j->n;
    l->tokens += j->n_tokens;
    enter(l, j);
}

void embed_line_drop(struct embed_line *l, struct embed_job *j)
{
    if (!j->line_owner)
        return;
    for (; j->next < j->end; j->next++) {
        l->inputs--;
        l->tokens -= j->seqs[j->order[j->next]].n;
    }
    leave(l, j);
}

void embed_line_return(struct embed_line *l, const struct embed_piece *p)
{
    struct embed_job *j = p->job;
    j->n_flying--;
    if (j->next) /* what stood there is in some batch, or was */
        j->order[--j->next] = p->i;
    else
        j->order[j->end++] = p->i;
    l->inputs++;
    l->tokens += j->seqs[p->i].n;
    if (!j->line_owner)
        enter(l, j);
}

void embed_line_forget(struct embed_job *j)
{
    mem_free(j->order);
    j->order = NULL;
}

/* ---- the next batch */

/* Of what a job has waiting, a sequence that is wanted: -1: none; else its place in the order, `next` or the last. */
static int wanted(const struct embed_job *j, const struct embed_take *t)
{
    if (j->next == j->end || t->lengths == EMBED_ANY)
        return j->next == j->end ? -1 : j->next;
    bool first_is_long = j->seqs[j->order[j->next]].n > t->short_tokens;
    if ((t->lengths == EMBED_LONG) == first_is_long)
        return j->next;
    bool last_is_short = j->seqs[j->order[j->end - 1]].n <= t->short_tokens;
    return t->lengths == EMBED_SHORT && last_is_short ? j->end - 1 : -1;
}

static void put(struct embed_line *l, struct embed_job *j, int at, struct embed_batch *b)
{
    int i = j->order[at];
    if (at == j->next)
        j->next++;
    else
        j->end--;
    b->pieces[b->n] = (struct embed_piece){j, i};
    b->seqs[b->n++] = j->seqs[i];
    b->tokens += j->seqs[i].n;
    j->n_flying++;
    l->inputs--;
    l->tokens -= j->seqs[i].n;
}

/* One turn of a job. false: its next sequence does not fit, so it stays first for the next batch. */
static bool take_slice(struct embed_line *l, struct embed_job *j, const struct embed_take *t, struct embed_batch *b)
{
    int taken = 0, at;
    while ((at = wanted(j, t)) >= 0 && b->n < EMBED_BATCH_SEQS) {
        int n = j->seqs[j->order[at]].n;
        if (b->n && b->tokens + n > t->max_tokens)
            return taken > 0;
        if (taken && taken + n > t->slice)
            return true;
        put(l, j, at, b);
        taken += n;
    }
    return taken > 0;
}

/* Whose turn it is, of those who have something that is wanted. */
static struct embed_job *first_wanted(const struct embed_line *l, const struct embed_take *t)
{
    LIST_EACH(at, &l->owners)
    {
        const struct embed_owner *o = LIST_ENTRY(at, struct embed_owner, at);
        LIST_EACH(of, &o->jobs)
        {
            struct embed_job *j = LIST_ENTRY(of, struct embed_job, at);
            if (wanted(j, t) >= 0)
                return j;
        }
    }
    return NULL;
}

static int longest_first(const void *a, const void *b)
{
    const struct embed_piece *x = a, *y = b;
    return y->job->seqs[y->i].n - x->job->seqs[x->i].n;
}

static void sort(struct embed_batch *b)
{
    qsort(b->pieces, (size_t)b->n, sizeof *b->pieces, longest_first);
    for (int i = 0; i < b->n; i++)
        b->seqs[i] = b->pieces[i].job->seqs[b->pieces[i].i];
}

void embed_line_take(struct embed_line *l, const struct embed_take *t, struct embed_batch *b)
{
    struct embed_job *j;
    b->n = b->tokens = 0;
    while (b->n < EMBED_BATCH_SEQS && (j = first_wanted(l, t))) {
        struct embed_owner *o = j->line_owner;
        bool alone = j->alone;
        if (alone && b->n)
            break;
        if (!take_slice(l, j, t, b))
            break;
        list_remove(&o->at); /* the owner's turn is over, and the job's among its owner's */
        list_push_back(&l->owners, &o->at);
        list_remove(&j->at);
        list_push_back(&o->jobs, &j->at);
        if (j->next == j->end)
            leave(l, j);
        if (alone)
            break;
    }
    sort(b);
}
