/* SwiftKV's later layers (arXiv 2410.03960), those from kv_layers on. x, the residual of all rows before the first of
 * them, stays as it is: every one of these layers takes its keys and values from norm(x), and they are cached for all
 * rows before anything else is done. Rows whose logits are wanted then go on, a chunk at a time: `last` begins as their
 * rows of x and goes through the layers as usual, with queries of its own, while attention reads what is cached. So a
 * chunk depends on no other one, and rows that want no logits cost a product for k and v in these layers, nothing more.
 * Where all rows go on, as decodes do, they stay in x.
 *
 * Rows keep their places: a member of an sp group has those of the chunk that lie in its slice of the step's rows. Of
 * several stages each caches the keys and values of its own layers: x goes from stage to stage, and after it, chunk by
 * chunk, `last`. */
#include "models/forward/run.h"

/* The sp group's all-to-all of k and v alone. */
static void kv_rows_to_heads(struct run *r)
{
    const struct forward_scratch *s = &r->s;
    struct comm_rect rects[2 * MAX_RANKS];
    int n = 0;
    for (int i = 0; i < r->n_to_heads; i++)
        if (r->to_heads[i].buffer > 0)
            rects[n++] = r->to_heads[i];
    struct exchange_args a = {.comm = r->m->sp,
                              .me = r->sh->s,
                              .src = {s->q_in, s->k_in, s->v_in},
                              .dst = {s->q, s->k, s->v},
                              .rects = rects,
                              .n_rects = n};
    r->f->ops->exchange(r->f->device, &a);
    r->f->ops->exchange(r->f->device, &(struct exchange_args){.comm = r->m->sp, .me = r->sh->s}); /* they have it */
}

static void cache_layer(struct run *r, int layer)
{
    const struct layer_weights *w = &r->w->layers[layer];
    const struct forward_scratch *s = &r->s;
    struct linear_args kv = {.in = LINEAR_NORM,
                             .place = LINEAR_QKV,
                             .x = s->x,
                             .gain = r->w->kv_norm,
                             .eps = r->f->config->norm_eps,
                             .rows = r->rows,
                             .n_out = 2,
                             .out = {{w->k, w->k_bias, s->k_in}, {w->v, w->v_bias, s->v_in}}};
    struct rope_args rope = run_rope_args(r, layer);
    struct kv_view to = run_attention_args(r, layer).kv;
    rope.n_heads = 0;
    r->f->ops->linear(r->f->device, &kv);
    if (r->sh->layout.sp > 1)
        kv_rows_to_heads(r);
    r->f->ops->rope(r->f->device, &rope);
    r->f->ops->kv_write(r->f->device, s->k, s->v, &to);
}

/* Do all rows of the step go on, as they are? So it is where every sequence decodes. */
static bool all_go_on(const struct run *r)
{
    if (r->b->n_rows != r->b->n_logits)
        return false;
    for (int i = 0; i < r->b->n_rows; i++)
        if (r->b->logit_rows[i] != i)
            return false;
    return true;
}

/* The chunk's rows as sequences of their own: neighbours stay one sequence, and a row that is there twice is two. */
static void begin_part(struct run *r, struct span chunk)
{
    const struct batch *b = r->b;
    struct forward *f = r->f;
    struct batch_part p = {.n_rows = chunk.n, .positions = f->part_positions, .seqs = f->part_seqs};
    const struct batch_seq *of = b->seqs;
    for (int i = 0, before = -1; i < chunk.n; i++) {
        int row = b->logit_rows[chunk.first + i];
        bool follows = row == before + 1 && i > 0 && row > of->row0;
        while (row >= of->row0 + of->n_rows) {
            of++;
            follows = false;
        }
        if (follows)
            f->part_seqs[p.n_seqs - 1].n_rows++;
        else
            f->part_seqs[p.n_seqs++] = (struct batch_seq){i, 1, of->pos0 + row - of->row0, of->blocks, of->tree};
        f->part_positions[i] = b->positions[row];
        before = row;
    }
    f->ops->begin_part(f->device, &p);
}

/* What the sp member takes of the chunk's q for its own heads. */
static void q_rows_to_heads(struct run *r, struct span chunk)
{
    const struct shard *sh = r->sh;
    struct comm_rect rects[MAX_RANKS];
    int n = 0, dim = sh->heads.head_dim, col = (sh->own.q0 - sh->tp.q0) * dim, cols = sh->own.n_q * dim;
    for (int s = 0; s < sh->layout.sp; s++) {
        struct span theirs = run_logits_of(r, s, chunk);
        if (theirs.n > 0)
            rects[n++] = (struct comm_rect){s, 0, 0, col, theirs.first - chunk.first, 0, theirs.n, cols};
    }
    struct exchange_args a = {
        .comm = r->m->sp, .me = sh->s, .src = {r->s.q_in}, .dst = {r->s.q}, .rects = rects, .n_rects = n};
    r->f->ops->exchange(r->f->device, &a);
}

/* One layer for the chunk's rows, `mine` of which are this member's and lie in x. */
static void run_chunk_layer(struct run *r, int layer, struct span chunk, int mine, struct act x)
{
    const struct layer_weights *w = &r->w->layers[layer];
    const struct forward_scratch *s = &r->s;
    bool sp = r->sh->layout.sp > 1;
    struct linear_args q = {.in = LINEAR_NORM,
                            .place = LINEAR_QKV,
                            .x = x,
                            .gain = w->attn_norm,
                            .eps = r->f->config->norm_eps,
                            .rows = mine,
                            .n_out = 1,
                            .out = {{w->q, w->q_bias, s->q_in}}};
    struct rope_args rope = run_rope_args(r, layer);
    struct attention_args attend = run_attention_args(r, layer);
    rope.n_kv_heads = 0;
    rope.rows = chunk.n;
    r->f->ops->linear(r->f->device, &q);
    if (sp)
        q_rows_to_heads(r, chunk);
    r->f->ops->rope(r->f->device, &rope);
    r->f->ops->attention(r->f->device, &attend);
    if (sp)
        run_chunk_to_rows(r, s->attn, chunk);
    run_add_o_proj(r, layer, sp ? s->q_in : s->attn, x, mine);
    run_add_ffn(r, layer, x, mine);
}

static void run_chunk(struct run *r, int first, struct span chunk)
{
    int end = r->layers.first + r->layers.n;
    struct span mine = run_logits_of(r, r->sh->s, chunk);
    if (first == r->f->config->kv_layers)
        r->f->ops->gather(r->f->device, r->s.x, r->row0, r->s.last, mine.first, mine.n);
    else
        run_pass_rows(r, r->m->from, 1, r->s.last, mine.n);
    if (chunk.n < r->b->n_rows || !all_go_on(r))
        begin_part(r, chunk);
    for (int l = first; l < end && !r->err.code; l++)
        run_chunk_layer(r, l, chunk, mine.n, r->s.last);
    if (r->err.code)
        return;
    if (end == r->f->config->n_layers) {
        run_sample_chunk(r, chunk);
        return;
    }
    if (chunk.first == 0)
        run_pass_rows(r, r->m->to, 0, r->s.x, r->rows);
    run_pass_rows(r, r->m->to, 0, r->s.last, mine.n);
}

/* Where all rows go on, and no other stage has any of these layers: in place, so that weights are read once for them
 * all and a step of decodes can be captured. Only the logits come in chunks. */
static void run_all(struct run *r, int first)
{
    struct span all = {0, r->b->n_rows}, chunk = {0, 0};
    for (int l = first; l < r->f->config->n_layers && !r->err.code; l++)
        run_chunk_layer(r, l, all, r->rows, r->s.x);
    for (int at = 0; at < all.n && !r->err.code; at += chunk.n) {
        chunk = run_logit_chunk(r, at);
        struct span mine = run_logits_of(r, r->sh->s, chunk);
        r->f->ops->gather(r->f->device, r->s.x, r->row0, r->s.last, mine.first, mine.n);
        run_sample_chunk(r, chunk);
    }
}

void run_swiftkv(struct run *r)
{
    int kv_layers = r->f->config->kv_layers, end = r->layers.first + r->layers.n, n = r->b->n_logits;
    int first = r->layers.first > kv_layers ? r->layers.first : kv_layers;
    struct span chunk = {0, 0};
    run_forget_halves(r);
    for (int l = first; l < end; l++)
        cache_layer(r, l);
    if (first == kv_layers && end == r->f->config->n_layers && all_go_on(r)) {
        run_all(r, first);
        return;
    }
    for (int at = 0; at < n && !r->err.code; at += chunk.n) {
        chunk = run_logit_chunk(r, at);
        run_chunk(r, first, chunk);
    }
    if (n > 0)
        return;
    if (end == r->f->config->n_layers)
        run_barrier(r);
    else
        run_pass_rows(r, r->m->to, 0, r->s.x, r->rows);
}
