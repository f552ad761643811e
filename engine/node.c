#include "engine/node.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/cores.h"
#include "engine/base/log.h"
#include "engine/base/numa.h"
#include "engine/base/version.h"
#include "engine/cuts.h"
#include "engine/holdings.h"

enum { LEAST_TOKENS = 16 }; /* of a request */

/* The NUMA node that a rank stays on; -1: on none. */
static int numa_of(const struct engine_setup *s, int rank)
{
    return s->numa && s->threaded ? numa_of_rank(s->numa, rank, s->n_ranks) : -1;
}

/* The first rank of the same memory, which loads the weights of both; the rank itself: it loads its own. */
static int loader_of(const struct engine_setup *s, int rank)
{
    for (int i = 0; i < rank && s->ops->shares_memory && !holdings_are_private(s); i++)
        if (s->devices[i] == s->devices[rank] && numa_of(s, i) == numa_of(s, rank))
            return i;
    return rank;
}

/* What a rank's device is opened with. */
static struct device_opts device_of(const struct node *n, const struct engine_setup *s, int rank)
{
    struct device_opts o = s->device;
    o.tuning = n->tuning;
    o.index = s->devices[rank];
    for (int k = 0; k < s->n_ranks; k++)
        o.peers |= 1ull << (s->devices[k] & 63);
    o.keeps_memory = s->sharded; /* what a reshard frees the next one takes */
    o.max_rows = s->limits.max_num_batched_tokens;
    o.graph_rows = s->n_graph_sizes ? s->graph_sizes[0] : 0;
    if (!o.max_logits)
        o.max_logits = 64;
    if (s->n_ranks > 1 && s->ops->computes) { /* the ranks share the cores */
        bool placed = numa_of(s, rank) >= 0;
        int threads = o.n_threads > 0 ? o.n_threads : cores_usable(), share = threads / s->n_ranks;
        share = placed ? numa_threads(s->numa, rank, s->n_ranks, threads) : share;
        o.n_threads = share > 1 ? share : 1;
    }
    return o;
}

/* What ranks are opened from. */
struct opening {
    struct node *node;
    const struct engine_setup *setup;
    const struct node_callbacks *callbacks;
    struct load_progress *progress;
};

static struct rank_setup setup_of(const struct opening *o, int i)
{
    const struct engine_setup *s = o->setup;
    int loader = loader_of(s, i), numa = numa_of(s, i);
    return (struct rank_setup){.ops = s->ops,
                               .device = device_of(o->node, s, i),
                               .model = s->model,
                               .speculator = s->speculator,
                               .index = i,
                               .n_ranks = s->n_ranks,
                               .numa = numa < 0 ? NULL : &s->numa->nodes[numa],
                               .shares_with = loader == i ? NULL : o->node->ranks[loader],
                               .copy_shards = s->copy_shards,
                               .ffn = s->ops->computes ? s->ffn : NULL,
                               .cut = s->sharded ? &o->node->cuts[i] : NULL,
                               .has_host = s->host_kv_bytes > 0,
                               .kv_dtype = s->kv_dtype,
                               .block_size = s->block_size,
                               .threaded = s->threaded,
                               .quiet = s->quiet,
                               .progress = o->progress,
                               .fail_at_step = i == s->fail_rank ? s->fail_at_step : 0,
                               .step_done = o->callbacks->step_done,
                               .move_done = o->callbacks->move_done,
                               .ctx = o->callbacks->ctx};
}

/* Ranks that load weights, or those that share them, all at the same time. What the first rank says that could not open
 * is what counts, whoever ended first. */
static int open_some(const struct opening *o, bool loading, struct err *e)
{
    struct rank **ranks = o->node->ranks;
    const struct engine_setup *s = o->setup;
    struct err each[MAX_RANKS] = {{0}};
    int rc[MAX_RANKS] = {0};
    for (int i = 0; i < s->n_ranks; i++) {
        struct rank_setup r = setup_of(o, i);
        if ((loader_of(s, i) == i) == loading)
            rc[i] = rank_begin(&ranks[i], &r, &each[i]);
    }
    for (int i = 0; i < s->n_ranks; i++)
        if ((loader_of(s, i) == i) == loading && ranks[i])
            rc[i] = rank_opened(ranks[i], &each[i]);
    for (int i = 0; i < s->n_ranks; i++)
        if (rc[i])
            return err_set(e, rc[i], "%s", each[i].text);
    return 0;
}

static struct load_progress *progress_of(const struct node *n, const struct engine_setup *s)
{
    double total = 0;
    for (int i = 0; i < s->n_ranks; i++)
        if (loader_of(s, i) == i)
            total +=
                weights_stored_bytes(s->model, s->ops->computes ? s->ffn : NULL, i, s->sharded ? &n->cuts[i] : NULL);
    return s->quiet ? NULL : load_progress_new(total, s->ops->computes);
}

static int open_ranks(struct node *n, const struct engine_setup *s, const struct node_callbacks *c, struct err *e)
{
    struct clock clock;
    clock_init_real(&clock);
    int64_t began = clock_now(&clock);
    TRY(weights_check_owners(model_config(s->model), s->ffn, e));
    struct opening o = {.node = n, .setup = s, .callbacks = c, .progress = progress_of(n, s)};
    n->n_ranks = s->n_ranks;
    int rc = open_some(&o, true, e);
    if (!rc)
        rc = open_some(&o, false, e);
    load_progress_free(o.progress);
    n->load_ns = clock_now(&clock) - began;
    return rc;
}

/* A line for each size of a set. */
static void say_comms(const struct node *n)
{
    bool said[MAX_RANKS + 1] = {false};
    for (int i = 0; i < comm_pool_count(n->comms); i++) {
        uint64_t ranks = comm_pool_mask(n->comms, i);
        const struct comm_measure *m = comm_measured(comm_find(n->comms, ranks));
        int size = __builtin_popcountll(ranks);
        char text[COMM_SAID];
        if (!m->oneshot_ns[0] || said[size])
            continue;
        said[size] = true;
        comm_measure_say(m, text);
        log_info("node", "All-reduces of %d ranks: %s", size, text);
    }
}

static int open_comms(struct node *n, const struct engine_setup *s, struct err *e)
{
    struct device *devices[MAX_RANKS];
    for (int i = 0; i < n->n_ranks; i++)
        devices[i] = rank_device(n->ranks[i]);
    struct comm_pool_setup p = {.ops = s->ops,
                                .devices = devices,
                                .n_ranks = n->n_ranks,
                                .extra = s->comm_sets,
                                .n_extra = s->n_comm_sets,
                                .measure = s->ops->computes && s->threaded && n->n_ranks > 1};
    TRY(comm_pool_open(&n->comms, &p, e));
    if (!s->quiet)
        say_comms(n);
    return 0;
}

/* What one rank does by its own thread, such as opening its seat. */
struct seating {
    struct rank_job job;
    const struct node *node;
    int rank;
};

static int take_pool_seat(void *ctx, struct err *e)
{
    const struct seating *s = ctx;
    return ffn_pool_sit(s->node->pool, s->rank, e);
}

static int take_draft_seat(void *ctx, struct err *e)
{
    const struct seating *s = ctx;
    return drafter_sit(s->node->drafter, s->rank, rank_device(s->node->ranks[s->rank]), e);
}

static int by_each_rank(const struct node *n, int (*take)(void *ctx, struct err *e), struct err *e)
{
    struct seating seats[MAX_RANKS];
    int rc = 0;
    for (int i = 0; i < n->n_ranks; i++) {
        seats[i] = (struct seating){.job = {.run = take, .ctx = &seats[i]}, .node = n, .rank = i};
        rank_do(n->ranks[i], &seats[i].job);
    }
    for (int i = 0; i < n->n_ranks; i++) {
        struct err why;
        int failed = rank_await(n->ranks[i], &seats[i].job, &why);
        if (failed && !rc)
            rc = err_set(e, failed, "%s", why.text);
    }
    return rc;
}

/* Where FFN weights are pooled, and something is computed. */
static int open_pool(struct node *n, const struct engine_setup *s, struct err *e)
{
    struct weights *weights[MAX_RANKS];
    struct device *ranks[MAX_RANKS];
    struct device_opts devices[MAX_RANKS];
    if (!s->ffn || !s->ops->computes)
        return 0;
    for (int i = 0; i < n->n_ranks; i++) {
        weights[i] = rank_weights(n->ranks[i]);
        ranks[i] = rank_device(n->ranks[i]);
        devices[i] = device_of(n, s, i);
    }
    TRY(ffn_pool_open(&n->pool,
                      &(struct ffn_pool_setup){.ops = s->ops,
                                               .ffn = s->ffn,
                                               .config = model_config(s->model),
                                               .weights = weights,
                                               .ranks = ranks,
                                               .devices = devices},
                      e));
    TRY(by_each_rank(n, take_pool_seat, e));
    for (int i = 0; i < n->n_ranks; i++)
        rank_join(n->ranks[i], ffn_pool_seat(n->pool, i));
    return 0;
}

/* The first rank's thread loads the draft model. */
struct drafter_opening {
    struct rank_job job;
    struct drafter **out;
    struct drafter_setup setup;
};

static int load_drafter(void *ctx, struct err *e)
{
    const struct drafter_opening *o = ctx;
    return drafter_open(o->out, &o->setup, e);
}

static int open_drafter(struct node *n, const struct engine_setup *s, struct err *e)
{
    if (!s->drafter)
        return 0;
    struct drafter_opening o = {.job = {.run = load_drafter, .ctx = &o},
                                .out = &n->drafter,
                                .setup = {.plan = s->drafter,
                                          .ops = s->ops,
                                          .device = rank_device(n->ranks[0]),
                                          .n_ranks = n->n_ranks,
                                          .max_rows = s->limits.max_num_batched_tokens,
                                          .vocab = model_config(s->model)->vocab}};
    rank_do(n->ranks[0], &o.job);
    TRY(rank_await(n->ranks[0], &o.job, e));
    TRY(by_each_rank(n, take_draft_seat, e));
    for (int i = 0; i < n->n_ranks; i++)
        rank_draft_with(n->ranks[i], drafter_seat(n->drafter, i));
    return 0;
}

static int take_peaks(void *ctx, struct err *e)
{
    const struct seating *s = ctx;
    (void)e;
    rank_probe(s->node->ranks[s->rank]);
    return 0;
}

/* All at the same time, as they share the machine's memory when they compute. */
int node_probe(const struct node *n, struct err *e)
{
    return by_each_rank(n, take_peaks, e);
}

bool node_profile(const struct node *n, struct profile *out)
{
    *out = (struct profile){0};
    for (int i = 0; i < n->n_ranks; i++)
        if (!rank_add_profile(n->ranks[i], out))
            return false;
    return true;
}

static void allow_stages(struct node_shape *shape, const struct engine_setup *s)
{
    shape->n_layers = model_config(s->model)->n_layers;
    shape->weight_stages = s->device.sim_weight_pp;
    shape->no_stages = s->ffn ? "pp > 1 is not offered where FFN weights are pooled: use --weights replicated" : NULL;
}

/* Which rank sets, blocks and layouts there are. */
static int take_shape(struct node *n, const struct engine_setup *s, struct err *e)
{
    struct node_shape *shape = &n->shape;
    const struct model_config *c = model_config(s->model);
    n->heads = (struct heads){c->n_heads, c->n_kv_heads, c->head_dim};
    shape->n_ranks = n->n_ranks;
    allow_stages(shape, s);
    int n_comms = comm_pool_count(n->comms);
    if (n_comms + n->n_ranks > MAX_SETS)
        return err_set(e, E_INPUT, "--comm-sets: at most %d rank sets in all", MAX_SETS);
    for (int i = 0; i < n->n_ranks; i++) /* a rank alone needs no communicator */
        shape->sets[shape->n_sets++] = 1ull << i;
    for (int i = 0; i < n_comms; i++)
        shape->sets[shape->n_sets++] = comm_pool_mask(n->comms, i);
    for (int size = 1; size <= n->n_ranks; size++) {
        int most = head_max_kv(&n->heads, size < c->n_heads ? size : c->n_heads);
        shape->tokens_per_block[size] = rank_tokens_per_block(n->ranks[0], most);
        for (int tp = 1; tp <= size; tp++)
            if (size % tp == 0)
                shape->refusals[size][tp] = rank_layout_refusal(n->ranks[0], (struct layout){size / tp, tp, 1});
    }
    return 0;
}

static int most_tokens_per_block(const struct node_shape *s)
{
    int most = 0;
    for (int i = 0; i < s->n_sets; i++) {
        int tpb = s->tokens_per_block[__builtin_popcountll(s->sets[i])];
        most = tpb > most ? tpb : most;
    }
    return most;
}

/* How many blocks the budget of a rank buys, and whether a sequence of max_model_len fits the widest group. */
static int size_kv(struct node *n, const struct engine_setup *s, struct limits *l, struct err *e)
{
    size_t budget;
    TRY(holdings_for_kv(n, s, &budget, e));
    if (s->kv_bytes && s->rank_memory && s->kv_bytes > budget)
        return err_set(e, E_FULL,
                       "--kv-cache-memory-bytes %zu: with its weights and working memory a rank has %zu bytes of its "
                       "--rank-memory left",
                       s->kv_bytes, budget);
    budget = s->kv_bytes ? s->kv_bytes : budget;
    n->kv_block_bytes = rank_kv_block_bytes(n->ranks[0]);
    if (!n->kv_block_bytes)
        return err_set(e, E_UNSUPPORTED, "--device %s cannot cache heads of %d elements as %s", s->ops->name,
                       n->heads.head_dim, dtype_get(s->kv_dtype)->name);
    size_t blocks = budget / n->kv_block_bytes;
    n->n_blocks = blocks > 1 << 24 ? 1 << 24 : (int)blocks;
    int tpb = most_tokens_per_block(&n->shape), context = model_config(s->model)->context;
    int64_t capacity = (int64_t)n->n_blocks * tpb;
    bool chosen = l->max_model_len > 0;
    if (!chosen)
        l->max_model_len = capacity < context ? (int)capacity : context;
    if (capacity < LEAST_TOKENS)
        return err_set(e, E_FULL,
                       "the KV cache would have %zu bytes for each rank, and the least that serves is %zu (a block of "
                       "%d tokens); all of the model's %d tokens take %.1f MiB: "
                       "raise --kv-cache-memory-bytes (or --gpu-memory-utilization)",
                       budget, n->kv_block_bytes, tpb, context,
                       (double)((context + tpb - 1) / tpb) * (double)n->kv_block_bytes / 0x1p20);
    if (l->max_model_len < LEAST_TOKENS)
        return err_set(e, E_INPUT, "--max-model-len %d: use at least %d", l->max_model_len, LEAST_TOKENS);
    if (l->max_model_len > capacity) {
        double need = (double)((l->max_model_len + tpb - 1) / tpb) * (double)n->kv_block_bytes / 0x1p20;
        return err_set(
            e, E_FULL,
            "max-model-len %d needs %.1f MiB of KV cache, %.1f MiB available: lower --max-model-len to %lld or raise "
            "--kv-cache-memory-bytes (or --gpu-memory-utilization)",
            l->max_model_len, need, (double)budget / 0x1p20, (long long)capacity);
    }
    if (!chosen && l->max_model_len < context && !s->quiet)
        log_warn("node",
                 "A request may have %d tokens, of the model's %d: the KV cache holds no more. All of them take "
                 "--kv-cache-memory-bytes %lldMiB",
                 l->max_model_len, context,
                 (long long)(((size_t)(context + tpb - 1) / (size_t)tpb * n->kv_block_bytes + (1 << 20) - 1) >> 20));
    return 0;
}

/* Blocks as the ranks have them, of all heads and layers: so any rank copies its part there as it is. */
static int open_host(struct node *n, const struct engine_setup *s, struct err *e)
{
    if (!s->host_kv_bytes)
        return 0;
    if (n->n_ranks == MAX_RANKS)
        return err_set(e, E_INPUT, "--host-kv-memory is for at most %d ranks", MAX_RANKS - 1);
    size_t blocks = s->host_kv_bytes / n->kv_block_bytes;
    if (blocks < 1)
        return err_set(e, E_INPUT, "--host-kv-memory %zu: a block of %d tokens takes %zu bytes", s->host_kv_bytes,
                       s->block_size, n->kv_block_bytes);
    n->host = *rank_kv(n->ranks[0], 1);
    n->host.n_blocks = blocks > 1 << 24 ? 1 << 24 : (int)blocks;
    n->host.base = s->ops->alloc(rank_device(n->ranks[0]), n->kv_block_bytes * (size_t)n->host.n_blocks);
    if (!n->host.base)
        return err_set(e, E_FULL, "no memory for %.2f GiB of KV: lower --host-kv-memory",
                       (double)n->kv_block_bytes * n->host.n_blocks / 0x1p30);
    if (!s->quiet)
        log_info("node", "Host memory for KV: %d blocks of %zu bytes, %lld tokens", n->host.n_blocks, n->kv_block_bytes,
                 (long long)n->host.n_blocks * s->block_size);
    return 0;
}

const struct kv_space *node_host_kv(const struct node *n)
{
    return n->host.base ? &n->host : NULL;
}

/* A played node is what was recorded of it: nothing is measured or sized here. */
static void adopt(struct node *n, const struct engine_setup *s)
{
    const struct engine_play *play = s->play;
    n->shape = *play->facts->shape;
    allow_stages(&n->shape, s);
    n->heads = play->facts->heads;
    n->n_blocks = play->facts->kv_blocks;
    n->residency = play->facts->residency;
    n->host.n_blocks = play->facts->host_kv_blocks;
    n->kv_block_bytes = play->facts->kv_blocks ? play->facts->kv_bytes / (size_t)play->facts->kv_blocks : 0;
    for (int i = 0; play->comms && i < comm_pool_count(n->comms); i++)
        comm_set_measured(comm_find(n->comms, comm_pool_mask(n->comms, i)), &play->comms[i]);
}

static int check_setup(const struct engine_setup *s, struct err *e)
{
    const struct limits *l = &s->limits;
    if (s->drafter && !s->ops->draft)
        return err_set(e, E_UNSUPPORTED, "a draft model is for --device cpu; %s runs none", s->ops->name);
    if (s->speculator)
        TRY(speculator_fits(s->speculator, model_config(s->model), e));
    if (s->block_size < 16 || s->block_size > 256 || s->block_size % 16)
        return err_set(e, E_INPUT, "--block-size %d: use a multiple of 16 from 16 to 256", s->block_size);
    if (l->max_num_seqs < 1 || l->max_num_seqs > MAX_REQUESTS)
        return err_set(e, E_INPUT, "--max-num-seqs %d: use 1 to %d", l->max_num_seqs, MAX_REQUESTS);
    if (l->max_num_batched_tokens < 1 || l->max_num_batched_tokens > 1 << 20)
        return err_set(e, E_INPUT, "--max-num-batched-tokens %d: use 1 to %d", l->max_num_batched_tokens, 1 << 20);
    if (s->kv_dtype != DT_F16 && s->kv_dtype != DT_BF16 && s->kv_dtype != DT_F32 && s->kv_dtype != DT_F8 &&
        s->kv_dtype != DT_I8)
        return err_set(e, E_INPUT, "--kv-cache-dtype: use auto, f16, bf16, f32, fp8 or int8");
    if (!s->kv_bytes && !(s->memory_share > 0 && s->memory_share < 1))
        return err_set(e, E_INPUT, "--gpu-memory-utilization: use a share above 0 and below 1");
    if (s->n_ranks < 1 || s->n_ranks > MAX_RANKS)
        return err_set(e, E_INPUT, "--ranks %d: use 1 to %d", s->n_ranks, MAX_RANKS);
    if (s->n_ranks > 1 && s->ops->computes && !s->threaded)
        return err_set(e, E_INPUT, "several ranks that compute need threads of their own");
    if (s->start.sp < 0 || s->start.tp < 0 || s->start.pp < 0 || layout_size(s->start) > s->n_ranks)
        return err_set(
            e, E_INPUT,
            "sequence parallel size %d times tensor parallel size %d times pipeline parallel size %d is more "
            "than the %d ranks",
            s->start.sp, s->start.tp, s->start.pp, s->n_ranks);
    if (s->device.sim_weight_pp > 1 && s->start.pp != s->device.sim_weight_pp)
        return err_set(
            e, E_INPUT,
            "--weight-stages %d: each device holds the layers of one stage, so all groups have as many: give "
            "--pipeline-parallel-size %d, too",
            s->device.sim_weight_pp, s->device.sim_weight_pp);
    if (s->sharded && (s->ffn || s->copy_shards || s->device.sim_weight_pp > 1 || s->device.sim_weight_tp > 1))
        return err_set(e, E_INPUT,
                       "--weights sharded cuts the weights by itself, and a reshard changes it: it excludes "
                       "--shift-weights copy, --weight-shares and --weight-stages");
    if (s->sharded && s->n_graph_sizes && s->ops->graph_begin)
        return err_set(e, E_INPUT, "--weights sharded and graphs exclude each other (--enforce-eager)");
    if (s->lockstep && (s->threaded || !s->device.sim_machine))
        return err_set(e, E_INPUT,
                       "groups step together on a simulated machine in virtual time only: give it a hardware and a "
                       "model description");
    if (s->ffn && model_config(s->model)->kv_layers)
        return err_set(
            e, E_UNSUPPORTED,
            "pooled weights are not offered with a SwiftKV model, whose rows do not all go through the layers "
            "past %d: use --weights replicated or sharded",
            model_config(s->model)->kv_layers);
    if (s->ffn && s->ops->computes && s->n_graph_sizes)
        return err_set(e, E_INPUT,
                       "pooled weights and graphs exclude each other: a graph has the addresses of its weights, and "
                       "pooled ones move (--enforce-eager)");
    int context = model_config(s->model)->context;
    if (l->max_model_len > context)
        return err_set(e, E_INPUT, "--max-model-len %d is above the model's context of %d tokens", l->max_model_len,
                       context);
    return 0;
}

/* Rows of a prompt that fills a step. */
static int largest_step(const struct engine_setup *s)
{
    int context = model_config(s->model)->context, rows = s->limits.max_num_batched_tokens;
    return rows < context ? rows : context;
}

static void open_tuning(struct node *n, const struct engine_setup *s)
{
    if (!s->tunes || !s->ops->tuning)
        return;
    n->tuning_ops = s->ops->tuning();
    n->tuning = n->tuning_ops->open(s->tuning_folder, version_full);
}

int node_open(struct node *n, const struct engine_setup *s, struct limits *limits, const struct node_callbacks *c,
              struct err *e)
{
    memset(n, 0, sizeof *n);
    int rc = check_setup(s, e);
    if (!rc)
        open_tuning(n, s);
    if (!rc)
        rc = cuts_begin(n, s, e);
    if (!rc)
        rc = open_ranks(n, s, c, e);
    if (!rc && !s->play)
        rc = cuts_measure(n, s, e);
    if (!rc)
        rc = open_comms(n, s, e);
    if (!rc)
        rc = open_pool(n, s, e);
    if (!rc)
        rc = open_drafter(n, s, e);
    if (!rc)
        rc = s->ops->probe ? node_probe(n, e) : 0;
    if (!rc)
        rc = take_shape(n, s, e);
    if (!rc && s->play)
        adopt(n, s);
    else if (!rc)
        rc = size_kv(n, s, limits, e);
    for (int i = 0; i < n->n_ranks && !rc; i++)
        rc = rank_start(n->ranks[i], n->n_blocks, e);
    if (!rc && !s->play)
        rc = open_host(n, s, e);
    if (!rc)
        rc = prepare_ranks(&(struct prepare_setup){.ranks = n->ranks,
                                                   .comms = n->comms,
                                                   .shape = &n->shape,
                                                   .n_blocks = n->n_blocks,
                                                   .step_rows = s->rehearse ? largest_step(s) : 0,
                                                   .sizes = s->graph_sizes,
                                                   .n_sizes = s->n_graph_sizes,
                                                   .threaded = s->threaded,
                                                   .quiet = s->quiet,
                                                   .tuning_ops = n->tuning_ops,
                                                   .tuning = n->tuning},
                           e);
    if (rc)
        node_close(n);
    else if (!s->quiet)
        holdings_print(n, s);
    return rc;
}

/* The ranks' threads end before the pool, and the pool before the weights that it reads. */
void node_close(struct node *n)
{
    for (int i = 0; i < n->n_ranks; i++)
        rank_stop(n->ranks[i]);
    ffn_pool_close(n->pool);
    drafter_close(n->drafter);
    if (n->host.base)
        rank_release(n->ranks[0], n->host.base);
    for (int i = n->n_ranks - 1; i >= 0; i--) /* the first last: others may use its weights */
        rank_close(n->ranks[i]);
    comm_pool_close(n->comms);
    cuts_free(n);
    if (n->tuning)
        n->tuning_ops->close(n->tuning);
    memset(n, 0, sizeof *n);
}

void node_facts(const struct node *n, const struct engine_setup *s, struct node_facts *out)
{
    const struct device_facts *f = rank_facts(n->ranks[0]);
    if (s->play) {
        *out = *s->play->facts;
        out->shape = &n->shape;
        out->comms = n->comms;
        out->limits = s->limits;
        return;
    }
    *out = (struct node_facts){.n_ranks = n->n_ranks,
                               .memory_bytes = f->memory_bytes,
                               .weight_bytes = holdings_weights(n, 0),
                               .kv_bytes = n->kv_block_bytes * (size_t)n->n_blocks,
                               .kv_blocks = n->n_blocks,
                               .host_kv_blocks = n->host.n_blocks,
                               .tokens_per_block = s->block_size,
                               .shape = &n->shape,
                               .heads = n->heads,
                               .comms = n->comms,
                               .ffn = s->ffn,
                               .residency = n->residency,
                               .limits = s->limits};
    holdings_of_pool(n, &out->ffn_layer_bytes, &out->ffn_freed_bytes);
    out->ffn_replica_blocks = s->ffn ? holdings_replica_blocks(n, s) : 0;
    snprintf(out->model, sizeof out->model, "%s", s->model_name);
    snprintf(out->device, sizeof out->device, "%s", f->name);
}
