#include "engine/exec/rank.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

/* What lies in the inbox. */
struct task {
    enum { TASK_END, TASK_STEP, TASK_MOVE, TASK_PREPARE, TASK_REPLICA, TASK_JOB } kind;
    int share;
    void *what;
};

struct rank {
    struct rank_setup setup;
    struct device *device;
    struct device_facts facts;
    struct weights *weights;
    struct ffn_seat *seat; /* in the FFN pool; NULL: all weights lie here */
    struct forward forward;
    struct kv_memory kv;
    struct heads heads;
    struct queue *inbox;     /* of struct task */
    struct queue *jobs_done; /* of struct rank_job * */
    struct rank_job opening;
    const struct step
        *on_device;   /* the step done last, if the device has what it sampled: the next can be fed with it there */
    struct task held; /* taken from the inbox and not begun */
    bool holds;
    struct thread *thread;
    uint64_t n_steps;
    int poisoned; /* a device error: every later step fails with it */
    struct err err;
};

static int init_weights(struct rank *r, struct err *e)
{
    const struct rank_setup *s = &r->setup;
    ASSERT(!s->shares_with || s->ops->shares_memory);
    if (s->shares_with) {
        r->weights = weights_share(s->shares_with->weights);
        return 0;
    }
    return weights_load(&r->weights,
                        &(struct weights_setup){.model = s->model,
                                                .ops = s->ops,
                                                .device = r->device,
                                                .n_ranks = s->n_ranks,
                                                .copy_shards = s->copy_shards,
                                                .ffn = s->ffn,
                                                .rank = s->index,
                                                .progress = s->progress},
                        e);
}

static int init_forward(struct rank *r, struct err *e)
{
    const struct model_config *c = model_config(r->setup.model);
    r->heads = shard_heads(c);
    kv_memory_init(&r->kv, &(struct kv_memory_setup){.ops = r->setup.ops,
                                                     .dtype = r->setup.kv_dtype,
                                                     .bits = rank_kv_bits(r),
                                                     .block_size = r->setup.block_size,
                                                     .n_layers = c->n_layers,
                                                     .heads = r->heads});
    r->forward = (struct forward){.ops = r->setup.ops, .device = r->device, .config = c, .kv = &r->kv.all};
    return forward_init(&r->forward, r->setup.device.max_rows, r->setup.device.max_logits, r->setup.n_ranks, e);
}

static int open_parts(void *ctx, struct err *e)
{
    struct rank *r = ctx;
    const struct rank_setup *s = &r->setup;
    TRY(s->ops->open(&r->device, &s->device, e));
    s->ops->facts(r->device, &r->facts);
    if (!s->quiet)
        log_info("rank", "Device %d: %s, %.1f GiB", s->index, r->facts.name, (double)r->facts.memory_bytes / 0x1p30);
    TRY(init_weights(r, e));
    return init_forward(r, e);
}

static void body(void *arg);

int rank_begin(struct rank **out, const struct rank_setup *s, struct err *e)
{
    struct rank *r = mem_new(sizeof *r);
    char name[16];
    *out = r;
    r->setup = *s;
    r->opening = (struct rank_job){.run = open_parts, .ctx = r};
    if (r->setup.n_ranks < 1)
        r->setup.n_ranks = 1;
    if (s->threaded) {
        r->inbox = queue_create(sizeof(struct task), 0, false);
        r->jobs_done = queue_create(sizeof(struct rank_job *), 0, false);
        snprintf(name, sizeof name, "rank-%d", s->index);
        int rc = thread_start(&r->thread, name, body, r, e);
        if (rc) {
            rank_close(r);
            *out = NULL;
            return rc;
        }
    }
    rank_do(r, &r->opening);
    return 0;
}

int rank_opened(struct rank *r, struct err *e)
{
    return rank_await(r, &r->opening, e);
}

int rank_open(struct rank **out, const struct rank_setup *s, struct err *e)
{
    TRY(rank_begin(out, s, e));
    int rc = rank_opened(*out, e);
    if (rc) {
        rank_close(*out);
        *out = NULL;
    }
    return rc;
}

const struct device_facts *rank_facts(const struct rank *r)
{
    return &r->facts;
}

struct device *rank_device(const struct rank *r)
{
    return r->device;
}

void rank_release(struct rank *r, void *p)
{
    r->setup.ops->release(r->device, p);
}

size_t rank_weight_bytes(const struct rank *r)
{
    const struct device_budget *b = &r->facts.budget;
    if (b->weight_tp)
        return b->weights + (r->setup.copy_shards ? b->copy : 0);
    return r->setup.shares_with ? 0 : weights_bytes(r->weights);
}

struct weights *rank_weights(const struct rank *r)
{
    return r->weights;
}

void rank_join(struct rank *r, struct ffn_seat *seat)
{
    r->seat = seat;
}

size_t rank_scratch_bytes(const struct rank *r)
{
    const struct rank_setup *s = &r->setup;
    if (r->facts.budget.weight_tp)
        return r->facts.budget.reserve;
    return forward_scratch_bytes(r->forward.config, s->device.max_rows, s->device.max_logits, s->n_ranks,
                                 r->facts.act_bytes);
}

size_t rank_kv_block_bytes(const struct rank *r)
{
    return kv_memory_block_bytes(&r->kv);
}

const struct kv_space *rank_kv(const struct rank *r, int stages)
{
    return kv_memory_space(&r->kv, stages);
}

int rank_kv_bits(const struct rank *r)
{
    return r->facts.budget.kv_bits ? r->facts.budget.kv_bits : (int)dtype_get(r->setup.kv_dtype)->bytes * 8;
}

int rank_tokens_per_block(const struct rank *r, int n_kv_heads)
{
    return kv_memory_tokens(&r->kv, n_kv_heads);
}

const char *rank_layout_refusal(const struct rank *r, struct layout l)
{
    const char *why = layout_refusal(&r->heads, l);
    if (why)
        return why;
    if (layout_size(l) > r->setup.n_ranks)
        return "the layout has more ranks than the node";
    if (l.pp > r->kv.all.n_layers)
        return "pp is more than the layers of the model";
    if (r->facts.budget.weight_tp > 1 && l.tp % r->facts.budget.weight_tp)
        return "each device holds a share of the weights: tp must be a multiple of the number of shares";
    bool shown = weights_view(r->weights, layout_of_stage(l), 0) != NULL;
    return shown ? NULL : "there is no view of the weights for this layout";
}

/* ---- the work */

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

static void poison(struct rank *r, int rc, const struct err *err)
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
        poison(r, E_DEVICE, &injected);
    }
    if (!r->poisoned && r->seat && ffn_seat_is_dead(r->seat)) {
        struct err served;
        err_set(&served, E_DEVICE, "rank %d: its device failed while it served others", r->setup.index);
        poison(r, E_DEVICE, &served);
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
    return (struct work){
        .step = s,
        .share = share,
        .site = site_of(r, &(struct team){s->layout, s->n_ranks, s->ranks, s->tokens_per_block, s->comms, s->algorithm},
                        share)};
}

static struct step_part *part_of(const struct work *w)
{
    return &w->step->parts[w->share];
}

static void note_failure(struct rank *r, const struct step_part *p)
{
    if (p->rc && p->rc != E_PEER)
        poison(r, p->rc, &p->err);
}

/* A simulated device in a threaded engine takes its time for real. */
static void sleep_ns(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
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
        sleep_ns(5000);
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

static void finish_part(struct rank *r, struct work *w)
{
    struct step_part *p = part_of(w);
    struct step *s = w->step;
    if (w->state == WORK_POSTED) {
        p->rc = forward_wait(&r->forward, &w->site, &p->time, &p->err);
        note_failure(r, p);
    }
    if (r->setup.threaded && !r->setup.ops->computes)
        sleep_ns(p->time.ns);
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

static void do_step(struct rank *r, struct step *s, int share)
{
    struct work now = work_on(r, s, share), next;
    begin_part(r, &now);
    while (now.state == WORK_POSTED && begin_next(r, &now, &next)) {
        finish_part(r, &now);
        now = next;
    }
    finish_part(r, &now);
}

static void do_move(struct rank *r, struct move *m, int share)
{
    move_run(m, share, r->setup.ops, r->device);
    if (r->setup.threaded && !r->setup.ops->computes)
        sleep_ns(atomic_load(&m->ns));
    if (atomic_fetch_sub(&m->left, 1) == 1 && r->setup.threaded)
        r->setup.move_done(r->setup.ctx, m);
}

static void do_replica(struct rank *r, struct replica_task *t)
{
    const struct backend_ops *ops = r->setup.ops;
    if (!r->seat) { /* a machine that computes nothing: all its ranks take the same time */
        int64_t ns = !t->gives_up && ops->layer_copy_ns ? ops->layer_copy_ns(r->device) : 0;
        atomic_store(&t->ns, ns);
        if (r->setup.threaded)
            sleep_ns(ns);
        replica_task_end(t, 0);
    } else if (t->gives_up) {
        ffn_seat_give_up(r->seat, t->layer);
        replica_task_end(t, 0);
    } else {
        int before = __builtin_popcountll(t->ranks & ((1ull << r->setup.index) - 1));
        kv_memory_forget(&r->kv, r->device, t->lent + (size_t)before * (size_t)t->n_blocks, t->n_blocks);
        ffn_seat_keep(r->seat, t);
    }
}

static void do_prepare(struct rank *r, struct prepare_task *t, int share)
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

static void do_job(struct rank *r, struct rank_job *j)
{
    j->rc = j->run(j->ctx, &j->err);
    if (r->setup.threaded)
        queue_post(r->jobs_done, &j);
}

static void body(void *arg)
{
    struct rank *r = arg;
    for (;;) {
        struct task t = r->held;
        while (!r->holds && !queue_take(r->inbox, &t))
            queue_wait(r->inbox, -1);
        r->holds = false;
        if (t.kind == TASK_END)
            return;
        if (t.kind == TASK_STEP)
            do_step(r, t.what, t.share);
        else if (t.kind == TASK_MOVE)
            do_move(r, t.what, t.share);
        else if (t.kind == TASK_REPLICA)
            do_replica(r, t.what);
        else if (t.kind == TASK_PREPARE)
            do_prepare(r, t.what, t.share);
        else
            do_job(r, t.what);
    }
}

void rank_do(struct rank *r, struct rank_job *j)
{
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_JOB, 0, j});
    else
        do_job(r, j);
}

int rank_await(struct rank *r, struct rank_job *j, struct err *e)
{
    struct rank_job *done = j;
    while (r->setup.threaded && !queue_take(r->jobs_done, &done))
        queue_wait(r->jobs_done, -1);
    ASSERT(done == j);
    return j->rc ? err_set(e, j->rc, "%s", j->err.text) : 0;
}

static int take_kv(void *ctx, struct err *e)
{
    struct rank *r = ctx;
    return kv_memory_take(&r->kv, r->device, e);
}

int rank_start(struct rank *r, int n_blocks, struct err *e)
{
    struct rank_job j = {.run = take_kv, .ctx = r};
    r->kv.all.n_blocks = n_blocks;
    rank_do(r, &j);
    return rank_await(r, &j, e);
}

void rank_post_step(struct rank *r, struct step *s, int share)
{
    ASSERT(r->setup.threaded || !r->setup.ops->computes || s->n_ranks == 1); /* members wait for each other */
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_STEP, share, s});
    else
        do_step(r, s, share);
}

void rank_post_move(struct rank *r, struct move *m, int share)
{
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_MOVE, share, m});
    else
        do_move(r, m, share);
}

void rank_post_replica(struct rank *r, struct replica_task *t)
{
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_REPLICA, 0, t});
    else
        do_replica(r, t);
}

void rank_prepare(struct rank *r, struct prepare_task *t, int share)
{
    ASSERT(r->setup.threaded || t->n_ranks == 1);
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_PREPARE, share, t});
    else
        do_prepare(r, t, share);
}

bool rank_has_graphs(const struct rank *r)
{
    return r->setup.ops->graph_begin && r->setup.device.graph_rows > 0;
}

void rank_stop(struct rank *r)
{
    if (!r || !r->thread)
        return;
    queue_post(r->inbox, &(struct task){.kind = TASK_END});
    thread_join(r->thread);
    r->thread = NULL;
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    rank_stop(r);
    queue_destroy(r->inbox);
    queue_destroy(r->jobs_done);
    kv_memory_free(&r->kv, r->device);
    if (r->forward.ops)
        forward_free(&r->forward);
    weights_free(r->weights);
    if (r->device)
        r->setup.ops->close(r->device);
    mem_free(r);
}
