/* One layer of the forward (run_layer), for any layout {sp, tp} of a stage:
 *
 *   qkv_proj       q, k, v = W norm(x): the member's rows, the heads of its tp share
 *   rows_to_heads  all-to-all when sp > 1: all rows, the member's own heads
 *   attend         RoPE, KV cache, attention
 *   heads_to_rows  all-to-all when sp > 1: the member's rows again
 *   add_o_proj     x += o(attn), with an all-reduce when tp > 1
 *   add_ffn        x += down(swiglu(gate(x), up(x))), with an all-reduce when tp > 1
 *
 * In the last layer of the last stage only the rows whose logits are wanted go past attention (logits.c). SwiftKV's
 * later layers are made of the same parts (swiftkv.c). */
#include "models/forward/run.h"

#include <math.h>

struct head_span run_heads(const struct shard *sh, int s)
{
    return head_span(&sh->heads, sh->n, sh->t * sh->layout.sp + s, 1);
}

void run_plan_all_to_alls(struct run *r)
{
    const struct shard *sh = r->sh;
    int dim = sh->heads.head_dim, sp = sh->layout.sp;
    int q = (sh->own.q0 - sh->tp.q0) * dim, kv = (sh->own.kv0 - sh->tp.kv0) * dim;
    int q_cols = sh->own.n_q * dim, kv_cols = sh->own.n_kv * dim;
    for (int s = 0; s < sp; s++) {
        int row0, n;
        row_slice(r->b->n_rows, sp, s, &row0, &n);
        if (n > 0) {
            r->to_heads[r->n_to_heads++] = (struct comm_rect){s, 0, 0, q, row0, 0, n, q_cols};
            r->to_heads[r->n_to_heads++] = (struct comm_rect){s, 1, 0, kv, row0, 0, n, kv_cols};
            r->to_heads[r->n_to_heads++] = (struct comm_rect){s, 2, 0, kv, row0, 0, n, kv_cols};
        }
        struct head_span peer = run_heads(sh, s);
        if (r->rows > 0)
            r->to_rows[r->n_to_rows++] =
                (struct comm_rect){s, 0, r->row0, 0, 0, (peer.q0 - sh->tp.q0) * dim, r->rows, peer.n_q * dim};
    }
}

static struct kv_view kv_view_of(const struct run *r, int layer)
{
    const struct kv_space *kv = r->m->kv ? r->m->kv : r->f->kv;
    int at = (layer - r->layers.first) % kv->n_layers;
    return (struct kv_view){kv, at, r->m->tokens_per_block, r->sh->own.n_kv, r->sh->heads.head_dim};
}

void run_rows_to_heads(struct run *r)
{
    const struct forward_scratch *s = &r->s;
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->sp,
                                                              .me = r->sh->s,
                                                              .src = {s->q_in, s->k_in, s->v_in},
                                                              .dst = {s->q, s->k, s->v},
                                                              .rects = r->to_heads,
                                                              .n_rects = r->n_to_heads});
}

void run_qkv_proj(struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct layer_weights *w = &r->w->layers[layer];
    const struct forward_scratch *s = &r->s;
    struct linear_args qkv = {
        .in = LINEAR_NORM,
        .place = LINEAR_QKV,
        .x = s->x,
        .gain = w->attn_norm,
        .eps = c->norm_eps,
        .rows = r->rows,
        .n_out = 3,
        .out = {{w->q, w->q_bias, s->q_in}, {w->k, w->k_bias, s->k_in}, {w->v, w->v_bias, s->v_in}}};
    r->f->ops->linear(r->f->device, &qkv);
}

struct rope_args run_rope_args(const struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct layer_weights *w = &r->w->layers[layer];
    return (struct rope_args){.q = r->s.q,
                              .k = r->s.k,
                              .n_heads = r->sh->own.n_q,
                              .n_kv_heads = r->sh->own.n_kv,
                              .head_dim = c->head_dim,
                              .rows = r->b->n_rows,
                              .q_gain = w->q_norm,
                              .k_gain = w->k_norm,
                              .eps = c->norm_eps};
}

void run_write_kv(struct run *r, int layer)
{
    const struct backend_ops *ops = r->f->ops;
    struct rope_args rope = run_rope_args(r, layer);
    struct kv_view kv = kv_view_of(r, layer);
    if (ops->rope_write) {
        ops->rope_write(r->f->device, &rope, r->s.v, &kv);
        return;
    }
    ops->rope(r->f->device, &rope);
    ops->kv_write(r->f->device, r->s.k, r->s.v, &kv);
}

/* May what comes between these weights and those be half? */
static bool is_narrow(const struct run *r, struct wview w, int rows)
{
    return r->f->ops->narrows && r->f->ops->narrows(r->f->device, w, rows);
}

struct attention_args run_attention_args(const struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    return (struct attention_args){.q = r->s.q,
                                   .out = r->s.attn,
                                   .n_heads = r->sh->own.n_q,
                                   .kv_head = r->f->kv_head,
                                   .kv = kv_view_of(r, layer),
                                   .scale = 1.0f / sqrtf((float)c->head_dim),
                                   .window = c->window};
}

void run_attend(struct run *r, int layer)
{
    const struct backend_ops *ops = r->f->ops;
    struct rope_args rope = run_rope_args(r, layer);
    struct attention_args a = run_attention_args(r, layer);
    if (ops->rope_attention) {
        ops->rope_attention(r->f->device, &rope, r->s.v, &a);
        return;
    }
    run_write_kv(r, layer);
    ops->attention(r->f->device, &a);
}

/* A row-parallel linear layer: y += in(x) W^T, where each tp member has some of W's input columns. Its columns are
 * multiplied node by node of the summation tree (sum_tree.h), each node into a plane of its own, and an all-reduce adds
 * the planes. With tp 1 there is one node, which adds to y directly. */
struct row_parallel {
    enum linear_in in;
    enum linear_place place;
    struct act x, x2;
    const struct wview *nodes;
    int n_nodes, rows;
    const struct reduce_order *order;
    struct act planes, y;
};

static struct act window(const struct run *r, struct act a, int row, int col, int cols)
{
    size_t at = ((size_t)row * (size_t)a.ld + (size_t)col) * (a.half ? 2 : r->f->act_bytes);
    return (struct act){a.data ? (char *)a.data + at : NULL, cols, a.ld, a.half};
}

static enum comm_algorithm algorithm_of(const struct forward_member *m, size_t bytes)
{
    if (m->library_bytes && bytes >= m->library_bytes)
        return COMM_LIBRARY;
    return bytes < m->twoshot_bytes ? COMM_ONESHOT : COMM_TWOSHOT;
}

static void add_row_parallel(struct run *r, const struct row_parallel *p)
{
    const struct backend_ops *ops = r->f->ops;
    bool whole = r->sh->layout.tp == 1;
    if (p->rows == 0)
        return; /* so do all members of the tp group: they have the same slice of the rows */
    for (int i = 0, col = 0; i < p->n_nodes; col += p->nodes[i].cols, i++) {
        int cols = p->nodes[i].cols;
        struct act y = whole ? p->y : window(r, p->planes, i * p->rows, 0, p->y.cols);
        struct linear_args a = {.in = p->in,
                                .place = p->place,
                                .x = window(r, p->x, 0, col, cols),
                                .x2 = window(r, p->x2, 0, col, cols),
                                .rows = p->rows,
                                .accumulate = whole,
                                .n_out = 1,
                                .out = {{p->nodes[i], NULL, y}}};
        ops->linear(r->f->device, &a);
    }
    if (whole)
        return;
    size_t bytes = (size_t)p->rows * (size_t)p->y.cols * r->f->act_bytes;
    ops->reduce(r->f->device, &(struct reduce_args){.comm = r->m->tp,
                                                    .me = r->sh->t,
                                                    .planes = p->planes,
                                                    .order = p->order,
                                                    .algorithm = algorithm_of(r->m, bytes),
                                                    .rows = p->rows,
                                                    .accumulate = true,
                                                    .y = p->y,
                                                    .part = r->s.part});
}

void run_add_o_proj(struct run *r, int layer, struct act attn, struct act x, int rows)
{
    struct row_parallel o = {.in = LINEAR_PLAIN,
                             .place = LINEAR_ATTENTION_OUT,
                             .x = attn,
                             .nodes = r->w->layers[layer].o,
                             .n_nodes = r->w->n_o,
                             .rows = rows,
                             .order = r->w->o_order,
                             .planes = r->s.o_planes,
                             .y = x};
    add_row_parallel(r, &o);
}

/* x += down(swiglu(gate(x), up(x))), with these matrices instead of the layer's own where they are given. */
struct ffn_rows {
    int layer, rows;
    struct act x;
    struct wview gate, up, down[TREE_MAX_NODES];
};

static bool is_gated(const struct run *r, const struct ffn_rows *f)
{
    return r->f->ops->gates && f->rows <= r->f->ops->gates(r->f->device);
}

/* Gate or up. */
static struct act inner(const struct run *r, const struct ffn_rows *f, struct act a)
{
    a.half = is_narrow(r, f->gate, f->rows) && is_narrow(r, f->up, f->rows);
    return a;
}

static void add_gate_up(struct run *r, const struct ffn_rows *f)
{
    const struct forward_scratch *s = &r->s;
    struct linear_args gate_up = {.in = LINEAR_NORM,
                                  .place = LINEAR_GATE_UP,
                                  .x = f->x,
                                  .gain = r->w->layers[f->layer].ffn_norm,
                                  .eps = r->f->config->norm_eps,
                                  .rows = f->rows,
                                  .gated = is_gated(r, f),
                                  .n_out = 2,
                                  .out = {{f->gate, NULL, inner(r, f, s->gate)}, {f->up, NULL, inner(r, f, s->up)}}};
    if (r->sh->ffn.n > 0)
        r->f->ops->linear(r->f->device, &gate_up);
}

static void add_down(struct run *r, const struct ffn_rows *f)
{
    struct row_parallel down = {.in = is_gated(r, f) ? LINEAR_PLAIN : LINEAR_SWIGLU,
                                .place = LINEAR_DOWN,
                                .x = inner(r, f, r->s.gate),
                                .x2 = inner(r, f, r->s.up),
                                .nodes = f->down,
                                .n_nodes = r->w->n_down,
                                .rows = f->rows,
                                .order = r->w->down_order,
                                .planes = r->s.down_planes,
                                .y = f->x};
    add_row_parallel(r, &down);
}

/* The views of the share, into matrices that were fetched, which are laid out as whole ones. */
static bool fetch(struct run *r, struct ffn_rows *f, int n)
{
    const struct ffn_source *from = r->m->ffn;
    const struct weight *m[FFN_MATRICES] = {0};
    if (from->take(from->ctx, f->layer, n, m, &r->err))
        return false;
    const struct model_config *c = r->f->config;
    struct leaf_range nodes[TREE_MAX_NODES] = {{0, tree_leaves(c->intermediate)}};
    f->gate = (struct wview){m[FFN_GATE], r->sh->ffn.first, r->sh->ffn.n, 0, c->hidden};
    f->up = (struct wview){m[FFN_UP], r->sh->ffn.first, r->sh->ffn.n, 0, c->hidden};
    if (r->sh->layout.tp > 1)
        tree_nodes(tree_leaves(c->intermediate), r->sh->down, nodes);
    for (int i = 0; i < r->w->n_down; i++) {
        struct span x = columns_of(nodes[i], c->intermediate);
        f->down[i] = (struct wview){m[FFN_DOWN], 0, c->hidden, x.first, x.n};
    }
    return true;
}

/* Each product waits for its own matrices. */
static void add_fetched_ffn(struct run *r, struct ffn_rows *f)
{
    if (fetch(r, f, FFN_UP + 1))
        add_gate_up(r, f);
    if (r->err.code || !fetch(r, f, FFN_MATRICES))
        forward_abort(r->f->ops, r->m);
    else
        add_down(r, f);
    r->m->ffn->leave(r->m->ffn->ctx, f->layer);
}

void run_add_ffn(struct run *r, int layer, struct act x, int rows)
{
    const struct layer_weights *w = &r->w->layers[layer];
    const struct ffn_source *from = r->m->ffn;
    struct ffn_rows f = {.layer = layer, .rows = rows, .x = x, .gate = w->gate, .up = w->up};
    if (rows == 0) /* so it is at all members of the tp group */
        return;
    for (int i = 0; i < r->w->n_down; i++)
        f.down[i] = w->down[i];
    enum ffn_mode mode = from ? from->mode(from->ctx, layer) : FFN_LOCAL;
    if (mode == FFN_CAS) {
        if (from->send(from->ctx, layer, x, rows, &r->err))
            forward_abort(r->f->ops, r->m);
        return;
    }
    if (mode == FFN_WAS) {
        add_fetched_ffn(r, &f);
        return;
    }
    add_gate_up(r, &f);
    add_down(r, &f);
    if (from)
        from->leave(from->ctx, layer);
}

struct act run_heads_to_rows(struct run *r, struct act shown, const struct comm_rect *rects, int n)
{
    struct act to = r->s.q_in;
    to.half = shown.half;
    r->f->ops->exchange(
        r->f->device, &(struct exchange_args){
                          .comm = r->m->sp, .me = r->sh->s, .src = {shown}, .dst = {to}, .rects = rects, .n_rects = n});
    return to;
}

/* What is half in this layer. The least rows that a member of the sp group has decide: all show each other the same.
 * Products with a bias give f32: the library takes no bias of f32 where its results are bf16. */
static void choose_halves(struct run *r, int layer)
{
    const struct layer_weights *w = &r->w->layers[layer];
    struct forward_scratch *s = &r->s;
    int rows = r->b->n_rows / r->sh->layout.sp;
    bool pairs = r->f->config->head_dim % 2 == 0, bias = w->q_bias || w->k_bias || w->v_bias;
    s->q.half = pairs && !bias && is_narrow(r, w->q, rows) && is_narrow(r, w->k, rows) && is_narrow(r, w->v, rows);
    s->k.half = s->v.half = s->q_in.half = s->k_in.half = s->v_in.half = s->q.half;
    s->attn.half = pairs && is_narrow(r, w->o[0], rows);
}

void run_forget_halves(struct run *r)
{
    struct forward_scratch *s = &r->s;
    s->q.half = s->k.half = s->v.half = s->q_in.half = s->k_in.half = s->v_in.half = s->attn.half = false;
}

void run_layer(struct run *r, int layer)
{
    bool sp = r->sh->layout.sp > 1;
    choose_halves(r, layer);
    struct act attn = r->s.attn;
    run_qkv_proj(r, layer);
    if (sp)
        run_rows_to_heads(r);
    run_attend(r, layer);
    if (sp)
        attn = run_heads_to_rows(r, attn, r->to_rows, r->n_to_rows);
    run_add_o_proj(r, layer, attn, r->s.x, r->rows);
    run_add_ffn(r, layer, r->s.x, r->rows);
}
