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
    int done;                                 /* matrices that are complete */
    size_t at;                                /* bytes of the next one */
};

struct ffn_slots {
    struct ffn_shared *f;
    int rank;
    struct device *device;
    struct monitor *lock;
    struct clock clock;
    struct thread *fetcher;
    bool stops, active; /* active: a step is under way */
    struct slot *slots;
    int *layers;                  /* [n_slots] what lies in each, or is on its way; -1: nothing */
    bool *kept;                   /* [n_slots] on its way, or in use */
    int turn;                     /* sliced: whose tile comes next */
    int used;                     /* the slot in use; -1: none */
    int at;                       /* the layer computed last */
    struct ffn_modes passed_over; /* layers that are not to be fetched */
    struct ffn_account account;
};

static size_t room_of(const struct ffn_shared *f, int layer)
{
    const struct weight *m[FFN_MATRICES];
    size_t bytes = 0;
    weights_ffn(f->weights[f->setup.owner[layer]], layer, m);
    for (int i = 0; i < FFN_MATRICES; i++)
        bytes += f->ops->weight_room(m[i]);
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

/* Begins what is to be fetched next. Whoever fetches in slices has several layers on their way, the others one. */
static bool begin_fill(struct ffn_slots *s)
{
    int layer, slot;
    struct ffn_need need = {
        .rank = s->rank, .at = s->at, .slots = s->layers, .kept = s->kept, .modes = &s->passed_over, .goes_on = true};
    if (!ffn_next_fetch(&s->f->setup, &need, &layer, &slot))
        return false;
    s->layers[slot] = layer;
    s->kept[slot] = true;
    s->slots[slot].done = 0;
    s->slots[slot].at = 0;
    return true;
}

/* The slot whose tile comes next, or -1: nothing is to be done. */
static int next_slot(struct ffn_slots *s)
{
    int n = s->f->setup.n_slots, filling = 0;
    for (int i = 0; i < n; i++)
        filling += is_filling(s, i);
    while ((filling == 0 || s->f->setup.order == FFN_SLICED) && begin_fill(s))
        filling++;
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
}

/* The next tile of a slot, with the lock given up for the copy. */
static void fetch_tile(struct ffn_slots *s, int i)
{
    struct ffn_shared *f = s->f;
    struct slot *slot = &s->slots[i];
    int layer = s->layers[i], owner = f->setup.owner[layer], part = slot->done;
    const struct weight *from[FFN_MATRICES];
    if (ffn_is_dead(f, owner)) {
        drop(s, i);
        monitor_wake(s->lock);
        return;
    }
    weights_ffn(f->weights[owner], layer, from);
    size_t all = f->ops->weight_bytes(from[part]), n = all - slot->at;
    n = n < f->setup.tile_bytes ? n : f->setup.tile_bytes;
    char *to = (char *)f->ops->weight_data(slot->matrices[layer][part]) + slot->at;
    const char *src = (const char *)f->ops->weight_data(from[part]) + slot->at;
    monitor_unlock(s->lock);
    int64_t t0 = clock_now(&s->clock);
    ffn_link_begin(f->link, owner);
    ffn_link_cross(f->link, owner, s->rank, n);
    f->ops->pull(s->device, to, src, n);
    ffn_link_end(f->link, owner);
    int64_t took = clock_now(&s->clock) - t0;
    monitor_lock(s->lock);
    s->account.fetch_ns += took;
    s->account.bytes += n;
    slot->at += n;
    if (slot->at < all)
        return;
    slot->at = 0;
    slot->done++;
    s->kept[i] = slot->done < FFN_MATRICES || s->used == i;
    monitor_wake(s->lock);
}

static void fetcher_main(void *arg)
{
    struct ffn_slots *s = arg;
    monitor_lock(s->lock);
    while (!s->stops) {
        int i = s->active ? next_slot(s) : -1;
        if (i >= 0)
            fetch_tile(s, i);
        else
            monitor_wait(s->lock, -1);
    }
    monitor_unlock(s->lock);
}

/* ---- the rank's side */

static void pass_over_dead(struct ffn_slots *s)
{
    for (int l = 0; l < s->f->setup.n_layers; l++)
        if (ffn_is_dead(s->f, s->f->setup.owner[l]))
            ffn_set(&s->passed_over, l, l + 1, FFN_CAS);
}

void ffn_slots_begin(struct ffn_slots *s, const struct ffn_modes *modes)
{
    monitor_lock(s->lock);
    s->passed_over = *modes;
    pass_over_dead(s);
    s->at = -1;
    s->active = true;
    monitor_wake(s->lock);
    monitor_unlock(s->lock);
}

void ffn_slots_end(struct ffn_slots *s)
{
    monitor_lock(s->lock);
    s->active = false;
    monitor_unlock(s->lock);
}

static int find(const struct ffn_slots *s, int layer)
{
    for (int i = 0; i < s->f->setup.n_slots; i++)
        if (s->layers[i] == layer)
            return i;
    return -1;
}

static bool has(const struct ffn_slots *s, int layer, int n)
{
    int i = find(s, layer);
    return i >= 0 && s->slots[i].done >= n;
}

int ffn_slots_take(struct ffn_slots *s, int layer, int n, const struct weight **matrices, struct err *e)
{
    int64_t t0 = 0;
    monitor_lock(s->lock);
    s->at = layer - 1;
    while (!has(s, layer, n)) {
        if (ffn_is_dead(s->f, s->f->setup.owner[layer])) {
            monitor_unlock(s->lock);
            return ffn_say_dead(s->f, layer, e);
        }
        t0 = t0 ? t0 : clock_now(&s->clock);
        monitor_wake(s->lock);
        monitor_wait(s->lock, -1);
    }
    s->account.wait_ns += t0 ? clock_now(&s->clock) - t0 : 0;
    s->used = find(s, layer);
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
        s->kept[s->used] = is_filling(s, s->used);
    s->used = -1;
    s->at = layer;
    monitor_wake(s->lock);
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

/* ---- open and close */

/* The matrices of every layer that may come here, one behind the other in the room. */
static int describe(struct ffn_slots *s, struct slot *slot, struct err *e)
{
    const struct ffn_shared *f = s->f;
    slot->matrices = mem_new_array((size_t)f->setup.n_layers, sizeof *slot->matrices);
    for (int l = 0; l < f->setup.n_layers; l++) {
        const struct weight *like[FFN_MATRICES];
        char *at = slot->room;
        weights_ffn(f->weights[f->setup.owner[l]], l, like);
        for (int i = 0; i < FFN_MATRICES; i++) {
            TRY(f->ops->weight_at(s->device, &slot->matrices[l][i], like[i], at, e));
            at += f->ops->weight_room(like[i]);
        }
    }
    return 0;
}

static int open_slots(struct ffn_slots *s, struct err *e)
{
    size_t bytes = slot_room(s->f);
    for (int i = 0; i < s->f->setup.n_slots; i++) {
        s->layers[i] = -1;
        s->slots[i].room = s->f->ops->alloc(s->device, bytes);
        if (!s->slots[i].room)
            return err_set(e, E_FULL,
                           "no memory for %d slots of %.1f MiB, a layer of pooled FFN weights each: lower --pool-slots",
                           s->f->setup.n_slots, (double)bytes / 0x1p20);
        TRY(describe(s, &s->slots[i], e));
    }
    return 0;
}

int ffn_slots_open(struct ffn_slots **out, struct ffn_shared *f, int rank, struct device *d, struct err *e)
{
    struct ffn_slots *s = mem_new(sizeof *s);
    size_t n = (size_t)f->setup.n_slots;
    char name[16];
    *s = (struct ffn_slots){.f = f, .rank = rank, .device = d, .lock = monitor_new(), .used = -1, .at = -1};
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
    for (int i = 0; i < s->f->setup.n_slots; i++)
        free_slot(s, &s->slots[i]);
    mem_free(s->slots);
    mem_free(s->layers);
    mem_free(s->kept);
    monitor_free(s->lock);
    mem_free(s);
}
