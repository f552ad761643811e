#include "engine/exec/slice.h"

void slice_parts(const struct model_config *c, const struct shard *sh, struct parts *p)
{
    int dim = c->head_dim, q_cols = c->n_heads * dim;
    *p = (struct parts){.plain = {[M_Q] = {M_Q, sh->tp.q0 * dim, sh->tp.n_q * dim, 0, c->hidden},
                                  [M_K] = {M_K, sh->tp.kv0 * dim, sh->tp.n_kv * dim, 0, c->hidden},
                                  [M_V] = {M_V, sh->tp.kv0 * dim, sh->tp.n_kv * dim, 0, c->hidden},
                                  [M_GATE] = {M_GATE, sh->ffn.first, sh->ffn.n, 0, c->hidden},
                                  [M_UP] = {M_UP, sh->ffn.first, sh->ffn.n, 0, c->hidden}}};
    p->n_o = p->n_down = 1;
    p->o[0] = (struct leaf_range){0, tree_leaves(q_cols)};
    p->down[0] = (struct leaf_range){0, tree_leaves(c->intermediate)};
    if (sh->layout.tp == 1)
        return;
    p->n_o = tree_nodes(tree_leaves(q_cols), sh->o, p->o);
    p->n_down = tree_nodes(tree_leaves(c->intermediate), sh->down, p->down);
}

struct slice slice_node(const struct model_config *c, int matrix, struct leaf_range r)
{
    int cols = matrix == M_O ? c->n_heads * c->head_dim : c->intermediate, col0 = r.leaf0 * SUM_LEAF,
        end = r.leaf1 * SUM_LEAF;
    return (struct slice){matrix, 0, c->hidden, col0, (end < cols ? end : cols) - col0};
}

const char *slice_refusal(const struct model_config *c, int n)
{
    struct heads heads = shard_heads(c);
    const char *why = n > 1 ? layout_refusal(&heads, (struct layout){1, n, 1}) : NULL;
    return why ? why : n > tree_leaves(c->intermediate) ? "the FFN is too narrow" : NULL;
}

bool slice_of_share(const struct model_config *c, const struct share_part *x, struct slice *out)
{
    struct shard sh = shard_of(c, (struct layout){1, x->n, 1}, x->share);
    struct parts p;
    slice_parts(c, &sh, &p);
    if (x->matrix != M_DOWN)
        *out = p.plain[x->matrix];
    else if (x->k < p.n_down)
        *out = slice_node(c, M_DOWN, p.down[x->k]);
    return x->k < (x->matrix == M_DOWN ? p.n_down : 1);
}

int slice_source(const struct weight_src *whole, const struct slice *x, struct weight_src *out, struct err *e)
{
    const struct dtype_info *info = dtype_get(whole->type);
    bool same_blocks = x->row0 % F8_SCALE_BLOCK == 0 && x->col0 % F8_SCALE_BLOCK == 0;
    *out = (struct weight_src){.type = whole->type,
                               .rows = x->rows,
                               .cols = x->cols,
                               .scales = whole->scales == F8_BY_BLOCK && !same_blocks ? F8_BY_64 : whole->scales,
                               .pitch = weight_src_pitch(whole)};
    if (x->col0 % info->block || x->cols % info->block)
        return err_set(
            e, E_UNSUPPORTED,
            "a share of these weights would cut %s blocks of %d columns at column %d: leave --shift-weights copy "
            "out (views need no copy), and give whole layers owners with --pool-owner",
            info->name, info->block, x->col0 % info->block ? x->col0 : x->col0 + x->cols);
    if (whole->data)
        out->data = (const char *)whole->data + (size_t)x->row0 * out->pitch + dtype_row_bytes(whole->type, x->col0);
    return 0;
}
