#include "models/encode/bert_weights.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

struct finder {
    const struct bert_config *config;
    const struct safetensors *st;
    const struct gguf *g;
    const char *prefix; /* of safetensors names: "" or "bert." */
    bool *seen;         /* of the file's tensors */
};

static const struct {
    const char *hf, *gguf;
    bool has_bias;
} names[BERT_ROLES] = {
    [BERT_WORDS] = {"embeddings.word_embeddings", "token_embd", false},
    [BERT_POSITIONS] = {"embeddings.position_embeddings", "position_embd", false},
    [BERT_TYPES] = {"embeddings.token_type_embeddings", "token_types", false},
    [BERT_NORM] = {"embeddings.LayerNorm", "token_embd_norm", true},
    [BERT_POOLER] = {"pooler.dense", "cls", true},
    [BERT_CLASSES] = {"classifier", "cls.output", true},
    [BERT_QUERY] = {"encoder.layer.%d.attention.self.query", "blk.%d.attn_q", true},
    [BERT_KEY] = {"encoder.layer.%d.attention.self.key", "blk.%d.attn_k", true},
    [BERT_VALUE] = {"encoder.layer.%d.attention.self.value", "blk.%d.attn_v", true},
    [BERT_OUT] = {"encoder.layer.%d.attention.output.dense", "blk.%d.attn_output", true},
    [BERT_OUT_NORM] = {"encoder.layer.%d.attention.output.LayerNorm", "blk.%d.attn_output_norm", true},
    [BERT_UP] = {"encoder.layer.%d.intermediate.dense", "blk.%d.ffn_up", true},
    [BERT_DOWN] = {"encoder.layer.%d.output.dense", "blk.%d.ffn_down", true},
    [BERT_DOWN_NORM] = {"encoder.layer.%d.output.LayerNorm", "blk.%d.layer_output_norm", true},
};

static bool is_norm(enum bert_role r)
{
    return r == BERT_NORM || r == BERT_OUT_NORM || r == BERT_DOWN_NORM;
}

/* ---- names ---- */

/* The name of a role, with the layer's number where it has one. */
static void role_name(char *out, size_t cap, const char *form, int layer)
{
    const char *number = strstr(form, "%d");
    if (number)
        snprintf(out, cap, "%.*s%d%s", (int)(number - form), form, layer, number + 2);
    else
        snprintf(out, cap, "%s", form);
}

static void full_name(const struct finder *f, enum bert_role role, int layer, const char *tail, char *out, size_t cap)
{
    char own[96];
    role_name(own, sizeof own, f->g ? names[role].gguf : names[role].hf, layer);
    const char *prefix = f->g || role == BERT_CLASSES ? "" : f->prefix;
    snprintf(out, cap, "%s%s.%s", prefix, own, tail);
}

/* ---- tensors ---- */

static bool st_get(const struct finder *f, const char *name, struct bert_tensor *out, struct err *e, int *rc)
{
    const struct st_tensor *t = safetensors_find(f->st, name);
    *rc = 0;
    if (!t)
        return false;
    f->seen[t - safetensors_at(f->st, 0)] = true;
    if (!t->known || t->type == DT_F8)
        *rc = err_set(e, E_UNSUPPORTED, "tensor %s has type %s; F32, F16 and BF16 are supported", name, t->type_name);
    else if (t->n_dims < 1 || t->n_dims > 2 || t->dims[0] > INT32_MAX || t->dims[1] > INT32_MAX)
        *rc = err_set(e, E_INPUT, "tensor %s is neither a list nor a matrix", name);
    bool list = t->n_dims == 1;
    *out = (struct bert_tensor){t->type, t->data, list ? 1 : (int)t->dims[0], (int)t->dims[list ? 0 : 1]};
    return true;
}

static bool gguf_get(const struct finder *f, const char *name, struct bert_tensor *out, struct err *e, int *rc)
{
    const struct gguf_tensor *t = gguf_tensor_find(f->g, name);
    *rc = 0;
    if (!t)
        return false;
    f->seen[t - gguf_tensor_at(f->g, 0)] = true;
    if (t->dims[0] > INT32_MAX || t->dims[1] > INT32_MAX || t->dims[2] != 1 || t->dims[3] != 1)
        *rc = err_set(e, E_INPUT, "GGUF: tensor %s is neither a list nor a matrix", name);
    *out = (struct bert_tensor){t->type, t->data, (int)t->dims[1], (int)t->dims[0]};
    return true;
}

static bool get_named(const struct finder *f, const char *name, struct bert_tensor *out, struct err *e, int *rc)
{
    return f->g ? gguf_get(f, name, out, e, rc) : st_get(f, name, out, e, rc);
}

static int check_shape(const struct bert_tensor *t, const char *name, int rows, int cols, struct err *e)
{
    if (t->rows != rows || t->cols != cols)
        return err_set(e, E_INPUT, "tensor %s is %d x %d, and the config makes it %d x %d", name, t->rows, t->cols,
                       rows, cols);
    return 0;
}

/* One tensor of a role: "weight" or "bias". Old files call those of norms gamma and beta. */
static int find_one(const struct finder *f, enum bert_role role, int layer, bool bias, struct bert_tensor *out,
                    struct err *e)
{
    char name[160], old[160];
    int rc;
    full_name(f, role, layer, bias ? "bias" : "weight", name, sizeof name);
    if (get_named(f, name, out, e, &rc))
        return rc;
    full_name(f, role, layer, bias ? "beta" : "gamma", old, sizeof old);
    if (is_norm(role) && get_named(f, old, out, e, &rc))
        return rc;
    return err_set(e, E_INPUT, "tensor %s is missing; the file is no whole BERT encoder", name);
}

static void role_shape(const struct bert_config *c, enum bert_role role, int *rows, int *cols)
{
    *cols = role == BERT_DOWN ? c->ffn : c->hidden;
    *rows = role == BERT_WORDS       ? c->n_vocab
            : role == BERT_POSITIONS ? c->n_positions
            : role == BERT_TYPES     ? c->n_types
            : role == BERT_UP        ? c->ffn
            : role == BERT_CLASSES   ? c->n_labels
                                     : c->hidden;
}

static int find_role(const struct finder *f, struct bert_weights *w, enum bert_role role, int layer, struct err *e)
{
    size_t at = bert_weights_at(w, role, layer);
    char name[160];
    int rows, cols;
    role_shape(f->config, role, &rows, &cols);
    full_name(f, role, layer, "weight", name, sizeof name);
    TRY(find_one(f, role, layer, false, &w->weight[at], e));
    TRY(check_shape(&w->weight[at], name, is_norm(role) ? 1 : rows, cols, e));
    if (!names[role].has_bias)
        return 0;
    full_name(f, role, layer, "bias", name, sizeof name);
    TRY(find_one(f, role, layer, true, &w->bias[at], e));
    return check_shape(&w->bias[at], name, 1, rows, e);
}

/* Some conversions have queries, keys and values in one tensor, one below the other. */
static int find_fused(const struct finder *f, struct bert_weights *w, int layer, bool *found, struct err *e)
{
    char name[64];
    int rc, hidden = f->config->hidden;
    struct bert_tensor whole, bias;
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", layer);
    *found = f->g && get_named(f, name, &whole, e, &rc);
    if (!*found)
        return 0;
    TRY(rc);
    TRY(check_shape(&whole, name, 3 * hidden, hidden, e));
    snprintf(name, sizeof name, "blk.%d.attn_qkv.bias", layer);
    if (!get_named(f, name, &bias, e, &rc))
        return err_set(e, E_INPUT, "tensor %s is missing; the file is no whole BERT encoder", name);
    TRY(rc);
    TRY(check_shape(&bias, name, 1, 3 * hidden, e));
    if (dtype_get(bias.type)->block > 1)
        return err_set(e, E_UNSUPPORTED, "tensor %s has type %s; biases must be F32, F16 or BF16", name,
                       dtype_get(bias.type)->name);
    for (int i = 0; i < 3; i++) {
        size_t at = bert_weights_at(w, (enum bert_role)(BERT_QUERY + i), layer);
        w->weight[at] = (struct bert_tensor){
            whole.type, whole.data + (size_t)(i * hidden) * dtype_row_bytes(whole.type, hidden), hidden, hidden};
        w->bias[at] =
            (struct bert_tensor){bias.type, bias.data + dtype_row_bytes(bias.type, (int64_t)i * hidden), 1, hidden};
    }
    return 0;
}

/* ---- the whole ---- */

/* What may be there and is not used: counting numbers, and heads for other ends. */
static bool may_stay(const char *name)
{
    static const char *const heads[] = {"embeddings.position_ids", "pooler.", "cls.", "bert.embeddings.position_ids",
                                        "bert.pooler."};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

/* A tensor that the forward does not use means another kind of model: passing it over would give wrong vectors. */
static int check_unused(const struct finder *f, struct err *e)
{
    size_t n = f->g ? gguf_n_tensors(f->g) : safetensors_n(f->st);
    for (size_t i = 0; i < n; i++) {
        char name[256];
        if (f->g)
            snprintf(name, sizeof name, "%.*s", (int)(gguf_tensor_at(f->g, i)->name.len & 255),
                     gguf_tensor_at(f->g, i)->name.data);
        else
            snprintf(name, sizeof name, "%s", safetensors_at(f->st, i)->name);
        if (!f->seen[i] && !may_stay(name))
            return err_set(e, E_UNSUPPORTED, "tensor %.100s is not part of a BERT encoder as this engine knows it",
                           name);
    }
    return 0;
}

static int find_all(const struct finder *f, struct bert_weights *w, struct err *e)
{
    for (int r = 0; r < BERT_QUERY; r++)
        if (f->config->n_labels || (r != BERT_POOLER && r != BERT_CLASSES))
            TRY(find_role(f, w, (enum bert_role)r, 0, e));
    for (int l = 0; l < w->n_layers; l++) {
        bool fused;
        TRY(find_fused(f, w, l, &fused, e));
        for (int r = fused ? BERT_OUT : BERT_QUERY; r < BERT_ROLES; r++)
            TRY(find_role(f, w, (enum bert_role)r, l, e));
    }
    return check_unused(f, e);
}

int bert_weights_find(struct bert_weights *w, const struct bert_config *c, const struct safetensors *st,
                      const struct gguf *g, struct err *e)
{
    bool prefixed = st && safetensors_find(st, "bert.embeddings.word_embeddings.weight");
    struct finder f = {.config = c, .st = st, .g = g, .prefix = prefixed ? "bert." : ""};
    size_t n = (size_t)BERT_QUERY + (size_t)c->n_layers * (BERT_ROLES - BERT_QUERY);
    *w = (struct bert_weights){.n_layers = c->n_layers};
    w->weight = mem_new_array(n, sizeof *w->weight);
    w->bias = mem_new_array(n, sizeof *w->bias);
    f.seen = mem_new_array((g ? gguf_n_tensors(g) : safetensors_n(st)) + 1, sizeof *f.seen);
    int rc = find_all(&f, w, e);
    mem_free(f.seen);
    return rc;
}

void bert_weights_free(struct bert_weights *w)
{
    mem_free(w->weight);
    mem_free(w->bias);
    *w = (struct bert_weights){0};
}

size_t bert_weights_at(const struct bert_weights *w, enum bert_role role, int layer)
{
    (void)w;
    return role < BERT_QUERY ? (size_t)role
                             : BERT_QUERY + (size_t)layer * (BERT_ROLES - BERT_QUERY) + (size_t)(role - BERT_QUERY);
}

void bert_tensor_row(const struct bert_tensor *t, int row, void *room, float *out)
{
    size_t bytes = dtype_row_bytes(t->type, t->cols);
    memcpy(room, t->data + (size_t)row * bytes, bytes);
    dtype_to_f32(t->type, room, out, t->cols);
}
