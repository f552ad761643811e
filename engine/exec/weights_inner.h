/* The inside of struct weights, shared by weights.c (loading), weights_view.c (what layouts multiply with) and
 * weights_cut.c (a rank that holds a part of the layers only). Invariant: a view names only what lies in `here`. */
#ifndef EXEC_WEIGHTS_INNER_H
#define EXEC_WEIGHTS_INNER_H

#include <stdatomic.h>

#include "engine/exec/slice.h"
#include "engine/exec/weights.h"

enum { N_VECTORS = 7 };

/* What the shares of one layout multiply with. */
struct layout_views {
    struct model_weights *shares; /* [sp * tp]; NULL: nothing runs in it here */
    struct layer_weights *layers; /* [tp][n_layers] */
    struct wview *nodes;          /* of o and down, all of them */
    struct reduce_order o_order, down_order;
};

/* Matrices of layers: as a whole, or slices of them as matrices by themselves. */
struct layer_store {
    struct weight *(*matrices)[SLICE_MATRICES]; /* [n_layers] */
    struct weight **slices;                     /* [n_layers][n_slices] */
    size_t bytes;                               /* kept up only where a rank holds a cut */
};

struct weights {
    const struct backend_ops *ops;
    struct device *device;
    struct model_config config;
    struct weight *embed, *head; /* head: NULL when tied */
    struct layer_store here;
    float *out_norm, *kv_norm;    /* kv_norm: NULL but of SwiftKV models */
    float *(*vectors)[N_VECTORS]; /* [n_layers] in slab */
    float *slab;                  /* all norms and biases, device memory */
    struct slice *slices;
    int n_slices, n_layers, n_ranks;
    struct layout_views *views; /* [n_ranks][n_ranks] by sp and tp, less one each */
    bool copies;                /* every slice is there in every layer; else some are, of FFN layers in shares */
    bool is_cut;                /* it holds `cut` only, and may change to another one */
    struct cut cut;
    struct layer_store staged; /* what has come of another cut, and is not used yet */
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

/* weights.c */
enum tensor_role weights_matrix_role(int matrix);
void weights_advance(struct loading *ld, double bytes);
int weights_get_tensor(struct loading *ld, enum tensor_role role, int layer, struct weight_src *s, struct err *e);

/* weights_view.c */
int weights_find_slice(const struct weights *w, const struct slice *x);
struct wview weights_view_slice(const struct weights *w, int layer, struct slice x);
void weights_each_layout(struct weights *w, void (*fn)(struct weights *w, struct layout l));
void weights_add_views(struct weights *w, struct layout l);
void weights_show_ffn(struct weights *w, int layer); /* every layout's views of it are of what is here now */
void weights_drop_views(struct weights *w);

/* weights_cut.c */
int weights_load_cut(struct loading *ld, struct err *e); /* the layers of w->cut */
void weights_show_cut(struct weights *w);                /* views of the layouts that it runs, and no others */
void weights_free_store(struct weights *w, struct layer_store *s);

static inline struct weight **store_slice(const struct weights *w, const struct layer_store *s, int layer, int slice)
{
    return &s->slices[(size_t)layer * (size_t)w->n_slices + (size_t)slice];
}

#endif
