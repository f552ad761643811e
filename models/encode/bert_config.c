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

static const char *const file_names[BERT_FILES] = {"config.json", "modules.json", "1_Pooling/config.json",
                                                   "sentence_bert_config.json"};

const char *bert_file_name(enum bert_file f)
{
    return file_names[f];
}

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

/* Beginnings of the names of architectures of other encoders, so that they are refused as such. */
static const char *const encoders[] = {"Bert",       "Roberta",  "XLMRoberta", "Camembert", "DistilBert", "MPNet",
                                       "Albert",     "Electra",  "Deberta",    "NomicBert", "ModernBert", "JinaBert",
                                       "GteModel",   "NewModel", "NewForSequ", "Ernie",     "MegatronB",  "MobileBert",
                                       "SqueezeBer", "XLNet",    "FlauBert",   "EuroBert",  "T5Encoder",  "NeoBERT"};

static const char *first_architecture(const struct json *config)
{
    return json_text(json_first(get(config, "architectures")));
}

static bool begins_with_one(const char *s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(s, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool is_generating(const char *arch)
{
    return strstr(arch, "ForCausalLM") || strstr(arch, "LMHeadModel") || strstr(arch, "ConditionalGeneration");
}

bool bert_config_is_encoder(const char *config, size_t n, bool modules)
{
    struct json *j = json_parse(config, n, NULL, NULL);
    const char *arch = first_architecture(j);
    bool yes =
        arch &&
        (modules || (!is_generating(arch) && (begins_with_one(arch, encoders, sizeof encoders / sizeof *encoders))));
    json_free(j);
    return yes;
}

bool bert_gguf_is_encoder(const struct gguf *g)
{
    struct gguf_string arch;
    uint64_t pooling = 0;
    char key[96];
    if (!gguf_string(g, "general.architecture", &arch) || arch.len > 64)
        return false;
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)arch.len, arch.data);
    return memmem(arch.data, arch.len, "bert", 4) || (gguf_u64(g, key, &pooling) && pooling != 0);
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
    c->max_tokens = c->n_positions;
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

/* ---- the card ---- */

static int read_pooling(struct bert_config *c, const struct json *j, struct err *e)
{
    static const struct {
        const char *key;
        int pooling; /* -1: not supported */
    } modes[] = {
        {"pooling_mode_cls_token", POOL_CLS},      {"pooling_mode_mean_tokens", POOL_MEAN},
        {"pooling_mode_lasttoken", POOL_LAST},     {"pooling_mode_max_tokens", -1},
        {"pooling_mode_mean_sqrt_len_tokens", -1}, {"pooling_mode_weightedmean_tokens", -1},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (!json_true(get(j, modes[i].key)))
            continue;
        if (modes[i].pooling < 0 || ++n > 1)
            return err_set(e, E_UNSUPPORTED, "1_Pooling/config.json: %s%s; one of cls, mean and last is supported",
                           modes[i].key, n > 1 ? " beside another" : "");
        c->pooling = (enum encoder_pooling)modes[i].pooling;
    }
    return n ? 0 : err_set(e, E_INPUT, "1_Pooling/config.json: it names no pooling");
}

/* A list of modules: the transformer, the pooling, and perhaps the normalisation. */
static int read_modules(struct bert_config *c, const struct json *j, struct err *e)
{
    static const char *const known[] = {"Transformer", "Pooling", "Normalize"};
    size_t at = 0;
    if (json_type(j) != JSON_ARRAY)
        return err_set(e, E_INPUT, "modules.json is %s, not an array", json_type_name(j));
    for (const struct json *m = json_first(j); m; m = json_next(m), at++) {
        const char *type = last_part(json_text(get(m, "type")));
        if (!type || at >= 3 || strcmp(type, known[at]) != 0)
            return err_set(
                e, E_UNSUPPORTED,
                "modules.json: the module %.40s; Transformer, Pooling and Normalize are known, in this order",
                type ? type : "without a type");
    }
    c->normalised = at == 3;
    return 0;
}

static int read_sentence(struct bert_config *c, const struct json *j, struct err *e)
{
    int64_t n;
    if (!get(j, "max_seq_length"))
        return 0;
    if (!json_i64(get(j, "max_seq_length"), &n) || n < 1)
        return err_set(e, E_INPUT, "sentence_bert_config.json: max_seq_length is not a number above 0");
    if (n < c->max_tokens)
        c->max_tokens = (int)n;
    return 0;
}

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
    c->pooling = POOL_MEAN;
    return strcmp(arch, run_here[1]) == 0 ? read_head(c, j, e) : 0;
}

int bert_config_read(struct bert_config *c, const struct bert_text files[BERT_FILES], struct err *e)
{
    static int (*const readers[BERT_FILES])(struct bert_config *, const struct json *,
                                            struct err *) = {read_config, read_modules, read_pooling, read_sentence};
    int rc = 0;
    memset(c, 0, sizeof *c);
    if (!files[BERT_CONFIG].data)
        return err_set(e, E_INPUT, "there is no config.json");
    for (int i = 0; i < BERT_FILES && !rc; i++) {
        /* a cross-encoder has a card of its own kind */
        if (!files[i].data || (c->n_labels && (i == BERT_MODULES || i == BERT_POOLING)))
            continue;
        struct json *j = json_parse(files[i].data, files[i].n, NULL, e);
        rc = j ? readers[i](c, j, e) : err_prefix(e, E_INPUT, "%s", file_names[i]);
        json_free(j);
    }
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

enum { GGUF_NONE, GGUF_MEAN, GGUF_CLS, GGUF_LAST, GGUF_RANK };

static int gguf_card(struct bert_config *c, const struct gguf *g, struct err *e)
{
    uint64_t pooling = GGUF_MEAN;
    bool causal = false;
    gguf_u64(g, "bert.pooling_type", &pooling);
    gguf_bool(g, "bert.attention.causal", &causal);
    if (causal)
        return err_set(e, E_UNSUPPORTED, "GGUF: bert.attention.causal is true; encoders look both ways");
    if (pooling > GGUF_RANK)
        return err_set(e, E_UNSUPPORTED, "GGUF: bert.pooling_type is %llu; 0 to 4 are known",
                       (unsigned long long)pooling);
    c->pooling = pooling == GGUF_CLS ? POOL_CLS : pooling == GGUF_LAST ? POOL_LAST : POOL_MEAN;
    c->normalised = true;
    if (pooling != GGUF_RANK)
        return 0;
    c->normalised = false;
    c->pooling = POOL_CLS;
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
