#include "engine/exec/weights.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/exec/slice.h"
#include "models/load/family.h"

/* The matrices of a layer, then its vectors, as they lie in struct weights. */
enum { N_MATRICES = SLICE_MATRICES, N_VECTORS = 7 };
static const enum tensor_role matrix_roles[N_MATRICES] = {T_Q, T_K, T_V, T_O, T_GATE, T_UP, T_DOWN};
static const enum tensor_role vector_roles[N_VECTORS] = {T_ATTN_NORM, T_FFN_NORM, T_Q_BIAS, T_K_BIAS,
                                                         T_V_BIAS,    T_Q_NORM,   T_K_NORM};

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
    bool copies;                /* every slice is there in every layer; else some are, of FFN layers in shares */
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

/* Is the whole tensor to lie on this rank? Of a layer in shares it has slices, if any. */
static bool is_whole_here(const struct ffn_setup *ffn, int rank, enum tensor_role role, int layer)
{
    return !ffn || !is_ffn(role) || ffn_owns(ffn, layer, rank);
}

/* What the rank's shares of an FFN layer are of it. */
static double share_here(const struct model_config *c, const struct ffn_setup *ffn, int rank, int layer)
{
    int n = ffn_shares(ffn, layer), features = 0;
    for (int i = 0; i < n && n > 1; i++)
        if (ffn_owner(ffn, layer, i) == rank)
            features += shard_of(c, (struct layout){1, n, 1}, i).ffn.n;
    return (double)features / c->intermediate;
}

double weights_stored_bytes(const struct model *m, const struct ffn_setup *ffn, int rank)
{
    double sum = 0;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (role < T_ATTN_NORM ? 1 : model_config(m)->n_layers); l++)
            sum +=
                stored_bytes(m, (enum tensor_role)role, l) *
                (is_whole_here(ffn, rank, (enum tensor_role)role, l) ? 1 : share_here(model_config(m), ffn, rank, l));
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

/* Loads slice i of a matrix of the layer. */
static int load_slice(struct loading *ld, int layer, int i, const struct weight_src *whole, struct err *e)
{
    struct weights *w = ld->w;
    struct weight **to = cut_at(w, layer, i);
    struct weight_src s;
    void *temp = NULL;
    int rc = slice_source(whole, &w->slices[i], &s, &temp, e);
    if (!rc)
        rc = w->ops->weight_load(w->device, to, &s, e);
    mem_free(temp);
    if (!rc)
        w->bytes += w->ops->weight_bytes(*to);
    return rc;
}

static int load_slices(struct loading *ld, int matrix, int layer, const struct weight_src *whole, struct err *e)
{
    struct weights *w = ld->w;
    for (int i = 0; i < w->n_slices && w->copies; i++) {
        if (w->slices[i].matrix != matrix)
            continue;
        int rc = load_slice(ld, layer, i, whole, e);
        if (rc == E_FULL)
            return err_set(e, rc,
                           "the sharded copy of the weights does not fit in memory: leave --shift-weights copy out, or "
                           "free memory");
        if (rc)
            return rc;
        w->copy_bytes += w->ops->weight_bytes(*cut_at(w, layer, i));
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

static struct wview view_slice(const struct weights *w, int layer, struct slice x)
{
    int cut = find_slice(w, &x);
    if (cut >= 0 && *cut_at(w, layer, cut))
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
        nodes[i] = view_slice(w, l, slice_node(&w->config, M_O, p->o[i]));
    for (int i = 0; i < p->n_down; i++)
        nodes[p->n_o + i] = view_slice(w, l, slice_node(&w->config, M_DOWN, p->down[i]));
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

/* What the layouts with tp > 1 multiply with in the FFN, each part once. */
static void add_ffn_slices(struct weights *w, struct layout l)
{
    for (int t = 0; t < l.tp && l.tp > 1; t++) {
        struct shard sh = shard_of(&w->config, l, t * l.sp);
        struct parts p;
        slice_parts(&w->config, &sh, &p);
        add_slice(w, p.plain[M_GATE]);
        add_slice(w, p.plain[M_UP]);
        for (int i = 0; i < p.n_down; i++)
            add_slice(w, slice_node(&w->config, M_DOWN, p.down[i]));
    }
}

static void add_slices(struct weights *w, struct layout l)
{
    static const int by_rows[] = {M_Q, M_K, M_V};
    add_ffn_slices(w, l);
    for (int t = 0; t < l.tp && l.tp > 1; t++) {
        struct shard sh = shard_of(&w->config, l, t * l.sp);
        struct parts p;
        slice_parts(&w->config, &sh, &p);
        for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
            add_slice(w, p.plain[by_rows[i]]);
        for (int i = 0; i < p.n_o; i++)
            add_slice(w, slice_node(&w->config, M_O, p.o[i]));
    }
}

/* ---- FFN layers in shares */

bool weights_piece(const struct weights *w, const struct ffn_hold *h, enum ffn_matrix matrix, int k,
                   struct ffn_piece *out)
{
    int m = M_GATE + (int)matrix;
    struct slice x;
    if (!slice_of_share(&w->config, &(struct share_part){h->n, h->share, m, k}, &x))
        return false;
    out->w = view_slice(w, h->layer, x).w;
    out->part = m == M_DOWN ? (struct span){x.col0, x.cols} : (struct span){x.row0, x.rows};
    return true;
}

size_t weights_hold_bytes(const struct weights *w, const struct ffn_hold *h)
{
    size_t bytes = 0;
    struct ffn_piece x;
    for (enum ffn_matrix m = FFN_GATE; m < FFN_MATRICES; m++)
        for (int k = 0; weights_piece(w, h, m, k, &x); k++)
            bytes += w->ops->weight_bytes(x.w);
    return bytes;
}

static int check_shares(const struct weights *w, const struct ffn_setup *f, struct err *e)
{
    for (int l = 0; f && l < w->n_layers; l++) {
        const char *why = slice_refusal(&w->config, ffn_shares(f, l));
        if (why)
            return err_set(e, E_UNSUPPORTED, "--pool-owner: layer %d cannot be cut into %d shares: %s", l,
                           ffn_shares(f, l), why);
    }
    return 0;
}

static void add_shares(struct weights *w, const struct ffn_setup *f)
{
    for (int n = 2; n <= FFN_MAX_SHARES && f; n++)
        for (int l = 0, done = 0; l < w->n_layers && !done; l++)
            if (ffn_shares(f, l) == n) {
                add_ffn_slices(w, (struct layout){1, n, 1});
                done = 1;
            }
}

static int load_share(struct loading *ld, const struct ffn_hold *h, struct err *e)
{
    struct weights *w = ld->w;
    for (int m = M_GATE; m <= M_DOWN; m++) {
        struct weight_src whole;
        struct slice x;
        TRY(get_tensor(ld, matrix_roles[m], h->layer, &whole, e));
        for (int k = 0; slice_of_share(&w->config, &(struct share_part){h->n, h->share, m, k}, &x); k++) {
            int i = find_slice(w, &x);
            if (*cut_at(w, h->layer, i))
                continue;
            TRY(load_slice(ld, h->layer, i, &whole, e));
            w->ffn_bytes += w->ops->weight_bytes(*cut_at(w, h->layer, i));
            advance(ld, (double)x.rows * (double)dtype_row_bytes(whole.type, x.cols));
        }
    }
    return 0;
}

/* ---- loading */

static int load_layer(struct loading *ld, int l, struct err *e)
{
    struct weights *w = ld->w;
    for (int i = 0; i < N_MATRICES; i++) {
        struct weight_src s;
        if (!is_whole_here(ld->ffn, ld->rank, matrix_roles[i], l))
            continue;
        TRY(load_matrix(ld, matrix_roles[i], l, &w->matrices[l][i], &s, e));
        TRY(load_slices(ld, i, l, &s, e));
    }
    int n = ld->ffn ? ffn_shares(ld->ffn, l) : 1;
    for (int i = 0; i < n && n > 1; i++)
        if (ffn_owner(ld->ffn, l, i) == ld->rank)
            TRY(load_share(ld, &(struct ffn_hold){l, i, n}, e));
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
    w->copies = s->copy_shards;
    if (check_shares(w, s->ffn, e)) {
        weights_free(w);
        return E_UNSUPPORTED;
    }
    if (s->copy_shards)
        each_layout(w, add_slices);
    add_shares(w, s->ffn);
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

/* Every layout's views of the layer's FFN are of what is here now. */
static void show_ffn(struct weights *w, struct layout l, int layer)
{
    struct layout_views *v = views_of(w, l);
    for (int t = 0; t < l.tp; t++) {
        struct layer_weights *lw = &v->layers[(size_t)t * (size_t)w->n_layers + (size_t)layer];
        struct parts p;
        slice_parts(&w->config, &v->shares[t * l.sp].shard, &p);
        lw->gate = view_slice(w, layer, p.plain[M_GATE]);
        lw->up = view_slice(w, layer, p.plain[M_UP]);
        for (int i = 0, first = (int)(lw->down - v->nodes); i < p.n_down; i++)
            v->nodes[first + i] = view_slice(w, layer, slice_node(&w->config, M_DOWN, p.down[i]));
    }
}

int weights_adopt(struct weights *w, const struct model *m, const struct ffn_hold *h, struct err *e)
{
    struct heads heads = shard_heads(&w->config);
    struct loading ld = {.w = w, .model = m, .total = 1e300};
    int rc = h->n > 1 ? load_share(&ld, h, e) : 0;
    for (int i = M_GATE; i <= M_DOWN && !rc && h->n == 1; i++) {
        struct weight_src s;
        if (!w->matrices[h->layer][i])
            rc = load_matrix(&ld, matrix_roles[i], h->layer, &w->matrices[h->layer][i], &s, e);
    }
    if (!rc && w->ops->upload(w->device, NULL, NULL, 0)) /* has arrived: other devices read it */
        rc = err_set(e, E_DEVICE, "the device failed while it took the weights");
    tensor_room_free(&ld.room);
    if (rc)
        return rc;
    for (int sp = 1; sp <= w->n_ranks; sp++)
        for (int tp = 1; sp * tp <= w->n_ranks; tp++)
            if (!layout_refusal(&heads, (struct layout){sp, tp, 1}))
                show_ffn(w, (struct layout){sp, tp, 1}, h->layer);
    return 0;
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
