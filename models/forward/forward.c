#include "models/forward/forward.h"

#include <math.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
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

/* ---- the step */

struct run {
    struct forward *f;
    const struct forward_site *at;
    const struct model_weights *w;
    const struct shard *sh;
    const struct batch *b;
    struct forward_scratch s;
    int row0, rows; /* of this member's slice */
    int n_out, n_back;
    struct comm_rect
        out[EXCHANGE_BUFFERS * MAX_RANKS]; /* the fused exchange: q, k and v of all rows for its own heads */
    struct comm_rect back[MAX_RANKS];      /* attention of the slice's rows for the heads of the tp share */
};

static struct head_span heads_of(const struct shard *sh, int s)
{
    return head_span(&sh->heads, sh->n, sh->t * sh->layout.sp + s, 1);
}

/* What every layer of the step exchanges. */
static void plan_exchanges(struct run *r)
{
    const struct shard *sh = r->sh;
    int dim = sh->heads.head_dim, sp = sh->layout.sp;
    int q = (sh->own.q0 - sh->tp.q0) * dim, kv = (sh->own.kv0 - sh->tp.kv0) * dim;
    int q_cols = sh->own.n_q * dim, kv_cols = sh->own.n_kv * dim;
    for (int s = 0; s < sp; s++) {
        int row0, n;
        row_slice(r->b->n_rows, sp, s, &row0, &n);
        if (n > 0) {
            r->out[r->n_out++] = (struct comm_rect){s, 0, 0, q, row0, 0, n, q_cols};
            r->out[r->n_out++] = (struct comm_rect){s, 1, 0, kv, row0, 0, n, kv_cols};
            r->out[r->n_out++] = (struct comm_rect){s, 2, 0, kv, row0, 0, n, kv_cols};
        }
        struct head_span peer = heads_of(sh, s);
        if (r->rows > 0)
            r->back[r->n_back++] =
                (struct comm_rect){s, 0, r->row0, 0, 0, (peer.q0 - sh->tp.q0) * dim, r->rows, peer.n_q * dim};
    }
}

static struct kv_view kv_of(const struct run *r, int layer)
{
    return (struct kv_view){r->f->kv, layer, r->at->tokens_per_block, r->sh->own.n_kv, r->sh->heads.head_dim};
}

/* q, k and v of the slice; of all rows for the own heads. */
static void project(struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct backend_ops *ops = r->f->ops;
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
    ops->linear(r->f->device, &qkv);
    if (r->sh->layout.sp > 1)
        ops->exchange(r->f->device, &(struct exchange_args){.comm = r->at->sp,
                                                            .me = r->sh->s,
                                                            .show = {s->q_in, s->k_in, s->v_in},
                                                            .take = {s->q, s->k, s->v},
                                                            .rects = r->out,
                                                            .n_rects = r->n_out});
}

static struct rope_args turn_of(const struct run *r, int layer)
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

/* q and k turned to their positions; k and v into the cache. */
static void store(struct run *r, int layer)
{
    const struct backend_ops *ops = r->f->ops;
    struct rope_args turn = turn_of(r, layer);
    struct kv_view kv = kv_of(r, layer);
    if (ops->rope_write) {
        ops->rope_write(r->f->device, &turn, r->s.v, &kv);
        return;
    }
    ops->rope(r->f->device, &turn);
    ops->kv_write(r->f->device, r->s.k, r->s.v, &kv);
}

/* The same, and attention. */
static void attend(struct run *r, int layer)
{
    const struct model_config *c = r->f->config;
    const struct backend_ops *ops = r->f->ops;
    struct rope_args turn = turn_of(r, layer);
    struct attention_args a = {.q = r->s.q,
                               .out = r->s.attn,
                               .n_heads = r->sh->own.n_q,
                               .kv_head = r->f->kv_head,
                               .kv = kv_of(r, layer),
                               .scale = 1.0f / sqrtf((float)c->head_dim),
                               .window = c->window};
    if (ops->rope_attention) {
        ops->rope_attention(r->f->device, &turn, r->s.v, &a);
        return;
    }
    store(r, layer);
    ops->attention(r->f->device, &a);
}

/* A product whose columns the tp group shares: y += in(x) W^T. */
struct product {
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

static enum comm_algorithm algorithm_of(const struct forward_site *at, size_t bytes)
{
    if (at->library_bytes && bytes >= at->library_bytes)
        return COMM_LIBRARY;
    return bytes < at->twoshot_bytes ? COMM_ONESHOT : COMM_TWOSHOT;
}

static void add_product(struct run *r, const struct product *p)
{
    const struct backend_ops *ops = r->f->ops;
    bool whole = r->sh->layout.tp == 1;
    if (p->rows == 0)
        return; /* for all of the tp group: it has the same slice */
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
    ops->reduce(r->f->device, &(struct reduce_args){.comm = r->at->tp,
                                                    .me = r->sh->t,
                                                    .planes = p->planes,
                                                    .order = p->order,
                                                    .algorithm = algorithm_of(r->at, bytes),
                                                    .rows = p->rows,
                                                    .accumulate = true,
                                                    .y = p->y,
                                                    .part = r->s.part});
}

/* x += o(attn); x += down(swiglu(gate(x), up(x))) */
static void mix(struct run *r, int layer, struct act attn, struct act x, int rows)
{
    const struct layer_weights *w = &r->w->layers[layer];
    const struct forward_scratch *s = &r->s;
    struct product o = {.in = LINEAR_PLAIN,
                        .x = attn,
                        .nodes = w->o,
                        .n_nodes = r->w->n_o,
                        .rows = rows,
                        .order = r->w->o_order,
                        .planes = s->o_planes,
                        .y = x};
    struct linear_args gate_up = {.in = LINEAR_NORM,
                                  .x = x,
                                  .gain = w->ffn_norm,
                                  .eps = r->f->config->norm_eps,
                                  .rows = rows,
                                  .n_out = 2,
                                  .out = {{w->gate, NULL, s->gate}, {w->up, NULL, s->up}}};
    struct product down = {.in = LINEAR_SWIGLU,
                           .x = s->gate,
                           .x2 = s->up,
                           .nodes = w->down,
                           .n_nodes = r->w->n_down,
                           .rows = rows,
                           .order = r->w->down_order,
                           .planes = s->down_planes,
                           .y = x};
    add_product(r, &o);
    if (r->sh->ffn.n > 0)
        r->f->ops->linear(r->f->device, &gate_up);
    add_product(r, &down);
}

/* Attention of the slice's rows back from the ranks that have the heads. q_in is free by now. */
static void collect(struct run *r, struct act shown, const struct comm_rect *rects, int n)
{
    r->f->ops->exchange(
        r->f->device,
        &(struct exchange_args){
            .comm = r->at->sp, .me = r->sh->s, .show = {shown}, .take = {r->s.q_in}, .rects = rects, .n_rects = n});
}

static void layer_end(struct run *r, int layer)
{
    if (r->sh->layout.sp > 1)
        collect(r, r->s.attn, r->back, r->n_back);
    mix(r, layer, r->sh->layout.sp > 1 ? r->s.q_in : r->s.attn, r->s.x, r->rows);
}

/* ---- logits */

/* Logit rows [first, first + n) that lie in the slice of sp member s. */
static struct span logits_of_slice(const struct run *r, int s, struct span chunk)
{
    int row0, n, first = chunk.first, end;
    row_slice(r->b->n_rows, r->sh->layout.sp, s, &row0, &n);
    while (first < chunk.first + chunk.n && r->b->logit_rows[first] < row0)
        first++;
    for (end = first; end < chunk.first + chunk.n && r->b->logit_rows[end] < row0 + n; end++)
        ;
    return (struct span){first, end - first};
}

/* The rows of the chunk that are in this slice: their attention into q_in. q is free by now and shows the whole
 * chunk's. */
static struct span collect_last(struct run *r, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    struct span mine = logits_of_slice(r, r->sh->s, chunk);
    int dim = r->sh->heads.head_dim, sp = r->sh->layout.sp;
    for (int s = 0; s < sp; s++) {
        struct head_span peer = heads_of(r->sh, s);
        rects[s] = (struct comm_rect){
            s, 0, mine.first - chunk.first, 0, 0, (peer.q0 - r->sh->tp.q0) * dim, mine.n, peer.n_q * dim};
    }
    collect(r, r->s.q, rects, mine.n > 0 ? sp : 0);
    return mine;
}

/* The chunk's last hidden rows from the slices that have them. */
static void share_last(struct run *r, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    int n = 0;
    for (int s = 0; s < r->sh->layout.sp; s++) {
        struct span theirs = logits_of_slice(r, s, chunk);
        if (theirs.n > 0)
            rects[n++] = (struct comm_rect){s, 0, 0, 0, theirs.first - chunk.first, 0, theirs.n, r->s.last.cols};
    }
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->at->sp,
                                                              .me = r->sh->s,
                                                              .show = {r->s.last},
                                                              .take = {r->s.last_all},
                                                              .rects = rects,
                                                              .n_rects = n});
}

static void meet_all(struct run *r)
{
    if (r->sh->n > 1)
        r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->at->all, .me = r->sh->share});
}

/* Each rank has all rows of its part of the vocabulary, and samples some rows of the whole. */
static void choose(struct run *r, struct span chunk)
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
        r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->at->all,
                                                                  .me = r->sh->share,
                                                                  .show = {s->logits_part},
                                                                  .take = {s->logits},
                                                                  .rects = rects,
                                                                  .n_rects = n});
    }
    if (rows > 0)
        r->f->ops->sample(r->f->device, s->logits, r->f->config->vocab, chunk.first + row0, rows);
    r->f->logits = s->logits;
    r->f->first_logit = chunk.first + row0;
    r->f->n_logits = rows;
}

/* The second half of the last layer, the head and the choice, for the rows of a chunk whose logits are wanted. */
static void finish_rows(struct run *r, struct span chunk)
{
    const struct forward_scratch *s = &r->s;
    const struct backend_ops *ops = r->f->ops;
    bool sp = r->sh->layout.sp > 1;
    struct span mine = chunk;
    ops->gather(r->f->device, s->attn, 0, s->q, chunk.first, chunk.n);
    if (sp)
        mine = collect_last(r, chunk);
    ops->gather(r->f->device, s->x, r->row0, s->last, mine.first, mine.n);
    mix(r, r->f->config->n_layers - 1, s->q_in, s->last, mine.n);
    if (sp)
        share_last(r, chunk);
    struct linear_args head = {.in = LINEAR_NORM,
                               .x = s->last_all,
                               .gain = r->w->out_norm,
                               .eps = r->f->config->norm_eps,
                               .rows = chunk.n,
                               .n_out = 1,
                               .out = {{r->w->head, NULL, r->sh->n > 1 ? s->logits_part : s->logits}}};
    if (r->sh->vocab.n > 0)
        ops->linear(r->f->device, &head);
    choose(r, chunk);
    meet_all(r); /* nobody reads what the next chunk, or the next step, writes */
}

static void compute(struct run *r)
{
    const struct backend_ops *ops = r->f->ops;
    int last = r->f->config->n_layers - 1, chunk = scratch_chunk(r->f->max_rows, r->f->max_logits), n = r->b->n_logits;
    ops->embed(r->f->device, r->w->embed, r->s.x, r->row0, r->rows);
    for (int l = 0; l < last; l++) {
        project(r, l);
        attend(r, l);
        layer_end(r, l);
    }
    project(r, last);
    if (n > 0) {
        attend(r, last);
    } else {
        store(r, last);
        meet_all(r);
    }
    for (int first = 0; first < n; first += chunk)
        finish_rows(r, (struct span){first, n - first < chunk ? n - first : chunk});
}

static void begin_run(struct run *r)
{
    const struct shard *sh = r->sh;
    int per_kv = sh->heads.n_q / sh->heads.n_kv;
    scratch_lay_out(&r->s, r->f, sh);
    row_slice(r->b->n_rows, sh->layout.sp, sh->s, &r->row0, &r->rows);
    for (int h = 0; h < sh->own.n_q; h++)
        r->f->kv_head[h] = (sh->own.q0 + h) / per_kv - sh->own.kv0;
    if (sh->layout.sp > 1)
        plan_exchanges(r);
}

void forward_abandon(const struct backend_ops *ops, const struct forward_site *at)
{
    if (at->weights->shard.n == 1)
        return;
    ops->comm_abort(at->sp);
    ops->comm_abort(at->tp);
    ops->comm_abort(at->all);
}

static struct graph_key key_of(const struct forward_site *at)
{
    return (struct graph_key){.weights = at->weights,
                              .all = at->all,
                              .me = at->weights->shard.share,
                              .group = at->group,
                              .tokens_per_block = at->tokens_per_block,
                              .twoshot_bytes = at->twoshot_bytes};
}

static struct rope rope_of(const struct model_config *c)
{
    return (struct rope){c->rope_halves, c->rope_dim, c->inv_freq, c->rope_scale};
}

static int run_ops(struct forward *f, const struct forward_site *at, const struct batch *b, struct step_time *t,
                   struct err *e)
{
    struct rope rope = rope_of(f->config);
    struct run r = {.f = f, .at = at, .w = at->weights, .sh = &at->weights->shard, .b = b};
    TRY(f->ops->begin(f->device, b, &rope, e));
    if (f->ops->computes) {
        begin_run(&r);
        compute(&r);
    } else {
        f->ops->whole_step(f->device, f->config->vocab, r.sh->layout, r.sh->share);
    }
    return f->ops->finish(f->device, t, e);
}

int forward_post(struct forward *f, const struct forward_site *at, const struct batch *b, bool *posted, struct err *e)
{
    struct graph_key key = key_of(at);
    *posted = false;
    if (!f->ops->graph_post)
        return 0;
    int rc = f->ops->graph_post(f->device, &(struct graph_call){&key, b}, posted, e);
    if (rc)
        forward_abandon(f->ops, at);
    return rc;
}

bool forward_ended(struct forward *f)
{
    return f->ops->graph_ended(f->device);
}

int forward_wait(struct forward *f, const struct forward_site *at, struct step_time *t, struct err *e)
{
    int rc = f->ops->graph_wait(f->device, t, e);
    if (rc)
        forward_abandon(f->ops, at);
    return rc;
}

int forward_run(struct forward *f, const struct forward_site *at, const struct batch *b, struct step_time *t,
                struct err *e)
{
    bool posted;
    ASSERT(b->n_rows > 0 && b->n_rows <= f->max_rows && !b->fed);
    TRY(forward_post(f, at, b, &posted, e));
    if (posted)
        return forward_wait(f, at, t, e);
    int rc = run_ops(f, at, b, t, e);
    if (rc)
        forward_abandon(f->ops, at);
    return rc;
}

/* ---- before anything is served */

/* A made-up step: `rows` decodes, or a prompt of as many tokens. */
struct stand_in {
    struct batch batch;
    int32_t *numbers, *zeros;
    struct batch_seq *seqs;
    struct sample_row *samples;
};

static void stand_in_make(struct stand_in *s, const struct sampling *how, int rows)
{
    size_t n = (size_t)rows;
    *s = (struct stand_in){.numbers = mem_new_array(n, sizeof(int32_t)),
                           .zeros = mem_new_array(n, sizeof(int32_t)),
                           .seqs = mem_new_array(n, sizeof *s->seqs),
                           .samples = mem_new_array(n, sizeof *s->samples)};
    for (int i = 0; i < rows; i++) {
        s->numbers[i] = i;
        s->seqs[i] = (struct batch_seq){.row0 = i, .n_rows = 1, .blocks = s->zeros};
        s->samples[i] = (struct sample_row){.how = how, .given = -1, .n_top = -1};
    }
    s->batch = (struct batch){.n_rows = rows,
                              .ids = s->zeros,
                              .positions = s->zeros,
                              .n_seqs = rows,
                              .seqs = s->seqs,
                              .n_logits = rows,
                              .logit_rows = s->numbers,
                              .samples = s->samples};
}

static void stand_in_free(struct stand_in *s)
{
    mem_free(s->numbers);
    mem_free(s->zeros);
    mem_free(s->seqs);
    mem_free(s->samples);
}

/* The same rows as one prompt, whose last logits are wanted. */
static void stand_in_join(struct stand_in *s, int max_logits)
{
    struct batch *b = &s->batch;
    int skip = b->n_rows > max_logits ? b->n_rows - max_logits : 0;
    b->positions = s->numbers;
    b->n_seqs = 1;
    s->seqs[0] = (struct batch_seq){.n_rows = b->n_rows, .blocks = s->numbers};
    b->logit_rows += skip;
    b->n_logits -= skip;
    b->results = mem_new_array((size_t)b->n_logits, sizeof *b->results);
}

int forward_rehearse(struct forward *f, const struct forward_site *at, int rows, struct err *e)
{
    static const struct sampling usual = {.temperature = 1, .top_p = 0.9f, .top_k = 50, .repetition_penalty = 1};
    struct stand_in s;
    ASSERT(rows > 0 && rows <= f->max_rows);
    stand_in_make(&s, &usual, rows);
    stand_in_join(&s, f->max_logits);
    int rc = run_ops(f, at, &s.batch, NULL, e);
    mem_free(s.batch.results);
    stand_in_free(&s);
    if (rc)
        forward_abandon(f->ops, at);
    return rc;
}

static int record(struct forward *f, const struct forward_site *at, const struct batch *b, struct err *e)
{
    struct rope rope = rope_of(f->config);
    struct graph_key key = key_of(at);
    struct run r = {.f = f, .at = at, .w = at->weights, .sh = &at->weights->shard, .b = b};
    TRY(f->ops->graph_begin(f->device, &(struct graph_call){&key, b}, &rope, e));
    begin_run(&r);
    compute(&r);
    return f->ops->graph_end(f->device, e);
}

int forward_record(struct forward *f, const struct forward_site *at, int rows, struct err *e)
{
    static const struct sampling greedy = {.temperature = 0, .top_p = 1, .repetition_penalty = 1};
    struct stand_in s;
    ASSERT(rows > 0);
    if (!f->ops->graph_begin)
        return err_set(e, E_UNSUPPORTED, "--device %s has no graphs", f->ops->name);
    if (rows > f->max_rows)
        return err_set(e, E_UNSUPPORTED, "a graph of %d rows where steps have at most %d", rows, f->max_rows);
    stand_in_make(&s, &greedy, rows);
    int rc = record(f, at, &s.batch, e);
    stand_in_free(&s);
    if (rc)
        forward_abandon(f->ops, at);
    return rc;
}
