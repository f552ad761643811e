#include "models/encode/bert.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/encode.h"
#include "models/encode/bert_weights.h"
#include "models/encode/pool.h"

struct layer {
    struct encode_matrix *qkv, *out, *up, *down;
    struct encode_norm out_norm, down_norm;
};

struct bert {
    struct bert_config config;
    const struct encode_ops *ops;
    enum dtype word_type;
    uint8_t *words;
    float *positions, *types;
    struct encode_norm norm;
    struct layer *layers;
    struct encode_matrix *pooler, *classes;
    size_t matrix_bytes;
    enum dtype matrix_type; /* in the file */
    float **vectors;        /* gains and biases, all of them */
    size_t n_vectors;
};

struct bert_run {
    const struct bert *bert;
    struct encode_device *device;
    int max_rows;
    float *x, *qkv, *o;
    float *first, *pooled, *scores; /* of a head: a row for each sequence */
    int32_t *ids, *row_position, *row_type, *row0;
};

/* ---- loading ---- */

static const char *const words_of[BERT_ROLES] = {[BERT_WORDS] = "word embeddings",
                                                 [BERT_POSITIONS] = "position embeddings",
                                                 [BERT_TYPES] = "type embeddings",
                                                 [BERT_NORM] = "norm of the embeddings",
                                                 [BERT_POOLER] = "pooler",
                                                 [BERT_CLASSES] = "classifier",
                                                 [BERT_QUERY] = "queries, keys and values",
                                                 [BERT_OUT] = "output of attention",
                                                 [BERT_OUT_NORM] = "norm after attention",
                                                 [BERT_UP] = "first feed-forward layer",
                                                 [BERT_DOWN] = "second feed-forward layer",
                                                 [BERT_DOWN_NORM] = "norm of the layer"};

/* rows of t as floats, ENCODE_LD(cols) apart. The model keeps and frees them. */
static int load_floats(struct bert *b, const struct bert_tensor *t, enum bert_role role, float **out, struct err *e)
{
    size_t ld = ENCODE_LD(t->cols);
    float *to = mem_try_aligned((size_t)t->rows * ld * sizeof *to, 64);
    void *room = mem_try_array((size_t)t->cols + 1, 4);
    int rc = to && room ? 0 : err_set(e, E_FULL, "no memory for %d x %d floats", t->rows, t->cols);
    for (int r = 0; r < t->rows && !rc; r++) {
        bert_tensor_row(t, r, room, to + (size_t)r * ld);
        for (int c = 0; c < t->cols && !rc; c++)
            if (!isfinite(to[(size_t)r * ld + (size_t)c]))
                rc = err_set(e, E_INPUT, "%s: a weight of row %d is no finite number", words_of[role], r);
    }
    mem_free(room);
    if (rc) {
        mem_free(to);
        return rc;
    }
    b->vectors = mem_resize(b->vectors, b->n_vectors + 1, sizeof *b->vectors);
    b->vectors[b->n_vectors++] = to;
    *out = to;
    return 0;
}

static int load_norm(struct bert *b, const struct bert_weights *w, enum bert_role role, int layer,
                     struct encode_norm *out, struct err *e)
{
    size_t at = bert_weights_at(w, role, layer);
    float *gain, *bias;
    TRY(load_floats(b, &w->weight[at], role, &gain, e));
    TRY(load_floats(b, &w->bias[at], role, &bias, e));
    *out = (struct encode_norm){gain, bias};
    return 0;
}

/* Queries, keys and values are one matrix, one below the other. */
static int load_matrix(struct bert *b, const struct bert_weights *w, enum bert_role role, int layer,
                       struct encode_matrix **out, struct err *e)
{
    struct encode_part parts[3];
    int n = role == BERT_QUERY ? 3 : 1, cols = w->weight[bert_weights_at(w, role, layer)].cols;
    for (int i = 0; i < n; i++) {
        size_t at = bert_weights_at(w, (enum bert_role)(role + i), layer);
        float *bias;
        TRY(load_floats(b, &w->bias[at], role, &bias, e));
        parts[i] = (struct encode_part){w->weight[at].type, w->weight[at].data, w->weight[at].rows, bias};
        b->matrix_bytes += (size_t)parts[i].rows * ENCODE_LD(cols) * sizeof(int16_t);
        b->matrix_type = parts[i].type;
    }
    int rc = b->ops->matrix_new(out, parts, n, cols, e);
    return rc ? err_prefix(e, rc, "layer %d, %s", layer, words_of[role]) : 0;
}

static int load_layer(struct bert *b, const struct bert_weights *w, int l, struct err *e)
{
    struct layer *y = &b->layers[l];
    TRY(load_matrix(b, w, BERT_QUERY, l, &y->qkv, e));
    TRY(load_matrix(b, w, BERT_OUT, l, &y->out, e));
    TRY(load_norm(b, w, BERT_OUT_NORM, l, &y->out_norm, e));
    TRY(load_matrix(b, w, BERT_UP, l, &y->up, e));
    TRY(load_matrix(b, w, BERT_DOWN, l, &y->down, e));
    return load_norm(b, w, BERT_DOWN_NORM, l, &y->down_norm, e);
}

/* The table keeps its type: of most tokens no call asks. */
static int load_words(struct bert *b, const struct bert_tensor *t, struct err *e)
{
    size_t bytes = (size_t)t->rows * dtype_row_bytes(t->type, t->cols);
    b->word_type = t->type;
    b->words = mem_try_aligned(bytes, 64);
    if (!b->words)
        return err_set(e, E_FULL, "no memory for %zu bytes of word embeddings", bytes);
    memcpy(b->words, t->data, bytes);
    return 0;
}

static int load_all(struct bert *b, const struct bert_weights *w, struct err *e)
{
    b->layers = mem_new_array((size_t)b->config.n_layers, sizeof *b->layers);
    TRY(load_words(b, &w->weight[BERT_WORDS], e));
    TRY(load_floats(b, &w->weight[BERT_POSITIONS], BERT_POSITIONS, &b->positions, e));
    TRY(load_floats(b, &w->weight[BERT_TYPES], BERT_TYPES, &b->types, e));
    TRY(load_norm(b, w, BERT_NORM, 0, &b->norm, e));
    for (int l = 0; l < b->config.n_layers; l++)
        TRY(load_layer(b, w, l, e));
    if (!b->config.n_labels)
        return 0;
    TRY(load_matrix(b, w, BERT_POOLER, 0, &b->pooler, e));
    return load_matrix(b, w, BERT_CLASSES, 0, &b->classes, e);
}

int bert_open(struct bert **out, const struct bert_config *c, const struct safetensors *st, const struct gguf *g,
              struct err *e)
{
    struct bert *b = mem_new(sizeof *b);
    struct bert_weights w;
    *out = NULL;
    b->config = *c;
    b->ops = encode_cpu();
    int rc = bert_weights_find(&w, c, st, g, e);
    if (!rc)
        rc = load_all(b, &w, e);
    bert_weights_free(&w);
    if (rc) {
        bert_close(b);
        return rc;
    }
    *out = b;
    return 0;
}

void bert_close(struct bert *b)
{
    if (!b)
        return;
    for (int l = 0; l < b->config.n_layers && b->layers; l++) {
        struct layer *y = &b->layers[l];
        b->ops->matrix_free(y->qkv);
        b->ops->matrix_free(y->out);
        b->ops->matrix_free(y->up);
        b->ops->matrix_free(y->down);
    }
    b->ops->matrix_free(b->pooler);
    b->ops->matrix_free(b->classes);
    for (size_t i = 0; i < b->n_vectors; i++)
        mem_free(b->vectors[i]);
    mem_free(b->vectors);
    mem_free(b->layers);
    mem_free(b->words);
    mem_free(b);
}

size_t bert_matrix_bytes(const struct bert *b, enum dtype *type)
{
    *type = b->matrix_type;
    return b->matrix_bytes;
}

/* ---- running ---- */

static bool run_memory(struct bert_run *r)
{
    const struct bert_config *c = &r->bert->config;
    size_t rows = (size_t)r->max_rows, ld = ENCODE_LD(c->hidden);
    size_t heads = c->n_labels ? rows : 0;
    r->x = mem_try_aligned(rows * ld * sizeof *r->x, 64);
    r->qkv = mem_try_aligned(rows * ENCODE_LD(3 * c->hidden) * sizeof *r->qkv, 64);
    r->o = mem_try_aligned(rows * ld * sizeof *r->o, 64);
    r->first = mem_try_aligned((heads + 1) * ld * sizeof *r->first, 64);
    r->pooled = mem_try_aligned((heads + 1) * ld * sizeof *r->pooled, 64);
    r->scores = mem_try_aligned((heads + 1) * ENCODE_LD(c->n_labels + 1) * sizeof *r->scores, 64);
    r->ids = mem_try_array(rows, sizeof *r->ids);
    r->row_position = mem_try_array(rows, sizeof *r->row_position);
    r->row_type = mem_try_array(rows, sizeof *r->row_type);
    r->row0 = mem_try_array(rows + 1, sizeof *r->row0);
    return r->x && r->qkv && r->o && r->first && r->pooled && r->scores && r->ids && r->row_position && r->row_type &&
           r->row0;
}

int bert_run_open(struct bert_run **out, const struct bert *b, int n_threads, int max_rows, const char *isa,
                  struct err *e)
{
    const struct bert_config *c = &b->config;
    struct encode_opts opts = {
        .n_threads = n_threads, .isa = isa, .hidden = c->hidden, .ffn = c->ffn, .n_heads = c->n_heads, .eps = c->eps};
    struct bert_run *r = mem_new(sizeof *r);
    *out = NULL;
    r->bert = b;
    r->max_rows = max_rows;
    int rc = run_memory(r) ? 0 : err_set(e, E_FULL, "no memory for %d tokens at once", max_rows);
    if (!rc)
        rc = b->ops->open(&r->device, &opts, e);
    if (rc) {
        bert_run_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void bert_run_close(struct bert_run *r)
{
    if (!r)
        return;
    r->bert->ops->close(r->device);
    mem_free(r->x);
    mem_free(r->qkv);
    mem_free(r->o);
    mem_free(r->first);
    mem_free(r->pooled);
    mem_free(r->scores);
    mem_free(r->ids);
    mem_free(r->row_position);
    mem_free(r->row_type);
    mem_free(r->row0);
    mem_free(r);
}

/* One sequence after the other; a model of one segment type has all tokens in it. */
static int lay_out(struct bert_run *r, const struct encoder_seq *seqs, int n)
{
    int row = 0, types = r->bert->config.n_types;
    for (int s = 0; s < n; s++) {
        r->row0[s] = row;
        for (int i = 0; i < seqs[s].n; i++, row++) {
            r->ids[row] = seqs[s].ids[i];
            r->row_position[row] = i;
            r->row_type[row] = i >= seqs[s].n_first && types > 1;
        }
    }
    r->row0[n] = row;
    return row;
}

static void forward(struct bert_run *r, int n, int rows)
{
    const struct bert *b = r->bert;
    const struct bert_config *c = &b->config;
    struct encode_embed in = {b->word_type, b->words,        b->positions, b->types, b->norm,
                              r->ids,       r->row_position, r->row_type,  rows,     r->x};
    struct encode_attend attend = {r->qkv, r->row0, n, r->o};
    b->ops->embed(r->device, &in);
    b->ops->linear(r->device, b->layers[0].qkv, r->x, r->qkv, rows);
    for (int l = 0; l < c->n_layers; l++) {
        const struct layer *y = &b->layers[l];
        struct encode_block block = {.out = y->out,
                                     .up = y->up,
                                     .down = y->down,
                                     .next = l + 1 < c->n_layers ? b->layers[l + 1].qkv : NULL,
                                     .norm1 = y->out_norm,
                                     .norm2 = y->down_norm,
                                     .o = r->o,
                                     .x = r->x,
                                     .qkv = r->qkv,
                                     .rows = rows};
        b->ops->attend(r->device, &attend);
        b->ops->block(r->device, &block);
    }
}

/* ---- what a sequence gives ---- */

static void classify(struct bert_run *r, const struct encoder_seq *seqs, int n)
{
    const struct bert *b = r->bert;
    const struct bert_config *c = &b->config;
    size_t ld = ENCODE_LD(c->hidden), lds = ENCODE_LD(c->n_labels);
    for (int s = 0; s < n; s++)
        memcpy(r->first + (size_t)s * ld, r->x + (size_t)r->row0[s] * ld, ld * sizeof *r->first);
    b->ops->linear(r->device, b->pooler, r->first, r->pooled, n);
    for (size_t i = 0; i < (size_t)n * ld; i++)
        r->pooled[i] = tanhf(r->pooled[i]);
    b->ops->linear(r->device, b->classes, r->pooled, r->scores, n);
    for (int s = 0; s < n; s++)
        for (int k = 0; k < c->n_labels; k++) {
            float x = r->scores[(size_t)s * lds + (size_t)k];
            seqs[s].out[k] = c->sigmoid ? 1 / (1 + expf(-x)) : x;
        }
}

int bert_run(struct bert_run *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    const struct bert_config *c = &r->bert->config;
    int rows = lay_out(r, seqs, n);
    size_t ld = ENCODE_LD(c->hidden);
    forward(r, n, rows);
    if (c->n_labels)
        classify(r, seqs, n);
    for (int s = 0; s < n; s++) {
        if (!c->n_labels)
            pool_rows(c->card.pooling, r->x + (size_t)r->row0[s] * ld, ld, seqs[s].n, c->hidden, seqs[s].out);
        if (c->card.normalised && !c->n_labels)
            pool_normalise(seqs[s].out, c->hidden);
        TRY(pool_check(seqs[s].out, c->n_labels ? c->n_labels : c->hidden, e));
    }
    return 0;
}
