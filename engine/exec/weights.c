#include "engine/exec/weights.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/load/family.h"

/* The matrices of a layer, then its vectors, as they lie in struct weights. */
enum { N_MATRICES = 7, N_VECTORS = 7 };
static const enum tensor_role matrix_roles[N_MATRICES] = {T_Q, T_K, T_V, T_O, T_GATE, T_UP, T_DOWN};
static const enum tensor_role vector_roles[N_VECTORS] = {T_ATTN_NORM, T_FFN_NORM, T_Q_BIAS, T_K_BIAS,
                                                         T_V_BIAS,    T_Q_NORM,   T_K_NORM};

enum { M_Q, M_K, M_V, M_O, M_GATE, M_UP, M_DOWN };

/* A part of a matrix that the sharded copy has as a matrix of its own, in every layer. */
struct slice {
    int matrix, row0, rows, col0, cols;
};

/* What the shares of one layout multiply with. */
struct layout_views {
    struct model_weights *shares; /* [sp * tp] */
    struct layer_weights *layers; /* [tp][n_layers] */
    struct wview *nodes;          /* of o and down, all of them */
    struct reduce_order o_order, down_order;
};

struct weights {
    const struct backend_ops *ops;
    struct device *device;
    struct model_config config;
    struct weight *embed, *head;            /* head: NULL when tied */
    struct weight *(*matrices)[N_MATRICES]; /* [n_layers] */
    float *out_norm;
    float *(*vectors)[N_VECTORS]; /* [n_layers] in slab */
    float *slab;                  /* all norms and biases, device memory */
    struct slice *slices;
    struct weight **cut; /* [n_layers][n_slices] */
    int n_slices, n_layers, n_ranks;
    struct layout_views *views; /* [n_ranks][n_ranks] by sp and tp, less one each */
    size_t bytes, ffn_bytes, copy_bytes;
    atomic_int n_users;
};

struct loading {
    struct weights *w;
    const struct model *model;
    struct tensor_room room;
    const struct ffn_setup *ffn;
    int rank;
    struct load_progress *progress;
    double done, total; /* stored bytes */
};

static const double gib = 1 << 30;

/* Bytes as stored; 0 for a tensor that the model does not have. */
static double stored_bytes(const struct model *m, enum tensor_role role, int layer)
{
    struct weight_src s;
    if (model_shape(m, role, layer, &s, NULL) != 0)
        return 0;
    return (double)s.rows * (double)dtype_row_bytes(s.type, s.cols);
}

static bool is_ffn(enum tensor_role role)
{
    return role == T_GATE || role == T_UP || role == T_DOWN;
}

static bool is_elsewhere(const struct ffn_setup *ffn, int rank, enum tensor_role role, int layer)
{
    return ffn && is_ffn(role) && ffn->owner[layer] != rank;
}

double weights_stored_bytes(const struct model *m, const struct ffn_setup *ffn, int rank)
{
    double sum = 0;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (role < T_ATTN_NORM ? 1 : model_config(m)->n_layers); l++)
            if (!is_elsewhere(ffn, rank, (enum tensor_role)role, l))
                sum += stored_bytes(m, (enum tensor_role)role, l);
    return sum;
}

static void advance(struct loading *ld, double bytes)
{
    ld->done += bytes;
    load_progress_add(ld->progress, bytes);
}

/* Where a machine computes nothing, bytes are neither made nor read. */
static int get_tensor(struct loading *ld, enum tensor_role role, int layer, struct weight_src *s, struct err *e)
{
    if (ld->w->ops->computes)
        return model_tensor(ld->model, &ld->room, role, layer, s, e);
    return model_shape(ld->model, role, layer, s, e);
}

/* src: what it was loaded from. */
static int load_matrix(struct loading *ld, enum tensor_role role, int layer, struct weight **out,
                       struct weight_src *src, struct err *e)
{
    struct weights *w = ld->w;
    int rc = get_tensor(ld, role, layer, src, e);
    if (!rc)
        rc = w->ops->weight_load(w->device, out, src, e);
    if (rc == E_FULL)
        return err_set(e, rc,
                       "the weights do not fit in memory: %.2f of %.2f GiB were loaded; take a smaller model or "
                       "quantisation, or free memory",
                       ld->done / gib, ld->total / gib);
    if (rc)
        return rc;
    w->bytes += w->ops->weight_bytes(*out);
    w->ffn_bytes += is_ffn(role) ? w->ops->weight_bytes(*out) : 0;
    advance(ld, (double)src->rows * (double)dtype_row_bytes(src->type, src->cols));
    return 0;
}

/* ---- the sharded copy */

static struct weight **cut_at(const struct weights *w, int layer, int slice)
{
    return &w->cut[(size_t)layer * (size_t)w->n_slices + (size_t)slice];
}

/* Slice x of a stored matrix as a matrix by itself. Rows lie together; of columns a copy is made in *temp. */
static int cut_source(const struct weight_src *whole, const struct slice *x, struct weight_src *out, void **temp,
                      struct err *e)
{
    const struct dtype_info *info = dtype_get(whole->type);
    bool same_blocks = x->row0 % F8_SCALE_BLOCK == 0 && x->col0 % F8_SCALE_BLOCK == 0;
    *out = (struct weight_src){.type = whole->type,
                               .rows = x->rows,
                               .cols = x->cols,
                               .scales = whole->scales == F8_BY_BLOCK && !same_blocks ? F8_BY_64 : whole->scales};
    if (x->col0 % info->block || x->cols % info->block)
        return err_set(e, E_UNSUPPORTED,
                       "a sharded copy of these weights would cut %s blocks of %d columns at column %d: leave "
                       "--shift-weights copy out "
                       "(views need no copy)",
                       info->name, info->block, x->col0 % info->block ? x->col0 : x->col0 + x->cols);
    if (!whole->data)
        return 0;
    size_t row_bytes = dtype_row_bytes(whole->type, whole->cols), part = dtype_row_bytes(whole->type, x->cols);
    const char *from = (const char *)whole->data + (size_t)x->row0 * row_bytes;
    out->data = from;
    if (x->cols == whole->cols)
        return 0;
    *temp = mem_try((size_t)x->rows * part);
    if (!*temp)
        return err_set(e, E_FULL, "no memory to cut a matrix of %d x %d", x->rows, x->cols);
    for (int r = 0; r < x->rows; r++)
        memcpy((char *)*temp + (size_t)r * part, from + (size_t)r * row_bytes + dtype_row_bytes(whole->type, x->col0),
               part);
    out->data = *temp;
    return 0;
}

static int load_slices(struct loading *ld, int matrix, int layer, const struct weight_src *whole, struct err *e)
{
    struct weights *w = ld->w;
    for (int i = 0; i < w->n_slices; i++) {
        struct weight **to = cut_at(w, layer, i);
        struct weight_src s;
        void *temp = NULL;
        if (w->slices[i].matrix != matrix)
            continue;
        int rc = cut_source(whole, &w->slices[i], &s, &temp, e);
        if (!rc)
            rc = w->ops->weight_load(w->device, to, &s, e);
        mem_free(temp);
        if (rc == E_FULL)
            return err_set(e, rc,
                           "the sharded copy of the weights does not fit in memory: leave --shift-weights copy out, or "
                           "free memory");
        if (rc)
            return rc;
        w->bytes += w->ops->weight_bytes(*to);
        w->copy_bytes += w->ops->weight_bytes(*to);
    }
    return 0;
}

static int find_slice(const struct weights *w, const struct slice *x)
{
    for (int i = 0; i < w->n_slices; i++)
        if (memcmp(&w->slices[i], x, sizeof *x) == 0)
            return i;
    return -1;
}

/* ---- what a share multiplies with */

/* The parts of the matrices that a tp share needs; o and down: by nodes of their trees. */
struct parts {
    struct slice plain[N_MATRICES];
    struct leaf_range o[TREE_MAX_NODES], down[TREE_MAX_NODES];
    int n_o, n_down;
};

static void find_parts(const struct model_config *c, const struct shard *sh, struct parts *p)
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

static struct slice node_slice(const struct model_config *c, int matrix, struct leaf_range r)
{
    int cols = matrix == M_O ? c->n_heads * c->head_dim : c->intermediate, col0 = r.leaf0 * SUM_LEAF,
        end = r.leaf1 * SUM_LEAF;
    return (struct slice){matrix, 0, c->hidden, col0, (end < cols ? end : cols) - col0};
}

static struct wview view_slice(const struct weights *w, int layer, struct slice x)
{
    int cut = find_slice(w, &x);
    if (cut >= 0)
        return (struct wview){*cut_at(w, layer, cut), 0, x.rows, 0, x.cols};
    return (struct wview){w->matrices[layer][x.matrix], x.row0, x.rows, x.col0, x.cols};
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
        nodes[i] = view_slice(w, l, node_slice(&w->config, M_O, p->o[i]));
    for (int i = 0; i < p->n_down; i++)
        nodes[p->n_o + i] = view_slice(w, l, node_slice(&w->config, M_DOWN, p->down[i]));
    return (struct layer_weights){.q = view_slice(w, l, p->plain[M_Q]),
                                  .k = view_slice(w, l, p->plain[M_K]),
                                  .v = view_slice(w, l, p->plain[M_V]),
                                  .gate = view_slice(w, l, p->plain[M_GATE]),
                                  .up = view_slice(w, l, p->plain[M_UP]),
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
        find_parts(&w->config, &sh, &p);
        n_nodes += (size_t)(p.n_o + p.n_down) * layers;
    }
    to->nodes = mem_new_array(n_nodes + 1, sizeof *to->nodes);
    if (l.tp > 1)
        order_sums(w, l, to);
    for (int i = 0; i < n; i++) {
        struct shard sh = shard_of(&w->config, l, i);
        find_parts(&w->config, &sh, &p);
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
static void each_layout(struct weights *w, void (*fn)(struct weights *w, struct layout l))
{
    struct heads heads = shard_heads(&w->config);
    for (int sp = 1; sp <= w->n_ranks; sp++)
        for (int tp = 1; sp * tp <= w->n_ranks; tp++)
            if (!layout_refusal(&heads, (struct layout){sp, tp, 1}))
                fn(w, (struct layout){sp, tp, 1});
}

static void add_views(struct weights *w, struct layout l)
{
    make_views(w, l, views_of(w, l));
}

/* A whole matrix (k and v of a model with one kv head) is there already. */
static void add_slice(struct weights *w, struct slice x)
{
    int rows, cols;
    tensor_shape(&w->config, matrix_roles[x.matrix], &rows, &cols);
    if (x.rows == 0 || x.cols == 0 || (x.rows == rows && x.cols == cols) || find_slice(w, &x) >= 0)
        return;
    w->slices = mem_resize(w->slices, (size_t)w->n_slices + 1, sizeof *w->slices);
    w->slices[w->n_slices++] = x;
}

/* What the layouts with tp > 1 multiply with, each part once. */
static void add_slices(struct weights *w, struct layout l)
{
    static const int by_rows[] = {M_Q, M_K, M_V, M_GATE, M_UP};
    for (int t = 0; t < l.tp && l.tp > 1; t++) {
        struct shard sh = shard_of(&w->config, l, t * l.sp);
        struct parts p;
        find_parts(&w->config, &sh, &p);
        for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
            add_slice(w, p.plain[by_rows[i]]);
        for (int i = 0; i < p.n_o; i++)
            add_slice(w, node_slice(&w->config, M_O, p.o[i]));
        for (int i = 0; i < p.n_down; i++)
            add_slice(w, node_slice(&w->config, M_DOWN, p.down[i]));
    }
}

/* ---- loading */

static int load_layer(struct loading *ld, int l, struct err *e)
{
    struct weights *w = ld->w;
    for (int i = 0; i < N_MATRICES; i++) {
        struct weight_src s;
        if (is_elsewhere(ld->ffn, ld->rank, matrix_roles[i], l))
            continue;
        TRY(load_matrix(ld, matrix_roles[i], l, &w->matrices[l][i], &s, e));
        TRY(load_slices(ld, i, l, &s, e));
    }
    return 0;
}

/* Norms and biases on their way to the device: first counted, then put side by side. */
struct vectors {
    struct loading *ld;
    float *host; /* NULL: only count */
    size_t n;    /* floats so far; each vector begins at a multiple of 16 */
    double stored;
};

/* Leaves NULL for a tensor that the model does not have. */
static int take_vector(struct vectors *v, enum tensor_role role, int layer, float **out, struct err *e)
{
    struct weight_src s;
    if (model_shape(v->ld->model, role, layer, &s, NULL) != 0)
        return 0;
    if (v->host) {
        TRY(model_tensor(v->ld->model, &v->ld->room, role, layer, &s, e));
        dtype_to_f32(s.type, s.data, v->host + v->n, s.cols);
        *out = v->ld->w->slab + v->n;
    }
    v->n += ((size_t)s.cols + 15) / 16 * 16;
    v->stored += (double)s.rows * (double)dtype_row_bytes(s.type, s.cols);
    return 0;
}

static int take_vectors(struct vectors *v, struct err *e)
{
    struct weights *w = v->ld->w;
    v->n = 0;
    v->stored = 0;
    for (int l = 0; l < w->n_layers; l++)
        for (int i = 0; i < N_VECTORS; i++)
            TRY(take_vector(v, vector_roles[i], l, &w->vectors[l][i], e));
    return take_vector(v, T_OUT_NORM, 0, &w->out_norm, e);
}

/* In one piece and one copy, which also waits for the matrices. */
static int upload_vectors(struct vectors *v, struct err *e)
{
    struct weights *w = v->ld->w;
    size_t bytes = v->n * sizeof(float);
    w->slab = w->ops->alloc(w->device, bytes);
    if (!w->slab)
        return err_set(e, E_FULL, "the weights do not fit in memory: no room for %zu bytes of norms and biases", bytes);
    v->host = mem_new(bytes);
    int rc = take_vectors(v, e);
    if (!rc && w->ops->upload(w->device, w->slab, v->host, bytes))
        rc = err_set(e, E_DEVICE, "the device failed while it took the weights");
    mem_free(v->host);
    w->bytes += bytes;
    return rc;
}

static int load_vectors(struct loading *ld, struct err *e)
{
    struct vectors v = {.ld = ld};
    TRY(take_vectors(&v, e));
    if (ld->w->ops->computes)
        TRY(upload_vectors(&v, e));
    advance(ld, v.stored);
    return 0;
}

static int load_all(struct loading *ld, struct err *e)
{
    struct weights *w = ld->w;
    struct weight_src s;
    TRY(load_matrix(ld, T_EMBED, 0, &w->embed, &s, e));
    for (int l = 0; l < w->n_layers; l++)
        TRY(load_layer(ld, l, e));
    if (!model_config(ld->model)->tied)
        TRY(load_matrix(ld, T_HEAD, 0, &w->head, &s, e));
    return load_vectors(ld, e);
}

int weights_load(struct weights **out, const struct weights_setup *s, struct err *e)
{
    struct weights *w = mem_new(sizeof *w);
    size_t n = (size_t)model_config(s->model)->n_layers, ranks = (size_t)s->n_ranks;
    ASSERT(s->n_ranks >= 1 && s->n_ranks <= MAX_RANKS);
    *out = NULL;
    w->ops = s->ops;
    w->device = s->device;
    w->config = *model_config(s->model);
    w->n_layers = (int)n;
    w->n_ranks = s->n_ranks;
    atomic_init(&w->n_users, 1);
    w->matrices = mem_new_array(n, sizeof *w->matrices);
    w->vectors = mem_new_array(n, sizeof *w->vectors);
    w->views = mem_new_array(ranks * ranks, sizeof *w->views);
    if (s->copy_shards)
        each_layout(w, add_slices);
    w->cut = mem_new_array(n * (size_t)w->n_slices + 1, sizeof(struct weight *));
    struct loading ld = {.w = w, .model = s->model, .ffn = s->ffn, .rank = s->rank, .progress = s->progress};
    ld.total = weights_stored_bytes(s->model, s->ffn, s->rank);
    int rc = load_all(&ld, e);
    tensor_room_free(&ld.room);
    if (rc) {
        weights_free(w);
        return rc;
    }
    each_layout(w, add_views);
    *out = w;
    return 0;
}

/* Every layout's views of the layer name the matrices that are here now. */
static void show_ffn(struct weights *w, struct layout l, int layer)
{
    struct layout_views *v = views_of(w, l);
    for (int t = 0; t < l.tp; t++) {
        struct layer_weights *lw = &v->layers[(size_t)t * (size_t)w->n_layers + (size_t)layer];
        int first = lw->down - v->nodes, n = v->shares[t * l.sp].n_down;
        lw->gate.w = w->matrices[layer][M_GATE];
        lw->up.w = w->matrices[layer][M_UP];
        for (int i = 0; i < n; i++)
            v->nodes[first + i].w = w->matrices[layer][M_DOWN];
    }
}

int weights_adopt(struct weights *w, const struct model *m, int layer, struct err *e)
{
    struct heads heads = shard_heads(&w->config);
    struct loading ld = {.w = w, .model = m, .total = 1e300};
    int rc = 0;
    for (int i = M_GATE; i <= M_DOWN && !rc; i++) {
        struct weight_src s;
        if (!w->matrices[layer][i])
            rc = load_matrix(&ld, matrix_roles[i], layer, &w->matrices[layer][i], &s, e);
    }
    tensor_room_free(&ld.room);
    if (rc)
        return rc;
    for (int sp = 1; sp <= w->n_ranks; sp++)
        for (int tp = 1; sp * tp <= w->n_ranks; tp++)
            if (!layout_refusal(&heads, (struct layout){sp, tp, 1}))
                show_ffn(w, (struct layout){sp, tp, 1}, layer);
    return 0;
}

void weights_ffn(const struct weights *w, int layer, const struct weight *out[FFN_MATRICES])
{
    for (int i = 0; i < FFN_MATRICES; i++)
        out[i] = w->matrices[layer][M_GATE + i];
}

struct weights *weights_share(struct weights *w)
{
    atomic_fetch_add(&w->n_users, 1);
    return w;
}

static void free_matrix(struct weights *w, struct weight *x)
{
    if (x)
        w->ops->weight_free(w->device, x);
}

static void free_views(struct layout_views *v)
{
    mem_free(v->shares);
    mem_free(v->layers);
    mem_free(v->nodes);
    tree_order_free(&v->o_order);
    tree_order_free(&v->down_order);
}

void weights_free(struct weights *w)
{
    if (!w || atomic_fetch_sub(&w->n_users, 1) > 1)
        return;
    free_matrix(w, w->embed);
    free_matrix(w, w->head);
    if (w->slab)
        w->ops->release(w->device, w->slab);
    for (int l = 0; l < w->n_layers; l++) {
        for (int i = 0; i < N_MATRICES; i++)
            free_matrix(w, w->matrices[l][i]);
        for (int i = 0; i < w->n_slices && w->cut; i++)
            free_matrix(w, *cut_at(w, l, i));
    }
    for (int i = 0; i < w->n_ranks * w->n_ranks; i++)
        free_views(&w->views[i]);
    mem_free(w->matrices);
    mem_free(w->vectors);
    mem_free(w->views);
    mem_free(w->slices);
    mem_free(w->cut);
    mem_free(w);
}

const struct model_weights *weights_view(const struct weights *w, struct layout l, int share)
{
    if (l.pp != 1 || l.sp < 1 || l.tp < 1 || l.sp > w->n_ranks || l.tp > w->n_ranks || share < 0 ||
        share >= l.sp * l.tp)
        return NULL;
    const struct model_weights *shares = views_of(w, l)->shares;
    return shares ? &shares[share] : NULL;
}

size_t weights_bytes(const struct weights *w)
{
    return w->bytes;
}

size_t weights_ffn_bytes(const struct weights *w)
{
    return w->ffn_bytes;
}

size_t weights_copy_bytes(const struct weights *w)
{
    return w->copy_bytes;
}
