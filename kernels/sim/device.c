/* The simulated machine. A step takes virtual time and computes nothing. How much time, a machine's description says
 * (cost.h); without one it is sim_step_ns + rows * sim_row_ns. Tokens are derived from the last token and its position,
 * so a text depends neither on the schedule nor on the layout. */
#include "kernels/backend.h"

#include <stdio.h>

#include "engine/base/mem.h"
#include "kernels/sim/cost.h"
#include "kernels/sim/token.h"

struct device {
    struct device_opts opts;
    const struct batch *batch;
    int64_t cost_ns;
    struct ffn_cost ffn;
};

struct weight {
    size_t bytes;
};

static int sim_open(struct device **out, const struct device_opts *o, struct err *e)
{
    if (o->sim_step_ns < 0 || o->sim_row_ns < 0)
        return err_set(e, E_INPUT, "the cost of a simulated step cannot be negative");
    if (o->sim_weight_tp < 0 || o->sim_weight_pp < 0 ||
        ((o->sim_weight_tp > 1 || o->sim_weight_pp > 1) && !o->sim_machine))
        return err_set(e, E_INPUT, "shares of the weights need a machine that is described");
    if (o->sim_weight_pp > 1 && o->pool)
        return err_set(e, E_UNSUPPORTED, "weights that are pooled cannot be cut by stage, too");
    *out = mem_new(sizeof **out);
    (*out)->opts = *o;
    return 0;
}

static void sim_close(struct device *d)
{
    mem_free(d);
}

static struct sim_weights weights_of(const struct device *d)
{
    return (struct sim_weights){.shares = d->opts.sim_weight_tp, .pool = d->opts.pool, .stages = d->opts.sim_weight_pp};
}

static void sim_facts(const struct device *d, struct device_facts *f)
{
    const struct sim_machine *m = d->opts.sim_machine;
    *f = (struct device_facts){.n_threads = 1, .memory_bytes = (size_t)64 << 30, .act_bytes = 2};
    snprintf(f->name, sizeof f->name, "simulated %s", m ? m->name : "device");
    snprintf(f->isa, sizeof f->isa, "sim");
    if (!m)
        return;
    int shares = d->opts.sim_weight_tp > 1 ? d->opts.sim_weight_tp : 1;
    double whole = cost_weight_bytes(&m->model, (struct sim_weights){.shares = shares, .pool = NULL});
    double freed = whole - cost_weight_bytes(&m->model, weights_of(d));
    freed = freed > 0 ? freed : 0; /* slots may take more than is freed */
    f->memory_bytes = (size_t)m->hardware.memory_bytes;
    f->budget = (struct device_budget){.weights = (size_t)cost_weight_bytes(&m->model, weights_of(d)),
                                       .layers = (size_t)cost_layers_bytes(&m->model),
                                       .copy = (size_t)cost_copy_bytes(&m->model, (int)m->hardware.devices),
                                       .ffn_layer = d->opts.pool ? (size_t)cost_ffn_bytes(&m->model, shares) : 0,
                                       .ffn_freed = (size_t)freed,
                                       .reserve = (size_t)m->hardware.reserve_bytes,
                                       .kv_bits = m->model.kv_bits,
                                       .weight_tp = shares,
                                       .switch_ns = cost_switch(m)};
}

static void *sim_alloc(struct device *d, size_t bytes)
{
    (void)d;
    (void)bytes; /* nothing is ever stored: any address will do */
    return mem_try(1);
}

static void sim_release(struct device *d, void *p)
{
    (void)d;
    mem_free(p);
}

static int sim_copy(struct device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    (void)dst;
    (void)src;
    (void)bytes;
    return 0;
}

static int sim_weight_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    (void)d;
    (void)e;
    *out = mem_new(sizeof **out);
    (*out)->bytes = (size_t)src->rows * dtype_row_bytes(src->type, src->cols);
    return 0;
}

static void sim_weight_free(struct device *d, struct weight *w)
{
    (void)d;
    mem_free(w);
}

static size_t sim_weight_bytes(const struct weight *w)
{
    return w->bytes;
}

static size_t sim_kv_block_bytes(enum dtype t, int tokens, int n_kv_heads, int head_dim)
{
    return 2 * (size_t)tokens * (size_t)n_kv_heads * dtype_row_bytes(t, head_dim);
}

static int sim_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    (void)rope;
    (void)e;
    d->batch = b;
    d->cost_ns = d->opts.sim_step_ns + b->n_rows * d->opts.sim_row_ns;
    return 0;
}

static int sim_finish(struct device *d, struct step_time *t, struct err *e)
{
    (void)e;
    d->batch = NULL;
    t->ns = d->cost_ns;
    t->ffn = d->ffn;
    return 0;
}

static bool is_banned(const struct sample_row *s, int32_t token)
{
    for (int i = 0; i < s->n_banned; i++)
        if (s->banned[i] == token)
            return true;
    return false;
}

static int32_t make_up(const struct batch *b, int i, int vocab)
{
    const struct sample_row *s = &b->samples[i];
    int row = b->logit_rows[i];
    if (s->given >= 0)
        return s->given;
    if (s->n_allowed)
        return s->allowed[sim_token(b->ids[row], b->positions[row], s->n_allowed)];
    int32_t token = sim_token(b->ids[row], b->positions[row], vocab);
    for (int tries = 0; is_banned(s, token) && tries < vocab; tries++)
        token = (token + 1) % vocab;
    return token;
}

static int64_t sim_step_ns(const struct device *d, struct layout l, const struct step_size *s)
{
    return d->opts.sim_machine ? cost_step(d->opts.sim_machine, l, weights_of(d), s) : -1;
}

static int64_t sim_kv_move_ns(const struct device *d, const struct kv_move *m)
{
    int64_t tokens = m->end_token - m->first_token;
    int64_t heads = (int64_t)m->n_heads * m->n_layers;
    bool far = m->from.space->base != m->to.space->base;
    if (d->opts.sim_machine && (m->from.host || m->to.host))
        return cost_swap(d->opts.sim_machine, tokens, heads);
    return d->opts.sim_machine ? cost_move(d->opts.sim_machine, tokens, heads, far) : -1;
}

static int64_t sim_layer_copy_ns(const struct device *d)
{
    return d->opts.sim_machine ? cost_layer_copy(d->opts.sim_machine, weights_of(d)) : 0;
}

static int64_t sim_host_copy_ns(const struct device *d, size_t bytes)
{
    return d->opts.sim_machine ? cost_host_copy(d->opts.sim_machine, (double)bytes) : 0;
}

/* Of a machine's group the first member alone counts: all take the same time. Fixed costs: the group shares the rows
 * evenly. */
static int64_t cost_of(struct device *d, struct layout l, int share)
{
    const struct batch *b = d->batch;
    struct step_size s = {.n_logits = b->n_logits,
                          .pool_ranks = b->pool_ranks,
                          .cas_layers = b->cas_layers,
                          .replica_layers = b->replica_layers,
                          .n_micro = b->n_micro};
    if (!d->opts.sim_machine)
        return d->opts.sim_step_ns + b->n_rows * d->opts.sim_row_ns / layout_size(l);
    for (int i = 0; share == 0 && i < b->n_seqs; i++)
        step_size_add(&s, b->seqs[i].n_rows, b->seqs[i].pos0);
    d->ffn = (struct ffn_cost){0};
    if (share > 0)
        return 0;
    struct step_cost c = cost_noted(d->opts.sim_machine, l, weights_of(d), &s, d->opts.sim_outside);
    d->ffn = cost_ffn(d->opts.sim_machine, &s, &c);
    return (int64_t)(c.total + 0.5);
}

static void sim_whole_step(struct device *d, int vocab, struct layout l, int share)
{
    const struct batch *b = d->batch;
    d->cost_ns = cost_of(d, l, share);
    if (share > 0)
        return;
    for (int i = 0; i < b->n_logits; i++) {
        struct sample_result *r = &b->results[i];
        r->token = make_up(b, i, vocab);
        r->logprob = -1.0f;
        r->rank = 1;
        r->n_top = b->samples[i].n_top > 0 ? b->samples[i].n_top : 0;
        for (int k = 0; k < r->n_top; k++) {
            r->top_ids[k] = (r->token + k) % vocab;
            r->top_logprobs[k] = -1.0f - (float)k;
        }
    }
}

/* Steps take no real time, so there is nothing to synchronise; a comm is only an address. */
struct comm {
    int n;
};

static int sim_comm_open(struct comm **out, int n, struct err *e)
{
    (void)e;
    *out = mem_new(sizeof **out);
    (*out)->n = n;
    return 0;
}

static void sim_comm_close(struct comm *c)
{
    mem_free(c);
}

static void sim_comm_ignore(struct comm *c)
{
    (void)c;
}

const struct backend_ops *backend_sim(void)
{
    static const struct backend_ops ops = {
        .name = "sim",
        .computes = false,
        .loads_beside = true,
        .shares_memory = true,
        .open = sim_open,
        .close = sim_close,
        .facts = sim_facts,
        .alloc = sim_alloc,
        .release = sim_release,
        .upload = sim_copy,
        .download = sim_copy,
        .weight_load = sim_weight_load,
        .weight_free = sim_weight_free,
        .weight_bytes = sim_weight_bytes,
        .kv_block_bytes = sim_kv_block_bytes,
        .begin = sim_begin,
        .finish = sim_finish,
        .whole_step = sim_whole_step,
        .step_ns = sim_step_ns,
        .kv_move_ns = sim_kv_move_ns,
        .layer_copy_ns = sim_layer_copy_ns,
        .host_copy_ns = sim_host_copy_ns,
        .comm_open = sim_comm_open,
        .comm_close = sim_comm_close,
        .comm_abort = sim_comm_ignore,
        .comm_reset = sim_comm_ignore,
    };
    return &ops;
}
