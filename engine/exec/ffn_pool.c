#include "engine/exec/ffn_pool.h"

#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/exec/ffn_server.h"

struct ffn_seat {
    struct ffn_pool *pool;
    int rank;
    struct device *fetch_device, *serve_device;
    struct ffn_slots *slots;
    struct ffn_server *server;
    struct ffn_source source;
    struct ffn_modes modes; /* of the step under way */
    int tp, t;              /* the share that it multiplies with */
    int lost;               /* the rank whose failure ended the step; -1: none */
    bool sends;             /* it counts among those that send rows */
    uint64_t cas_bytes, cas_rows;
    size_t act_bytes;
    struct clock clock;
    struct ffn_timeline *timeline; /* of the step under way; NULL: nobody asks */
    bool taken;                    /* a slot is in use */
};

/* Rows that a server multiplies at once. It is there for small batches; of more rows the caller sends one part after
 * the other. */
enum { SERVER_ROWS = 512 };

struct ffn_pool {
    struct ffn_shared shared;
    struct device_opts devices[MAX_RANKS];
    struct ffn_seat seats[MAX_RANKS];
};

static int server_rows(const struct ffn_pool *p, int rank)
{
    int rows = p->devices[rank].max_rows;
    return rows < SERVER_ROWS ? rows : SERVER_ROWS;
}

/* ---- when what happened, of a step that is watched */

static struct ffn_layer_times *times_of(struct ffn_seat *s, int layer)
{
    return s->timeline ? &s->timeline->layers[layer] : NULL;
}

static void note_ready(struct ffn_seat *s, int layer, enum ffn_mode mode)
{
    struct ffn_layer_times *t = times_of(s, layer);
    if (!t || t->ready)
        return;
    t->mode = mode;
    t->ready = clock_now(&s->clock);
    t->begin = mode == FFN_WAS ? 0 : t->ready;
}

/* The first n matrices are there, asked for at `asked`. */
static void note_taken(struct ffn_seat *s, int layer, int n, int64_t asked)
{
    struct ffn_layer_times *t = times_of(s, layer);
    if (!t)
        return;
    int64_t now = clock_now(&s->clock);
    if (!t->begin) {
        t->begin = now;
    } else if (n == FFN_MATRICES && !t->pause) {
        t->pause = asked;
        t->resume = now;
    }
}

static void note_end(struct ffn_seat *s, int layer)
{
    struct ffn_layer_times *t = times_of(s, layer);
    if (t)
        t->end = clock_now(&s->clock);
}

void ffn_seat_watch(struct ffn_seat *s, struct ffn_timeline *t)
{
    s->timeline = t;
}

/* ---- what a step asks */

/* Rows for the rank's own layer go through its server only while others send theirs: then they share a product. */
static enum ffn_mode choose(const struct ffn_seat *s, int layer)
{
    const struct ffn_shared *f = &s->pool->shared;
    bool own = ffn_is_local(&f->setup, layer, s->rank, s->tp, s->t), cas = ffn_is_cas(&s->modes, layer);
    if (own)
        return cas && atomic_load(&s->pool->shared.n_cas) > 1 ? FFN_CAS : FFN_LOCAL;
    return cas ? FFN_CAS : FFN_WAS;
}

static enum ffn_mode mode_of(void *ctx, int layer)
{
    struct ffn_seat *s = ctx;
    enum ffn_mode mode = choose(s, layer);
    note_ready(s, layer, mode);
    return mode;
}

static int take(void *ctx, int layer, int n, const struct weight **matrices, struct err *e)
{
    struct ffn_seat *s = ctx;
    int64_t asked = s->timeline ? clock_now(&s->clock) : 0;
    int rc = ffn_slots_take(s->slots, layer, n, matrices, e);
    if (rc)
        s->lost = ffn_lost(&s->pool->shared, layer);
    s->taken = true;
    note_taken(s, layer, n, asked);
    return rc;
}

static void leave(void *ctx, int layer)
{
    struct ffn_seat *s = ctx;
    note_end(s, layer);
    if (s->taken && s->timeline)
        ffn_slots_times(s->slots, times_of(s, layer));
    if (s->taken)
        ffn_slots_leave(s->slots, layer);
    s->taken = false;
}

static int send(void *ctx, int layer, struct act x, int rows, struct err *e)
{
    struct ffn_seat *s = ctx;
    int owner = ffn_owner(&s->pool->shared.setup, layer, 0);
    ASSERT(ffn_shares(&s->pool->shared.setup, layer) == 1);
    if (owner != s->rank) {
        s->cas_rows += (uint64_t)rows;
        s->cas_bytes += 2 * (uint64_t)rows * (uint64_t)x.cols * s->act_bytes;
    }
    int most = server_rows(s->pool, owner);
    if (!ffn_reach(&s->pool->shared, s->rank, ffn_mark(&s->pool->shared, s->rank)))
        return err_set(e, E_DEVICE, "rank %d: its device failed before it sent rows", s->rank);
    for (int at = 0; at < rows; at += most) {
        int n = rows - at < most ? rows - at : most;
        struct act part = {(char *)x.data + (size_t)at * (size_t)x.ld * s->act_bytes, x.cols, x.ld, false};
        int rc = ffn_server_do(s->pool->seats[owner].server,
                               &(struct ffn_rows_call){.layer = layer, .from = s->rank, .rows = n, .x = part}, e);
        if (rc) {
            s->lost = owner;
            ffn_seat_fail(&s->pool->seats[owner]); /* of a server whose product failed, its rank learns it so */
            return rc;
        }
    }
    note_end(s, layer);
    return 0;
}

void ffn_seat_begin(struct ffn_seat *s, const struct ffn_modes *modes, const struct shard *share)
{
    s->modes = *modes;
    if (share->layout.tp > 1)
        memset(s->modes.cas, 0, sizeof s->modes.cas);
    s->lost = -1;
    if (s->timeline)
        s->timeline->begin = clock_now(&s->clock);
    s->sends = ffn_count_cas(&s->modes, s->pool->shared.setup.n_layers) > 0;
    atomic_fetch_add(&s->pool->shared.n_cas, s->sends);
    s->tp = share->layout.tp;
    s->t = share->t;
    ffn_slots_begin(s->slots, &s->modes, share);
}

void ffn_seat_end(struct ffn_seat *s)
{
    if (s->timeline)
        s->timeline->end = clock_now(&s->clock);
    ffn_slots_end(s->slots);
    atomic_fetch_sub(&s->pool->shared.n_cas, s->sends);
    s->sends = false;
}

const struct ffn_source *ffn_seat_source(struct ffn_seat *s)
{
    return &s->source;
}

void ffn_seat_account(struct ffn_seat *s, struct ffn_account *a)
{
    *a = (struct ffn_account){.cas_bytes = s->cas_bytes, .cas_rows = s->cas_rows};
    ffn_slots_account(s->slots, a);
}

void ffn_seat_keep(struct ffn_seat *s, struct replica_task *t)
{
    ffn_slots_keep(s->slots, t);
}

void ffn_seat_give_up(struct ffn_seat *s, int layer)
{
    ffn_slots_give_up(s->slots, layer);
}

void ffn_seat_fail(struct ffn_seat *s)
{
    struct ffn_pool *p = s->pool;
    atomic_fetch_or(&p->shared.dead, 1ull << s->rank);
    for (int i = 0; i < p->shared.setup.n_ranks; i++) {
        ffn_slots_look(p->seats[i].slots);
        ffn_server_look(p->seats[i].server);
    }
}

int ffn_seat_lost(const struct ffn_seat *s)
{
    return s->lost;
}

bool ffn_seat_is_dead(const struct ffn_seat *s)
{
    return ffn_is_dead(&s->pool->shared, s->rank);
}

/* ---- the pool */

struct ffn_seat *ffn_pool_seat(struct ffn_pool *p, int rank)
{
    return &p->seats[rank];
}

size_t ffn_pool_slot_bytes(const struct ffn_pool *p)
{
    return ffn_slots_bytes(&p->shared);
}

size_t ffn_pool_row_bytes(const struct ffn_pool *p)
{
    return ffn_server_bytes(p->shared.config, server_rows(p, 0), p->seats[0].act_bytes);
}

size_t ffn_pool_share_bytes(const struct ffn_pool *p, int layer, int share)
{
    const struct weights *w = p->shared.weights[ffn_owner(&p->shared.setup, layer, share)];
    struct ffn_hold hold = {layer, share, ffn_shares(&p->shared.setup, layer)};
    return weights_hold_bytes(w, &hold);
}

static size_t layer_bytes(const struct ffn_pool *p, int layer)
{
    size_t bytes = 0;
    for (int i = 0; i < ffn_shares(&p->shared.setup, layer); i++)
        bytes += ffn_pool_share_bytes(p, layer, i);
    return bytes;
}

size_t ffn_pool_layer_bytes(const struct ffn_pool *p)
{
    size_t most = 0;
    for (int l = 0; l < p->shared.setup.n_layers; l++) {
        size_t bytes = layer_bytes(p, l);
        most = bytes > most ? bytes : most;
    }
    return most;
}

void ffn_pool_give(struct ffn_pool *p, int layer, int share, int rank)
{
    ffn_give(&p->shared.setup, layer, share, rank);
}

void ffn_pool_look(struct ffn_pool *p, struct ffn_pool_facts *out)
{
    *out = (struct ffn_pool_facts){.most_readers = ffn_link_most_readers(p->shared.link)};
    for (int i = 0; i < p->shared.setup.n_ranks; i++) {
        uint64_t products, calls;
        ffn_server_count(p->seats[i].server, &products, &calls);
        out->products += products;
        out->calls += calls;
    }
}

int ffn_pool_sit(struct ffn_pool *p, int rank, struct err *e)
{
    const struct backend_ops *ops = p->shared.ops;
    struct ffn_seat *s = &p->seats[rank];
    struct device_opts fetch = p->devices[rank];
    struct device_facts facts;
    *s = (struct ffn_seat){
        .pool = p, .rank = rank, .source = {.ctx = s, .mode = mode_of, .take = take, .leave = leave, .send = send}};
    clock_init_real(&s->clock);
    fetch.n_threads = fetch.max_rows = 1;
    fetch.check = false; /* it only copies */
    TRY(ops->open(&s->fetch_device, &fetch, e));
    TRY(ops->open(&s->serve_device, &p->devices[rank], e));
    ops->facts(s->serve_device, &facts);
    s->act_bytes = facts.act_bytes;
    TRY(ffn_slots_open(&s->slots, &p->shared, rank, s->fetch_device, e));
    return ffn_server_open(&s->server, &p->shared, rank, s->serve_device, server_rows(p, rank), e);
}

int ffn_pool_open(struct ffn_pool **out, const struct ffn_pool_setup *s, struct err *e)
{
    ASSERT(s->ffn->n_ranks <= MAX_RANKS && s->ffn->n_slots > 0 && s->ffn->tile_bytes > 0);
    if (!s->ops->weight_at || !s->ops->weight_window || !s->ops->pull)
        return err_set(e, E_UNSUPPORTED, "--weights pooled is not offered on --device %s", s->ops->name);
    struct ffn_pool *p = mem_new(sizeof *p);
    p->shared = (struct ffn_shared){.ops = s->ops, .config = s->config, .setup = *s->ffn};
    p->shared.link = ffn_link_new(s->ffn->link_gbps);
    for (int i = 0; i < s->ffn->n_ranks; i++) {
        p->shared.weights[i] = s->weights[i];
        p->shared.ranks[i] = s->ranks[i];
        p->devices[i] = s->devices[i];
    }
    *out = p;
    return 0;
}

void ffn_pool_close(struct ffn_pool *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->shared.setup.n_ranks; i++) {
        struct ffn_seat *s = &p->seats[i];
        ffn_slots_close(s->slots);
        ffn_server_close(s->server);
        if (s->fetch_device)
            p->shared.ops->close(s->fetch_device);
        if (s->serve_device)
            p->shared.ops->close(s->serve_device);
    }
    ffn_link_free(p->shared.link);
    mem_free(p);
}
