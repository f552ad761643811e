/* One slab of memory, laid out anew for each layout, as large as the largest layout needs. */
#include "models/forward/scratch.h"

#include "engine/base/check.h"

enum { LD_ALIGN = 16 }; /* rows start at multiples of 16 elements */

struct slab {
    char *base;             /* NULL: sizes only */
    size_t used, act_bytes; /* used: elements */
};

static struct act take(struct slab *s, int rows, int cols)
{
    int ld = (cols + LD_ALIGN - 1) / LD_ALIGN * LD_ALIGN;
    struct act a = {s->base ? s->base + s->used * s->act_bytes : NULL, cols, ld, false};
    s->used += (size_t)rows * (size_t)ld;
    return a;
}

static int ceil_div(int a, int b)
{
    return (a + b - 1) / b;
}

static int count_nodes(int cols, struct leaf_range window)
{
    struct leaf_range nodes[TREE_MAX_NODES];
    return tree_nodes(tree_leaves(cols), window, nodes);
}

/* Rows of a slice that end in logits may repeat, so there can be more of them than the slice has. */
static void lay_out(struct forward_scratch *to, struct slab *s, const struct model_config *c, const struct shard *sh,
                    const int most[2])
{
    int rows = most[0], chunk = most[1], slice = ceil_div(rows, sh->layout.sp), wide = slice > chunk ? slice : chunk,
        dim = c->head_dim;
    *to = (struct forward_scratch){.x = take(s, slice, c->hidden)};
    to->q = take(s, rows, sh->own.n_q * dim);
    to->k = take(s, rows, sh->own.n_kv * dim);
    to->v = take(s, rows, sh->own.n_kv * dim);
    to->attn = take(s, rows, sh->own.n_q * dim);
    to->q_in = to->q;
    to->k_in = to->k;
    to->v_in = to->v;
    to->gate = take(s, wide, sh->ffn.n);
    to->up = take(s, wide, sh->ffn.n);
    to->last = take(s, chunk, c->hidden);
    to->last_all = to->last;
    if (sh->layout.sp > 1) {
        to->q_in = take(s, wide, sh->tp.n_q * dim);
        to->k_in = take(s, slice, sh->tp.n_kv * dim);
        to->v_in = take(s, slice, sh->tp.n_kv * dim);
        to->last_all = take(s, chunk, c->hidden);
    }
    if (sh->layout.tp > 1) {
        to->o_planes = take(s, wide * count_nodes(c->n_heads * dim, sh->o), c->hidden);
        to->down_planes = take(s, wide * count_nodes(c->intermediate, sh->down), c->hidden);
        to->part = take(s, wide, c->hidden);
    }
    if (sh->n > 1)
        to->logits_part = take(s, chunk, sh->vocab.n);
    to->logits = take(s, ceil_div(chunk, sh->n), c->embeds ? 0 : c->vocab);
}

void scratch_lay_out(struct forward_scratch *to, const struct forward *f, const struct shard *sh)
{
    struct slab s = {f->slab, 0, f->act_bytes};
    lay_out(to, &s, f->config, sh, (const int[2]){f->max_rows, scratch_chunk(f->max_rows, f->max_logits)});
}

int scratch_chunk(int max_rows, int max_logits)
{
    return max_logits < max_rows ? max_logits : max_rows;
}

size_t forward_scratch_bytes(const struct model_config *c, int max_rows, int max_logits, int n_ranks, size_t act_bytes)
{
    const int rows[2] = {max_rows, scratch_chunk(max_rows, max_logits)};
    struct heads heads = shard_heads(c);
    size_t most = 0;
    for (int sp = 1; sp <= n_ranks; sp++)
        for (int tp = 1; sp * tp <= n_ranks; tp++) {
            struct layout l = {sp, tp, 1};
            for (int i = 0; i < sp * tp && !layout_refusal(&heads, l); i++) {
                struct shard sh = shard_of(c, l, i);
                struct forward_scratch sizes_only;
                struct slab s = {NULL, 0, act_bytes};
                lay_out(&sizes_only, &s, c, &sh, rows);
                most = s.used > most ? s.used : most;
            }
        }
    return most * act_bytes;
}
