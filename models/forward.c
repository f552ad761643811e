#include "models/forward.h"

#include <math.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

/* ---- scratch ---- */

static int q_dim(const struct model_config *c)
{
    return c->n_heads * c->head_dim;
}

static int kv_dim(const struct model_config *c)
{
    return c->n_kv_heads * c->head_dim;
}

enum { LD_ALIGN = 16, N_ACTS = 9 }; /* rows start at multiples of 16 elements */

struct act_plan {
    struct act *act;
    int rows, cols;
};

static int chunk_rows(int max_rows, int max_logits)
{
    return max_logits < max_rows ? max_logits : max_rows;
}

/* One list of what a step needs. */
static void plan_scratch(struct act_plan plan[N_ACTS], const struct model_config *c, struct forward_scratch *to, int rows,
                         int logits)
{
    int chunk = chunk_rows(rows, logits);
    const struct act_plan list[N_ACTS] = {
        {&to->x, rows, c->hidden},          {&to->q, rows, q_dim(c)},   {&to->k, rows, kv_dim(c)},
        {&to->v, rows, kv_dim(c)},          {&to->attn, rows, q_dim(c)}, {&to->gate, rows, c->intermediate},
        {&to->up, rows, c->intermediate},   {&to->last, chunk, c->hidden}, {&to->logits, chunk, c->vocab},
    };
    for (int i = 0; i < N_ACTS; i++)
        plan[i] = list[i];
}

static int padded(int cols)
{
    return (cols + LD_ALIGN - 1) / LD_ALIGN * LD_ALIGN;
}

static size_t plan_bytes(const struct act_plan *p, size_t act_bytes)
{
    return (size_t)p->rows * (size_t)padded(p->cols) * act_bytes;
}

size_t forward_scratch_bytes(const struct model_config *c, int max_rows, int max_logits, size_t act_bytes)
{
    struct act_plan plan[N_ACTS];
    struct forward_scratch sizes_only;
    size_t sum = 0;
    plan_scratch(plan, c, &sizes_only, max_rows, max_logits);
    for (int i = 0; i < N_ACTS; i++)
        sum += plan_bytes(&plan[i], act_bytes);
    return sum;
}

static int alloc_scratch(struct forward *f, struct err *e)
{
    struct act_plan plan[N_ACTS];
    struct device_facts facts;
    f->ops->facts(f->device, &facts);
    plan_scratch(plan, f->config, &f->scratch, f->scratch.max_rows, f->scratch.max_logits);
    for (int i = 0; i < N_ACTS; i++) {
        size_t bytes = plan_bytes(&plan[i], facts.act_bytes);
        *plan[i].act = (struct act){f->ops->alloc(f->device, bytes), plan[i].cols, padded(plan[i].cols)};
        if (!plan[i].act->data)
            return err_set(e, E_FULL,
                           "no memory for the activations of a step (%.1f MiB in all); lower --max-num-batched-tokens",
                           (double)forward_scratch_bytes(f->config, f->scratch.max_rows, f->scratch.max_logits,
                                                         facts.act_bytes) / (1 << 20));
    }
    return 0;
}

int forward_init(struct forward *f, int max_rows, int max_logits, struct err *e)
{
    const struct model_config *c = f->config;
    ASSERT(max_rows > 0 && max_logits > 0);
    f->scratch = (struct forward_scratch){.max_rows = max_rows, .max_logits = max_logits};
    f->scratch.kv_head = mem_new_array((size_t)c->n_heads, sizeof *f->scratch.kv_head);
    for (int h = 0; h < c->n_heads; h++)
        f->scratch.kv_head[h] = h * c->n_kv_heads / c->n_heads;
    if (!f->ops->computes)
        return 0;
    int rc = alloc_scratch(f, e);
    if (rc)
        forward_free(f);
    return rc;
}

void forward_free(struct forward *f)
{
    struct act_plan plan[N_ACTS];
    plan_scratch(plan, f->config, &f->scratch, 1, 1);
    for (int i = 0; i < N_ACTS; i++)
        if (plan[i].act->data)
            f->ops->release(f->device, plan[i].act->data);
    mem_free(f->scratch.kv_head);
    f->scratch = (struct forward_scratch){0};
}

/* ---- the step ---- */

static struct kv_view kv_of(const struct forward *f, int layer)
{
    return (struct kv_view){f->kv, layer, f->tokens_per_block, f->config->n_kv_heads, f->config->head_dim};
}

/* q, k and v of the rows, turned to their positions; k and v into the cache. */
static void project(struct forward *f, int layer, int rows)
{
    const struct model_config *c = f->config;
    const struct layer_weights *w = &f->weights->layers[layer];
    const struct forward_scratch *s = &f->scratch;
    struct linear_args qkv = {
        .in = LINEAR_NORM, .x = s->x, .gain = w->attn_norm, .eps = c->norm_eps, .rows = rows, .n_out = 3,
        .out = {{w->q, w->q_bias, s->q}, {w->k, w->k_bias, s->k}, {w->v, w->v_bias, s->v}}};
    struct rope_args rope = {
        .q = s->q, .k = s->k, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .rows = rows,
        .q_gain = w->q_norm, .k_gain = w->k_norm, .eps = c->norm_eps};
    struct kv_view kv = kv_of(f, layer);
    f->ops->linear(f->device, &qkv);
    f->ops->rope(f->device, &rope);
    f->ops->kv_write(f->device, s->k, s->v, &kv);
}

static void attend(struct forward *f, int layer)
{
    const struct model_config *c = f->config;
    const struct forward_scratch *s = &f->scratch;
    struct attention_args a = {
        .q = s->q, .out = s->attn, .n_heads = c->n_heads, .kv_head = s->kv_head, .kv = kv_of(f, layer),
        .scale = 1.0f / sqrtf((float)c->head_dim), .window = c->window};
    f->ops->attention(f->device, &a);
}

/* x += o(attn); x += down(swiglu(gate(x), up(x))) */
static void mix(struct forward *f, int layer, struct act attn, struct act x, int rows)
{
    const struct layer_weights *w = &f->weights->layers[layer];
    const struct forward_scratch *s = &f->scratch;
    struct linear_args o = {.in = LINEAR_PLAIN, .x = attn, .rows = rows, .accumulate = true, .n_out = 1, .out = {{w->o, NULL, x}}};
    struct linear_args gate_up = {
        .in = LINEAR_NORM, .x = x, .gain = w->ffn_norm, .eps = f->config->norm_eps, .rows = rows, .n_out = 2,
        .out = {{w->gate, NULL, s->gate}, {w->up, NULL, s->up}}};
    struct linear_args down = {.in = LINEAR_SWIGLU, .x = s->gate, .x2 = s->up, .rows = rows, .accumulate = true, .n_out = 1,
                               .out = {{w->down, NULL, x}}};
    f->ops->linear(f->device, &o);
    f->ops->linear(f->device, &gate_up);
    f->ops->linear(f->device, &down);
}

/* The second half of the last layer, the head and the choice, for n of the rows whose logits are wanted. q is free by now and takes
 * those rows of the attention's output. */
static void finish_rows(struct forward *f, int first, int n)
{
    const struct forward_scratch *s = &f->scratch;
    f->ops->gather(f->device, s->attn, s->q, first, n);
    f->ops->gather(f->device, s->x, s->last, first, n);
    mix(f, f->config->n_layers - 1, s->q, s->last, n);
    struct linear_args head = {.in = LINEAR_NORM, .x = s->last, .gain = f->weights->out_norm, .eps = f->config->norm_eps,
                               .rows = n, .n_out = 1, .out = {{f->weights->head, NULL, s->logits}}};
    f->ops->linear(f->device, &head);
    f->ops->sample(f->device, s->logits, f->config->vocab, first, n);
}

static void compute(struct forward *f, const struct batch *b)
{
    const struct forward_scratch *s = &f->scratch;
    int last = f->config->n_layers - 1, chunk = chunk_rows(s->max_rows, s->max_logits);
    f->ops->embed(f->device, f->weights->embed, s->x);
    for (int l = 0; l < last; l++) {
        project(f, l, b->n_rows);
        attend(f, l);
        mix(f, l, s->attn, s->x, b->n_rows);
    }
    project(f, last, b->n_rows);
    if (b->n_logits > 0)
        attend(f, last);
    for (int first = 0; first < b->n_logits; first += chunk)
        finish_rows(f, first, b->n_logits - first < chunk ? b->n_logits - first : chunk);
}

int forward_run(struct forward *f, const struct batch *b, struct step_time *t, struct err *e)
{
    const struct model_config *c = f->config;
    struct rope rope = {c->rope_halves, c->rope_dim, c->inv_freq, c->rope_scale};
    ASSERT(b->n_rows > 0 && b->n_rows <= f->scratch.max_rows);
    TRY(f->ops->begin(f->device, b, &rope, e));
    if (f->ops->computes)
        compute(f, b);
    else
        f->ops->whole_step(f->device, c->vocab);
    return f->ops->finish(f->device, t, e);
}
