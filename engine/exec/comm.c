#include "engine/exec/comm.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/exec/comm_measure.h"

/* The groups of one layout of a stage: [tp] of sp members each, then [sp] of tp members each. Both empty where a width
 * is 1: then `all` is the other group. */
struct layout_comms {
    struct layout layout;
    struct comm **sp, **tp;
};

/* The ranks of one stage. */
struct stage_comms {
    struct comm *all; /* NULL: of one rank */
    int n_layouts;
    struct layout_comms *layouts; /* those with sp > 1 and tp > 1 */
};

/* The set, cut into pp stages of `width` ranks. */
struct pipe_comms {
    int pp, width;
    struct stage_comms *stages; /* [pp] */
    struct comm **links;        /* [pp - 1][width]: of two members, share i of a stage (0) and of the next one (1) */
};

struct comm_set {
    const struct backend_ops *ops;
    uint64_t ranks;
    int n, n_pipes;
    struct pipe_comms *pipes; /* the first: one stage of all ranks */
    struct comm_measure measured;
};

struct comm_pool {
    struct comm_set *sets;
    int n;
};

static int count_ranks(uint64_t ranks)
{
    return __builtin_popcountll(ranks);
}

static int open_groups(const struct comm_set *c, struct comm ***out, int n_groups, int n, struct err *e)
{
    *out = mem_new_array((size_t)n_groups, sizeof **out);
    for (int i = 0; i < n_groups; i++)
        TRY(c->ops->comm_open(&(*out)[i], n, e));
    return 0;
}

static int open_stage(const struct comm_set *c, struct stage_comms *st, int width, struct err *e)
{
    st->layouts = mem_new_array((size_t)width, sizeof *st->layouts);
    if (width > 1)
        TRY(c->ops->comm_open(&st->all, width, e));
    for (int sp = 2; sp < width; sp++) {
        if (width % sp)
            continue;
        struct layout_comms *l = &st->layouts[st->n_layouts++];
        l->layout = (struct layout){sp, width / sp, 1};
        TRY(open_groups(c, &l->sp, l->layout.tp, sp, e));
        TRY(open_groups(c, &l->tp, sp, l->layout.tp, e));
    }
    return 0;
}

static int open_pipe(const struct comm_set *c, struct pipe_comms *p, int pp, struct err *e)
{
    p->pp = pp;
    p->width = c->n / pp;
    p->stages = mem_new_array((size_t)pp, sizeof *p->stages);
    for (int i = 0; i < pp; i++)
        TRY(open_stage(c, &p->stages[i], p->width, e));
    return open_groups(c, &p->links, (pp - 1) * p->width, 2, e);
}

static int open_set(struct comm_set *c, const struct backend_ops *ops, uint64_t ranks, struct err *e)
{
    *c = (struct comm_set){.ops = ops, .ranks = ranks, .n = count_ranks(ranks)};
    c->pipes = mem_new_array((size_t)c->n, sizeof *c->pipes);
    for (int pp = 1; pp <= c->n; pp++)
        if (c->n % pp == 0)
            TRY(open_pipe(c, &c->pipes[c->n_pipes++], pp, e));
    return 0;
}

static void each_of_stage(const struct stage_comms *st, void (*fn)(struct comm *))
{
    if (st->all)
        fn(st->all);
    for (int i = 0; i < st->n_layouts; i++) {
        const struct layout_comms *l = &st->layouts[i];
        for (int k = 0; l->sp && k < l->layout.tp; k++)
            fn(l->sp[k]);
        for (int k = 0; l->tp && k < l->layout.sp; k++)
            fn(l->tp[k]);
    }
}

/* Calls fn for every comm of the set. */
static void each_comm(const struct comm_set *c, void (*fn)(struct comm *))
{
    for (int i = 0; i < c->n_pipes; i++) {
        const struct pipe_comms *p = &c->pipes[i];
        for (int k = 0; p->stages && k < p->pp; k++)
            each_of_stage(&p->stages[k], fn);
        for (int k = 0; p->links && k < (p->pp - 1) * p->width; k++)
            fn(p->links[k]);
    }
}

static void free_stage(struct stage_comms *st)
{
    for (int i = 0; i < st->n_layouts; i++) {
        mem_free(st->layouts[i].sp);
        mem_free(st->layouts[i].tp);
    }
    mem_free(st->layouts);
}

static void close_set(struct comm_set *c)
{
    each_comm(c, c->ops->comm_close);
    for (int i = 0; i < c->n_pipes; i++) {
        for (int k = 0; c->pipes[i].stages && k < c->pipes[i].pp; k++)
            free_stage(&c->pipes[i].stages[k]);
        mem_free(c->pipes[i].stages);
        mem_free(c->pipes[i].links);
    }
    mem_free(c->pipes);
}

static int add_set(struct comm_pool *p, const struct comm_pool_setup *s, uint64_t ranks, struct err *e)
{
    if (count_ranks(ranks) < 2 || comm_find(p, ranks))
        return 0;
    p->sets = mem_resize(p->sets, (size_t)p->n + 1, sizeof *p->sets);
    p->n++;
    return open_set(&p->sets[p->n - 1], s->ops, ranks, e);
}

static int add_sets(struct comm_pool *p, const struct comm_pool_setup *s, struct err *e)
{
    for (int n = 2; n <= s->n_ranks; n *= 2)
        for (int first = 0; first + n <= s->n_ranks; first += n)
            TRY(add_set(p, s, rank_range(first, n), e));
    TRY(add_set(p, s, rank_range(0, s->n_ranks), e));
    for (int i = 0; i < s->n_extra; i++) {
        if (s->extra[i] & ~rank_range(0, s->n_ranks))
            return err_set(e, E_INPUT, "--comm-sets names rank %d, and the ranks of this node are 0 to %d",
                           63 - __builtin_clzll(s->extra[i]), s->n_ranks - 1);
        TRY(add_set(p, s, s->extra[i], e));
    }
    return 0;
}

/* What the library needs for the reducing groups of one layout of one stage. */
static int warm_layout(const struct comm_set *c, const struct layout_comms *l, struct device *const *devices,
                       struct err *e)
{
    struct comm_measure unused;
    for (int s = 0; s < l->layout.sp; s++) {
        struct device *members[MAX_RANKS];
        for (int t = 0; t < l->layout.tp; t++)
            members[t] = devices[t * l->layout.sp + s];
        TRY(comm_measure_set(&unused, c->ops, l->tp[s], members, l->layout.tp, e));
    }
    return 0;
}

/* It is made here, not while serving. A group in the order of another base layout makes its own when it first uses it.
 */
static int warm_library(const struct comm_set *c, struct device *const *devices, struct err *e)
{
    struct comm_measure unused;
    for (int i = 0; i < c->n_pipes; i++)
        for (int k = 0; k < c->pipes[i].pp; k++) {
            const struct stage_comms *st = &c->pipes[i].stages[k];
            struct device *const *own = devices + k * c->pipes[i].width;
            if (i > 0 && st->all)
                TRY(comm_measure_set(&unused, c->ops, st->all, own, c->pipes[i].width, e));
            for (int l = 0; l < st->n_layouts; l++)
                TRY(warm_layout(c, &st->layouts[l], own, e));
        }
    return 0;
}

static int measure_set(struct comm_set *c, const struct comm_pool_setup *s, struct err *e)
{
    struct device *devices[MAX_RANKS];
    int n = 0;
    for (int r = 0; r < s->n_ranks; r++)
        if (c->ranks >> r & 1)
            devices[n++] = s->devices[r];
    TRY(comm_measure_set(&c->measured, s->ops, c->pipes[0].stages[0].all, devices, n, e));
    return c->measured.library_bytes && c->measured.library_bytes < COMM_NEVER ? warm_library(c, devices, e) : 0;
}

int comm_pool_open(struct comm_pool **out, const struct comm_pool_setup *s, struct err *e)
{
    struct comm_pool *p = mem_new(sizeof *p);
    *out = NULL;
    ASSERT(s->n_ranks >= 1 && s->n_ranks <= MAX_RANKS);
    int rc = add_sets(p, s, e);
    for (int i = 0; i < p->n && !rc && s->measure && s->ops->computes; i++)
        rc = measure_set(&p->sets[i], s, e);
    if (rc) {
        comm_pool_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void comm_pool_close(struct comm_pool *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        close_set(&p->sets[i]);
    mem_free(p->sets);
    mem_free(p);
}

int comm_pool_count(const struct comm_pool *p)
{
    return p->n;
}

uint64_t comm_pool_mask(const struct comm_pool *p, int i)
{
    ASSERT(i >= 0 && i < p->n);
    return p->sets[i].ranks;
}

struct comm_set *comm_find(const struct comm_pool *p, uint64_t ranks)
{
    for (int i = 0; i < p->n; i++)
        if (p->sets[i].ranks == ranks)
            return &p->sets[i];
    return NULL;
}

const struct comm_measure *comm_measured(const struct comm_set *c)
{
    return &c->measured;
}

void comm_set_measured(struct comm_set *c, const struct comm_measure *m)
{
    c->measured = *m;
}

static const struct pipe_comms *pipe_of(const struct comm_set *c, int pp)
{
    const struct pipe_comms *p = c->pipes;
    while (p->pp != pp)
        p++;
    return p;
}

struct comm_seat comm_seat(const struct comm_set *c, struct layout l, int share, enum comm_algorithm how)
{
    ASSERT(layout_size(l) == c->n && share >= 0 && share < c->n);
    const struct pipe_comms *p = pipe_of(c, l.pp);
    int stage = share_stage(l, share), in_stage = share_in_stage(l, share);
    const struct stage_comms *st = &p->stages[stage];
    struct comm_seat seat = {.sp = st->all, .tp = st->all, .all = st->all};
    for (int i = 0; i < st->n_layouts; i++)
        if (layout_equal(st->layouts[i].layout, layout_of_stage(l))) {
            seat.sp = st->layouts[i].sp[share_t(l, in_stage)];
            seat.tp = st->layouts[i].tp[share_s(l, in_stage)];
        }
    seat.from = stage > 0 ? p->links[(stage - 1) * p->width + in_stage] : NULL;
    seat.to = stage < l.pp - 1 ? p->links[stage * p->width + in_stage] : NULL;
    seat.twoshot_bytes = how == COMM_ONESHOT ? SIZE_MAX : how == COMM_TWOSHOT ? 0 : comm_twoshot_from(&c->measured);
    if (c->measured.library_bytes && (how == COMM_AUTO || how == COMM_LIBRARY))
        seat.library_bytes = how == COMM_LIBRARY ? 1 : c->measured.library_bytes;
    return seat;
}

void comm_reset(struct comm_set *c)
{
    each_comm(c, c->ops->comm_reset);
}

void comm_reset_within(struct comm_pool *p, uint64_t ranks)
{
    for (int i = 0; i < p->n; i++)
        if (!(p->sets[i].ranks & ~ranks))
            comm_reset(&p->sets[i]);
}
