#include "models/encode/bert_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"

enum {
    MOST_HIDDEN = 16384,
    MOST_LAYERS = 256,
    MOST_FFN = 65536,
    MOST_VOCAB = 1 << 21,
    MOST_POSITIONS = 1 << 16,
    MOST_TYPES = 16,
    MOST_LABELS = 1024,
    MOST_HEAD_DIM = 256,
};

static const struct json *get(const struct json *j, const char *key)
{
    const struct json *v = json_find(j, key);
    return json_type(v) == JSON_NULL ? NULL : v; /* absent and null mean the same */
}

static bool is(const struct json *j, const char *key, const char *text)
{
    const char *s = json_text(get(j, key));
    return s && strcmp(s, text) == 0;
}

/* ---- families ---- */

static const char *const run_here[] = {"BertModel", "BertForSequenceClassification"};

static const char *first_architecture(const struct json *config)
{
    return json_text(json_first(get(config, "architectures")));
}

/* ---- numbers ---- */

static int read_count(const struct json *j, const char *key, int most, int *out, struct err *e)
{
    int64_t v;
    if (!json_i64(get(j, key), &v) || v < 1 || v > most)
        return err_set(e, E_INPUT, "config.json: %s is not a number from 1 to %d", key, most);
    *out = (int)v;
    return 0;
}

static int check_heads(const struct bert_config *c, struct err *e)
{
    if (c->hidden % c->n_heads)
        return err_set(e, E_INPUT, "%d columns do not divide among %d heads", c->hidden, c->n_heads);
    if (c->hidden / c->n_heads > MOST_HEAD_DIM)
        return err_set(e, E_UNSUPPORTED, "a head has %d columns; at most %d are possible", c->hidden / c->n_heads,
                       MOST_HEAD_DIM);
    if (!(c->eps >= 0) || !isfinite(c->eps) || c->eps > 1)
        return err_set(e, E_INPUT, "the epsilon of the norms is %g, not a number from 0 to 1", (double)c->eps);
    return 0;
}

static int read_sizes(struct bert_config *c, const struct json *j, struct err *e)
{
    const struct json *eps = get(j, "layer_norm_eps");
    TRY(read_count(j, "hidden_size", MOST_HIDDEN, &c->hidden, e));
    TRY(read_count(j, "num_hidden_layers", MOST_LAYERS, &c->n_layers, e));
    TRY(read_count(j, "num_attention_heads", MOST_HIDDEN, &c->n_heads, e));
    TRY(read_count(j, "intermediate_size", MOST_FFN, &c->ffn, e));
    TRY(read_count(j, "vocab_size", MOST_VOCAB, &c->n_vocab, e));
    TRY(read_count(j, "max_position_embeddings", MOST_POSITIONS, &c->n_positions, e));
    TRY(read_count(j, "type_vocab_size", MOST_TYPES, &c->n_types, e));
    c->eps = eps ? (float)json_number(eps) : 1e-12f;
    return check_heads(c, e);
}

/* What would be computed otherwise. */
static int check_forms(const struct json *j, struct err *e)
{
    const char *act = json_text(get(j, "hidden_act"));
    if (get(j, "hidden_act") && !is(j, "hidden_act", "gelu"))
        return err_set(e, E_UNSUPPORTED, "config.json: hidden_act is \"%.40s\"; gelu is supported", act ? act : "?");
    if (get(j, "position_embedding_type") && !is(j, "position_embedding_type", "absolute"))
        return err_set(e, E_UNSUPPORTED, "config.json: position_embedding_type is not \"absolute\"");
    if (json_true(get(j, "is_decoder")) || json_true(get(j, "add_cross_attention")))
        return err_set(e, E_UNSUPPORTED, "config.json: a decoder of this family is not supported");
    if (get(j, "quantization_config"))
        return err_set(e, E_UNSUPPORTED, "config.json: quantised encoders are not supported; take the original files");
    return 0;
}

/* ---- the head ---- */

/* The last part of a Python name: "torch.nn.modules.linear.Identity" -> "Identity". */
static const char *last_part(const char *name)
{
    const char *dot = name ? strrchr(name, '.') : NULL;
    return dot ? dot + 1 : name;
}

/* As sentence-transformers' CrossEncoder: what the card names, else a sigmoid for one label and nothing for more. */
static int read_activation(struct bert_config *c, const struct json *j, struct err *e)
{
    const struct json *own = get(get(j, "sentence_transformers"), "activation_fn"),
                      *old = get(j, "sbert_ce_default_activation_function");
    const char *name = last_part(json_text(own ? own : old));
    c->sigmoid = c->n_labels == 1;
    if (!name)
        return 0;
    c->sigmoid = strcmp(name, "Sigmoid") == 0;
    if (!c->sigmoid && strcmp(name, "Identity") != 0)
        return err_set(e, E_UNSUPPORTED,
                       "config.json: the activation %.40s of its scores; Sigmoid and Identity are known", name);
    return 0;
}

static int read_head(struct bert_config *c, const struct json *j, struct err *e)
{
    const struct json *names = get(j, "id2label");
    int64_t n = names ? (int64_t)json_count(names) : 2; /* the library's own default */
    if (get(j, "num_labels") && !names && !json_i64(get(j, "num_labels"), &n))
        n = 0;
    if (n < 1 || n > MOST_LABELS)
        return err_set(e, E_INPUT, "config.json: the number of labels is not one from 1 to %d", MOST_LABELS);
    c->n_labels = (int)n;
    return read_activation(c, j, e);
}

/* ---- the whole ---- */

static int read_config(struct bert_config *c, const struct json *j, struct err *e)
{
    const char *arch = first_architecture(j);
    bool known = false;
    for (size_t i = 0; arch && i < sizeof run_here / sizeof *run_here; i++)
        known |= strcmp(arch, run_here[i]) == 0;
    if (!known)
        return err_set(e, E_UNSUPPORTED,
                       "config.json: %.60s is no encoder that is run here; BertModel and "
                       "BertForSequenceClassification are",
                       arch ? arch : "a model without architectures");
    TRY(read_sizes(c, j, e));
    TRY(check_forms(j, e));
    return strcmp(arch, run_here[1]) == 0 ? read_head(c, j, e) : 0;
}

int bert_config_read(struct bert_config *c, const struct card_text files[CARD_FILES], struct err *e)
{
    memset(c, 0, sizeof *c);
    if (!files[CARD_CONFIG].data)
        return err_set(e, E_INPUT, "there is no config.json");
    struct json *j = json_parse(files[CARD_CONFIG].data, files[CARD_CONFIG].n, NULL, e);
    int rc = j ? read_config(c, j, e) : err_prefix(e, E_INPUT, "config.json");
    json_free(j);
    struct card_text card[CARD_FILES];
    memcpy(card, files, sizeof card);
    if (c->n_labels) /* a cross-encoder has a card of its own kind */
        card[CARD_MODULES] = card[CARD_POOLING] = (struct card_text){0};
    if (!rc)
        rc = card_read(&c->card, card, e);
    if (!rc)
        c->max_tokens = c->card.max_tokens && c->card.max_tokens < c->n_positions ? c->card.max_tokens : c->n_positions;
    return rc;
}

/* ---- GGUF ---- */

static int gguf_count(const struct gguf *g, const char *key, uint64_t most, int *out, struct err *e)
{
    uint64_t v;
    if (!gguf_u64(g, key, &v) || v < 1 || v > most)
        return err_set(e, E_INPUT, "GGUF: %s is not a number from 1 to %llu", key, (unsigned long long)most);
    *out = (int)v;
    return 0;
}

static int gguf_rows(const struct gguf *g, const char *tensor, int most, int *out, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, tensor);
    if (!t || t->dims[1] < 1 || t->dims[1] > most)
        return err_set(e, E_INPUT, "GGUF: tensor %s is missing, or has not 1 to %d rows", tensor, most);
    *out = (int)t->dims[1];
    return 0;
}

static int gguf_card(struct bert_config *c, const struct gguf *g, struct err *e)
{
    bool causal = false;
    gguf_bool(g, "bert.attention.causal", &causal);
    if (causal)
        return err_set(e, E_UNSUPPORTED, "GGUF: bert.attention.causal is true; encoders look both ways");
    TRY(card_from_gguf(&c->card, g, e));
    if (!c->card.scores)
        return 0;
    TRY(gguf_rows(g, "cls.output.weight", MOST_LABELS, &c->n_labels, e));
    c->sigmoid = c->n_labels == 1;
    return 0;
}

int bert_config_gguf(struct bert_config *c, const struct gguf *g, struct err *e)
{
    struct gguf_string arch = {"?", 1};
    double eps = 1e-12;
    memset(c, 0, sizeof *c);
    gguf_string(g, "general.architecture", &arch);
    if (arch.len != 4 || memcmp(arch.data, "bert", 4) != 0)
        return err_set(e, E_UNSUPPORTED, "GGUF: %.*s is no encoder that is run here; bert is",
                       (int)(arch.len < 40 ? arch.len : 40), arch.data);
    TRY(gguf_count(g, "bert.embedding_length", MOST_HIDDEN, &c->hidden, e));
    TRY(gguf_count(g, "bert.block_count", MOST_LAYERS, &c->n_layers, e));
    TRY(gguf_count(g, "bert.attention.head_count", MOST_HIDDEN, &c->n_heads, e));
    TRY(gguf_count(g, "bert.feed_forward_length", MOST_FFN, &c->ffn, e));
    TRY(gguf_count(g, "bert.context_length", MOST_POSITIONS, &c->n_positions, e));
    TRY(gguf_rows(g, "token_embd.weight", MOST_VOCAB, &c->n_vocab, e));
    TRY(gguf_rows(g, "token_types.weight", MOST_TYPES, &c->n_types, e));
    gguf_f64(g, "bert.attention.layer_norm_epsilon", &eps);
    c->eps = (float)eps;
    c->max_tokens = c->n_positions;
    TRY(check_heads(c, e));
    return gguf_card(c, g, e);
}
