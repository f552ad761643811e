/* The last layer, the output head and what is sampled: logits come in chunks of the rows that want them. */
#include "models/forward/run.h"

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
        struct head_span peer = run_heads(r->sh, s);
        rects[s] = (struct comm_rect){
            s, 0, mine.first - chunk.first, 0, 0, (peer.q0 - r->sh->tp.q0) * dim, mine.n, peer.n_q * dim};
    }
    run_heads_to_rows(r, r->s.q, rects, mine.n > 0 ? sp : 0);
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
    run_add_o_proj(r, last, s->q_in, s->last, mine.n);
    run_add_ffn(r, last, s->last, mine.n);
    if (r->err.code)
        return;
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

void run_last_layer(struct run *r)
{
    int last = r->f->config->n_layers - 1, chunk = scratch_chunk(r->f->max_rows, r->f->max_logits), n = r->b->n_logits;
    run_qkv_proj(r, last);
    if (r->sh->layout.sp > 1)
        run_rows_to_heads(r);
    if (n == 0) {
        run_write_kv(r, last);
        barrier(r);
        return;
    }
    run_attend(r, last);
    for (int first = 0; first < n && !r->err.code; first += chunk)
        sample_chunk(r, (struct span){first, n - first < chunk ? n - first : chunk});
}
