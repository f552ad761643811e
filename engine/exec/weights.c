#include "engine/exec/weights.h"

#include <stdio.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

/* The matrices of a layer, then its vectors, as they lie in struct weights. */
enum { N_MATRICES = 7, N_VECTORS = 7 };
static const enum tensor_role matrix_roles[N_MATRICES] = {T_Q, T_K, T_V, T_O, T_GATE, T_UP, T_DOWN};
static const enum tensor_role vector_roles[N_VECTORS] = {T_ATTN_NORM, T_FFN_NORM, T_Q_BIAS, T_K_BIAS,
                                                         T_V_BIAS,    T_Q_NORM,   T_K_NORM};

struct weights {
    const struct backend_ops *ops;
    struct device *device;
    struct model_weights view;
    struct weight *embed, *head;               /* head: NULL when tied */
    struct weight *(*matrices)[N_MATRICES];    /* [n_layers] */
    float *out_norm;
    float *(*vectors)[N_VECTORS];              /* [n_layers] device memory */
    int n_layers;
    size_t bytes;
};

struct loading {
    struct weights *w;
    struct model *model;
    bool quiet;
    double done, total;                        /* stored bytes */
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

static double total_bytes(const struct model *m)
{
    double sum = 0;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (role < T_ATTN_NORM ? 1 : model_config(m)->n_layers); l++)
            sum += stored_bytes(m, role, l);
    return sum;
}

static void advance(struct loading *ld, const struct weight_src *s)
{
    ld->done += (double)s->rows * (double)dtype_row_bytes(s->type, s->cols);
    if (!ld->quiet)
        log_progress("Loading weights", ld->done / gib, ld->total / gib, "GiB");
}

/* Where a machine computes nothing, bytes are neither made nor read. */
static int get_tensor(struct loading *ld, enum tensor_role role, int layer, struct weight_src *s, struct err *e)
{
    if (ld->w->ops->computes)
        return model_tensor(ld->model, role, layer, s, e);
    return model_shape(ld->model, role, layer, s, e);
}

static int load_matrix(struct loading *ld, enum tensor_role role, int layer, struct weight **out, struct err *e)
{
    struct weights *w = ld->w;
    struct weight_src s;
    int rc = get_tensor(ld, role, layer, &s, e);
    if (!rc)
        rc = w->ops->weight_load(w->device, out, &s, e);
    if (rc == E_FULL)
        return err_set(e, rc, "the weights do not fit in memory: %.2f of %.2f GiB were loaded; take a smaller model or "
                              "quantisation, or free memory",
                       ld->done / gib, ld->total / gib);
    if (rc)
        return rc;
    w->bytes += w->ops->weight_bytes(*out);
    advance(ld, &s);
    return 0;
}

static int upload_vector(struct weights *w, const struct weight_src *s, float **out, struct err *e)
{
    size_t bytes = (size_t)s->cols * sizeof(float);
    float *host = mem_new(bytes);
    dtype_to_f32(s->type, s->data, host, s->cols);
    *out = w->ops->alloc(w->device, bytes);
    int rc = *out ? w->ops->upload(w->device, *out, host, bytes) : E_FULL;
    mem_free(host);
    if (rc)
        return err_set(e, rc, *out ? "the device refused a norm or bias of %zu bytes"
                                   : "the weights do not fit in memory: no room for %zu bytes of norms and biases",
                       bytes);
    w->bytes += bytes;
    return 0;
}

/* Leaves NULL for a tensor that the model does not have. */
static int load_vector(struct loading *ld, enum tensor_role role, int layer, float **out, struct err *e)
{
    struct weight_src s;
    if (model_shape(ld->model, role, layer, &s, NULL) != 0)
        return 0;
    TRY(get_tensor(ld, role, layer, &s, e));
    if (ld->w->ops->computes)
        TRY(upload_vector(ld->w, &s, out, e));
    advance(ld, &s);
    return 0;
}

static struct wview whole(struct loading *ld, enum tensor_role role, const struct weight *w)
{
    struct weight_src s;
    ASSERT(model_shape(ld->model, role, 0, &s, NULL) == 0);
    return (struct wview){w, 0, s.rows, 0, s.cols};
}

static int load_layer(struct loading *ld, int l, struct err *e)
{
    struct weights *w = ld->w;
    struct weight **m = w->matrices[l];
    float **v = w->vectors[l];
    for (int i = 0; i < N_MATRICES; i++)
        TRY(load_matrix(ld, matrix_roles[i], l, &m[i], e));
    for (int i = 0; i < N_VECTORS; i++)
        TRY(load_vector(ld, vector_roles[i], l, &v[i], e));
    w->view.layers[l] = (struct layer_weights){
        .q = whole(ld, T_Q, m[0]), .k = whole(ld, T_K, m[1]), .v = whole(ld, T_V, m[2]), .o = whole(ld, T_O, m[3]),
        .gate = whole(ld, T_GATE, m[4]), .up = whole(ld, T_UP, m[5]), .down = whole(ld, T_DOWN, m[6]),
        .attn_norm = v[0], .ffn_norm = v[1], .q_bias = v[2], .k_bias = v[3], .v_bias = v[4], .q_norm = v[5], .k_norm = v[6]};
    return 0;
}

static int load_all(struct loading *ld, struct err *e)
{
    struct weights *w = ld->w;
    TRY(load_matrix(ld, T_EMBED, 0, &w->embed, e));
    w->view.embed = whole(ld, T_EMBED, w->embed);
    for (int l = 0; l < w->n_layers; l++)
        TRY(load_layer(ld, l, e));
    TRY(load_vector(ld, T_OUT_NORM, 0, &w->out_norm, e));
    w->view.out_norm = w->out_norm;
    w->view.head = w->view.embed;
    if (model_config(ld->model)->tied)
        return 0;
    TRY(load_matrix(ld, T_HEAD, 0, &w->head, e));
    w->view.head = whole(ld, T_HEAD, w->head);
    return 0;
}

int weights_load(struct weights **out, struct model *m, const struct backend_ops *ops, struct device *d, bool quiet, struct err *e)
{
    struct weights *w = mem_new(sizeof *w);
    int n = model_config(m)->n_layers;
    *out = NULL;
    w->ops = ops;
    w->device = d;
    w->n_layers = n;
    w->matrices = mem_new_array((size_t)n, sizeof *w->matrices);
    w->vectors = mem_new_array((size_t)n, sizeof *w->vectors);
    w->view.layers = mem_new_array((size_t)n, sizeof *w->view.layers);
    struct loading ld = {w, m, quiet, 0, total_bytes(m)};
    int rc = load_all(&ld, e);
    if (rc) {
        weights_free(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void free_matrix(struct weights *w, struct weight *x)
{
    if (x)
        w->ops->weight_free(w->device, x);
}

static void free_vector(struct weights *w, float *x)
{
    if (x)
        w->ops->release(w->device, x);
}

void weights_free(struct weights *w)
{
    if (!w)
        return;
    free_matrix(w, w->embed);
    free_matrix(w, w->head);
    free_vector(w, w->out_norm);
    for (int l = 0; l < w->n_layers; l++) {
        for (int i = 0; i < N_MATRICES; i++)
            free_matrix(w, w->matrices[l][i]);
        for (int i = 0; i < N_VECTORS; i++)
            free_vector(w, w->vectors[l][i]);
    }
    mem_free(w->matrices);
    mem_free(w->vectors);
    mem_free(w->view.layers);
    mem_free(w);
}

const struct model_weights *weights_view(const struct weights *w)
{
    return &w->view;
}

size_t weights_bytes(const struct weights *w)
{
    return w->bytes;
}
