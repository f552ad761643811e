/* A rank that holds a cut of the layers only: loading it, bringing another one beside it, and changing over. */
#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/exec/weights_inner.h"

enum { MOST_PIECES = SLICE_MATRICES + 2 * TREE_MAX_NODES };

/* A matrix of a layer, or a slice of it. */
struct piece {
    int matrix, slice; /* slice -1: all of it */
};

static int piece_of(const struct weights *w, const struct slice *x, struct piece out[], int n)
{
    int slice = weights_find_slice(w, x);
    if (x->rows == 0 || x->cols == 0)
        return n;
    out[n] = (struct piece){x->matrix, slice}; /* one that is not in the list is the whole matrix */
    return n + 1;
}

/* Of every layer of the cut. */
static int pieces_of(const struct weights *w, const struct cut *c, struct piece out[MOST_PIECES])
{
    struct layout l = layout_of_stage(c->layout);
    int n = 0;
    if (!c->layout.pp)
        return 0;
    if (l.tp == 1) {
        for (; n < SLICE_MATRICES; n++)
            out[n] = (struct piece){n, -1};
        return n;
    }
    struct shard sh = shard_of(&w->config, l, c->t * l.sp);
    struct parts p;
    slice_parts(&w->config, &sh, &p);
    for (int m = 0; m < SLICE_MATRICES; m++)
        if (m != M_O && m != M_DOWN)
            n = piece_of(w, &p.plain[m], out, n);
    for (int i = 0; i < p.n_o; i++) {
        struct slice x = slice_node(&w->config, M_O, p.o[i]);
        n = piece_of(w, &x, out, n);
    }
    for (int i = 0; i < p.n_down; i++) {
        struct slice x = slice_node(&w->config, M_DOWN, p.down[i]);
        n = piece_of(w, &x, out, n);
    }
    return n;
}

static struct weight **place_of(const struct weights *w, const struct layer_store *s, int layer, struct piece p)
{
    return p.slice < 0 ? &s->matrices[layer][p.matrix] : store_slice(w, s, layer, p.slice);
}

/* Bytes as stored. */
static size_t piece_bytes(const struct weights *w, const struct weight_src *whole, struct piece p)
{
    int rows = p.slice < 0 ? whole->rows : w->slices[p.slice].rows,
        cols = p.slice < 0 ? whole->cols : w->slices[p.slice].cols;
    return (size_t)rows * dtype_row_bytes(whole->type, cols);
}

static int load_piece(struct loading *ld, struct layer_store *to, int layer, struct piece p, struct err *e)
{
    struct weights *w = ld->w;
    struct weight **out = place_of(w, to, layer, p);
    struct weight_src src, part;
    TRY(weights_get_tensor(ld, weights_matrix_role(p.matrix), layer, &src, e));
    part = src;
    if (p.slice >= 0)
        TRY(slice_source(&src, &w->slices[p.slice], &part, e));
    TRY(w->ops->weight_load(w->device, out, &part, e));
    to->bytes += w->ops->weight_bytes(*out);
    weights_advance(ld, (double)piece_bytes(w, &src, p));
    return 0;
}

double weights_cut_bytes(const struct weights *w, const struct model *m, const struct cut *c, int layer)
{
    struct piece pieces[MOST_PIECES];
    int n = pieces_of(w, c, pieces);
    double bytes = 0;
    for (int i = 0; i < n; i++) {
        struct weight_src src;
        if (!model_shape(m, weights_matrix_role(pieces[i].matrix), layer, &src, NULL))
            bytes += (double)piece_bytes(w, &src, pieces[i]);
    }
    return bytes;
}

const char *weights_cut_refusal(const struct weights *w, const struct model *m, const struct cut *c)
{
    struct piece pieces[MOST_PIECES];
    int n = pieces_of(w, c, pieces);
    for (int l = 0; l < w->n_layers; l++)
        for (int i = 0; i < n; i++) {
            struct weight_src src, part;
            if (pieces[i].slice < 0 || model_shape(m, weights_matrix_role(pieces[i].matrix), l, &src, NULL))
                continue;
            if (slice_source(&src, &w->slices[pieces[i].slice], &part, NULL))
                return "its shares of the weights would cut the blocks of their type: a rank cannot hold one of them "
                       "alone";
        }
    return NULL;
}

int weights_load_cut(struct loading *ld, struct err *e)
{
    struct weights *w = ld->w;
    struct layer_span layers = cut_layers(&w->cut, w->n_layers);
    struct piece pieces[MOST_PIECES];
    int n = pieces_of(w, &w->cut, pieces);
    for (int l = layers.first; l < layers.first + layers.n; l++)
        for (int i = 0; i < n; i++)
            TRY(load_piece(ld, &w->here, l, pieces[i], e));
    w->bytes += w->here.bytes;
    return 0;
}

static void drop(struct weights *w, struct layer_store *s, struct weight **x)
{
    if (!*x)
        return;
    s->bytes -= w->ops->weight_bytes(*x);
    w->ops->weight_free(w->device, *x);
    *x = NULL;
}

void weights_free_store(struct weights *w, struct layer_store *s)
{
    for (int l = 0; l < w->n_layers && s->matrices; l++) {
        for (int i = 0; i < SLICE_MATRICES; i++)
            if (s->matrices[l][i])
                w->ops->weight_free(w->device, s->matrices[l][i]);
        for (int i = 0; i < w->n_slices && s->slices; i++)
            if (*store_slice(w, s, l, i))
                w->ops->weight_free(w->device, *store_slice(w, s, l, i));
    }
    mem_free(s->matrices);
    mem_free(s->slices);
    *s = (struct layer_store){0};
}

/* ---- another cut */

static void open_staged(struct weights *w)
{
    size_t n = (size_t)w->n_layers;
    if (w->staged.matrices)
        return;
    w->staged.matrices = mem_new_array(n, sizeof *w->staged.matrices);
    w->staged.slices = mem_new_array(n * (size_t)w->n_slices + 1, sizeof *w->staged.slices);
}

/* Packed, a matrix takes little more than it takes in its file. */
static size_t most_bytes(size_t stored)
{
    return stored + stored / 4 + 4096;
}

/* There is room for it beside what is here. */
static bool has_room(const struct weights *w, const struct weights_change *c, const struct weight_src *src,
                     struct piece p)
{
    return w->here.bytes + w->staged.bytes + most_bytes(piece_bytes(w, src, p)) <= c->room;
}

int weights_stage(struct weights *w, const struct weights_change *c, int i, bool *more, struct err *e)
{
    struct loading ld = {.w = w, .model = c->model, .total = 1e300};
    struct layer_span layers = cut_layers(c->to, w->n_layers);
    struct piece pieces[MOST_PIECES];
    int n = pieces_of(w, c->to, pieces), rc = 0, layer = layers.first + i;
    *more = i + 1 < layers.n;
    open_staged(w);
    for (int k = 0; k < n && !rc && i < layers.n; k++) {
        struct weight_src src;
        size_t before = w->staged.bytes;
        if (*place_of(w, &w->here, layer, pieces[k]) || *place_of(w, &w->staged, layer, pieces[k]))
            continue;
        rc = model_shape(c->model, weights_matrix_role(pieces[k].matrix), layer, &src, e);
        if (atomic_load(c->stop) || (!rc && !has_room(w, c, &src, pieces[k]))) {
            *more = false;
            break;
        }
        if (!rc)
            rc = load_piece(&ld, &w->staged, layer, pieces[k], e);
        atomic_fetch_add(c->bytes, (int64_t)(w->staged.bytes - before));
    }
    tensor_room_free(&ld.room);
    return rc;
}

void weights_unstage(struct weights *w)
{
    weights_free_store(w, &w->staged);
}

/* Which pieces a layer has in a cut, by their places. */
struct wanted {
    struct layer_span layers;
    bool whole[SLICE_MATRICES], *slices;
};

static struct wanted want(const struct weights *w, const struct cut *c)
{
    struct wanted all = {.layers = cut_layers(c, w->n_layers), .slices = mem_new((size_t)w->n_slices + 1)};
    struct piece pieces[MOST_PIECES];
    int n = pieces_of(w, c, pieces);
    for (int i = 0; i < n; i++)
        *(pieces[i].slice < 0 ? &all.whole[pieces[i].matrix] : &all.slices[pieces[i].slice]) = true;
    return all;
}

static void drop_unwanted(struct weights *w, struct layer_store *s, const struct wanted *all)
{
    for (int l = 0; l < w->n_layers && s->matrices; l++) {
        bool has = l >= all->layers.first && l < all->layers.first + all->layers.n;
        for (int m = 0; m < SLICE_MATRICES; m++)
            if (!has || !all->whole[m])
                drop(w, s, &s->matrices[l][m]);
        for (int i = 0; i < w->n_slices; i++)
            if (!has || !all->slices[i])
                drop(w, s, store_slice(w, s, l, i));
    }
}

/* From what was staged; else it is loaded now. */
static int bring(struct loading *ld, int layer, struct piece p, atomic_llong *bytes, struct err *e)
{
    struct weights *w = ld->w;
    struct weight **to = place_of(w, &w->here, layer, p);
    struct weight **from = w->staged.matrices ? place_of(w, &w->staged, layer, p) : NULL;
    size_t before = w->here.bytes;
    if (*to)
        return 0;
    if (!from || !*from) {
        TRY(load_piece(ld, &w->here, layer, p, e));
        atomic_fetch_add(bytes, (int64_t)(w->here.bytes - before));
        return 0;
    }
    *to = *from;
    *from = NULL;
    w->staged.bytes -= w->ops->weight_bytes(*to);
    w->here.bytes += w->ops->weight_bytes(*to);
    return 0;
}

/* The old goes first: there may be no room for both. */
int weights_change_cut(struct weights *w, const struct weights_change *c, struct err *e)
{
    struct loading ld = {.w = w, .model = c->model, .total = 1e300};
    struct layer_span layers = cut_layers(c->to, w->n_layers);
    struct piece pieces[MOST_PIECES];
    struct wanted all = want(w, c->to);
    int n = pieces_of(w, c->to, pieces), rc = 0;
    w->bytes -= w->here.bytes;
    weights_drop_views(w);
    drop_unwanted(w, &w->here, &all);
    drop_unwanted(w, &w->staged, &all);
    mem_free(all.slices);
    w->cut = *c->to;
    for (int l = layers.first; l < layers.first + layers.n && !rc; l++)
        for (int i = 0; i < n && !rc; i++)
            rc = bring(&ld, l, pieces[i], c->bytes, e);
    tensor_room_free(&ld.room);
    weights_unstage(w);
    w->bytes += w->here.bytes;
    if (!rc)
        weights_show_cut(w);
    return rc;
}

/* A layout's stage whose shares the cut holds. */
static void show_layout_of_cut(struct weights *w, struct layout l)
{
    bool runs = w->cut.layout.tp == 1 || (l.sp == w->cut.layout.sp && l.tp == w->cut.layout.tp);
    if (runs)
        weights_add_views(w, l);
}

void weights_show_cut(struct weights *w)
{
    weights_each_layout(w, show_layout_of_cut);
}
