#include "kernels/sim/cost.h"

#include <math.h>

#include "engine/base/check.h"
#include "kernels/sim/pool.h"
#include "kernels/sim/stages.h"

static double most(double a, double b)
{
    return a > b ? a : b;
}

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* (a^3.5 + b^3.5)^(1/3.5), a smooth roofline: measured kernels (Llama-2-70B's GEMMs on H100) go from memory-bound to
 * compute-bound along such a curve. With s = (least/most)^3.5 the rest is (1 + s)^(2/7), which is nearly straight:
 * sixteen linear pieces are exact to 1e-5. */
static double smooth_max(double a, double b)
{
    static const double root[] = {1.0,           1.0174722045,  1.03422493995, 1.05032545513, 1.06583155827,
                                  1.08079334188, 1.09525452625, 1.10925351925, 1.12282426199, 1.1359969106,
                                  1.14879839109, 1.16125285494, 1.17338205605, 1.18520566501, 1.19674153282,
                                  1.20800591368, 1.2190136542};
    enum { PIECES = sizeof root / sizeof *root - 1 };
    double hi = most(a, b), r = hi > 0 ? least(a, b) / hi : 0, s = r * r * r * sqrt(r) * PIECES;
    int i = (int)s < PIECES ? (int)s : PIECES - 1;
    return hi * (root[i] + (s - i) * (root[i + 1] - root[i]));
}

/* A value for groups of 2, 4 and 8, between and beyond them along straight lines, not past the ends. */
static double by_group(const double v[SIM_GROUPS], int g)
{
    if (g <= 2)
        return v[0];
    if (g <= 4)
        return v[0] + (v[1] - v[0]) * (g - 2) / 2;
    return g >= 8 ? v[2] : v[1] + (v[2] - v[1]) * (g - 4) / 4;
}

/* ---- kernels. With a table: the roofline of the peaks plus a fixed time, times the measured utilisation. */

static double noted(const struct sim_machine *m, enum sim_table_kind kind, const double *x, double ns)
{
    if (m->outside)
        sim_outside_note(m->outside, &m->tables, kind, x, ns);
    return ns;
}

/* Past the last point of an axis the time is extrapolated linearly from the last two points; `ends` are the times at
 * these. On held-out rows this is closer than keeping the last utilisation for decode attention and FP8 GEMMs, and for
 * no other kernel (models/hardware/README.md). */
static double beyond(const struct sim_table *t, int axis, const double ends[2], double x)
{
    const double *last = &t->axis[axis][t->size[axis] - 1];
    return ends[1] + most(0, ends[1] - ends[0]) / (last[0] - last[-1]) * (x - last[0]);
}

static bool is_beyond(const struct sim_table *t, int axis, double x)
{
    return t->size[axis] > 1 && x > t->axis[axis][t->size[axis] - 1];
}

static double gemm_in_grid(const struct sim_machine *m, int bits, double rows, double n, double k)
{
    const struct sim_hardware *h = &m->hardware;
    const struct sim_table *t = &m->tables.of[bits == 8 ? TABLE_GEMM_FP8 : TABLE_GEMM_BF16];
    double peak = bits == 8 ? h->fp8_peak : h->bf16_peak, w = bits / 8;
    double roof = most(2 * rows * n * k / peak, ((n * k + rows * k) * w + rows * n * 2) / h->memory_rate);
    return (roof * 1e9 + 4000) * sim_table_at(t, (double[]){n, k, rows});
}

double cost_gemm(const struct sim_machine *m, int bits, double rows, double n, double k)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = bits == 8 ? TABLE_GEMM_FP8 : TABLE_GEMM_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double peak = bits == 8 ? h->fp8_peak : h->bf16_peak, share = bits == 8 ? h->fp8_share : h->bf16_share,
           w = bits / 8;
    if (t->n_axes && bits == 8 && is_beyond(t, 2, rows)) {
        const double *last = &t->axis[2][t->size[2] - 1],
                     ends[2] = {gemm_in_grid(m, bits, last[-1], n, k), gemm_in_grid(m, bits, last[0], n, k)};
        return noted(m, kind, (double[]){n, k, rows}, beyond(t, 2, ends, rows));
    }
    if (t->n_axes)
        return noted(m, kind, (double[]){n, k, rows}, gemm_in_grid(m, bits, rows, n, k));
    double bytes = n * k * w / (h->memory_rate * h->gemm_memory_share), flop = 2 * rows * n * k / (peak * share);
    return smooth_max(bytes, flop) * 1e9 + h->gemm_fixed;
}

double cost_prefill_attention(const struct sim_machine *m, double n, double rows, double looked_at, int heads,
                              int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = m->model.kv_bits == 8 ? TABLE_PREFILL_FP8 : TABLE_PREFILL_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double dim = m->model.head_dim, flop = 4 * looked_at * heads * dim;
    if (t->n_axes) { /* a chunk with a past: as the whole prompt that has as much to look at */
        double roof = flop / (h->bf16_peak * 0.65) + rows * (heads + kv_heads) * 2 * dim * 2 / h->memory_rate;
        const double x[] = {dim, (double)heads / kv_heads, sqrt(2 * looked_at / n), n, heads};
        return noted(m, kind, x, (roof * 1e9 + 6000) * sim_table_at(t, x));
    }
    return flop / (h->bf16_peak * h->prefill_share) * 1e9;
}

static double decode_in_grid(const struct sim_machine *m, double n, double looked_at, int heads, int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    const struct sim_table *t = &m->tables.of[m->model.kv_bits == 8 ? TABLE_DECODE_FP8 : TABLE_DECODE_BF16];
    double dim = m->model.head_dim, bytes = looked_at * kv_heads * dim * 2 * (m->model.kv_bits / 8);
    double roof = most(bytes / h->memory_rate, 4 * looked_at * heads * dim / h->bf16_peak);
    return (roof * 1e9 + 8000) * sim_table_at(t, (double[]){dim, looked_at / n, n * kv_heads});
}

double cost_decode_attention(const struct sim_machine *m, double n, double looked_at, int heads, int kv_heads)
{
    const struct sim_hardware *h = &m->hardware;
    enum sim_table_kind kind = m->model.kv_bits == 8 ? TABLE_DECODE_FP8 : TABLE_DECODE_BF16;
    const struct sim_table *t = &m->tables.of[kind];
    double dim = m->model.head_dim, each = looked_at / n;
    const double x[] = {dim, each, n * kv_heads};
    if (t->n_axes && is_beyond(t, 2, x[2])) {
        const double *last = &t->axis[2][t->size[2] - 1];
        const double n0 = last[-1] / kv_heads, n1 = last[0] / kv_heads;
        const double ends[2] = {decode_in_grid(m, n0, n0 * each, heads, kv_heads),
                                decode_in_grid(m, n1, n1 * each, heads, kv_heads)};
        return noted(m, kind, x, beyond(t, 2, ends, x[2]));
    }
    if (t->n_axes)
        return noted(m, kind, x, decode_in_grid(m, n, looked_at, heads, kv_heads));
    double bytes = looked_at * kv_heads * dim * 2 * (m->model.kv_bits / 8);
    return bytes / (h->memory_rate * h->kv_read_share) * 1e9;
}

static double collective(const struct sim_machine *m, enum sim_table_kind kind, const double x[2], double wire,
                         double by_formula)
{
    const struct sim_table *t = &m->tables.of[kind];
    return noted(m, kind, x, t->n_axes ? (wire / 450e9 * 1e9 + 5000) * sim_table_at(t, x) : by_formula);
}

double cost_all_reduce(const struct sim_machine *m, int g, double bytes, bool graph)
{
    const struct sim_hardware *h = &m->hardware;
    double wire = 2.0 * (g - 1) / g * bytes / m->link_scale,
           formula = h->reduce_alpha + wire / by_group(h->reduce_rate, g) * 1e9;
    if (g < 2)
        return 0;
    if (bytes <= h->small_bytes)
        formula = by_group(h->small_alpha, g) + wire / by_group(h->small_rate, g) * 1e9;
    return collective(m, graph ? TABLE_REDUCE : TABLE_REDUCE_EAGER, (double[]){g, bytes}, wire, formula);
}

static double exchange(const struct sim_machine *m, enum sim_table_kind kind, int g, double bytes)
{
    double wire = (g - 1.0) / g * bytes;
    return g < 2 ? 0
                 : collective(m, kind, (double[]){g, bytes}, wire,
                              m->hardware.exchange_alpha + wire / m->hardware.exchange_rate * 1e9);
}

double cost_all_to_all(const struct sim_machine *m, int g, double bytes)
{
    return exchange(m, TABLE_ALL_TO_ALL, g, bytes);
}

double cost_all_gather(const struct sim_machine *m, int g, double bytes)
{
    return exchange(m, TABLE_ALL_GATHER, g, bytes);
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

/* *ffn: the part of the last two. */
static double linear(const struct run *r, double *ffn)
{
    double h = r->c->hidden, inner = up(r->c->intermediate, r->l.tp);
    double qkv = product(r, r->rows, r->q + 2 * r->kv, h), o = product(r, r->rows, h, r->q);
    double in = product(r, r->rows, 2 * inner, h), out = product(r, r->rows, h, inner);
    *ffn = in + out;
    return qkv + o + in + out;
}

/* Rows of a layer's small kernels, with the bytes each row has read and written. The two norms are whole in every tp
 * share. */
static double elementwise(const struct run *r)
{
    double h = r->c->hidden, ffn = up(r->c->intermediate, r->l.tp), bytes = 16 * h,
           kernels = 5; /* norms, rope, kv write, activation */
    bytes += 4 * (r->q + r->kv) + 4 * r->kv + 6 * ffn;
    if (r->c->qk_norm) {
        bytes += 4 * (r->q + r->kv);
        kernels += 2;
    }
    if (r->c->linear_bits == 8 &&
        !r->m->tables.of[TABLE_GEMM_FP8].n_axes) { /* a measured GEMM includes the conversion of its input */
        bytes += 3 * (2 * h / r->l.tp + r->q + ffn);
        kernels += 4;
    }
    if (r->l.sp > 1) /* packing and unpacking around the two exchanges */
        bytes += 8 * (2 * r->q + 2 * r->kv);
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

/* Two all-to-alls: q, k and v there (kv heads copied where there are fewer of them than ranks), attention back. */
static double exchanges(const struct run *r, bool graph)
{
    double kv = most(r->kv, (double)r->c->head_dim * r->l.sp);
    if (r->l.sp == 1)
        return 0;
    return cost_all_to_all(r->m, r->l.sp, r->rows * (r->q + 2 * kv) * 2) +
           cost_all_to_all(r->m, r->l.sp, r->rows * r->q * 2) + (graph ? 0 : 2 * r->h->eager_exchange);
}

/* The rows that give a token: all-gather of the hidden states, product with the share of the vocabulary, sampling. */
static double head(const struct run *r, int weight_shares)
{
    double shares = r->h->head_on_base ? weight_shares : r->g;
    double t = r->l.sp > 1 ? cost_all_gather(r->m, r->l.sp, r->rows * r->l.sp * r->c->hidden * 2) : 0;
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

/* What so many layers take. */
static struct step_cost layers_cost(const struct run *r, double layers)
{
    struct step_cost c = {0};
    bool graph = captured(r);
    happens(r->m, layers);
    c.linear = layers * linear(r, &c.ffn);
    c.ffn *= layers;
    c.attention = layers * attention(r);
    c.exchange = layers * exchanges(r, graph);
    c.elementwise = layers * elementwise(r);
    happens(r->m, 2 * layers);
    c.reduce = layers * 2 * cost_all_reduce(r->m, r->l.tp, r->rows * r->c->hidden * 2, graph);
    happens(r->m, 1);
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

/* Each rank sends its slice of the rows to the rank that has its place in the next stage. */
static double send(const struct run *r)
{
    return r->h->exchange_alpha + r->rows * r->c->hidden * 2 / (r->h->link_rate * r->h->link_share) * 1e9;
}

static struct step_cost stage_cost(const struct run *r, int weight_shares, int stage)
{
    int layers = stages_share(r->c->n_layers, r->l.pp, stage);
    struct step_cost c = layers_cost(r, layers);
    c.launch = launch(r, &c, layers);
    if (stage == r->l.pp - 1)
        c.head = head(r, weight_shares);
    else
        c.send = send(r);
    c.total = on_device(&c);
    return c;
}

struct step_cost cost_stage(const struct sim_machine *m, struct layout l, const struct step_size *s, int stage,
                            int micro)
{
    struct step_size part = stages_micro_batch(s, stages_micro_batches(s, l), micro);
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
    int n = stages_micro_batches(s, l);
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
        c = layers_cost(&r, r.c->n_layers);
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

void cost_outside(const struct sim_machine *m, struct layout l, struct sim_weights w, const struct step_size *s,
                  struct sim_outside *sum)
{
    struct sim_machine noting = *m;
    noting.outside = sum;
    sum->total_ns += cost_parts(&noting, l, w, s).total;
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
