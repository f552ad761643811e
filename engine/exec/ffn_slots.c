#include "engine/exec/ffn_slots.h"

#include <stdio.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/thread.h"

struct slot {
    void *room;
    struct weight *(*matrices)[FFN_MATRICES]; /* [n_layers] of each layer, as if it lay here; NULL: the rank's own */
    struct span part;                         /* of the layer that lies in it, or is on its way there */
    int done;                                 /* matrices that are complete */
    struct ffn_copy copy;                     /* of the next one */
    int64_t fetch_begin, fetch_end;           /* of all of them; 0: none was */
    uint64_t left;             /* what was multiplied with it last: the rank's device has to have done it; 0: nothing */
    struct replica_task *task; /* of a layer that stays: told when it is complete; NULL: it has been */
};

enum { MOST_WAITS = 2 * FFN_MAX_LAYERS };

struct ffn_slots {
    struct ffn_shared *f;
    int rank;
    struct device *device;
    struct monitor *lock;
    struct clock clock;
    struct thread *fetcher;
    bool stops, active; /* active: a step is under way */
    bool failed;        /* its own device; nothing comes any more */
    struct slot *slots;
    int n_all;                    /* the slots of the setup, and behind them one for each layer that may stay */
    int *layers;                  /* [n_all] what lies in each, or is on its way; -1: nothing */
    bool *kept;                   /* [n_all] on its way, or in use, or to stay */
    int turn;                     /* sliced: whose tile comes next */
    int used;                     /* the slot in use; -1: none */
    int at;                       /* the layer computed last */
    int tp, t;                    /* of the step under way, or the last one: the share that it multiplies with */
    struct span part;             /* what that is of every layer */
    struct ffn_modes passed_over; /* layers that are not to be fetched */
    struct ffn_account account;
    /* Where ops are enqueued: when the rank's device had nothing to do until matrices came, in this step. */
    struct {
        uint64_t from, to;
    } waits[MOST_WAITS];
    int n_waits;
};

static size_t room_of(const struct ffn_shared *f, int layer)
{
    size_t bytes = 0;
    for (int i = 0; i < FFN_MATRICES; i++) {
        struct weight_shape shape = ffn_copy_shape(f, layer, i);
        bytes += f->ops->weight_room(&shape);
    }
    return bytes;
}

static size_t slot_room(const struct ffn_shared *f)
{
    size_t most = 0;
    for (int l = 0; l < f->setup.n_layers; l++) {
        size_t bytes = room_of(f, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t ffn_slots_bytes(const struct ffn_shared *f)
{
    return slot_room(f) * (size_t)f->setup.n_slots;
}

/* ---- the fetcher */

static bool is_filling(const struct ffn_slots *s, int i)
{
    return s->layers[i] >= 0 && s->slots[i].done < FFN_MATRICES;
}

static bool is_any_filling(const struct ffn_slots *s)
{
    for (int i = 0; i < s->f->setup.n_slots; i++)
        if (is_filling(s, i))
            return true;
    return false;
}

/* The next tile of a slot, as far as `copy` is. */
static bool next_tile(const struct ffn_slots *s, int i, struct ffn_copy *copy, struct ffn_tile *tile)
{
    const struct slot *slot = &s->slots[i];
    struct ffn_want want = {s->layers[i], slot->part, (const struct weight *const *)slot->matrices[s->layers[i]]};
    return ffn_copy_next(s->f, &want, copy, tile);
}

/* Its copy is complete, or will never be. */
static void tell(struct slot *slot, int rc)
{
    struct replica_task *t = slot->task;
    slot->task = NULL;
    if (t)
        replica_task_end(t, rc);
}

/* Matrices of which nothing is missing are complete; of an empty part they all are. */
static void settle(struct ffn_slots *s, int i)
{
    struct slot *slot = &s->slots[i];
    struct ffn_tile tile;
    struct ffn_copy ahead = slot->copy;
    int done = slot->done;
    while (is_filling(s, i) && !next_tile(s, i, &ahead, &tile))
        slot->copy = ahead = (struct ffn_copy){.matrix = ++slot->done};
    s->kept[i] = is_filling(s, i) || s->used == i || i >= s->f->setup.n_slots;
    if (!is_filling(s, i))
        tell(slot, 0);
    if (slot->done > done)
        monitor_wake(s->lock);
}

/* Begins what is to be fetched next. Whoever fetches in slices has several layers on their way, the others one. */
static bool begin_fill(struct ffn_slots *s)
{
    int layer, slot;
    struct ffn_need need = {.rank = s->rank,
                            .tp = s->tp,
                            .t = s->t,
                            .at = s->at,
                            .slots = s->layers,
                            .kept = s->kept,
                            .modes = &s->passed_over,
                            .read = ffn_link_read(s->f->link),
                            .goes_on = true};
    if (!ffn_next_fetch(&s->f->setup, &need, &layer, &slot))
        return false;
    s->layers[slot] = layer;
    s->slots[slot].part = s->part;
    s->slots[slot].done = 0;
    s->slots[slot].copy = (struct ffn_copy){0};
    s->slots[slot].fetch_begin = s->slots[slot].fetch_end = 0;
    settle(s, slot);
    return true;
}

/* A layer that is to stay, once steps need nothing. */
static int next_to_stay(const struct ffn_slots *s)
{
    for (int i = s->f->setup.n_slots; i < s->n_all; i++)
        if (is_filling(s, i))
            return i;
    return -1;
}

/* The slot whose tile comes next for steps, or -1: nothing is to be done. */
static int next_slot(struct ffn_slots *s)
{
    int n = s->f->setup.n_slots;
    while ((s->f->setup.order == FFN_SLICED || !is_any_filling(s)) && begin_fill(s))
        continue;
    for (int k = 1; k <= n; k++) {
        int i = (s->turn + k) % n;
        if (is_filling(s, i)) {
            s->turn = i;
            return i;
        }
    }
    return -1;
}

static void drop(struct ffn_slots *s, int slot)
{
    s->layers[slot] = -1;
    s->kept[slot] = s->used == slot; /* its first matrices may be in use */
    tell(&s->slots[slot], E_PEER);
}

/* The copy of a tile, once nothing is multiplied with what it replaces. Without the lock; false: a device has failed.
 */
static bool copy_tile(struct ffn_slots *s, const struct ffn_tile *t, uint64_t left, int64_t *took)
{
    struct ffn_shared *f = s->f;
    if (left && !ffn_reach(f, s->rank, left))
        return false;
    int64_t t0 = clock_now(&s->clock);
    bool crosses = t->owner != s->rank;
    int64_t begun = crosses ? ffn_link_begin(f->link, t->owner, s->rank, t->bytes) : 0;
    bool copied = f->ops->pull(s->device, &t->pull) == 0;
    if (crosses)
        ffn_link_end(f->link, t->owner, begun);
    *took = clock_now(&s->clock) - t0;
    return copied;
}

/* Layers of ranks that have failed. */
static void pass_over_dead(struct ffn_slots *s)
{
    for (int l = 0; l < s->f->setup.n_layers; l++)
        if (ffn_lost(s->f, l) >= 0)
            ffn_set(&s->passed_over, l, l + 1, FFN_CAS);
}

/* The next tile of a slot, with the lock given up for the copy. A step that began meanwhile may have dropped it. */
static void fetch_tile(struct ffn_slots *s, int i)
{
    struct ffn_shared *f = s->f;
    struct slot *slot = &s->slots[i];
    struct ffn_tile tile;
    int layer = s->layers[i];
    if (ffn_lost(f, layer) >= 0) {
        drop(s, i);
        pass_over_dead(s); /* who says so next may be waiting for the lock: it must not be begun again */
        monitor_wake(s->lock);
        return;
    }
    bool more = next_tile(s, i, &slot->copy, &tile);
    ASSERT(more);
    uint64_t left = slot->left;
    int64_t took = 0;
    slot->left = 0;
    monitor_unlock(s->lock);
    bool crosses = tile.owner != s->rank; /* of a layer in shares it may have one itself */
    bool copied = copy_tile(s, &tile, left, &took);
    monitor_lock(s->lock);
    if (!copied) {
        s->failed = true;
        for (int k = 0; k < s->n_all; k++)
            if (is_filling(s, k))
                drop(s, k);
        monitor_wake(s->lock);
        return;
    }
    int64_t now = clock_now(&s->clock);
    slot->fetch_begin = slot->fetch_begin ? slot->fetch_begin : now - took;
    slot->fetch_end = now;
    s->account.fetch_ns += took;
    s->account.bytes += crosses ? tile.bytes : 0;
    if (s->layers[i] != layer)
        return;
    settle(s, i);
}

static void fetcher_main(void *arg)
{
    struct ffn_slots *s = arg;
    monitor_lock(s->lock);
    while (!s->stops) {
        int i = s->active && !s->failed ? next_slot(s) : -1;
        i = i >= 0 || s->failed ? i : next_to_stay(s);
        if (i >= 0)
            fetch_tile(s, i);
        else
            monitor_wait(s->lock, -1);
    }
    monitor_unlock(s->lock);
}

/* ---- the rank's side */

/* What came for another part does not serve this one, unless it was more. */
static void drop_other_parts(struct ffn_slots *s)
{
    for (int i = 0; i < s->f->setup.n_slots; i++)
        if (s->layers[i] >= 0 && !span_covers(s->slots[i].part, s->part))
            drop(s, i);
}

void ffn_slots_begin(struct ffn_slots *s, const struct ffn_modes *modes, const struct shard *share)
{
    monitor_lock(s->lock);
    s->passed_over = *modes;
    s->tp = share->layout.tp;
    s->t = share->t;
    s->part = share->ffn;
    drop_other_parts(s);
    pass_over_dead(s);
    s->at = -1;
    s->n_waits = 0;
    s->active = true;
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

void ffn_slots_end(struct ffn_slots *s)
{
    const struct backend_ops *ops = s->f->ops;
    monitor_lock(s->lock);
    s->active = false;
    for (int i = 0; i < s->n_waits; i++)
        s->account.wait_ns += ops->between(s->f->ranks[s->rank], s->waits[i].from, s->waits[i].to);
    s->n_waits = 0;
    monitor_unlock(s->lock);
}

/* The slot in which the first n matrices of the layer are complete; -1: none yet. */
static int find(const struct ffn_slots *s, int layer, int n)
{
    for (int i = 0; i < s->n_all; i++)
        if (s->layers[i] == layer && s->slots[i].done >= n)
            return i;
    return -1;
}

/* With the lock, until the matrices have come or cannot come. */
static int await(struct ffn_slots *s, int layer, int n, struct err *e)
{
    while (find(s, layer, n) < 0) {
        if (s->failed)
            return err_set(e, E_DEVICE, "rank %d: its device failed while it fetched FFN weights", s->rank);
        if (ffn_lost(s->f, layer) >= 0)
            return ffn_say_dead(s->f, layer, e);
        monitor_wake(s->lock);
        monitor_wait(s->lock, -1);
    }
    return 0;
}

/* The same, with the time that it took: of the rank's device, which may have had other work, or else of the thread. */
static int await_timed(struct ffn_slots *s, int layer, int n, struct err *e)
{
    int64_t t0 = clock_now(&s->clock);
    if (!s->f->ops->mark) {
        TRY(await(s, layer, n, e));
        s->account.wait_ns += clock_now(&s->clock) - t0;
        return 0;
    }
    uint64_t from = ffn_mark(s->f, s->rank);
    TRY(await(s, layer, n, e));
    if (s->n_waits < MOST_WAITS) {
        s->waits[s->n_waits].from = from;
        s->waits[s->n_waits++].to = ffn_mark(s->f, s->rank);
    }
    return 0;
}

int ffn_slots_take(struct ffn_slots *s, int layer, int n, const struct weight **matrices, struct err *e)
{
    monitor_lock(s->lock);
    s->at = layer - 1;
    int rc = find(s, layer, n) < 0 ? await_timed(s, layer, n, e) : 0;
    if (rc) {
        monitor_unlock(s->lock);
        return rc;
    }
    s->used = find(s, layer, n);
    s->kept[s->used] = true;
    for (int i = 0; i < n; i++)
        matrices[i] = s->slots[s->used].matrices[layer][i];
    monitor_unlock(s->lock);
    return 0;
}

void ffn_slots_leave(struct ffn_slots *s, int layer)
{
    monitor_lock(s->lock);
    if (s->used >= 0)
        s->slots[s->used].left = ffn_mark(s->f, s->rank);
    if (s->used >= 0)
        s->kept[s->used] = is_filling(s, s->used) || (s->used >= s->f->setup.n_slots && s->layers[s->used] >= 0);
    s->used = -1;
    s->at = layer;
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

void ffn_slots_times(struct ffn_slots *s, struct ffn_layer_times *t)
{
    monitor_lock(s->lock);
    if (s->used >= 0) {
        t->fetch_begin = s->slots[s->used].fetch_begin;
        t->fetch_end = s->slots[s->used].fetch_end;
    }
    monitor_unlock(s->lock);
}

void ffn_slots_account(struct ffn_slots *s, struct ffn_account *a)
{
    monitor_lock(s->lock);
    a->wait_ns += s->account.wait_ns;
    a->fetch_ns += s->account.fetch_ns;
    a->bytes += s->account.bytes;
    monitor_unlock(s->lock);
}

void ffn_slots_look(struct ffn_slots *s)
{
    monitor_lock(s->lock);
    pass_over_dead(s);
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

/* ---- layers that stay */

static void free_slot(struct ffn_slots *s, struct slot *slot)
{
    for (int l = 0; l < s->f->setup.n_layers && slot->matrices; l++)
        for (int i = 0; i < FFN_MATRICES; i++)
            if (slot->matrices[l][i])
                s->f->ops->weight_free(s->device, slot->matrices[l][i]);
    if (slot->room)
        s->f->ops->release(s->device, slot->room);
    mem_free(slot->matrices);
}

/* The matrices of a layer as they will be in the room of a slot, one behind the other. */
static int describe(struct ffn_slots *s, struct slot *slot, int layer, struct err *e)
{
    const struct ffn_shared *f = s->f;
    char *at = slot->room;
    for (int i = 0; i < FFN_MATRICES; i++) {
        struct weight_shape shape = ffn_copy_shape(f, layer, i);
        TRY(f->ops->weight_at(s->device, &slot->matrices[layer][i], &shape, at, e));
        at += f->ops->weight_room(&shape);
    }
    return 0;
}

/* Room for the layer. */
static int make_room(struct ffn_slots *s, struct slot *slot, int layer)
{
    const struct ffn_shared *f = s->f;
    slot->room = f->ops->alloc(s->device, room_of(f, layer));
    slot->matrices = mem_new_array((size_t)f->setup.n_layers, sizeof *slot->matrices);
    if (!slot->room)
        return E_FULL;
    return describe(s, slot, layer, NULL);
}

void ffn_slots_keep(struct ffn_slots *s, struct replica_task *t)
{
    int i = s->f->setup.n_slots + t->layer;
    struct slot *slot = &s->slots[i];
    ASSERT(!slot->room && !slot->matrices && s->layers[i] < 0);
    int rc = make_room(s, slot, t->layer);
    if (rc) {
        free_slot(s, slot);
        *slot = (struct slot){0};
        replica_task_end(t, rc);
        return;
    }
    monitor_lock(s->lock);
    slot->task = t;
    slot->done = 0;
    slot->part = (struct span){0, s->f->config->intermediate};
    slot->copy = (struct ffn_copy){0};
    s->layers[i] = t->layer;
    s->kept[i] = true;
    if (s->failed)
        drop(s, i); /* its fetcher does nothing any more */
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

void ffn_slots_give_up(struct ffn_slots *s, int layer)
{
    int i = s->f->setup.n_slots + layer;
    struct slot old;
    monitor_lock(s->lock);
    ASSERT(s->used != i && !s->slots[i].task);
    old = s->slots[i];
    s->slots[i] = (struct slot){0};
    s->layers[i] = -1;
    s->kept[i] = false;
    monitor_unlock(s->lock);
    free_slot(s, &old);
}

/* ---- open and close */

static int open_slots(struct ffn_slots *s, struct err *e)
{
    size_t bytes = slot_room(s->f);
    for (int i = 0; i < s->n_all; i++)
        s->layers[i] = -1;
    for (int i = 0; i < s->f->setup.n_slots; i++) {
        s->slots[i].room = s->f->ops->alloc(s->device, bytes);
        if (!s->slots[i].room)
            return err_set(e, E_FULL,
                           "no memory for %d slots of %.1f MiB, a layer of pooled FFN weights each: lower --pool-slots",
                           s->f->setup.n_slots, (double)bytes / 0x1p20);
        s->slots[i].matrices = mem_new_array((size_t)s->f->setup.n_layers, sizeof *s->slots[i].matrices);
        for (int l = 0; l < s->f->setup.n_layers; l++)
            TRY(describe(s, &s->slots[i], l, e));
    }
    return 0;
}

int ffn_slots_open(struct ffn_slots **out, struct ffn_shared *f, int rank, struct device *d, struct err *e)
{
    struct ffn_slots *s = mem_new(sizeof *s);
    size_t n = (size_t)f->setup.n_slots + (size_t)f->setup.n_layers;
    char name[16];
    *s = (struct ffn_slots){
        .f = f, .rank = rank, .device = d, .lock = monitor_new(), .used = -1, .at = -1, .n_all = (int)n};
    s->slots = mem_new_array(n, sizeof *s->slots);
    s->layers = mem_new_array(n, sizeof *s->layers);
    s->kept = mem_new_array(n, sizeof *s->kept);
    clock_init_real(&s->clock);
    snprintf(name, sizeof name, "fetch-%d", rank);
    int rc = open_slots(s, e);
    if (!rc)
        rc = thread_start(&s->fetcher, name, fetcher_main, s, e);
    if (rc) {
        ffn_slots_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void ffn_slots_close(struct ffn_slots *s)
{
    if (!s)
        return;
    if (s->fetcher) {
        monitor_lock(s->lock);
        s->stops = true;
        monitor_wake(s->lock);
        monitor_unlock(s->lock);
        thread_join(s->fetcher);
    }
    for (int i = 0; i < s->n_all; i++)
        free_slot(s, &s->slots[i]);
    mem_free(s->slots);
    mem_free(s->layers);
    mem_free(s->kept);
    monitor_free(s->lock);
    mem_free(s);
}
