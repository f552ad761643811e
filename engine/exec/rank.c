#include "engine/exec/rank_inner.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/numa.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

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
                                                .cut = s->cut,
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

static int init_heads(struct rank *r, struct err *e)
{
    const struct rank_setup *s = &r->setup;
    if (!s->speculator)
        return 0;
    if (s->shares_with)
        r->head_weights = s->shares_with->head_weights;
    else
        TRY(heads_weights_load(&r->head_weights, s->speculator, s->ops, r->device, e));
    return heads_open(&r->forward.heads, r->head_weights, r->device, e);
}

static int open_transfer(struct rank *r, struct err *e)
{
    const struct rank_setup *s = &r->setup;
    return transfer_open(&r->transfer,
                         &(struct transfer_setup){.ops = s->ops,
                                                  .device = s->device,
                                                  .model = s->model,
                                                  .weights = r->weights,
                                                  .rank = s->index,
                                                  .move_done = s->move_done,
                                                  .ctx = s->ctx},
                         e);
}

static int open_parts(void *ctx, struct err *e)
{
    struct rank *r = ctx;
    const struct rank_setup *s = &r->setup;
    if (s->numa && s->threaded)
        TRY(numa_stay(s->numa, e));
    TRY(s->ops->open(&r->device, &s->device, e));
    s->ops->facts(r->device, &r->facts);
    if (!s->quiet)
        log_info("rank", "Device %d: %s, %.1f GiB%s%s%s%s", s->index, r->facts.name,
                 (double)r->facts.memory_bytes / 0x1p30, r->facts.library[0] ? ", " : "", r->facts.library,
                 r->facts.link[0] ? "; reads " : "", r->facts.link);
    if (!s->quiet && r->facts.lacks[0])
        log_warn("rank", "Device %d: %s", s->index, r->facts.lacks);
    TRY(init_weights(r, e));
    TRY(init_forward(r, e));
    TRY(init_heads(r, e));
    return s->threaded && (s->cut || s->has_host) ? open_transfer(r, e) : 0;
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

void rank_probe(struct rank *r)
{
    if (r->setup.ops->probe)
        r->setup.ops->probe(r->device);
}

bool rank_add_profile(const struct rank *r, struct profile *sum)
{
    if (!r->setup.ops->add_profile)
        return false;
    r->setup.ops->add_profile(r->device, sum);
    return true;
}

size_t rank_weight_bytes(const struct rank *r)
{
    const struct device_budget *b = &r->facts.budget;
    if (b->weight_tp)
        return b->weights + (r->setup.copy_shards ? b->copy : 0);
    if (r->setup.shares_with)
        return 0;
    return weights_bytes(r->weights) + (r->head_weights ? heads_weights_bytes(r->head_weights) : 0);
}

struct weights *rank_weights(const struct rank *r)
{
    return r->weights;
}

void rank_join(struct rank *r, struct ffn_seat *seat)
{
    r->seat = seat;
}

void rank_draft_with(struct rank *r, struct drafter_seat *seat)
{
    r->drafter = seat;
}

size_t rank_scratch_bytes(const struct rank *r)
{
    const struct rank_setup *s = &r->setup;
    if (r->facts.budget.weight_tp)
        return r->facts.budget.reserve;
    return forward_scratch_bytes(r->forward.config, s->device.max_rows, s->device.max_logits, s->n_ranks,
                                 r->facts.act_bytes) +
           (r->forward.heads ? heads_bytes(r->forward.heads) : 0);
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

/* Could ranks hold the shares of this layout one by one? */
static const char *cut_refusal(const struct rank *r, struct layout l)
{
    const char *why = NULL;
    for (int i = 0; i < l.sp * l.tp && !why; i++) {
        struct cut c = cut_of(layout_of_stage(l), i);
        why = weights_cut_refusal(r->weights, r->setup.model, &c);
    }
    return why;
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
    if (r->setup.cut)
        return cut_refusal(r, l);
    bool shown = weights_view(r->weights, layout_of_stage(l), 0) != NULL;
    return shown ? NULL : "there is no view of the weights for this layout";
}

bool rank_runs(const struct rank *r, struct layout l, int share)
{
    return weights_hold(r->weights, l, share);
}

/* A simulated device in a threaded engine takes its time for real. */
void rank_sleep_ns(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
}

static void do_move(struct rank *r, struct move *m, int share)
{
    move_run(m, share, r->setup.ops, r->device);
    if (r->setup.threaded && !r->setup.ops->computes)
        rank_sleep_ns(atomic_load(&m->ns));
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
            rank_sleep_ns(ns);
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

/* One that could not load what it is to hold is of no use any more. */
static void do_reshard(struct rank *r, struct reshard_task *t)
{
    struct err e = {0};
    int rc = 0;
    int64_t before = atomic_load(&t->bytes);
    struct weights_change c = {
        .model = r->setup.model, .to = &t->to[r->setup.index], .room = t->room, .stop = &t->stop, .bytes = &t->bytes};
    if (t->kind == RESHARD_DROP)
        weights_unstage(r->weights);
    else
        rc = weights_change_cut(r->weights, &c, &e);
    if (rc)
        rank_poison(r, rc, &e);
    if (r->setup.threaded && !r->setup.ops->computes && r->setup.ops->host_copy_ns)
        rank_sleep_ns(r->setup.ops->host_copy_ns(r->device, (size_t)(atomic_load(&t->bytes) - before)));
    reshard_task_end(t, r->setup.index, rc, &e);
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
            rank_do_step(r, t.what, t.share);
        else if (t.kind == TASK_MOVE)
            do_move(r, t.what, t.share);
        else if (t.kind == TASK_REPLICA)
            do_replica(r, t.what);
        else if (t.kind == TASK_RESHARD)
            do_reshard(r, t.what);
        else if (t.kind == TASK_PREPARE)
            rank_do_prepare(r, t.what, t.share);
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
        rank_do_step(r, s, share);
}

void rank_post_move(struct rank *r, struct move *m, int share)
{
    if (r->transfer && m->beside)
        transfer_post_move(r->transfer, m, share);
    else if (r->setup.threaded)
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

void rank_post_reshard(struct rank *r, struct reshard_task *t)
{
    if (r->transfer && t->kind == RESHARD_STAGE)
        transfer_post_stage(r->transfer, t);
    else if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_RESHARD, 0, t});
    else if (t->kind == RESHARD_STAGE) /* a machine in virtual time stages nothing, and says what that takes */
        reshard_task_end(t, r->setup.index, 0, NULL);
    else
        do_reshard(r, t);
}

void rank_prepare(struct rank *r, struct prepare_task *t, int share)
{
    ASSERT(r->setup.threaded || t->n_ranks == 1);
    if (r->setup.threaded)
        queue_post(r->inbox, &(struct task){TASK_PREPARE, share, t});
    else
        rank_do_prepare(r, t, share);
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
    transfer_close(r->transfer);
    r->transfer = NULL;
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    rank_stop(r);
    transfer_close(r->transfer); /* where opening failed */
    queue_destroy(r->inbox);
    queue_destroy(r->jobs_done);
    kv_memory_free(&r->kv, r->device);
    heads_close(r->forward.heads);
    if (!r->setup.shares_with)
        heads_weights_free(r->head_weights);
    if (r->forward.ops)
        forward_free(&r->forward);
    weights_free(r->weights);
    if (r->device)
        r->setup.ops->close(r->device);
    mem_free(r);
}
