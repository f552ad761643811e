/* The last layer, the output head and what is sampled: logits come in chunks of the rows that want them. */
#include "models/forward/run.h"

struct span run_logits_of(const struct run *r, int s, struct span chunk)
{
    int row0, n, first = chunk.first, end;
    row_slice(r->b->n_rows, r->sh->layout.sp, s, &row0, &n);
    while (first < chunk.first + chunk.n && r->b->logit_rows[first] < row0)
        first++;
    for (end = first; end < chunk.first + chunk.n && r->b->logit_rows[end] < row0 + n; end++)
        ;
    return (struct span){first, end - first};
}

struct span run_logit_chunk(const struct run *r, int first)
{
    int most = scratch_chunk(r->f->max_rows, r->f->max_logits), left = r->b->n_logits - first;
    return (struct span){first, left < most ? left : most};
}

void run_chunk_to_rows(struct run *r, struct act shown, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    struct span mine = run_logits_of(r, r->sh->s, chunk);
    int dim = r->sh->heads.head_dim, sp = r->sh->layout.sp;
    for (int s = 0; s < sp; s++) {
        struct head_span peer = run_heads(r->sh, s);
        rects[s] = (struct comm_rect){
            s, 0, mine.first - chunk.first, 0, 0, (peer.q0 - r->sh->tp.q0) * dim, mine.n, peer.n_q * dim};
    }
    run_heads_to_rows(r, shown, rects, mine.n > 0 ? sp : 0);
}

/* All hidden rows of the chunk, from the members in whose slices they lie. */
static void all_gather_hidden(struct run *r, struct span chunk)
{
    struct comm_rect rects[MAX_RANKS];
    int n = 0;
    for (int s = 0; s < r->sh->layout.sp; s++) {
        struct span theirs = run_logits_of(r, s, chunk);
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

void run_barrier(struct run *r)
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

/* The chunk's tokens are sampled, on whichever rank. */
static void keep_for_heads(struct run *r, struct span chunk)
{
    struct heads_asks *asks = r->m->asks;
    if (!asks)
        return;
    int before = (int)(r->b->results - asks->results); /* of a micro-batch */
    heads_keep(r->f->heads, &(struct heads_rows){.asks = asks,
                                                 .me = r->sh->share,
                                                 .n = r->sh->n,
                                                 .first = before + chunk.first,
                                                 .rows = chunk.n,
                                                 .hidden = r->s.last_all,
                                                 .out_norm = r->w->out_norm,
                                                 .norm_eps = r->f->config->norm_eps});
}

void run_sample_chunk(struct run *r, struct span chunk)
{
    const struct forward_scratch *s = &r->s;
    if (r->f->config->embeds) {
        r->f->take(r->f->taker, s->last, chunk.first, chunk.n);
        return;
    }
    if (r->sh->layout.sp > 1)
        all_gather_hidden(r, chunk);
    struct linear_args head = {.in = LINEAR_NORM,
                               .place = LINEAR_HEAD,
                               .x = s->last_all,
                               .gain = r->w->out_norm,
                               .eps = r->f->config->norm_eps,
                               .rows = chunk.n,
                               .n_out = 1,
                               .out = {{r->w->head, NULL, r->sh->n > 1 ? s->logits_part : s->logits}}};
    if (r->sh->vocab.n > 0)
        r->f->ops->linear(r->f->device, &head);
    sample(r, chunk);
    run_barrier(r); /* the next chunk, or the next step, writes over what others may still be reading */
    keep_for_heads(r, chunk);
}

/* The last layer after attention, the output head and sampling. The attention of the chunk's rows is gathered into q,
 * which is free by now. */
static void finish_chunk(struct run *r, struct span chunk)
{
    const struct forward_scratch *s = &r->s;
    const struct backend_ops *ops = r->f->ops;
    int last = r->f->config->n_layers - 1;
    struct span mine = run_logits_of(r, r->sh->s, chunk);
    ops->gather(r->f->device, s->attn, 0, s->q, chunk.first, chunk.n);
    if (r->sh->layout.sp > 1)
        run_chunk_to_rows(r, s->q, chunk);
    ops->gather(r->f->device, s->x, r->row0, s->last, mine.first, mine.n);
    run_add_o_proj(r, last, s->q_in, s->last, mine.n);
    run_add_ffn(r, last, s->last, mine.n);
    if (!r->err.code)
        run_sample_chunk(r, chunk);
}

void run_last_layer(struct run *r)
{
    int last = r->f->config->n_layers - 1, n = r->b->n_logits;
    run_forget_halves(r);
    run_qkv_proj(r, last);
    if (r->sh->layout.sp > 1)
        run_rows_to_heads(r);
    if (n == 0) {
        run_write_kv(r, last);
        run_barrier(r);
        return;
    }
    run_attend(r, last);
    struct span chunk = {0, 0};
    for (int at = 0; at < n && !r->err.code; at += chunk.n) {
        chunk = run_logit_chunk(r, at);
        finish_chunk(r, chunk);
    }
}
