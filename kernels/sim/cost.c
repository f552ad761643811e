#include "kernels/sim/cost.h"

#include <math.h>

#include "engine/base/check.h"
#include "engine/world/headmap.h"
#include "kernels/sim/pool.h"
#include "kernels/sim/stages.h"

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- a step */

struct run {
    const struct sim_machine *m;
    const struct sim_hardware *h;
    const struct sim_model *c;
    const struct step_size *s;
    struct layout l;
    int g;               /* ranks that share a layer */
    double rows;         /* that each rank multiplies: its slice, padded */
    double q, kv;        /* columns of q, and of k (or v), of a rank's tp share before the exchange */
    int heads, kv_heads; /* of a rank */
};

static int up(int a, int b)
{
    return (a + b - 1) / b;
}

static struct run begin(const struct sim_machine *m, struct layout l, const struct step_size *s)
{
    const struct sim_model *c = &m->model;
    struct run r = {.m = m, .h = &m->hardware, .c = c, .s = s, .l = l, .g = l.sp * l.tp};
    r.rows = up(s->rows, l.sp);
    r.heads = up(c->n_heads, r.g);
    r.kv_heads = up(c->n_kv_heads, r.g);
    r.q = (double)up(c->n_heads, l.tp) * c->head_dim;
    r.kv = (double)up(c->n_kv_heads, l.tp) * c->head_dim;
    return r;
}

static double product(const struct run *r, double rows, double n, double k)
{
    return cost_gemm(r->m, r->c->linear_bits, rows, n, k);
}

/* What of a layer: its keys and values, and all else. They are of other rows in SwiftKV's later layers. */
enum { KV = 1, REST = 2, ALL = KV | REST };

/* *ffn: the part of the last two. */
static double linear(const struct run *r, int what, double *ffn)
{
    double h = r->c->hidden, inner = up(r->c->intermediate, r->l.tp);
    double qkv = product(r, r->rows, (what & REST ? r->q : 0) + (what & KV ? 2 * r->kv : 0), h);
    *ffn = 0;
    if (what == KV)
        return qkv;
    double o = product(r, r->rows, h, r->q);
    double in = product(r, r->rows, 2 * inner, h), out = product(r, r->rows, h, inner);
    *ffn = in + out;
    return qkv + o + in + out;
}

/* Rows of a layer's small kernels, with the bytes each row has read and written. The two norms are whole in every tp
 * share. */
static double elementwise(const struct run *r, int what)
{
    double h = what == KV ? r->c->hidden / 2.0 : r->c->hidden, ffn = what & REST ? up(r->c->intermediate, r->l.tp) : 0;
    double q = what & REST ? r->q : 0, kv = what & KV ? r->kv : 0, bytes = 16 * h;
    double kernels = what == ALL ? 5 : what == KV ? 3 : 4; /* norms, rope, kv write, activation */
    bytes += 4 * (q + kv) + 4 * kv + 6 * ffn;
    if (r->c->qk_norm) {
        bytes += 4 * (q + kv);
        kernels += what == ALL ? 2 : 1;
    }
    if (r->c->linear_bits == 8 &&
        !r->m->tables.of[TABLE_GEMM_FP8].n_axes) { /* a measured GEMM includes the conversion of its input */
        bytes += 3 * (2 * h / r->l.tp + q + ffn);
        kernels += what == KV ? 1 : 4;
    }
    if (r->l.sp > 1) /* packing and unpacking around the two exchanges */
        bytes += 8 * (2 * q + 2 * kv);
    return bytes * r->rows / (r->h->memory_rate * r->h->elementwise_share) * 1e9 + kernels * r->h->elementwise_fixed;
}

static double attention(const struct run *r)
{
    const struct step_size *s = r->s;
    int decodes = s->n_seqs - s->n_chunks;
    double seen = s->looked_at - s->chunk_looked_at, t = 0;
    if (s->n_seqs == 0)
        return 0;
    if (s->n_chunks)
        t += cost_prefill_attention(r->m, s->n_chunks, s->chunk_rows, s->chunk_looked_at, r->heads, r->kv_heads);
    if (decodes)
        t += cost_decode_attention(r->m, decodes, seen, r->heads, r->kv_heads);
    bool measured = r->m->tables.of[TABLE_DECODE_BF16].n_axes; /* launches included */
    return measured ? t : t + r->h->attention_fixed;
}

/* Two all-to-alls: q, k and v there (kv heads copied where there are fewer of them than ranks), attention back. Of k
 * and v alone the second is the wait until they have been taken. */
static double exchanges(const struct run *r, int what, bool graph)
{
    double kv = what & KV ? most(r->kv, (double)r->c->head_dim * r->l.sp) : 0, q = what & REST ? r->q : 0;
    if (r->l.sp == 1)
        return 0;
    return cost_all_to_all(r->m, r->l.sp, r->rows * (q + 2 * kv) * 2) +
           cost_all_to_all(r->m, r->l.sp, r->rows * q * 2) + (graph ? 0 : 2 * r->h->eager_exchange);
}

/* The rows that give a token: all-gather of the hidden states, product with the share of the vocabulary, sampling. */
static double head(const struct run *r, int weight_shares)
{
    double shares = r->h->head_on_base ? weight_shares : r->g;
    double rows = r->c->kv_layers ? up(r->s->n_logits, r->l.sp) : r->rows;
    double t = r->l.sp > 1 ? cost_all_gather(r->m, r->l.sp, rows * r->l.sp * r->c->hidden * 2) : 0;
    if (r->s->n_logits == 0)
        return t;
    return t + cost_gemm(r->m, r->c->head_bits, r->s->n_logits, r->c->vocab / shares, r->c->hidden) + r->h->sampler;
}

static double host(const struct run *r)
{
    const struct sim_hardware *h = r->h;
    return h->host_step + (layout_size(r->l) > 1 ? h->host_ranks : 0) + h->host_sequence * r->s->n_seqs +
           h->host_prefill_row * r->s->chunk_rows;
}

/* What is priced from now on happens this many times in the step. */
static void happens(const struct sim_machine *m, double times)
{
    if (m->outside)
        m->outside->times = times;
}

static bool captured(const struct run *r)
{
    return r->s->rows <= r->h->graph_rows;
}

/* ---- pooled weights */

static double link_rate(const struct run *r, const struct ffn_setup *pool)
{
    return pool->link_gbps > 0 ? pool->link_gbps * 1e9 : r->h->link_rate * r->h->link_share;
}

double cost_ffn_bytes(const struct sim_model *c, int shares)
{
    return 3.0 * c->hidden * c->intermediate * (c->linear_bits / 8) / shares;
}

static double fused(const struct run *r, double rows)
{
    double h = r->c->hidden, inner = up(r->c->intermediate, r->l.tp);
    return product(r, rows, 2 * inner, h) + product(r, rows, h, inner);
}

/* The FFN of a layer whose rows go to its owner: the rows there, one product over those of all who send, the results
 * back. Ranks that keep pace end it together, but for an owner that has only one other's rows to wait for: it is ahead
 * in its own layer, and behind in the other's. */
static void serve(const struct run *r, const struct pool_sight *p, struct pool_pace *t)
{
    bool graph = captured(r);
    double row = r->rows * r->c->hidden * 2, rows = p->busy * r->rows;
    double ship = r->h->exchange_alpha + pool_senders(p) * row / link_rate(r, p->setup) * 1e9;
    double more = cost_all_reduce(r->m, r->l.tp, p->busy * row, graph) - cost_all_reduce(r->m, r->l.tp, row, graph);
    double products = fused(r, rows) + more;
    t->served_here = products + (p->busy > 2 ? 2 * ship : 0);
    t->served = products + 2 * ship;
}

/* Once everything else of the step is known. each: of the layers, or NULL. */
static void pool_parts(const struct run *r, const struct pool_sight *p, struct step_cost *c,
                       struct sim_pool_layer *each)
{
    double layers = r->c->n_layers,
           whole = c->linear + c->attention + c->reduce + c->exchange + c->elementwise + c->launch;
    struct pool_pace t = {.ffn = c->ffn / layers, .before = (whole - c->ffn) / layers};
    c->fetched_bytes = cost_ffn_bytes(r->c, p->shares > r->l.tp ? p->shares : r->l.tp);
    t.fetch = pool_readers(p) * c->fetched_bytes / link_rate(r, p->setup) * 1e9;
    t.cas_layers = r->s->cas_layers < p->setup->n_layers ? r->s->cas_layers : p->setup->n_layers;
    t.replica_layers = r->s->replica_layers < p->setup->n_layers - t.cas_layers ? r->s->replica_layers
                                                                                : p->setup->n_layers - t.cas_layers;
    if (t.cas_layers > 0) {
        happens(r->m, t.cas_layers);
        serve(r, p, &t);
        c->service = pool_cas_layers(p, t.cas_layers, true) * (t.served_here - t.ffn) +
                     pool_cas_layers(p, t.cas_layers, false) * (t.served - t.ffn);
    }
    t.between = c->head + (r->h->host_overlaps ? most(0, c->host - whole - c->head - c->service) : c->host);
    c->wait = pool_wait(p, &t, each);
    c->sent = pool_cas_layers(p, t.cas_layers, false);
    c->fetched = 0;
    for (int l = t.replica_layers; l < p->setup->n_layers - t.cas_layers; l++)
        c->fetched += !pool_is_own(p, l);
    c->fetch = t.fetch * c->fetched;
}

struct ffn_cost cost_ffn(const struct sim_machine *m, const struct step_size *s, const struct step_cost *c)
{
    uint64_t rows = (uint64_t)s->rows * (uint64_t)c->sent;
    return (struct ffn_cost){.wait_ns = (int64_t)c->wait,
                             .fetch_ns = (int64_t)c->fetch,
                             .was_bytes = (uint64_t)(c->fetched * c->fetched_bytes),
                             .cas_rows = rows,
                             .cas_bytes = rows * (uint64_t)m->model.hidden * 4};
}

/* ---- one stage, and all of them */

/* What so many layers take. graph: the step is captured. */
static void add_layers(struct step_cost *c, const struct run *r, double layers, int what, bool graph)
{
    double ffn;
    if (layers == 0 || r->s->rows == 0)
        return;
    happens(r->m, layers);
    c->linear += layers * linear(r, what, &ffn);
    c->ffn += layers * ffn;
    c->exchange += layers * exchanges(r, what, graph);
    c->elementwise += layers * elementwise(r, what);
    if (what & REST) {
        c->attention += layers * attention(r);
        happens(r->m, 2 * layers);
        c->reduce += layers * 2 * cost_all_reduce(r->m, r->l.tp, r->rows * r->c->hidden * 2, graph);
    }
    happens(r->m, 1);
}

/* The logit rows of a step, as sequences of a row each: decodes, and of the chunks their last rows, unless all rows of
 * chunks give logits. Chunks are taken as even. */
static struct step_size logit_rows_of(const struct step_size *s)
{
    struct step_size x = *s;
    int decodes = s->n_seqs - s->n_chunks, last = s->n_logits - decodes;
    if (s->n_logits >= s->rows)
        return x;
    double seen = s->looked_at - s->chunk_looked_at;
    if (last < 0)
        seen = seen * s->n_logits / decodes;
    if (last > 0)
        seen += last * (s->chunk_looked_at / s->chunk_rows + ((double)s->chunk_rows / s->n_chunks - 1) / 2);
    x.rows = x.n_seqs = s->n_logits;
    x.n_chunks = x.chunk_rows = 0;
    x.looked_at = seen;
    x.chunk_looked_at = 0;
    return x;
}

/* Of a SwiftKV model: all rows go through the layers before kv_layers, and are cached in all. */
static struct step_cost layers_cost(const struct run *r, struct layer_span layers)
{
    struct step_cost c = {0};
    bool graph = captured(r);
    int end = layers.first + layers.n, own = r->c->kv_layers ? r->c->kv_layers : end;
    int whole = own < layers.first ? 0 : own < end ? own - layers.first : layers.n;
    add_layers(&c, r, whole, ALL, graph);
    if (whole < layers.n) {
        struct step_size s = logit_rows_of(r->s);
        struct run part = begin(r->m, r->l, &s);
        add_layers(&c, r, layers.n - whole, KV, graph);
        add_layers(&c, &part, layers.n - whole, REST, graph);
    }
    return c;
}

static double launch(const struct run *r, const struct step_cost *c, double layers)
{
    double device = c->linear + c->attention + c->reduce + c->exchange + c->elementwise;
    return captured(r) ? 0 : most(0, layers * r->h->eager_layer - device);
}

static double on_device(const struct step_cost *c)
{
    double layers = c->linear + c->attention + c->reduce + c->exchange + c->elementwise;
    return layers + (c->launch + c->head + c->wait + c->service + c->send);
}

/* Each rank sends its slice of the rows to the rank that has its place in the next stage. SwiftKV's logit rows go by
 * themselves once they are ahead of the others. */
static double send(const struct run *r, int end)
{
    double alpha = r->h->exchange_alpha, rate = r->h->link_rate * r->h->link_share;
    double t = alpha + r->rows * r->c->hidden * 2 / rate * 1e9;
    if (r->c->kv_layers && r->c->kv_layers < end && r->s->n_logits > 0)
        t += alpha + (double)up(r->s->n_logits, r->l.sp) * r->c->hidden * 2 / rate * 1e9;
    return t;
}

static struct step_cost stage_cost(const struct run *r, int weight_shares, int stage)
{
    struct layer_span layers = stage_layers(r->c->n_layers, r->l.pp, stage);
    struct step_cost c = layers_cost(r, layers);
    c.launch = launch(r, &c, layers.n);
    if (stage == r->l.pp - 1)
        c.head = head(r, weight_shares);
    else
        c.send = send(r, layers.first + layers.n);
    c.total = on_device(&c);
    return c;
}

struct step_cost cost_stage(const struct sim_machine *m, struct layout l, const struct step_size *s, int stage,
                            int micro)
{
    struct step_size part = stages_micro_batch(s, step_size_micro(s, l), micro);
    struct run r = begin(m, l, &part);
    return stage_cost(&r, 1, stage);
}

static void add(struct step_cost *sum, const struct step_cost *c, double times)
{
    sum->linear += times * c->linear;
    sum->ffn += times * c->ffn;
    sum->attention += times * c->attention;
    sum->reduce += times * c->reduce;
    sum->exchange += times * c->exchange;
    sum->elementwise += times * c->elementwise;
    sum->head += times * c->head;
    sum->send += times * c->send;
    sum->launch += times * c->launch;
    sum->total += times * c->total;
}

/* A micro-batch in the stages of three kinds: the last, and before it those with a layer more and those without. */
struct passage {
    struct step_size size;
    struct step_cost first, last;
    double before_last; /* all stages but the last */
};

static struct passage pass(const struct sim_machine *m, struct layout l, int weight_shares, struct step_size size)
{
    struct passage p = {.size = size};
    struct run r = begin(m, l, &p.size);
    int more = m->model.n_layers % l.pp;
    p.first = stage_cost(&r, weight_shares, 0);
    p.last = stage_cost(&r, weight_shares, l.pp - 1);
    double other = more && more < l.pp - 1 ? stage_cost(&r, weight_shares, more).total : 0;
    p.before_last = more ? more * p.first.total + (l.pp - 1 - more) * other : (l.pp - 1) * p.first.total;
    if (m->model.kv_layers) { /* stages of one size differ */
        p.before_last = 0;
        for (int i = 0; i < l.pp - 1; i++)
            p.before_last += stage_cost(&r, weight_shares, i).total;
    }
    return p;
}

static bool same_size(const struct step_size *a, const struct step_size *b)
{
    return a->rows == b->rows && a->n_seqs == b->n_seqs && a->chunk_rows == b->chunk_rows && a->n_logits == b->n_logits;
}

/* The slowest stage, the first or the last, is never without work once it has some: before that micro-batches come to
 * it, and after it the last one leaves. */
static struct step_cost pipeline(const struct sim_machine *m, struct layout l, int weight_shares,
                                 const struct step_size *s)
{
    struct step_cost first = {0}, last = {0};
    struct passage p = {0};
    int n = step_size_micro(s, l);
    for (int i = 0, same = 0; i < n; i += same) {
        struct step_size part = stages_micro_batch(s, n, i), next = part;
        for (same = 0; i + same < n && same_size(&part, &next); same++)
            next = stages_micro_batch(s, n, i + same + 1 < n ? i + same + 1 : i);
        p = pass(m, l, weight_shares, part);
        if (i == 0)
            last.bubble = p.before_last;
        add(&first, &p.first, same);
        add(&last, &p.last, same);
    }
    first.bubble = p.before_last - p.first.total + p.last.total;
    return first.total + first.bubble > last.total + last.bubble ? first : last;
}

static struct step_cost parts(const struct sim_machine *m, struct layout l, struct sim_weights w,
                              const struct step_size *s, struct sim_pool_layer *pooled)
{
    struct run r = begin(m, l, s);
    struct pool_sight pool = pool_look(&w, s->pool_ranks);
    struct step_cost c;
    int shares = w.shares > 1 ? w.shares : 1;
    ASSERT(l.pp == 1 || !pool.setup);
    if (l.pp > 1) {
        c = pipeline(m, l, shares, s);
    } else {
        c = layers_cost(&r, (struct layer_span){0, r.c->n_layers});
        c.head = head(&r, shares);
        c.launch = launch(&r, &c, r.c->n_layers);
    }
    c.host = host(&r);
    if (pool.setup)
        pool_parts(&r, &pool, &c, pooled);
    double device = on_device(&c) + c.bubble;
    c.total = r.h->host_overlaps ? most(device, c.host) : device + c.host;
    return c;
}

struct step_cost cost_parts(const struct sim_machine *m, struct layout l, struct sim_weights w,
                            const struct step_size *s)
{
    return parts(m, l, w, s, NULL);
}

int cost_pool(const struct sim_machine *m, struct layout l, struct sim_weights w, const struct step_size *s,
              struct sim_pool_layer *layers)
{
    if (!pool_look(&w, s->pool_ranks).setup)
        return 0;
    parts(m, l, w, s, layers);
    return m->model.n_layers;
}

struct step_cost cost_noted(const struct sim_machine *m, struct layout l, struct sim_weights w,
                            const struct step_size *s, struct sim_outside *sum)
{
    if (!sum)
        return cost_parts(m, l, w, s);
    struct sim_machine noting = *m;
    noting.outside = sum;
    struct step_cost c = cost_parts(&noting, l, w, s);
    sum->total_ns += c.total;
    return c;
}

int64_t cost_step(const struct sim_machine *m, struct layout l, struct sim_weights w, const struct step_size *s)
{
    return (int64_t)(cost_parts(m, l, w, s).total + 0.5);
}

/* ---- everything else */

int64_t cost_layer_copy(const struct sim_machine *m, struct sim_weights w)
{
    struct pool_sight p = pool_look(&w, 1);
    if (!p.setup)
        return 0;
    struct run r = begin(m, (struct layout){1, 1, 1}, &(struct step_size){.rows = 1});
    return (int64_t)((p.n_owners - 1) * cost_ffn_bytes(r.c, p.shares) / link_rate(&r, p.setup) * 1e9);
}

static double kv_bytes(const struct sim_machine *m, int64_t tokens, int64_t heads)
{
    return (double)tokens * (double)heads * m->model.head_dim * 2 * (m->model.kv_bits / 8);
}

int64_t cost_move(const struct sim_machine *m, int64_t tokens, int64_t heads, bool far)
{
    const struct sim_hardware *h = &m->hardware;
    double rate = far ? h->link_rate * h->link_share : h->memory_rate * h->elementwise_share / 2;
    return (int64_t)(kv_bytes(m, tokens, heads) / rate * 1e9 + 0.5);
}

int64_t cost_swap(const struct sim_machine *m, int64_t tokens, int64_t heads)
{
    const struct sim_hardware *h = &m->hardware;
    return (int64_t)(kv_bytes(m, tokens, heads) / (h->host_link_rate * h->link_share) * 1e9 + 0.5);
}

int64_t cost_host_copy(const struct sim_machine *m, double bytes)
{
    const struct sim_hardware *h = &m->hardware;
    return (int64_t)(bytes / (h->host_link_rate * h->link_share) * 1e9 + 0.5);
}

int64_t cost_switch(const struct sim_machine *m)
{
    return (int64_t)(m->hardware.switch_fixed + 0.5);
}

int64_t cost_front(const struct sim_machine *m)
{
    return (int64_t)(m->hardware.front + 0.5);
}

static double linear_weights(const struct sim_model *c, int layers)
{
    double qkv = ((double)c->n_heads + 2.0 * c->n_kv_heads) * c->head_dim * c->hidden,
           o = (double)c->n_heads * c->head_dim * c->hidden;
    return (qkv + o + 3.0 * c->hidden * c->intermediate) * layers * (c->linear_bits / 8);
}

double cost_weight_bytes(const struct sim_model *c, struct sim_weights w)
{
    double table = (double)c->vocab * c->hidden * (c->head_bits / 8);
    int shares = w.shares > 1 ? w.shares : 1, stages = w.stages > 1 ? w.stages : 1;
    if (stages > 1) /* the first stage has the embedding and no fewer layers than the last, which has the head */
        return (linear_weights(c, stages_share(c->n_layers, stages, 0)) + table) / shares;
    return (linear_weights(c, c->n_layers) + table * (c->tied ? 1 : 2)) / shares -
           pool_saved_bytes(&w, cost_ffn_bytes(c, shares));
}

double cost_layers_bytes(const struct sim_model *c)
{
    return linear_weights(c, c->n_layers);
}

double cost_copy_bytes(const struct sim_model *c, int n)
{
    return n > 1 ? linear_weights(c, c->n_layers) / n : 0;
}
