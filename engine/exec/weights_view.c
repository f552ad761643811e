/* What shares of layouts multiply with: views into the weights that lie here. A layout whose weights are elsewhere has
 * no views, so that nothing can run in it. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/exec/weights_inner.h"

int weights_find_slice(const struct weights *w, const struct slice *x)
{
    for (int i = 0; i < w->n_slices; i++)
        if (memcmp(&w->slices[i], x, sizeof *x) == 0)
            return i;
    return -1;
}

struct wview weights_view_slice(const struct weights *w, int layer, struct slice x)
{
    int at = weights_find_slice(w, &x);
    if (at >= 0 && *store_slice(w, &w->here, layer, at))
        return (struct wview){*store_slice(w, &w->here, layer, at), 0, x.rows, 0, x.cols};
    return (struct wview){w->here.matrices[layer][x.matrix], x.row0, x.rows, x.col0, x.cols};
}

static const float *from_row(const float *vector, int row)
{
    return vector ? vector + row : NULL;
}

/* Layer l of a tp share; nodes: room for its nodes, o's first. */
static struct layer_weights make_layer(const struct weights *w, int l, const struct parts *p, struct wview *nodes)
{
    float *const *v = w->vectors[l];
    int q0 = p->plain[M_Q].row0, kv0 = p->plain[M_K].row0;
    for (int i = 0; i < p->n_o; i++)
        nodes[i] = weights_view_slice(w, l, slice_node(&w->config, M_O, p->o[i]));
    for (int i = 0; i < p->n_down; i++)
        nodes[p->n_o + i] = weights_view_slice(w, l, slice_node(&w->config, M_DOWN, p->down[i]));
    return (struct layer_weights){.q = weights_view_slice(w, l, p->plain[M_Q]),
                                  .k = weights_view_slice(w, l, p->plain[M_K]),
                                  .v = weights_view_slice(w, l, p->plain[M_V]),
                                  .gate = weights_view_slice(w, l, p->plain[M_GATE]),
                                  .up = weights_view_slice(w, l, p->plain[M_UP]),
                                  .o = nodes,
                                  .down = nodes + p->n_o,
                                  .attn_norm = v[0],
                                  .ffn_norm = v[1],
                                  .q_bias = from_row(v[2], q0),
                                  .k_bias = from_row(v[3], kv0),
                                  .v_bias = from_row(v[4], kv0),
                                  .q_norm = v[5],
                                  .k_norm = v[6]};
}

static void order_sums(const struct weights *w, struct layout l, struct layout_views *to)
{
    struct leaf_range o[MAX_RANKS], down[MAX_RANKS];
    for (int t = 0; t < l.tp; t++) {
        struct shard sh = shard_of(&w->config, l, t * l.sp);
        o[t] = sh.o;
        down[t] = sh.down;
    }
    tree_order(&to->o_order, tree_leaves(w->config.n_heads * w->config.head_dim), o, l.tp);
    tree_order(&to->down_order, tree_leaves(w->config.intermediate), down, l.tp);
}

static struct model_weights share_view(const struct weights *w, const struct shard *sh, const struct parts *p,
                                       const struct layout_views *to)
{
    bool sums = sh->layout.tp > 1;
    return (struct model_weights){
        .shard = *sh,
        .out_norm = w->out_norm,
        .kv_norm = w->kv_norm,
        .embed = {w->embed, 0, w->config.vocab, 0, w->config.hidden},
        .head = {w->head ? w->head : w->embed, sh->vocab.first, sh->vocab.n, 0, w->config.hidden},
        .layers = to->layers + (size_t)sh->t * (size_t)w->n_layers,
        .n_o = p->n_o,
        .n_down = p->n_down,
        .o_order = sums ? &to->o_order : NULL,
        .down_order = sums ? &to->down_order : NULL};
}

static void make_views(const struct weights *w, struct layout l, struct layout_views *to)
{
    int n = l.sp * l.tp;
    size_t n_nodes = 0, at = 0, layers = (size_t)w->n_layers;
    struct parts p;
    to->shares = mem_new_array((size_t)n, sizeof *to->shares);
    to->layers = mem_new_array((size_t)l.tp * layers, sizeof *to->layers);
    for (int t = 0; t < l.tp; t++) {
        struct shard sh = shard_of(&w->config, l, t * l.sp);
        slice_parts(&w->config, &sh, &p);
        n_nodes += (size_t)(p.n_o + p.n_down) * layers;
    }
    to->nodes = mem_new_array(n_nodes + 1, sizeof *to->nodes);
    if (l.tp > 1)
        order_sums(w, l, to);
    for (int i = 0; i < n; i++) {
        struct shard sh = shard_of(&w->config, l, i);
        slice_parts(&w->config, &sh, &p);
        for (int k = 0; k < w->n_layers && sh.s == 0; k++, at += (size_t)(p.n_o + p.n_down))
            to->layers[(size_t)sh.t * layers + (size_t)k] = make_layer(w, k, &p, to->nodes + at);
        to->shares[i] = share_view(w, &sh, &p, to);
    }
}

static struct layout_views *views_of(const struct weights *w, struct layout l)
{
    return &w->views[(size_t)(l.sp - 1) * (size_t)w->n_ranks + (size_t)(l.tp - 1)];
}

/* Calls fn for every layout that a group of these ranks may have. */
void weights_each_layout(struct weights *w, void (*fn)(struct weights *w, struct layout l))
{
    struct heads heads = shard_heads(&w->config);
    for (int sp = 1; sp <= w->n_ranks; sp++)
        for (int tp = 1; sp * tp <= w->n_ranks; tp++)
            if (!layout_refusal(&heads, (struct layout){sp, tp, 1}))
                fn(w, (struct layout){sp, tp, 1});
}

void weights_add_views(struct weights *w, struct layout l)
{
    make_views(w, l, views_of(w, l));
}

/* Every layout's views of the layer's FFN are of what is here now. */
static void show_ffn(struct weights *w, struct layout l, int layer)
{
    struct layout_views *v = views_of(w, l);
    for (int t = 0; t < l.tp; t++) {
        struct layer_weights *lw = &v->layers[(size_t)t * (size_t)w->n_layers + (size_t)layer];
        struct parts p;
        slice_parts(&w->config, &v->shares[t * l.sp].shard, &p);
        lw->gate = weights_view_slice(w, layer, p.plain[M_GATE]);
        lw->up = weights_view_slice(w, layer, p.plain[M_UP]);
        for (int i = 0, first = (int)(lw->down - v->nodes); i < p.n_down; i++)
            v->nodes[first + i] = weights_view_slice(w, layer, slice_node(&w->config, M_DOWN, p.down[i]));
    }
}

void weights_show_ffn(struct weights *w, int layer)
{
    for (int sp = 1; sp <= w->n_ranks; sp++)
        for (int tp = 1; sp * tp <= w->n_ranks; tp++)
            if (views_of(w, (struct layout){sp, tp, 1})->shares)
                show_ffn(w, (struct layout){sp, tp, 1}, layer);
}

static void free_views(struct layout_views *v)
{
    mem_free(v->shares);
    mem_free(v->layers);
    mem_free(v->nodes);
    tree_order_free(&v->o_order);
    tree_order_free(&v->down_order);
    *v = (struct layout_views){0};
}

void weights_drop_views(struct weights *w)
{
    for (int i = 0; i < w->n_ranks * w->n_ranks; i++)
        free_views(&w->views[i]);
}

const struct model_weights *weights_view(const struct weights *w, struct layout l, int share)
{
    if (l.pp != 1 || l.sp < 1 || l.tp < 1 || l.sp > w->n_ranks || l.tp > w->n_ranks || share < 0 ||
        share >= l.sp * l.tp)
        return NULL;
    const struct model_weights *shares = views_of(w, l)->shares;
    return shares ? &shares[share] : NULL;
}

bool weights_hold(const struct weights *w, struct layout l, int share)
{
    struct cut need = cut_of(l, share);
    bool stage = !w->is_cut || (need.layout.pp == w->cut.layout.pp && need.stage == w->cut.stage);
    return stage && weights_view(w, layout_of_stage(l), share_in_stage(l, share)) &&
           (!w->is_cut || w->cut.layout.tp == 1 || need.t == w->cut.t);
}
