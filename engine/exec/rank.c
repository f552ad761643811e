#include "engine/exec/rank.h"

#include <errno.h>
#include <time.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

struct rank {
    struct rank_setup setup;
    struct device *device;
    struct device_facts facts;
    struct weights *weights;
    struct forward forward;
    struct kv_space kv;
    struct queue *inbox;        /* of struct step *; NULL ends the thread */
    struct thread *thread;
    int poisoned;               /* a device error: every later step fails with it */
    struct err err;
};

static int init_forward(struct rank *r, struct err *e)
{
    const struct model_config *c = model_config(r->setup.model);
    r->forward = (struct forward){.ops = r->setup.ops, .device = r->device, .config = c,
                                  .weights = weights_view(r->weights), .kv = &r->kv,
                                  .tokens_per_block = r->setup.block_size};
    r->kv.block_bytes = r->setup.ops->kv_block_bytes(r->setup.kv_dtype, r->setup.block_size, c->n_kv_heads, c->head_dim);
    r->kv.n_layers = c->n_layers;
    r->kv.dtype = r->setup.kv_dtype;
    return forward_init(&r->forward, r->setup.device.max_rows, r->setup.device.max_logits, e);
}

int rank_open(struct rank **out, const struct rank_setup *s, struct err *e)
{
    struct rank *r = mem_new(sizeof *r);
    r->setup = *s;
    int rc = s->ops->open(&r->device, &s->device, e);
    if (!rc) {
        s->ops->facts(r->device, &r->facts);
        if (!s->quiet)
            log_info("rank", "Device 0: %s, %.1f GiB", r->facts.name, (double)r->facts.memory_bytes / 0x1p30);
        rc = weights_load(&r->weights, s->model, s->ops, r->device, s->quiet, e);
    }
    if (!rc)
        rc = init_forward(r, e);
    if (rc) {
        rank_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

const struct device_facts *rank_facts(const struct rank *r)
{
    return &r->facts;
}

size_t rank_weight_bytes(const struct rank *r)
{
    return weights_bytes(r->weights);
}

size_t rank_scratch_bytes(const struct rank *r)
{
    return forward_scratch_bytes(r->forward.config, r->setup.device.max_rows, r->setup.device.max_logits, r->facts.act_bytes);
}

size_t rank_kv_block_bytes(const struct rank *r)
{
    return r->kv.block_bytes * (size_t)r->kv.n_layers;
}

static void run_step(struct rank *r, struct step *s)
{
    if (r->poisoned) {
        s->rc = r->poisoned;
        s->err = r->err;
        return;
    }
    s->rc = forward_run(&r->forward, &s->batch, &s->time, &s->err);
    if (s->rc) {
        r->poisoned = s->rc;
        r->err = s->err;
    }
}

/* A simulated device in a threaded engine takes its time for real. */
static void sleep_ns(int64_t ns)
{
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (ns > 0 && clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
        ;
}

static void body(void *arg)
{
    struct rank *r = arg;
    for (;;) {
        struct step *s;
        while (!queue_take(r->inbox, &s))
            queue_wait(r->inbox, -1);
        if (!s)
            return;
        run_step(r, s);
        if (!r->setup.ops->computes)
            sleep_ns(s->time.ns);
        r->setup.done(r->setup.ctx, s);
    }
}

int rank_start(struct rank *r, int n_blocks, struct err *e)
{
    size_t bytes = rank_kv_block_bytes(r) * (size_t)n_blocks;
    r->kv.n_blocks = n_blocks;
    r->kv.base = r->setup.ops->alloc(r->device, bytes);
    if (!r->kv.base)
        return err_set(e, E_FULL, "no memory for %.2f GiB of KV cache: lower --kv-cache-memory-bytes", (double)bytes / 0x1p30);
    if (!r->setup.threaded)
        return 0;
    r->inbox = queue_create(sizeof(struct step *), 0, false);
    return thread_start(&r->thread, "rank-0", body, r, e);
}

void rank_post(struct rank *r, struct step *s)
{
    if (r->setup.threaded)
        queue_post(r->inbox, &s);
    else
        run_step(r, s);
}

void rank_close(struct rank *r)
{
    if (!r)
        return;
    if (r->thread) {
        struct step *end = NULL;
        queue_post(r->inbox, &end);
        thread_join(r->thread);
    }
    queue_destroy(r->inbox);
    if (r->kv.base)
        r->setup.ops->release(r->device, r->kv.base);
    if (r->forward.ops)
        forward_free(&r->forward);
    weights_free(r->weights);
    if (r->device)
        r->setup.ops->close(r->device);
    mem_free(r);
}
