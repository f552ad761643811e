#include "engine/exec/weights.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/exec/weights_inner.h"
#include "models/load/family.h"

static const enum tensor_role matrix_roles[SLICE_MATRICES] = {T_Q, T_K, T_V, T_O, T_GATE, T_UP, T_DOWN};
static const enum tensor_role vector_roles[N_VECTORS] = {T_ATTN_NORM, T_FFN_NORM, T_Q_BIAS, T_K_BIAS,
                                                         T_V_BIAS,    T_Q_NORM,   T_K_NORM};
static const double gib = 1 << 30;

enum tensor_role weights_matrix_role(int matrix)
{
    return matrix_roles[matrix];
}

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

static bool is_matrix(enum tensor_role role)
{
    return role == T_Q || role == T_K || role == T_V || role == T_O || is_ffn(role);
}

/* What a cut is of a matrix of this layer, about. */
static double cut_here(const struct cut *c, int n_layers, int layer)
{
    struct layer_span s = cut_layers(c, n_layers);
    return layer >= s.first && layer < s.first + s.n ? 1.0 / c->layout.tp : 0;
}

double weights_stored_bytes(const struct model *m, const struct ffn_setup *ffn, int rank, const struct cut *cut)
{
    double sum = 0;
    int n = model_config(m)->n_layers;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (role < T_ATTN_NORM ? 1 : n); l++) {
            enum tensor_role what = (enum tensor_role)role;
            double part = cut && is_matrix(what)              ? cut_here(cut, n, l)
                          : is_whole_here(ffn, rank, what, l) ? 1
                                                              : share_here(model_config(m), ffn, rank, l);
            sum += stored_bytes(m, what, l) * part;
        }
    return sum;
}

void weights_advance(struct loading *ld, double bytes)
{
    ld->done += bytes;
    load_progress_add(ld->progress, bytes);
}

/* Where a machine computes nothing, bytes are neither made nor read. */
int weights_get_tensor(struct loading *ld, enum tensor_role role, int layer, struct weight_src *s, struct err *e)
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
    int rc = weights_get_tensor(ld, role, layer, src, e);
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
    weights_advance(ld, (double)src->rows * (double)dtype_row_bytes(src->type, src->cols));
    return 0;
}

/* ---- the sharded copy */

/* Loads slice i of a matrix of the layer. */
static int load_slice(struct loading *ld, int layer, int i, const struct weight_src *whole, struct err *e)
{
    struct weights *w = ld->w;
    struct weight **to = store_slice(w, &w->here, layer, i);
    struct weight_src s;
    TRY(slice_source(whole, &w->slices[i], &s, e));
    TRY(w->ops->weight_load(w->device, to, &s, e));
    w->bytes += w->ops->weight_bytes(*to);
    return 0;
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
        w->copy_bytes += w->ops->weight_bytes(*store_slice(w, &w->here, layer, i));
    }
    return 0;
}

/* A whole matrix (k and v of a model with one kv head) is there already. */
static void add_slice(struct weights *w, struct slice x)
{
    int rows, cols;
    tensor_shape(&w->config, matrix_roles[x.matrix], &rows, &cols);
    if (x.rows == 0 || x.cols == 0 || (x.rows == rows && x.cols == cols) || weights_find_slice(w, &x) >= 0)
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
    out->w = weights_view_slice(w, h->layer, x).w;
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

int weights_check_owners(const struct model_config *c, const struct ffn_setup *f, struct err *e)
{
    for (int l = 0; f && l < c->n_layers; l++) {
        const char *why = slice_refusal(c, ffn_shares(f, l));
        if (why)
            return err_set(
                e, E_UNSUPPORTED,
                "--pool-owner: layer %d cannot be cut into %d shares (%s): give whole layers owners, as layer-mod does",
                l, ffn_shares(f, l), why);
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
        TRY(weights_get_tensor(ld, matrix_roles[m], h->layer, &whole, e));
        for (int k = 0; slice_of_share(&w->config, &(struct share_part){h->n, h->share, m, k}, &x); k++) {
            int i = weights_find_slice(w, &x);
            if (*store_slice(w, &w->here, h->layer, i))
                continue;
            TRY(load_slice(ld, h->layer, i, &whole, e));
            w->ffn_bytes += w->ops->weight_bytes(*store_slice(w, &w->here, h->layer, i));
            weights_advance(ld, (double)x.rows * (double)dtype_row_bytes(whole.type, x.cols));
        }
    }
    return 0;
}

/* ---- loading */

static int load_layer(struct loading *ld, int l, struct err *e)
{
    struct weights *w = ld->w;
    for (int i = 0; i < SLICE_MATRICES; i++) {
        struct weight_src s;
        if (!is_whole_here(ld->ffn, ld->rank, matrix_roles[i], l))
            continue;
        TRY(load_matrix(ld, matrix_roles[i], l, &w->here.matrices[l][i], &s, e));
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
    TRY(take_vector(v, T_KV_NORM, 0, &w->kv_norm, e));
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
    weights_advance(ld, v.stored);
    return 0;
}

static int load_all(struct loading *ld, struct err *e)
{
    struct weights *w = ld->w;
    struct weight_src s;
    TRY(load_matrix(ld, T_EMBED, 0, &w->embed, &s, e));
    for (int l = 0; l < w->n_layers && !w->is_cut; l++)
        TRY(load_layer(ld, l, e));
    if (w->is_cut)
        TRY(weights_load_cut(ld, e));
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
    w->here.matrices = mem_new_array(n, sizeof *w->here.matrices);
    w->vectors = mem_new_array(n, sizeof *w->vectors);
    w->views = mem_new_array(ranks * ranks, sizeof *w->views);
    w->copies = s->copy_shards;
    if (weights_check_owners(&w->config, s->ffn, e)) {
        weights_free(w);
        return E_UNSUPPORTED;
    }
    w->is_cut = s->cut != NULL;
    if (s->cut)
        w->cut = *s->cut;
    if (s->copy_shards || s->cut)
        weights_each_layout(w, add_slices);
    add_shares(w, s->ffn);
    w->here.slices = mem_new_array(n * (size_t)w->n_slices + 1, sizeof(struct weight *));
    struct loading ld = {.w = w, .model = s->model, .ffn = s->ffn, .rank = s->rank, .progress = s->progress};
    ld.total = weights_stored_bytes(s->model, s->ffn, s->rank, s->cut);
    int rc = load_all(&ld, e);
    tensor_room_free(&ld.room);
    if (rc) {
        weights_free(w);
        return rc;
    }
    if (w->is_cut)
        weights_show_cut(w);
    else
        weights_each_layout(w, weights_add_views);
    *out = w;
    return 0;
}

int weights_adopt(struct weights *w, const struct model *m, const struct ffn_hold *h, struct err *e)
{
    struct loading ld = {.w = w, .model = m, .total = 1e300};
    int rc = h->n > 1 ? load_share(&ld, h, e) : 0;
    for (int i = M_GATE; i <= M_DOWN && !rc && h->n == 1; i++) {
        struct weight_src s;
        if (!w->here.matrices[h->layer][i])
            rc = load_matrix(&ld, matrix_roles[i], h->layer, &w->here.matrices[h->layer][i], &s, e);
    }
    if (!rc && w->ops->upload(w->device, NULL, NULL, 0)) /* has arrived: other devices read it */
        rc = err_set(e, E_DEVICE, "the device failed while it took the weights");
    tensor_room_free(&ld.room);
    if (rc)
        return rc;
    weights_show_ffn(w, h->layer);
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

void weights_free(struct weights *w)
{
    if (!w || atomic_fetch_sub(&w->n_users, 1) > 1)
        return;
    free_matrix(w, w->embed);
    free_matrix(w, w->head);
    if (w->slab)
        w->ops->release(w->device, w->slab);
    weights_free_store(w, &w->here);
    weights_free_store(w, &w->staged);
    weights_drop_views(w);
    mem_free(w->vectors);
    mem_free(w->views);
    mem_free(w->slices);
    mem_free(w);
}

size_t weights_bytes(const struct weights *w)
{
    return w->bytes;
}

size_t weights_layers_bytes(const struct weights *w)
{
    return w->here.bytes;
}

size_t weights_ffn_bytes(const struct weights *w)
{
    return w->ffn_bytes;
}

size_t weights_copy_bytes(const struct weights *w)
{
    return w->copy_bytes;
}
