/* What a rank does of a step: alone or with the others of its group, with the step behind it already on the device. */
#include "engine/base/check.h"
#include "engine/exec/rank_inner.h"

/* The ranks that run something together. */
struct team {
    struct layout layout;
    int n;
    const int *ranks; /* by share */
    int tokens_per_block;
    const struct comm_set *comms;
    enum comm_algorithm algorithm;
};

/* Tells teams apart whose members find the same views and comms: all of them say the same. */
static uint64_t order_of(const struct team *t)
{
    uint64_t h = 14695981039346656037ull;
    for (int i = 0; i < t->n; i++)
        h = (h ^ (uint64_t)(t->ranks[i] + 1)) * 1099511628211ull;
    return h;
}

static struct forward_member site_of(const struct rank *r, const struct team *t, int share)
{
    struct forward_member site = {
        .weights = weights_view(r->weights, layout_of_stage(t->layout), share_in_stage(t->layout, share)),
        .stage = share_stage(t->layout, share),
        .n_stages = t->layout.pp,
        .kv = rank_kv(r, t->layout.pp),
        .tokens_per_block = t->tokens_per_block,
        .ffn = r->seat ? ffn_seat_source(r->seat) : NULL,
        .group = order_of(t)};
    ASSERT(site.weights && site.weights->shard.n * t->layout.pp == t->n && (t->comms != NULL) == (t->n > 1));
    if (t->comms) {
        struct comm_seat seat = comm_seat(t->comms, t->layout, share, t->algorithm);
        site.sp = seat.sp;
        site.tp = seat.tp;
        site.all = seat.all;
        site.from = seat.from;
        site.to = seat.to;
        site.twoshot_bytes = seat.twoshot_bytes;
        site.library_bytes = seat.library_bytes;
    }
    return site;
}

void rank_poison(struct rank *r, int rc, const struct err *err)
{
    r->poisoned = rc;
    r->err = *err;
    if (r->seat)
        ffn_seat_fail(r->seat);
}

/* A device that has failed, or is told to: the part ends before it begins. */
static bool is_out(struct rank *r, struct step_part *p, const struct forward_member *site)
{
    r->n_steps++;
    if (!r->poisoned && r->n_steps == r->setup.fail_at_step) {
        struct err injected;
        err_set(&injected, E_DEVICE, "rank %d: its device failed in step %llu (injected)", r->setup.index,
                (unsigned long long)r->n_steps);
        rank_poison(r, E_DEVICE, &injected);
    }
    if (!r->poisoned && r->seat && ffn_seat_is_dead(r->seat)) {
        struct err served;
        err_set(&served, E_DEVICE, "rank %d: its device failed while it served others", r->setup.index);
        rank_poison(r, E_DEVICE, &served);
    }
    if (!r->poisoned)
        return false;
    p->rc = r->poisoned;
    p->err = r->err;
    forward_abort(r->setup.ops, site);
    return true;
}

/* What one part of a step is at. */
struct work {
    struct step *step;
    int share;
    struct forward_member site;
    enum { WORK_NEW, WORK_POSTED, WORK_ENDED } state;
};

static struct work work_on(const struct rank *r, struct step *s, int share)
{
    struct team team = {s->layout, s->n_ranks, s->ranks, s->tokens_per_block, s->comms, s->algorithm};
    struct work w = {.step = s, .share = share, .site = site_of(r, &team, share)};
    w.site.asks = s->asks.n ? &s->asks : NULL;
    return w;
}

static struct step_part *part_of(const struct work *w)
{
    return &w->step->parts[w->share];
}

static void note_failure(struct rank *r, const struct step_part *p)
{
    if (p->rc && p->rc != E_PEER)
        rank_poison(r, p->rc, &p->err);
}

/* On its way, where the device takes it whole; fed by the step under way. */
static void post_part(struct rank *r, struct work *w, bool fed)
{
    struct step_part *p = part_of(w);
    bool posted;
    p->batch.fed = fed;
    p->rc = forward_post(&r->forward, &w->site, &p->batch, &posted, &p->err);
    note_failure(r, p);
    w->state = p->rc ? WORK_ENDED : posted ? WORK_POSTED : WORK_NEW;
    r->on_device = posted && !p->rc ? w->step : r->on_device;
}

/* All members have ended the step before, or soon will: it was made of ops by all of them, and they wait for nobody by
 * now. */
static void take_tokens(struct work *w)
{
    struct step_part *p = part_of(w);
    while (atomic_load(&w->step->prev->left) > 0)
        rank_sleep_ns(5000);
    p->rc = step_take_tokens(w->step, w->share, &p->err);
}

/* The micro-batches, one behind another: as soon as the next stage has taken one, the rank goes on with the next. */
static void run_micro(struct rank *r, const struct work *w)
{
    struct step_part *p = part_of(w);
    for (int i = 0; i < w->step->n_micro && !p->rc; i++) {
        struct step_time t = {0};
        p->rc = forward_run(&r->forward, &w->site, &p->micro[i], &t, &p->err);
        p->time.ns += t.ns;
    }
}

/* forward_run, with what the step takes from the FFN pool, and what that cost. */
static void run_forward(struct rank *r, const struct work *w)
{
    struct step_part *p = part_of(w);
    struct ffn_account before, after;
    if (w->step->n_micro > 1 && r->setup.ops->computes) {
        run_micro(r, w);
        return;
    }
    if (!r->seat) {
        p->rc = forward_run(&r->forward, &w->site, &p->batch, &p->time, &p->err);
        return;
    }
    ffn_seat_account(r->seat, &before);
    ffn_seat_watch(r->seat, p->timeline);
    ffn_seat_begin(r->seat, &w->step->ffn, &w->site.weights->shard);
    p->rc = forward_run(&r->forward, &w->site, &p->batch, &p->time, &p->err);
    ffn_seat_end(r->seat);
    ffn_seat_watch(r->seat, NULL);
    ffn_seat_account(r->seat, &after);
    p->lost_owner = p->rc == E_PEER ? ffn_seat_lost(r->seat) + 1 : 0;
    p->ffn_wait_ns = after.wait_ns - before.wait_ns;
    p->ffn_fetch_ns = after.fetch_ns - before.fetch_ns;
    p->ffn_bytes = after.bytes - before.bytes;
    p->cas_bytes = after.cas_bytes - before.cas_bytes;
    p->cas_rows = (int)(after.cas_rows - before.cas_rows);
}

/* By ops, from tokens that the host knows. */
static void run_part(struct rank *r, struct work *w)
{
    struct step_part *p = part_of(w);
    w->state = WORK_ENDED;
    if (w->step->prev)
        take_tokens(w);
    if (p->rc) {
        forward_abort(r->setup.ops, &w->site);
        return;
    }
    p->batch.fed = false;
    p->batch.pool_ranks = w->step->size.pool_ranks;
    p->batch.cas_layers = w->step->size.cas_layers;
    p->batch.replica_layers = w->step->size.replica_layers;
    p->batch.n_micro = w->step->n_micro;
    run_forward(r, w);
    if (!r->setup.ops->computes)
        step_part_take_ffn(p, &p->time.ffn);
    r->on_device = NULL;
    note_failure(r, p);
}

/* Who feeds it on the device must not wait for the others to have ended the step before: one of them may wait for this
 * member to post, too. */
static void begin_part(struct rank *r, struct work *w)
{
    bool fed = w->step->prev != NULL;
    w->state = WORK_ENDED;
    if (is_out(r, part_of(w), &w->site))
        return;
    w->state = WORK_NEW;
    if (!fed || r->on_device == w->step->prev)
        post_part(r, w, fed);
    if (w->state == WORK_NEW)
        run_part(r, w);
}

/* Draft tokens that were right go where they would be if nothing else had been drafted: within the step, so nobody else
 * ever sees them elsewhere. Members of other stages do not hear what is sampled, so all wait for it here; who fails
 * says so, too. A step that fails counts for nothing, and its requests begin again. */
static void pack_drafts(struct rank *r, const struct work *w)
{
    struct step *s = w->step;
    int32_t from[MOST_DRAFTS], to[MOST_DRAFTS];
    if (!s->trees || !r->setup.ops->computes)
        return;
    if (step_samples(s, w->share))
        atomic_fetch_sub(&s->sampling, 1);
    if (part_of(w)->rc)
        return;
    while (atomic_load(&s->sampling) > 0)
        rank_sleep_ns(5000);
    if (!step_has_sampled(s))
        return;
    for (int i = 0; i < s->n_items; i++) {
        struct kv_pack p = {.at = {.blocks = part_of(w)->batch.seqs[i].blocks}, .from = from, .to = to};
        p.n = step_packs(s, i, from, to);
        if (p.n)
            forward_pack(&r->forward, &w->site, &p);
    }
}

/* The members of the last stage have all samples by now, their own and each other's. */
static void draft(struct rank *r, const struct work *w)
{
    struct step *s = w->step;
    struct layout stage = layout_of_stage(s->layout);
    if (s->drafting.n && step_samples(s, w->share) && !part_of(w)->rc)
        drafter_guess(r->drafter, &s->drafting, share_in_stage(s->layout, w->share), layout_size(stage),
                      &part_of(w)->drafting);
}

static void finish_part(struct rank *r, struct work *w)
{
    struct step_part *p = part_of(w);
    struct step *s = w->step;
    if (w->state == WORK_POSTED) {
        p->rc = forward_wait(&r->forward, &w->site, &p->time, &p->err);
        note_failure(r, p);
    }
    if (r->setup.threaded && !r->setup.ops->computes)
        rank_sleep_ns(p->time.ns);
    pack_drafts(r, w);
    draft(r, w);
    if (atomic_fetch_sub(&s->left, 1) == 1 && r->setup.threaded)
        r->setup.step_done(r->setup.ctx, s);
}

/* The step behind the one under way is put behind it on the device, too. True: it has begun. Whatever else comes waits.
 */
static bool begin_next(struct rank *r, const struct work *now, struct work *next)
{
    enum { LOOK_NS = 20000 };
    while (now->step->ahead > 0 && !r->holds && !forward_ended(&r->forward)) {
        if (!queue_take(r->inbox, &r->held)) {
            queue_wait(r->inbox, LOOK_NS);
            continue;
        }
        r->holds = true;
        if (r->held.kind != TASK_STEP || ((struct step *)r->held.what)->prev != now->step)
            return false;
        *next = work_on(r, r->held.what, r->held.share);
        next->state = WORK_ENDED;
        if (!is_out(r, part_of(next), &next->site))
            post_part(r, next, true);
        r->holds = next->state == WORK_NEW; /* that one runs by ops, once its tokens are known */
        r->n_steps -= r->holds;             /* and is counted then */
        return !r->holds;
    }
    return false;
}

/* In virtual time nothing is computed, and the first member says what a step takes and what is sampled. */
static bool stands_by(const struct rank *r, int share)
{
    return share > 0 && !r->setup.threaded && !r->setup.ops->computes && !r->drafter && !r->poisoned &&
           !r->setup.fail_at_step;
}

void rank_do_step(struct rank *r, struct step *s, int share)
{
    if (stands_by(r, share)) {
        atomic_fetch_sub(&s->left, 1);
        return;
    }
    struct work now = work_on(r, s, share), next;
    begin_part(r, &now);
    while (now.state == WORK_POSTED && begin_next(r, &now, &next)) {
        finish_part(r, &now);
        now = next;
    }
    finish_part(r, &now);
}

void rank_do_prepare(struct rank *r, struct prepare_task *t, int share)
{
    struct prepare_part *p = &t->parts[share];
    struct forward_member site =
        site_of(r, &(struct team){t->layout, t->n_ranks, t->ranks, t->tokens_per_block, t->comms, COMM_AUTO}, share);
    static const struct ffn_modes fetched;
    if (r->seat)
        ffn_seat_begin(r->seat, &fetched, &site.weights->shard);
    p->rc = t->what == PREPARE_GRAPH ? forward_capture(&r->forward, &site, t->rows, &p->err)
                                     : forward_warm_up(&r->forward, &site, t->rows, &p->err);
    if (r->seat)
        ffn_seat_end(r->seat);
    if (atomic_fetch_sub(&t->left, 1) == 1 && t->ended)
        queue_post(t->ended, &t->rows);
}
