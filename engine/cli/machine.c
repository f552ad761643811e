#include "engine/cli/machine.h"

#include <stdlib.h>
#include <string.h>

int machine_devices(const char *text, int devices[MAX_RANKS], int *n, struct err *e)
{
    const char *at = text;
    *n = 0;
    while (at && (*at || *n > 0)) {
        char *end;
        long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index > 63 || (*end && *end != ',') || *n == MAX_RANKS)
            return err_set(e, E_INPUT, "--devices %.40s: use the number of a GPU for each rank, like 0,1 or 0,0", text);
        devices[(*n)++] = (int)index;
        at = *end ? end + 1 : NULL;
    }
    return 0;
}

/* Into a list that stays in descending order, each size once. */
static void add_size(struct engine_setup *s, int rows)
{
    int at = 0;
    while (at < s->n_graph_sizes && s->graph_sizes[at] > rows)
        at++;
    if (at < s->n_graph_sizes && s->graph_sizes[at] == rows)
        return;
    memmove(s->graph_sizes + at + 1, s->graph_sizes + at, (size_t)(s->n_graph_sizes - at) * sizeof(int));
    s->graph_sizes[at] = rows;
    s->n_graph_sizes++;
}

int machine_graphs(const struct opts *o, struct engine_setup *s, struct err *e)
{
    const char *at = o->graph_sizes ? o->graph_sizes : "1,2,4,8,16,32,48,64,96,128";
    s->n_graph_sizes = 0;
    if (o->graph_sizes && !s->ops->graph_begin)
        return err_set(e, E_INPUT, "--cudagraph-capture-sizes is for GPUs: give --device cuda, too");
    while (s->ops->graph_begin && !o->enforce_eager && at) {
        char *end;
        long rows = strtol(at, &end, 10);
        if (end == at || rows < 1 || rows > GRAPH_MOST_ROWS || (*end && *end != ',') || s->n_graph_sizes == GRAPH_SIZES)
            return err_set(e, E_INPUT,
                           "--cudagraph-capture-sizes %.60s: use up to %d numbers from 1 to %d, like 1,2,4,8",
                           o->graph_sizes, GRAPH_SIZES, GRAPH_MOST_ROWS);
        if (o->graph_sizes && rows > s->limits.max_num_batched_tokens)
            return err_set(e, E_INPUT, "--cudagraph-capture-sizes %ld is more than --max-num-batched-tokens %d", rows,
                           s->limits.max_num_batched_tokens);
        if (o->graph_sizes || (rows <= s->limits.max_num_seqs && rows <= s->limits.max_num_batched_tokens))
            add_size(s, (int)rows);
        at = *end ? end + 1 : NULL;
    }
    return 0;
}

int machine_ranks(const struct opts *o, struct engine_setup *s, struct err *e)
{
    int n_devices;
    TRY(machine_devices(o->devices, s->devices, &n_devices, e));
    int sp = o->sp ? (int)o->sp : 1, tp = o->tp ? (int)o->tp : 1, pp = o->pp ? (int)o->pp : 1,
        dp = o->dp ? (int)o->dp : 1;
    bool given = o->sp || o->tp || o->pp || o->dp;
    s->n_ranks = o->ranks ? (int)o->ranks : n_devices && !given ? n_devices : sp * tp * pp * dp;
    if (n_devices && n_devices != s->n_ranks)
        return err_set(e, E_INPUT, "--devices names %d GPUs for %d ranks: name one for each rank", n_devices,
                       s->n_ranks);
    if (o->dp && !o->sp && !o->tp && s->n_ranks % (dp * pp) == 0)
        tp = s->n_ranks / (dp * pp);
    int size = sp * tp * pp;
    if (size * dp > MAX_RANKS || (given && o->dp && size * dp != s->n_ranks) || size > s->n_ranks)
        return err_set(
            e, E_INPUT,
            "data parallel %d times sequence parallel %d times tensor parallel %d times pipeline parallel %d "
            "is not the %d ranks",
            dp, sp, tp, pp, s->n_ranks);
    if (s->n_ranks % size)
        return err_set(e, E_INPUT,
                       "groups of %d ranks (tensor parallel %d times sequence parallel %d times pipeline parallel %d) "
                       "leave %d of the %d ranks idle: --ranks %d or %d",
                       size, tp, sp, pp, s->n_ranks % size, s->n_ranks, s->n_ranks / size * size,
                       (s->n_ranks / size + 1) * size);
    if (given)
        s->start = (struct layout){sp, tp, pp};
    s->copy_shards = strcmp(o->shift_weights, "copy") == 0;
    return 0;
}

/* ---- pooled weights */

static int shares_of(const struct engine_setup *s)
{
    return s->device.sim_weight_tp > 1 ? s->device.sim_weight_tp : 1;
}

static int check_pool(const struct opts *o, int n_layers, const struct engine_setup *s, struct err *e)
{
    static const char *const fine[] = {"pool-owner", "pool-slots", "pool-order", "pool-tile", "link-gbps"};
    bool pooled = !strcmp(o->weights, "pooled");
    for (size_t i = 0; i < sizeof fine / sizeof *fine && !pooled; i++)
        if (opts_given(o, fine[i]))
            return err_set(e, E_INPUT, "--%s says how weights are pooled: give --weights pooled, too", fine[i]);
    if (s->ops->n_devices && o->host_kv)
        return err_set(e, E_UNSUPPORTED, "--host-kv-memory is not offered with --device %s yet", s->ops->name);
    if (s->ops->n_devices && o->rank_memory)
        return err_set(e, E_UNSUPPORTED, "--rank-memory is not offered with --device %s: GPUs have memory of their own",
                       s->ops->name);
    if (opts_given(o, "shard-memory") && strcmp(o->weights, "sharded") != 0)
        return err_set(e, E_INPUT,
                       "--shard-memory is for ranks that hold shares of the weights: give --weights "
                       "sharded, too");
    if (strcmp(o->weights, "sharded") == 0 && s->n_ranks < 2)
        return err_set(e, E_INPUT, "--weights sharded: one rank holds all of them in any case, give --ranks 2 or more");
    if (!pooled)
        return 0;
    if (o->graph_sizes)
        return err_set(e, E_INPUT,
                       "--weights pooled: steps are not captured, since a graph has the addresses of its weights and "
                       "pooled ones move: leave --cudagraph-capture-sizes out");
    if (s->n_ranks < 2)
        return err_set(e, E_INPUT, "--weights pooled: one rank has nobody to share with, give --ranks 2 or more");
    if (s->n_ranks % shares_of(s) || s->n_ranks / shares_of(s) < 2)
        return err_set(e, E_INPUT,
                       "--weights pooled: with --weight-shares %d the owners are groups of %d ranks, and %d ranks are "
                       "not two of them or more",
                       shares_of(s), shares_of(s), s->n_ranks);
    if (s->copy_shards)
        return err_set(e, E_INPUT,
                       "--weights pooled and --shift-weights copy exclude each other: one saves memory for KV, the "
                       "other holds a second copy of the weights");
    if (o->link_gbps > 0 && !s->ops->computes && !s->device.sim_machine)
        return err_set(e, E_INPUT,
                       "--link-gbps: a step of fixed cost crosses no link; describe the machine with --hardware and "
                       "--model");
    if (n_layers > FFN_MAX_LAYERS)
        return err_set(e, E_UNSUPPORTED, "--weights pooled: the model has %d layers, and at most %d can be pooled",
                       n_layers, FFN_MAX_LAYERS);
    if (o->pool_slots < 2)
        return err_set(e, E_INPUT,
                       "--pool-slots %lld: a rank needs at least 2, for the layer in use and the one on its way",
                       (long long)o->pool_slots);
    return 0;
}

static enum ffn_order order_of(const struct opts *o, const struct engine_setup *s)
{
    if (!o->pool_order)
        return o->pool_slots >= s->n_ranks / shares_of(s) ? FFN_SHIFTED : FFN_SLICED;
    return !strcmp(o->pool_order, "shifted") ? FFN_SHIFTED : !strcmp(o->pool_order, "sliced") ? FFN_SLICED : FFN_PLAIN;
}

int machine_pool(const struct opts *o, int n_layers, struct engine_setup *s, struct ffn_setup *pool, struct err *e)
{
    s->host_kv_bytes = (size_t)o->host_kv;
    s->rank_memory = (size_t)o->rank_memory;
    TRY(check_pool(o, n_layers, s, e));
    s->sharded = strcmp(o->weights, "sharded") == 0;
    s->shard_memory = (size_t)o->shard_memory;
    if (s->sharded && !o->graph_sizes)
        s->n_graph_sizes = 0;
    if (strcmp(o->weights, "pooled") != 0)
        return 0;
    s->n_graph_sizes = 0;
    *pool = (struct ffn_setup){.n_ranks = s->n_ranks,
                               .n_layers = n_layers,
                               .n_slots = (int)o->pool_slots,
                               .order = order_of(o, s),
                               .tile_bytes = (size_t)o->pool_tile,
                               .link_gbps = o->link_gbps};
    TRY(ffn_parse_owners(pool, o->pool_owner, e));
    if (ffn_any_shares(pool) && s->device.sim_machine)
        return err_set(e, E_UNSUPPORTED,
                       "--pool-owner: what owners that are groups of ranks cost is not simulated; --weight-shares cuts "
                       "the weights of a described machine");
    s->ffn = s->device.pool = pool;
    return 0;
}

int machine_backend(const struct opts *o, backend_finder *find, const struct backend_ops **out, struct err *e)
{
    const char *name = o->command == CMD_SIMULATE ? "sim" : o->device;
    if (!strcmp(name, "auto")) {
        const struct backend_ops *gpu = find("cuda");
        *out = gpu && gpu->n_devices() > 0 ? gpu : find("cpu");
    } else {
        *out = find(name);
    }
    if (!*out)
        return err_set(
            e, E_UNSUPPORTED,
            "--device %s: this program was built without it; build it where nvcc is found (cmake -DMOONSHIFT_CUDA=on), "
            "or use --device cpu",
            name);
    if (o->cpu_precision && strcmp((*out)->name, "cpu") != 0)
        return err_set(e, E_INPUT, "--cpu-precision %s: --device %s has no such choice; it is for --device cpu",
                       o->cpu_precision, (*out)->name);
    if (o->profile && !(*out)->watch)
        return err_set(e, E_INPUT, "--profile: --device %s keeps no profile of its ops; it is for --device cpu",
                       (*out)->name);
    if (o->devices && !(*out)->n_devices)
        return err_set(e, E_INPUT, "--devices is for GPUs: give --device cuda, too");
    return 0;
}

void machine_spread(const struct opts *o, struct engine_setup *s)
{
    int n = s->ops->n_devices ? s->ops->n_devices() : 0;
    for (int i = 0; i < s->n_ranks && n > 0 && !o->devices; i++)
        s->devices[i] = i % n;
    if (s->ops->n_devices && !opts_given(o, "gpu-memory-utilization"))
        s->memory_share = 0.9;
    s->rehearse = s->ops->n_devices && o->warmup;
}

int machine_read_ranks(const char *text, uint64_t *mask, struct err *e)
{
    const char *at = text;
    *mask = 0;
    for (;;) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end != at && *end == '-') {
            at = end + 1;
            last = strtol(at, &end, 10);
        }
        if (end == at || first < 0 || last < first || last >= MAX_RANKS || (*end && *end != ','))
            return err_set(e, E_INPUT, "--comm-sets %.40s: use ranks like 0-2 or 0,1,2", text);
        for (long r = first; r <= last; r++)
            *mask |= 1ull << r;
        if (!*end)
            return 0;
        at = end + 1;
    }
}
