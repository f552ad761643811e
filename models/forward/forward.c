/* The forward pass. One layer (run_layer), for any layout {sp, tp} of a stage:
 *
 *   qkv_proj       q, k, v = W norm(x): the member's rows, the heads of its tp share
 *   rows_to_heads  all-to-all when sp > 1: all rows, the member's own heads
 *   attend         RoPE, KV cache, attention
 *   heads_to_rows  all-to-all when sp > 1: the member's rows again
 *   add_o_proj     x += o(attn), with an all-reduce when tp > 1
 *   add_ffn        x += down(swiglu(gate(x), up(x))), with an all-reduce when tp > 1
 *
 * In the last layer of the last stage only the rows whose logits are wanted go past attention (sample_chunk). */
#include "models/forward/forward.h"

#include <math.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/forward/dummy_step.h"
#include "models/forward/scratch.h"

int forward_init(struct forward *f, int max_rows, int max_logits, int n_ranks, struct err *e)
{
    const struct model_config *c = f->config;
    struct device_facts facts;
    ASSERT(max_rows > 0 && max_logits > 0 && n_ranks > 0 && n_ranks <= MAX_RANKS);
    f->ops->facts(f->device, &facts);
    f->act_bytes = facts.act_bytes;
    f->max_rows = max_rows;
    f->max_logits = max_logits;
    f->slab = NULL;
    f->kv_head = mem_new_array((size_t)c->n_heads, sizeof *f->kv_head);
    if (!f->ops->computes)
        return 0;
    size_t bytes = forward_scratch_bytes(c, max_rows, max_logits, n_ranks, f->act_bytes);
    f->slab = f->ops->alloc(f->device, bytes);
    if (f->slab)
        return 0;
    forward_free(f);
    return err_set(e, E_FULL,
                   "no memory for the activations of a step (%.1f MiB in all); lower --max-num-batched-tokens",
                   (double)bytes / (1 << 20));
}

void forward_free(struct forward *f)
{
    if (f->slab)
        f->ops->release(f->device, f->slab);
    mem_free(f->kv_head);
    f->slab = NULL;
    f->kv_head = NULL;
}

/* ---- one step */

/* The step in progress, as this member sees it. */
struct run {
    struct forward *f;
    const struct forward_member *m;
    const struct model_weights *w;
    const struct shard *sh;
    const struct batch *b;
    struct forward_scratch s;
    struct layer_span layers; /* of the stage */
    struct err err;           /* of the pool: what is computed after it does not count */
    int row0, rows; /* the member's slice of the rows */
    int n_to_heads, n_to_rows;
    struct comm_rect to_heads[EXCHANGE_BUFFERS * MAX_RANKS]; /* q, k and v of all rows for the member's own heads */
    struct comm_rect to_rows[MAX_RANKS]; /* attention of the member's rows for the heads of its tp share */
};

static struct head_span heads_of(const struct shard *sh, int s)
{
    return head_span(&sh->heads, sh->n, sh->t * sh->layout.sp + s, 1);
}

/* The two all-to-alls of a layer. They are the same in every layer of the step. */
static void plan_all_to_alls(struct run *r)
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
        struct head_span peer = heads_of(sh, s);
        if (r->rows > 0)
            r->to_rows[r->n_to_rows++] =
                (struct comm_rect){s, 0, r->row0, 0, 0, (peer.q0 - sh->tp.q0) * dim, r->rows, peer.n_q * dim};
    }
}

static struct kv_view kv_view_of(const struct run *r, int layer)
{
    const struct kv_space *kv = r->m->kv ? r->m->kv : r->f->kv;
    int at = layer - r->layers.first;
    return (struct kv_view){kv, at, r->m->tokens_per_block, r->sh->own.n_kv, r->sh->heads.head_dim};
}

static void rows_to_heads(struct run *r)
{
    const struct forward_scratch *s = &r->s;
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->sp,
                                                              .me = r->sh->s,
                                                              .src = {s->q_in, s->k_in, s->v_in},
                                                              .dst = {s->q, s->k, s->v},
                                                              .rects = r->to_heads,
                                                              .n_rects = r->n_to_heads});
}

static void qkv_proj(struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct layer_weights *w = &r->w->layers[layer];
    const struct forward_scratch *s = &r->s;
    struct linear_args qkv = {
        .in = LINEAR_NORM,
        .x = s->x,
        .gain = w->attn_norm,
        .eps = c->norm_eps,
        .rows = r->rows,
        .n_out = 3,
        .out = {{w->q, w->q_bias, s->q_in}, {w->k, w->k_bias, s->k_in}, {w->v, w->v_bias, s->v_in}}};
    r->f->ops->linear(r->f->device, &qkv);
}

static struct rope_args rope_args_of(const struct run *r, int layer)
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

/* RoPE on q and k; then k and v go into the cache. */
static void write_kv(struct run *r, int layer)
{
    const struct backend_ops *ops = r->f->ops;
    struct rope_args rope = rope_args_of(r, layer);
    struct kv_view kv = kv_view_of(r, layer);
    if (ops->rope_write) {
        ops->rope_write(r->f->device, &rope, r->s.v, &kv);
        return;
    }
    ops->rope(r->f->device, &rope);
    ops->kv_write(r->f->device, r->s.k, r->s.v, &kv);
}

/* write_kv, then attention over the cache. */
static void attend(struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct backend_ops *ops = r->f->ops;
    struct rope_args rope = rope_args_of(r, layer);
    struct attention_args a = {.q = r->s.q,
                               .out = r->s.attn,
                               .n_heads = r->sh->own.n_q,
                               .kv_head = r->f->kv_head,
                               .kv = kv_view_of(r, layer),
                               .scale = 1.0f / sqrtf((float)c->head_dim),
                               .window = c->window};
    if (ops->rope_attention) {
        ops->rope_attention(r->f->device, &rope, r->s.v, &a);
        return;
    }
    write_kv(r, layer);
    ops->attention(r->f->device, &a);
}

/* A row-parallel linear layer: y += in(x) W^T, where each tp member has some of W's input columns. Its columns are
 * multiplied node by node of the summation tree (sum_tree.h), each node into a plane of its own, and an all-reduce adds
 * the planes. With tp 1 there is one node, which adds to y directly. */
struct row_parallel {
    enum linear_in in;
    struct act x, x2;
    const struct wview *nodes;
    int n_nodes, rows;
    const struct reduce_order *order;
    struct act planes, y;
};

static struct act window(const struct run *r, struct act a, int row, int col, int cols)
{
    size_t at = ((size_t)row * (size_t)a.ld + (size_t)col) * r->f->act_bytes;
    return (struct act){a.data ? (char *)a.data + at : NULL, cols, a.ld};
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

/* x += o(attn) */
static void add_o_proj(struct run *r, int layer, struct act attn, struct act x, int rows)
{
    struct row_parallel o = {.in = LINEAR_PLAIN,
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

static void add_gate_up(struct run *r, const struct ffn_rows *f)
{
    const struct forward_scratch *s = &r->s;
    struct linear_args gate_up = {.in = LINEAR_NORM,
                                  .x = f->x,
                                  .gain = r->w->layers[f->layer].ffn_norm,
                                  .eps = r->f->config->norm_eps,
                                  .rows = f->rows,
                                  .n_out = 2,
                                  .out = {{f->gate, NULL, s->gate}, {f->up, NULL, s->up}}};
    if (r->sh->ffn.n > 0)
        r->f->ops->linear(r->f->device, &gate_up);
}

static void add_down(struct run *r, const struct ffn_rows *f)
{
    struct row_parallel down = {.in = LINEAR_SWIGLU,
                                .x = r->s.gate,
                                .x2 = r->s.up,
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

/* Each product waits for its own matrices. After a failure the members of the group still meet, and nothing counts. */
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

static void add_ffn(struct run *r, int layer, struct act x, int rows)
{
    const struct layer_weights *w = &r->w->layers[layer];
    const struct ffn_source *from = r->m->ffn;
    struct ffn_rows f = {.layer = layer, .rows = rows, .x = x, .gate = w->gate, .up = w->up};
    if (r->err.code || rows == 0) /* no rows: so it is at all members of the tp group */
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

/* Takes attention of the given rows from the members that have the heads. It goes into q_in, which is free by now. */
static void heads_to_rows(struct run *r, struct act shown, const struct comm_rect *rects, int n)
{
    r->f->ops->exchange(
        r->f->device,
        &(struct exchange_args){
            .comm = r->m->sp, .me = r->sh->s, .src = {shown}, .dst = {r->s.q_in}, .rects = rects, .n_rects = n});
}

static void run_layer(struct run *r, int layer)
{
    bool sp = r->sh->layout.sp > 1;
    qkv_proj(r, layer);
    if (sp)
        rows_to_heads(r);
    attend(r, layer);
    if (sp)
        heads_to_rows(r, r->s.attn, r->to_rows, r->n_to_rows);
    add_o_proj(r, layer, sp ? r->s.q_in : r->s.attn, r->s.x, r->rows);
    add_ffn(r, layer, r->s.x, r->rows);
}

/* ---- logits, in chunks of the rows that want them */

/* The logit rows of the chunk that lie in the slice of sp member s. */
static struct span logits_of_member(const struct run *r, int s, struct span chunk)
{
    int row0, n, first = chunk.first, end;
    row_slice(r->b->n_rows, r->sh->layout.sp, s, &row0, &n);
    while (first < chunk.first + chunk.n && r->b->logit_rows[first] < row0)
        first++;
    for (end = first; end < chunk.first + chunk.n && r->b->logit_rows[end] < row0 + n; end++)
        ;
    return (struct span){first, end - first};
}

/* heads_to_rows for the rows of the chunk that lie in this member's slice, which it returns. The attention of the whole
 * chunk has been gathered into q, which is free by now. */
static struct span chunk_heads_to_rows(struct run *r, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    struct span mine = logits_of_member(r, r->sh->s, chunk);
    int dim = r->sh->heads.head_dim, sp = r->sh->layout.sp;
    for (int s = 0; s < sp; s++) {
        struct head_span peer = heads_of(r->sh, s);
        rects[s] = (struct comm_rect){
            s, 0, mine.first - chunk.first, 0, 0, (peer.q0 - r->sh->tp.q0) * dim, mine.n, peer.n_q * dim};
    }
    heads_to_rows(r, r->s.q, rects, mine.n > 0 ? sp : 0);
    return mine;
}

/* All hidden rows of the chunk, from the members in whose slices they lie. */
static void all_gather_hidden(struct run *r, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    int n = 0;
    for (int s = 0; s < r->sh->layout.sp; s++) {
        struct span theirs = logits_of_member(r, s, chunk);
        if (theirs.n > 0)
            rects[n++] = (struct comm_rect){s, 0, 0, 0, theirs.first - chunk.first, 0, theirs.n, r->s.last.cols};
    }
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->sp,
                                                              .me = r->sh->s,
                                                              .src = {r->s.last},
                                                              .dst = {r->s.last_all},
                                                              .rects = rects,
                                                              .n_rects = n});
}

static void barrier(struct run *r)
{
    if (r->sh->n > 1)
        r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->all, .me = r->sh->share});
}

/* Each rank has the logits of all rows for its part of the vocabulary. It takes the other parts for some of the rows,
 * and samples those. */
static void sample(struct run *r, struct span chunk)
{
    const struct forward_scratch *s = &r->s;
    struct comm_rect rects[MAX_RANKS];
    int n = 0, row0 = 0, rows = chunk.n;
    if (r->sh->n > 1) {
        row_slice(chunk.n, r->sh->n, r->sh->share, &row0, &rows);
        for (int i = 0; i < r->sh->n && rows > 0; i++) {
            struct span part = shard_of(r->f->config, r->sh->layout, i).vocab;
            if (part.n > 0)
                rects[n++] = (struct comm_rect){i, 0, row0, 0, 0, part.first, rows, part.n};
        }
        r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->all,
                                                                  .me = r->sh->share,
                                                                  .src = {s->logits_part},
                                                                  .dst = {s->logits},
                                                                  .rects = rects,
                                                                  .n_rects = n});
    }
    if (rows > 0)
        r->f->ops->sample(r->f->device, s->logits, r->f->config->vocab, chunk.first + row0, rows);
    r->f->logits = s->logits;
    r->f->first_logit = chunk.first + row0;
    r->f->n_logits = rows;
}

/* The last layer after attention, the output head and sampling, for one chunk of logit rows. */
static void sample_chunk(struct run *r, struct span chunk)
{
    const struct forward_scratch *s = &r->s;
    const struct backend_ops *ops = r->f->ops;
    int last = r->f->config->n_layers - 1;
    bool sp = r->sh->layout.sp > 1;
    struct span mine = chunk;
    ops->gather(r->f->device, s->attn, 0, s->q, chunk.first, chunk.n);
    if (sp)
        mine = chunk_heads_to_rows(r, chunk);
    ops->gather(r->f->device, s->x, r->row0, s->last, mine.first, mine.n);
    add_o_proj(r, last, s->q_in, s->last, mine.n);
    add_ffn(r, last, s->last, mine.n);
    if (sp)
        all_gather_hidden(r, chunk);
    struct linear_args head = {.in = LINEAR_NORM,
                               .x = s->last_all,
                               .gain = r->w->out_norm,
                               .eps = r->f->config->norm_eps,
                               .rows = chunk.n,
                               .n_out = 1,
                               .out = {{r->w->head, NULL, r->sh->n > 1 ? s->logits_part : s->logits}}};
    if (r->sh->vocab.n > 0)
        ops->linear(r->f->device, &head);
    sample(r, chunk);
    barrier(r); /* the next chunk, or the next step, writes over what others may still be reading */
}

/* A step without logits (the middle of a prompt) ends once the last layer's KV is cached. */
static void run_last_layer(struct run *r)
{
    int last = r->f->config->n_layers - 1, chunk = scratch_chunk(r->f->max_rows, r->f->max_logits), n = r->b->n_logits;
    qkv_proj(r, last);
    if (r->sh->layout.sp > 1)
        rows_to_heads(r);
    if (n == 0) {
        write_kv(r, last);
        barrier(r);
        return;
    }
    attend(r, last);
    for (int first = 0; first < n; first += chunk)
        sample_chunk(r, (struct span){first, n - first < chunk ? n - first : chunk});
}

/* ---- stages */

static int stages_of(const struct forward_member *m)
{
    return m->n_stages > 1 ? m->n_stages : 1;
}

/* The residual of the member's rows, from the stage before (me: 1) or to the next one (0). The giver goes on when it has
 * arrived: that is what the second meeting is for. */
static void pass_rows(struct run *r, struct comm *link, int me)
{
    struct comm_rect all = {.peer = 0, .rows = r->rows, .cols = r->s.x.cols};
    struct exchange_args a = {.comm = link, .me = me, .src = {r->s.x}, .dst = {r->s.x}, .rects = &all};
    a.n_rects = me == 1 && r->rows > 0;
    r->f->ops->exchange(r->f->device, &a);
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = link, .me = me});
}

static void compute(struct run *r)
{
    int end = r->layers.first + r->layers.n;
    bool last = end == r->f->config->n_layers;
    if (r->layers.first == 0)
        r->f->ops->embed(r->f->device, r->w->embed, r->s.x, r->row0, r->rows);
    else
        pass_rows(r, r->m->from, 1);
    for (int l = r->layers.first; l < end - last; l++)
        run_layer(r, l);
    if (last)
        run_last_layer(r);
    else
        pass_rows(r, r->m->to, 0);
}

static void run_init(struct run *r)
{
    const struct shard *sh = r->sh;
    int per_kv = sh->heads.n_q / sh->heads.n_kv;
    scratch_lay_out(&r->s, r->f, sh);
    r->layers = stage_layers(r->f->config->n_layers, stages_of(r->m), r->m->stage);
    row_slice(r->b->n_rows, sh->layout.sp, sh->s, &r->row0, &r->rows);
    for (int h = 0; h < sh->own.n_q; h++)
        r->f->kv_head[h] = (sh->own.q0 + h) / per_kv - sh->own.kv0;
    if (sh->layout.sp > 1)
        plan_all_to_alls(r);
}

void forward_abort(const struct backend_ops *ops, const struct forward_member *m)
{
    if (m->from)
        ops->comm_abort(m->from);
    if (m->to)
        ops->comm_abort(m->to);
    if (m->weights->shard.n == 1)
        return;
    ops->comm_abort(m->sp);
    ops->comm_abort(m->tp);
    ops->comm_abort(m->all);
}

static struct graph_key graph_key_of(const struct forward_member *m)
{
    return (struct graph_key){.weights = m->weights,
                              .all = m->all,
                              .me = m->weights->shard.share,
                              .group = m->group,
                              .tokens_per_block = m->tokens_per_block,
                              .twoshot_bytes = m->twoshot_bytes};
}

static struct rope rope_of(const struct model_config *c)
{
    return (struct rope){c->rope_halves, c->rope_dim, c->inv_freq, c->rope_scale};
}

static int run_ops(struct forward *f, const struct forward_member *m, const struct batch *b, struct step_time *t,
                   struct err *e)
{
    struct rope rope = rope_of(f->config);
    struct run r = {.f = f, .m = m, .w = m->weights, .sh = &m->weights->shard, .b = b};
    TRY(f->ops->begin(f->device, b, &rope, e));
    if (f->ops->computes) {
        run_init(&r);
        compute(&r);
    } else {
        struct layout l = {r.sh->layout.sp, r.sh->layout.tp, stages_of(m)};
        f->ops->whole_step(f->device, f->config->vocab, l, m->stage * r.sh->n + r.sh->share);
    }
    int rc = f->ops->finish(f->device, t, e);
    return rc || !r.err.code ? rc : err_set(e, r.err.code, "%s", r.err.text);
}

int forward_post(struct forward *f, const struct forward_member *m, const struct batch *b, bool *posted, struct err *e)
{
    struct graph_key key = graph_key_of(m);
    *posted = false;
    if (!f->ops->graph_post || stages_of(m) > 1)
        return 0;
    int rc = f->ops->graph_post(f->device, &(struct graph_call){&key, b}, posted, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

bool forward_ended(struct forward *f)
{
    return f->ops->graph_ended(f->device);
}

int forward_wait(struct forward *f, const struct forward_member *m, struct step_time *t, struct err *e)
{
    int rc = f->ops->graph_wait(f->device, t, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

int forward_run(struct forward *f, const struct forward_member *m, const struct batch *b, struct step_time *t,
                struct err *e)
{
    bool posted;
    ASSERT(b->n_rows > 0 && b->n_rows <= f->max_rows && !b->fed);
    TRY(forward_post(f, m, b, &posted, e));
    if (posted)
        return forward_wait(f, m, t, e);
    int rc = run_ops(f, m, b, t, e);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

/* ---- warm-up and graph capture, before anything is served */

int forward_warm_up(struct forward *f, const struct forward_member *m, int rows, struct err *e)
{
    static const struct sampling usual = {.temperature = 1, .top_p = 0.9f, .top_k = 50, .repetition_penalty = 1};
    struct dummy_step s;
    ASSERT(rows > 0 && rows <= f->max_rows);
    dummy_step_init(&s, &usual, rows);
    dummy_step_to_prompt(&s, f->max_logits);
    int rc = run_ops(f, m, &s.batch, NULL, e);
    mem_free(s.batch.results);
    dummy_step_free(&s);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}

static int capture(struct forward *f, const struct forward_member *m, const struct batch *b, struct err *e)
{
    struct rope rope = rope_of(f->config);
    struct graph_key key = graph_key_of(m);
    struct run r = {.f = f, .m = m, .w = m->weights, .sh = &m->weights->shard, .b = b};
    TRY(f->ops->graph_begin(f->device, &(struct graph_call){&key, b}, &rope, e));
    run_init(&r);
    compute(&r);
    return f->ops->graph_end(f->device, e);
}

int forward_capture(struct forward *f, const struct forward_member *m, int rows, struct err *e)
{
    static const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct dummy_step s;
    ASSERT(rows > 0);
    if (!f->ops->graph_begin)
        return err_set(e, E_UNSUPPORTED, "--device %s has no graphs", f->ops->name);
    if (rows > f->max_rows)
        return err_set(e, E_UNSUPPORTED, "a graph of %d rows where steps have at most %d", rows, f->max_rows);
    dummy_step_init(&s, &greedy, rows);
    int rc = capture(f, m, &s.batch, e);
    dummy_step_free(&s);
    if (rc)
        forward_abort(f->ops, m);
    return rc;
}
