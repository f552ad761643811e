#include "models/encode/decoder.h"

#include <math.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/encode/pool.h"
#include "models/forward/forward.h"
#include "models/load/family.h"

enum {
    BLOCK = 16,   /* tokens of a KV block */
    SPARE = 512,  /* blocks for the last tokens of sequences, beyond what max_rows fill */
    AT_ONCE = 256 /* rows that are pooled at a time */
};

enum { M_QUERY, M_KEY, M_VALUE, M_OUT, M_GATE, M_UP, M_DOWN, MATRICES };
static const enum tensor_role matrix_roles[MATRICES] = {T_Q, T_K, T_V, T_O, T_GATE, T_UP, T_DOWN};

struct layer {
    struct weight *matrices[MATRICES];
    struct wview out, down;
};

struct decoder {
    struct model_config config;
    enum encoder_pooling pooling;
    bool normalised;
    const struct backend_ops *ops;
    struct device *device; /* whose memory the weights are */
    struct weight *embed;
    struct layer *layers;
    struct layer_weights *views;
    struct model_weights weights;
    float **vectors; /* norms and biases, all of them */
    size_t n_vectors, bytes;
    enum dtype type;
};

struct decoder_run {
    const struct decoder *decoder;
    struct device *device;
    struct forward forward;
    struct kv_space kv; /* of one layer */
    int max_rows;
    int32_t *ids, *positions, *wanted, *blocks;
    struct batch_seq *spans;
    /* of the step that runs: who gets the next row, and how many rows of it are still to come */
    const struct encoder_seq *seq;
    int n_of_it, left;
    double *sum, *row; /* [hidden] */
};

/* ---- loading ---- */

int decoder_check(const struct model_config *c, const struct encoder_card *card, struct err *e)
{
    if (card->scores)
        return err_set(e, E_UNSUPPORTED, "a decoder that scores pairs (a reranker) is not supported");
    if (c->kv_layers)
        return err_set(e, E_UNSUPPORTED, "a SwiftKV model as a model for embeddings is not supported");
    if (!card->named)
        return err_set(e, E_INPUT,
                       "nothing says how the tokens of this decoder become a vector: a folder needs modules.json and "
                       "1_Pooling/config.json, a GGUF file the key pooling_type");
    return 0;
}

struct loading {
    struct decoder *d;
    const struct model *model;
    struct tensor_room room;
};

static int load_matrix(struct loading *ld, enum tensor_role role, int layer, struct weight **out, struct err *e)
{
    struct decoder *d = ld->d;
    struct weight_src src;
    TRY(model_tensor(ld->model, &ld->room, role, layer, &src, e));
    TRY(d->ops->weight_load(d->device, out, &src, e));
    d->bytes += d->ops->weight_bytes(*out);
    if (role == T_GATE)
        d->type = src.type;
    return 0;
}

/* Leaves NULL for a tensor that the family does not have. */
static int load_vector(struct loading *ld, enum tensor_role role, int layer, const float **out, struct err *e)
{
    struct decoder *d = ld->d;
    struct weight_src src;
    if (model_shape(ld->model, role, layer, &src, NULL) != 0)
        return 0;
    TRY(model_tensor(ld->model, &ld->room, role, layer, &src, e));
    float *to = d->ops->alloc(d->device, (size_t)src.cols * sizeof *to);
    if (!to)
        return err_set(e, E_FULL, "no memory for a norm of %d floats", src.cols);
    dtype_to_f32(src.type, src.data, to, src.cols);
    d->vectors = mem_resize(d->vectors, d->n_vectors + 1, sizeof *d->vectors);
    d->vectors[d->n_vectors++] = to;
    *out = to;
    return 0;
}

static int load_vectors(struct loading *ld, int l, struct err *e)
{
    struct layer_weights *v = &ld->d->views[l];
    const struct {
        enum tensor_role role;
        const float **to;
    } all[] = {
        {T_ATTN_NORM, &v->attn_norm}, {T_FFN_NORM, &v->ffn_norm}, {T_Q_BIAS, &v->q_bias}, {T_K_BIAS, &v->k_bias},
        {T_V_BIAS, &v->v_bias},       {T_Q_NORM, &v->q_norm},     {T_K_NORM, &v->k_norm},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        TRY(load_vector(ld, all[i].role, l, all[i].to, e));
    return 0;
}

static struct wview whole(const struct model_config *c, const struct layer *y, int m)
{
    int rows, cols;
    tensor_shape(c, matrix_roles[m], &rows, &cols);
    return (struct wview){y->matrices[m], 0, rows, 0, cols};
}

static int load_layer(struct loading *ld, int l, struct err *e)
{
    const struct model_config *c = &ld->d->config;
    struct layer *y = &ld->d->layers[l];
    struct layer_weights *v = &ld->d->views[l];
    for (int m = 0; m < MATRICES; m++)
        TRY(load_matrix(ld, matrix_roles[m], l, &y->matrices[m], e));
    y->out = whole(c, y, M_OUT);
    y->down = whole(c, y, M_DOWN);
    *v = (struct layer_weights){.q = whole(c, y, M_QUERY),
                                .k = whole(c, y, M_KEY),
                                .v = whole(c, y, M_VALUE),
                                .gate = whole(c, y, M_GATE),
                                .up = whole(c, y, M_UP),
                                .o = &y->out,
                                .down = &y->down};
    return load_vectors(ld, l, e);
}

static int load_all(struct decoder *d, const struct model *m, struct err *e)
{
    const struct model_config *c = &d->config;
    struct loading ld = {.d = d, .model = m};
    struct model_weights *w = &d->weights;
    d->layers = mem_new_array((size_t)c->n_layers, sizeof *d->layers);
    d->views = mem_new_array((size_t)c->n_layers, sizeof *d->views);
    int rc = load_matrix(&ld, T_EMBED, 0, &d->embed, e);
    for (int l = 0; l < c->n_layers && !rc; l++)
        rc = load_layer(&ld, l, e);
    if (!rc)
        rc = load_vector(&ld, T_OUT_NORM, 0, &w->out_norm, e);
    tensor_room_free(&ld.room);
    w->shard = shard_of(c, (struct layout){1, 1, 1}, 0);
    w->embed = (struct wview){d->embed, 0, c->vocab, 0, c->hidden};
    w->layers = d->views;
    w->n_o = w->n_down = 1;
    return rc;
}

int decoder_open(struct decoder **out, const struct model *m, const struct encoder_card *card, struct err *e)
{
    struct decoder *d = mem_new(sizeof *d);
    *out = NULL;
    d->config = *model_config(m);
    d->pooling = card->pooling;
    d->normalised = card->normalised;
    d->ops = backend_cpu();
    ASSERT(d->config.embeds);
    int rc = decoder_check(&d->config, card, e);
    if (!rc)
        rc = d->ops->open(&d->device, &(struct device_opts){.n_threads = 1}, e);
    if (!rc)
        rc = load_all(d, m, e);
    if (rc) {
        decoder_close(d);
        return rc;
    }
    *out = d;
    return 0;
}

void decoder_close(struct decoder *d)
{
    if (!d)
        return;
    for (int l = 0; l < d->config.n_layers && d->layers; l++)
        for (int m = 0; m < MATRICES; m++)
            d->ops->weight_free(d->device, d->layers[l].matrices[m]);
    if (d->embed)
        d->ops->weight_free(d->device, d->embed);
    for (size_t i = 0; i < d->n_vectors; i++)
        d->ops->release(d->device, d->vectors[i]);
    d->ops->close(d->device);
    mem_free(d->vectors);
    mem_free(d->layers);
    mem_free(d->views);
    mem_free(d);
}

size_t decoder_bytes(const struct decoder *d, enum dtype *type)
{
    *type = d->type;
    return d->bytes;
}

/* ---- what a sequence gives ---- */

/* x / rms(x) * gain, in double: the vector is rounded once. */
static void norm_row(const struct decoder *d, const float *x, double *y)
{
    int n = d->config.hidden;
    double square = 0;
    for (int i = 0; i < n; i++)
        square += (double)x[i] * (double)x[i];
    double scale = 1 / sqrt(square / n + (double)d->config.norm_eps);
    for (int i = 0; i < n; i++)
        y[i] = (double)x[i] * scale * (double)d->weights.out_norm[i];
}

static int rows_wanted(const struct decoder_run *r, const struct encoder_seq *s)
{
    return r->decoder->pooling == POOL_MEAN ? s->n : 1;
}

static void begin_seq(struct decoder_run *r)
{
    r->n_of_it = r->left = rows_wanted(r, r->seq);
    memset(r->sum, 0, (size_t)r->decoder->config.hidden * sizeof *r->sum);
}

/* The wanted rows come in their order, so those of a sequence one behind the other. */
static void take_rows(void *taker, struct act rows, int first, int n)
{
    struct decoder_run *r = taker;
    int hidden = r->decoder->config.hidden;
    (void)first;
    for (int i = 0; i < n; i++) {
        if (!r->left)
            begin_seq(r);
        norm_row(r->decoder, (const float *)rows.data + (size_t)i * (size_t)rows.ld, r->row);
        for (int k = 0; k < hidden; k++)
            r->sum[k] += r->row[k];
        if (--r->left)
            continue;
        for (int k = 0; k < hidden; k++)
            r->seq->out[k] = (float)(r->sum[k] / r->n_of_it);
        r->seq++;
    }
}

/* ---- running ---- */

static bool run_memory(struct decoder_run *r)
{
    const struct backend_ops *ops = r->decoder->ops;
    const struct model_config *c = &r->decoder->config;
    size_t rows = (size_t)r->max_rows;
    r->kv = (struct kv_space){.n_blocks = (r->max_rows + BLOCK - 1) / BLOCK + SPARE, .n_layers = 1, .dtype = DT_F32};
    r->kv.block_bytes = ops->kv_block_bytes(DT_F32, BLOCK, c->n_kv_heads, c->head_dim);
    r->kv.base = ops->alloc(r->device, (size_t)r->kv.n_blocks * r->kv.block_bytes);
    r->ids = mem_try_array(rows, sizeof *r->ids);
    r->positions = mem_try_array(rows, sizeof *r->positions);
    r->wanted = mem_try_array(rows, sizeof *r->wanted);
    r->spans = mem_try_array(rows, sizeof *r->spans);
    r->blocks = mem_try_array((size_t)r->kv.n_blocks, sizeof *r->blocks);
    r->sum = mem_try_array((size_t)c->hidden, sizeof *r->sum);
    r->row = mem_try_array((size_t)c->hidden, sizeof *r->row);
    return r->kv.base && r->ids && r->positions && r->wanted && r->spans && r->blocks && r->sum && r->row;
}

static int open_forward(struct decoder_run *r, const struct device_opts *o, struct err *e)
{
    const struct decoder *d = r->decoder;
    TRY(d->ops->open(&r->device, o, e));
    r->forward = (struct forward){.ops = d->ops, .device = r->device, .config = &d->config, .kv = &r->kv};
    r->forward.take = take_rows;
    r->forward.taker = r;
    if (!run_memory(r) || forward_init(&r->forward, r->max_rows, AT_ONCE, 1, NULL))
        return err_set(e, E_FULL, "no memory for %d tokens at once", r->max_rows);
    for (int i = 0; i < r->kv.n_blocks; i++)
        r->blocks[i] = i;
    return 0;
}

int decoder_run_open(struct decoder_run **out, const struct decoder *d, int n_threads, int max_rows, const char *isa,
                     struct err *e)
{
    struct device_opts o = {.n_threads = n_threads, .isa = isa, .max_rows = max_rows, .max_logits = AT_ONCE};
    struct decoder_run *r = mem_new(sizeof *r);
    *out = NULL;
    r->decoder = d;
    r->max_rows = max_rows;
    int rc = open_forward(r, &o, e);
    if (rc) {
        decoder_run_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void decoder_run_close(struct decoder_run *r)
{
    if (!r)
        return;
    if (r->device) {
        forward_free(&r->forward);
        if (r->kv.base)
            r->decoder->ops->release(r->device, r->kv.base);
        r->decoder->ops->close(r->device);
    }
    mem_free(r->ids);
    mem_free(r->positions);
    mem_free(r->wanted);
    mem_free(r->blocks);
    mem_free(r->spans);
    mem_free(r->sum);
    mem_free(r->row);
    mem_free(r);
}

/* As many of the sequences as there are blocks for, each at its first position; returns how many. */
static int lay_out(struct decoder_run *r, const struct encoder_seq *seqs, int n, struct batch *b)
{
    int block = 0, s = 0;
    *b = (struct batch){.ids = r->ids, .positions = r->positions, .seqs = r->spans, .logit_rows = r->wanted};
    for (; s < n && block + (seqs[s].n + BLOCK - 1) / BLOCK <= r->kv.n_blocks; s++) {
        int row0 = b->n_rows, wanted = rows_wanted(r, &seqs[s]);
        int skip = r->decoder->pooling == POOL_LAST ? seqs[s].n - 1 : 0;
        r->spans[s] = (struct batch_seq){.row0 = row0, .n_rows = seqs[s].n, .blocks = r->blocks + block};
        for (int i = 0; i < seqs[s].n; i++, b->n_rows++) {
            r->ids[b->n_rows] = seqs[s].ids[i];
            r->positions[b->n_rows] = i;
        }
        for (int i = 0; i < wanted; i++)
            r->wanted[b->n_logits++] = row0 + skip + i;
        block += (seqs[s].n + BLOCK - 1) / BLOCK;
    }
    b->n_seqs = s;
    return s;
}

int decoder_run(struct decoder_run *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    const struct decoder *d = r->decoder;
    const struct forward_member m = {.weights = &d->weights, .tokens_per_block = BLOCK};
    for (int at = 0; at < n;) {
        struct batch b;
        at += lay_out(r, seqs + at, n - at, &b);
        r->seq = seqs + at - b.n_seqs;
        r->left = 0;
        TRY(forward_run(&r->forward, &m, &b, NULL, e));
        ASSERT(r->seq == seqs + at && !r->left);
    }
    for (int i = 0; i < n; i++) {
        if (d->normalised)
            pool_normalise(seqs[i].out, d->config.hidden);
        TRY(pool_check(seqs[i].out, d->config.hidden, e));
    }
    return 0;
}
