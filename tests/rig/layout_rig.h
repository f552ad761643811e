/* A node of several CPU ranks without engine or scheduler, ready to run handmade steps in any layout: devices, one
 * copy of the weights, KV spaces, communicators. For tests and benchmarks. Owned by whoever opened it; one thread
 * drives it, and a step runs on one thread per rank. The caller says which blocks a sequence has (struct place); there
 * is no block table here. */
#ifndef RIG_LAYOUT_RIG_H
#define RIG_LAYOUT_RIG_H

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/exec/micro.h"
#include "engine/exec/comm.h"
#include "engine/exec/ffn_pool.h"
#include "engine/exec/move.h"
#include "engine/exec/weights.h"
#include "models/forward/forward.h"

enum { NODE_RANKS = 8, NODE_SEQS = 9 };

struct node_opts {
    const struct backend_ops *ops; /* NULL: cpu */
    int n_ranks, threads, max_rows, max_logits, n_blocks, block_tokens;
    enum dtype kv;
    bool copy_shards;
    bool fast;                   /* GPUs: the default mode, not the invariant one */
    bool plain_kernels;          /* GPUs: none for one architecture alone */
    int graph_rows;              /* GPUs: most rows of a graph */
    bool spread;                 /* GPUs: rank r on device r; else all on device 0 */
    bool own_weights;            /* each rank loads all weights for itself */
    const struct ffn_setup *ffn; /* pooled FFN weights, n_ranks of them; NULL: one copy of all weights */
};

struct node {
    const struct backend_ops *ops;
    struct model *model;             /* the caller's */
    struct weights *weights;         /* of all ranks */
    struct weights *own[NODE_RANKS]; /* of each that has its own; the first is `weights` */
    struct ffn_pool *ffn_pool;       /* NULL: not pooled */
    struct ffn_modes modes;          /* of the next steps */
    bool no_pool;                    /* steps do not ask it */
    struct comm_pool *pool;
    enum comm_algorithm algorithm; /* of all-reduces */
    int n_ranks;
    struct device *devices[NODE_RANKS];
    struct forward forwards[NODE_RANKS];
    struct kv_space kv[NODE_RANKS];
};

/* Where sequences have their KV: ranks by share, blocks by share and sequence. */
struct place {
    int n, stages, ranks[NODE_RANKS], tokens_per_block, per_seq;
    struct kv_space spaces[NODE_RANKS]; /* several stages: by share, of its stage's layers */
    int32_t *blocks;                    /* [share][NODE_SEQS][per_seq] */
};

static inline void node_close(struct node *n)
{
    comm_pool_close(n->pool);
    ffn_pool_close(n->ffn_pool);
    for (int r = 0; r < n->n_ranks; r++) {
        if (n->forwards[r].ops)
            forward_free(&n->forwards[r]);
        if (n->kv[r].base)
            n->ops->release(n->devices[r], n->kv[r].base);
    }
    weights_free(n->weights);
    for (int r = 1; r < n->n_ranks; r++)
        weights_free(n->own[r]);
    for (int r = 0; r < n->n_ranks; r++)
        if (n->devices[r])
            n->ops->close(n->devices[r]);
    memset(n, 0, sizeof *n);
}

static inline struct device_opts node_device(const struct node_opts *o, int r)
{
    return (struct device_opts){.n_threads = o->threads ? o->threads : 1,
                                .max_rows = o->max_rows,
                                .max_logits = o->max_logits,
                                .invariant = !o->fast,
                                .plain_kernels = o->plain_kernels,
                                .graph_rows = o->graph_rows,
                                .index = o->spread ? r : 0,
                                .peers = o->spread ? rank_range(0, o->n_ranks) : 0};
}

static inline int node_open_rank(struct node *n, int r, const struct node_opts *o, struct err *e)
{
    const struct model_config *c = model_config(n->model);
    struct device_opts device = node_device(o, r);
    TRY(n->ops->open(&n->devices[r], &device, e));
    if (r == 0 || o->ffn || o->own_weights)
        TRY(weights_load(&n->own[r],
                         &(struct weights_setup){.model = n->model,
                                                 .ops = n->ops,
                                                 .device = n->devices[r],
                                                 .n_ranks = o->n_ranks,
                                                 .copy_shards = o->copy_shards,
                                                 .ffn = o->ffn,
                                                 .rank = r},
                         e));
    n->weights = n->own[0];
    n->kv[r] =
        (struct kv_space){.block_bytes = n->ops->kv_block_bytes(o->kv, o->block_tokens, c->n_kv_heads, c->head_dim),
                          .n_blocks = o->n_blocks,
                          .n_layers = c->n_layers,
                          .dtype = o->kv};
    n->kv[r].base = n->ops->alloc(n->devices[r], (size_t)c->n_layers * (size_t)o->n_blocks * n->kv[r].block_bytes);
    if (!n->kv[r].base)
        return err_set(e, E_FULL, "no memory for the KV cache");
    n->forwards[r] = (struct forward){.ops = n->ops, .device = n->devices[r], .config = c, .kv = &n->kv[r]};
    return forward_init(&n->forwards[r], o->max_rows, o->max_logits, o->n_ranks, e);
}

static inline int node_open_ffn_pool(struct node *n, const struct node_opts *o, struct err *e)
{
    struct device_opts devices[NODE_RANKS];
    for (int r = 0; r < o->n_ranks; r++)
        devices[r] = node_device(o, r);
    TRY(ffn_pool_open(&n->ffn_pool,
                      &(struct ffn_pool_setup){.ops = n->ops,
                                               .ffn = o->ffn,
                                               .config = model_config(n->model),
                                               .weights = n->own,
                                               .ranks = n->devices,
                                               .devices = devices},
                      e));
    for (int r = 0; r < o->n_ranks; r++)
        TRY(ffn_pool_sit(n->ffn_pool, r, e));
    return 0;
}

static inline int node_open(struct node *n, struct model *m, const struct node_opts *o, struct err *e)
{
    uint64_t extra[NODE_RANKS];
    int rc = 0;
    *n = (struct node){.ops = o->ops ? o->ops : backend_cpu(), .model = m, .n_ranks = o->n_ranks};
    for (int i = 0; i < o->n_ranks; i++)
        extra[i] = ((uint64_t)2 << i) - 1; /* the first i + 1 ranks */
    for (int r = 0; r < o->n_ranks && !rc; r++)
        rc = node_open_rank(n, r, o, e);
    if (!rc)
        rc = comm_pool_open(
            &n->pool,
            &(struct comm_pool_setup){
                .ops = n->ops, .devices = n->devices, .n_ranks = o->n_ranks, .extra = extra, .n_extra = o->n_ranks},
            e);
    if (!rc && o->ffn)
        rc = node_open_ffn_pool(n, o, e);
    if (rc)
        node_close(n);
    return rc;
}

/* A place on the first n ranks, in the order of the base layout, for sequences of up to max_len tokens; its blocks
 * begin at `first`. Every share has its own order of blocks: a list taken from a neighbour would show. Returns the
 * first block after it. */
static inline int place_make(struct place *p, struct layout base, int tokens_per_block, int max_len, int first)
{
    int share_of[MAX_RANKS], n = layout_size(base), blocks;
    share_order(base, share_of);
    *p = (struct place){.n = n,
                        .stages = base.pp,
                        .tokens_per_block = tokens_per_block,
                        .per_seq = (max_len + tokens_per_block - 1) / tokens_per_block};
    for (int r = 0; r < n; r++)
        p->ranks[share_of[r]] = r;
    blocks = NODE_SEQS * p->per_seq;
    p->blocks = mem_new_array((size_t)(n * blocks), sizeof *p->blocks);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < blocks; k++)
            p->blocks[i * blocks + k] =
                first + (k * 7 + i * 5) % blocks; /* blocks: 9 * per_seq; 7 does not divide it, see below */
    for (int i = 0; i < n && blocks % 7 == 0; i++)
        for (int k = 0; k < blocks; k++)
            p->blocks[i * blocks + k] = first + (blocks - 1 - k + i) % blocks;
    return first + blocks;
}

/* A place of several stages: its ranks' memory is that of their layers, and its blocks are spread over all of that. */
static inline void place_stage(struct place *p, const struct node *n)
{
    int n_layers = n->kv[0].n_layers, pieces = stage_pieces(n_layers, p->stages), n_blocks = n->kv[0].n_blocks;
    for (int i = 0; i < p->n; i++) {
        p->spaces[i] = n->kv[p->ranks[i]];
        p->spaces[i].n_blocks = n_blocks * pieces;
        p->spaces[i].n_layers = n_layers / pieces;
        for (int k = 0; k < NODE_SEQS * p->per_seq; k++)
            p->blocks[i * NODE_SEQS * p->per_seq + k] += (k + i) % pieces * n_blocks;
    }
}

static inline const struct kv_space *place_space(const struct place *p, const struct node *n, int share)
{
    return p->stages > 1 ? &p->spaces[share] : &n->kv[p->ranks[share]];
}

static inline const int32_t *place_blocks(const struct place *p, int share, int seq)
{
    return p->blocks + ((size_t)share * NODE_SEQS + (size_t)seq) * (size_t)p->per_seq;
}

static inline void place_free(struct place *p)
{
    mem_free(p->blocks);
    p->blocks = NULL;
}

/* Copies cached tokens [first, n_tokens) of a sequence from one place to another, every share of it in turn. */
static inline int64_t node_move(struct node *n, const struct place *from, const struct place *to, int seq,
                                const int tokens[2])
{
    const struct model_config *c = model_config(n->model);
    struct move *m = move_new();
    const struct place *places[2] = {from, to};
    struct move_end *ends[2] = {&m->from, &m->to};
    m->heads = shard_heads(c);
    m->n_layers = c->n_layers;
    m->first_token = tokens[0];
    m->n_tokens = tokens[1];
    for (int k = 0; k < 2; k++) {
        const struct place *p = places[k];
        *ends[k] = (struct move_end){
            .n = p->n, .stages = p->stages, .tokens_per_block = p->tokens_per_block, .n_blocks = p->per_seq};
        int32_t *blocks = arena_new(&m->arena, (size_t)(p->n * p->per_seq) * sizeof *blocks);
        for (int i = 0; i < p->n; i++) {
            ends[k]->ranks[i] = p->ranks[i];
            ends[k]->spaces[i] = place_space(p, n, i);
            memcpy(blocks + i * p->per_seq, place_blocks(p, i, seq), (size_t)p->per_seq * sizeof *blocks);
        }
        ends[k]->blocks = blocks;
    }
    for (int i = 0; i < to->n; i++)
        move_run(m, i, n->ops, n->devices[to->ranks[i]]);
    int64_t bytes = m->bytes;
    move_free(m);
    return bytes;
}

/* Tokens that one block holds for the share of n ranks that has the most kv heads. */
static inline int node_tokens_per_block(const struct node *n, int ranks)
{
    const struct model_config *c = model_config(n->model);
    struct heads h = shard_heads(c);
    int most = head_max_kv(&h, ranks), tokens = 16;
    while (n->ops->kv_block_bytes(n->kv[0].dtype, tokens + 16, most, c->head_dim) <= n->kv[0].block_bytes)
        tokens += 16;
    return tokens;
}

/* Part of a sequence: tokens [pos, pos + n) of ids. */
struct node_seq {
    int seq, pos, n;
    const int32_t *ids;
};

struct node_step {
    const struct place *place;
    struct layout layout;
    int n_micro; /* of a pipelined one */
    const struct node_seq *seqs;
    int n_seqs;
    int n_logits; /* the rows: of the whole step */
    const int32_t *logit_rows;
    const struct sample_row *samples;
    struct sample_result *results;
};

struct node_part {
    struct node *node;
    struct forward_member site;
    struct batch batch;
    struct step_time time;
    int rank, n_micro, rc;
    struct err err;
    struct thread *thread;
};

static inline void node_part_run(void *arg)
{
    struct node_part *p = arg;
    struct ffn_seat *seat = p->site.ffn ? ffn_pool_seat(p->node->ffn_pool, p->rank) : NULL;
    if (seat)
        ffn_seat_begin(seat, &p->node->modes, &p->site.weights->shard);
    struct forward *f = &p->node->forwards[p->rank];
    struct arena a;
    arena_init(&a);
    struct batch *micro = p->n_micro > 1 ? micro_split(&a, &p->batch, p->n_micro) : &p->batch;
    f->n_logits = 0;
    for (int i = 0; i < p->n_micro && !p->rc; i++)
        p->rc = forward_run(f, &p->site, &micro[i], &p->time, &p->err);
    f->first_logit += (int)(micro[p->n_micro - 1].results - p->batch.results);
    arena_free(&a);
    if (seat)
        ffn_seat_end(seat);
}

static inline struct forward_member node_site(const struct node *n, const struct node_step *s, int share)
{
    int rank = s->place->ranks[share];
    const struct weights *w = n->own[rank] ? n->own[rank] : n->weights;
    struct forward_member site = {.weights =
                                      weights_view(w, layout_of_stage(s->layout), share_in_stage(s->layout, share)),
                                  .stage = share_stage(s->layout, share),
                                  .n_stages = s->layout.pp,
                                  .kv = place_space(s->place, n, share),
                                  .tokens_per_block = s->place->tokens_per_block};
    uint64_t mask = 0;
    if (n->ffn_pool && !n->no_pool)
        site.ffn = ffn_seat_source(ffn_pool_seat(n->ffn_pool, rank));
    for (int i = 0; i < s->place->n; i++)
        mask |= (uint64_t)1 << s->place->ranks[i];
    site.group = mask;
    if (s->place->n == 1)
        return site;
    struct comm_seat seat = comm_seat(comm_find(n->pool, mask), s->layout, share, n->algorithm);
    site.sp = seat.sp;
    site.tp = seat.tp;
    site.all = seat.all;
    site.from = seat.from;
    site.to = seat.to;
    site.twoshot_bytes = seat.twoshot_bytes;
    site.library_bytes = seat.library_bytes;
    return site;
}

/* Runs the step on a thread for each rank; parts[share] say how each went. Returns the first failure. */
static inline int node_run(struct node *n, const struct node_step *s, struct node_part *parts)
{
    int rows = 0, rc = 0;
    struct batch_seq seqs[NODE_RANKS][NODE_SEQS];
    for (int i = 0; i < s->n_seqs; i++)
        rows += s->seqs[i].n;
    int32_t *lists = mem_new_array((size_t)rows * 2, sizeof *lists), *ids = lists, *positions = lists + rows;
    for (int i = 0, row = 0; i < s->n_seqs; row += s->seqs[i++].n)
        for (int k = 0; k < s->seqs[i].n; k++) {
            ids[row + k] = s->seqs[i].ids[s->seqs[i].pos + k];
            positions[row + k] = s->seqs[i].pos + k;
        }
    for (int share = 0; share < s->place->n; share++) {
        for (int i = 0, row = 0; i < s->n_seqs; row += s->seqs[i++].n)
            seqs[share][i] = (struct batch_seq){.row0 = row,
                                                .n_rows = s->seqs[i].n,
                                                .pos0 = s->seqs[i].pos,
                                                .blocks = place_blocks(s->place, share, s->seqs[i].seq)};
        parts[share] = (struct node_part){.node = n, .rank = s->place->ranks[share], .site = node_site(n, s, share)};
        parts[share].n_micro = s->layout.pp == 1 ? 1 : s->n_micro < rows ? s->n_micro : rows;
        parts[share].batch = (struct batch){.n_rows = rows,
                                            .ids = ids,
                                            .positions = positions,
                                            .n_seqs = s->n_seqs,
                                            .seqs = seqs[share],
                                            .n_logits = s->n_logits,
                                            .logit_rows = s->logit_rows,
                                            .samples = s->samples,
                                            .results = s->results};
    }
    for (int share = 1; share < s->place->n && !rc; share++)
        rc = thread_start(&parts[share].thread, "rank", node_part_run, &parts[share], NULL);
    if (!rc)
        node_part_run(&parts[0]);
    for (int share = 0; share < s->place->n; share++) {
        thread_join(parts[share].thread);
        rc = rc ? rc : parts[share].rc;
    }
    mem_free(lists);
    return rc;
}

#endif
