#include "engine/exec/ffn_server.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/thread.h"

/* One call on its caller's stack, in the queue until it is taken. */
struct call {
    const struct ffn_rows_call *what;
    enum { CALL_WAITS, CALL_TAKEN, CALL_DONE } state;
    int rc;
    struct err err;
    struct call *next;
};

struct ffn_server {
    struct ffn_shared *f;
    int rank, max_rows;
    struct device *device;
    struct monitor *lock;
    struct clock clock;
    struct thread *thread;
    bool stops;
    struct call *first, **last;
    int64_t product_ns; /* what a product takes, as an average */
    uint64_t n_products, n_calls;
    size_t act_bytes;
    void *slab;
    struct act x, gate, up;
};

enum { LD_ALIGN = 16 };

static int ld_of(int cols)
{
    return (cols + LD_ALIGN - 1) / LD_ALIGN * LD_ALIGN;
}

size_t ffn_server_bytes(const struct model_config *c, int max_rows, size_t act_bytes)
{
    return (size_t)max_rows * act_bytes * (size_t)(ld_of(c->hidden) + 2 * ld_of(c->intermediate));
}

/* ---- one product */

/* The calls of one product, taken out of the queue. */
struct taken {
    struct call *calls[MAX_RANKS];
    int n, rows, layer;
};

static char *row_at(const struct ffn_server *s, struct act a, int row)
{
    return (char *)a.data + (size_t)row * (size_t)a.ld * s->act_bytes;
}

/* The rows of all calls into the server's memory, or back. */
static int carry(struct ffn_server *s, const struct taken *t, bool back, struct err *e)
{
    int at = 0, rc = 0;
    for (int i = 0; i < t->n && !rc; i++) {
        const struct ffn_rows_call *c = t->calls[i]->what;
        size_t bytes = (size_t)c->x.cols * s->act_bytes, here = (size_t)s->x.ld * s->act_bytes,
               there = (size_t)c->x.ld * s->act_bytes;
        if (c->from != s->rank)
            ffn_link_cross(s->f->link, back ? s->rank : c->from, back ? c->from : s->rank, bytes * (size_t)c->rows);
        rc = s->f->ops->pull(s->device, &(struct pull){.dst = back ? c->x.data : row_at(s, s->x, at),
                                                       .src = back ? row_at(s, s->x, at) : c->x.data,
                                                       .bytes = bytes,
                                                       .dst_pitch = back ? there : here,
                                                       .src_pitch = back ? here : there,
                                                       .runs = c->rows});
        at += c->rows;
    }
    return rc ? err_set(e, rc, "rank %d: its device failed while it served others", s->rank) : 0;
}

static int multiply(struct ffn_server *s, const struct taken *t, struct err *e)
{
    const struct model_weights *w = weights_view(s->f->weights[s->rank], (struct layout){1, 1, 1}, 0);
    const struct layer_weights *l = &w->layers[t->layer];
    const struct batch none = {0};
    TRY(s->f->ops->begin(s->device, &none, NULL, e));
    forward_ffn(s->f->ops, s->device,
                &(struct ffn_job){.gate = l->gate,
                                  .up = l->up,
                                  .down = l->down[0],
                                  .gain = l->ffn_norm,
                                  .eps = s->f->config->norm_eps,
                                  .x = s->x,
                                  .gate_out = s->gate,
                                  .up_out = s->up,
                                  .rows = t->rows});
    return s->f->ops->finish(s->device, NULL, e);
}

/* Without the lock. */
static void serve(struct ffn_server *s, const struct taken *t)
{
    struct err e = {0};
    int rc = ffn_is_dead(s->f, s->rank) ? ffn_say_dead(s->f, t->layer, &e) : 0;
    if (!rc)
        rc = carry(s, t, false, &e);
    if (!rc)
        rc = multiply(s, t, &e);
    if (!rc)
        rc = carry(s, t, true, &e);
    for (int i = 0; i < t->n; i++) {
        t->calls[i]->rc = rc;
        t->calls[i]->err = e;
    }
}

/* ---- the queue */

static int n_waiting(const struct ffn_server *s)
{
    int n = 0;
    for (const struct call *c = s->first; c; c = c->next)
        n++;
    return n;
}

/* Gives the rows of others that may be on their way a moment. */
static void gather(struct ffn_server *s)
{
    int64_t until = clock_now(&s->clock) + s->product_ns, left;
    for (;;) {
        if (n_waiting(s) >= atomic_load(&s->f->n_cas) || s->stops)
            return;
        if ((left = until - clock_now(&s->clock)) <= 0)
            return;
        monitor_wait(s->lock, left);
    }
}

/* The calls of a layer, oldest first, as many as there is room for. */
static void take(struct ffn_server *s, int layer, struct taken *t)
{
    struct call **at = &s->first;
    *t = (struct taken){.layer = layer};
    while (*at && t->n < MAX_RANKS) {
        struct call *c = *at;
        if (c->what->layer != layer || t->rows + c->what->rows > s->max_rows) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        c->state = CALL_TAKEN;
        t->calls[t->n++] = c;
        t->rows += c->what->rows;
    }
    for (s->last = &s->first; *s->last; s->last = &(*s->last)->next)
        ;
}

static void finish(struct ffn_server *s, const struct taken *t, int64_t took)
{
    s->product_ns += (took - s->product_ns) / 8;
    s->n_products++;
    s->n_calls += (uint64_t)t->n;
    for (int i = 0; i < t->n; i++)
        t->calls[i]->state = CALL_DONE;
    monitor_wake(s->lock);
}

static void server_main(void *arg)
{
    struct ffn_server *s = arg;
    monitor_lock(s->lock);
    while (!s->stops) {
        struct taken t;
        if (!s->first) {
            monitor_wait(s->lock, -1);
            continue;
        }
        int layer = s->first->what->layer;
        gather(s);
        take(s, layer, &t);
        monitor_unlock(s->lock);
        int64_t t0 = clock_now(&s->clock);
        serve(s, &t);
        int64_t took = clock_now(&s->clock) - t0;
        monitor_lock(s->lock);
        finish(s, &t, took);
    }
    monitor_unlock(s->lock);
}

int ffn_server_do(struct ffn_server *s, const struct ffn_rows_call *what, struct err *e)
{
    struct call c = {.what = what};
    monitor_lock(s->lock);
    if (ffn_is_dead(s->f, s->rank)) {
        monitor_unlock(s->lock);
        return ffn_say_dead(s->f, what->layer, e);
    }
    *s->last = &c;
    s->last = &c.next;
    monitor_wake(s->lock);
    while (c.state != CALL_DONE)
        monitor_wait(s->lock, -1);
    monitor_unlock(s->lock);
    return c.rc ? err_set(e, E_PEER, "%s", c.err.text) : 0;
}

void ffn_server_look(struct ffn_server *s)
{
    monitor_lock(s->lock);
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

void ffn_server_count(struct ffn_server *s, uint64_t *products, uint64_t *calls)
{
    monitor_lock(s->lock);
    *products = s->n_products;
    *calls = s->n_calls;
    monitor_unlock(s->lock);
}

/* ---- open and close */

static int take_memory(struct ffn_server *s, struct err *e)
{
    const struct model_config *c = s->f->config;
    size_t bytes = ffn_server_bytes(c, s->max_rows, s->act_bytes);
    s->slab = s->f->ops->alloc(s->device, bytes);
    if (!s->slab)
        return err_set(e, E_FULL, "no memory for %.1f MiB of rows that others send: lower --max-num-batched-tokens",
                       (double)bytes / 0x1p20);
    s->x = (struct act){s->slab, c->hidden, ld_of(c->hidden), false};
    s->gate = (struct act){row_at(s, s->x, s->max_rows), c->intermediate, ld_of(c->intermediate), false};
    s->up = (struct act){row_at(s, s->gate, s->max_rows), c->intermediate, ld_of(c->intermediate), false};
    return 0;
}

int ffn_server_open(struct ffn_server **out, struct ffn_shared *f, int rank, struct device *d, int max_rows,
                    struct err *e)
{
    struct ffn_server *s = mem_new(sizeof *s);
    struct device_facts facts;
    char name[16];
    *s = (struct ffn_server){.f = f, .rank = rank, .max_rows = max_rows, .device = d, .lock = monitor_new()};
    s->last = &s->first;
    clock_init_real(&s->clock);
    f->ops->facts(d, &facts);
    s->act_bytes = facts.act_bytes;
    snprintf(name, sizeof name, "serve-%d", rank);
    int rc = take_memory(s, e);
    if (!rc)
        rc = thread_start(&s->thread, name, server_main, s, e);
    if (rc) {
        ffn_server_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ffn_server_close(struct ffn_server *s)
{
    if (!s)
        return;
    if (s->thread) {
        monitor_lock(s->lock);
        s->stops = true;
        monitor_wake(s->lock);
        monitor_unlock(s->lock);
        thread_join(s->thread);
    }
    if (s->slab)
        s->f->ops->release(s->device, s->slab);
    monitor_free(s->lock);
    mem_free(s);
}
