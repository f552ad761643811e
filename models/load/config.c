#include "models/load/config.h"

#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "models/load/family.h"

enum {
    MAX_LAYERS = 1024,
    MAX_HIDDEN = 1 << 16,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 256,
    MAX_FFN = 1 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_CONTEXT = 1 << 24,
};

/* ---- what GGUF and Hugging Face share ---- */

static int within(const char *what, int v, int max, struct err *e)
{
    return v >= 1 && v <= max ? 0 : err_set(e, E_INPUT, "%s is %d; 1 to %d is possible", what, v, max);
}

int config_check(const struct model_config *c, struct err *e)
{
    TRY(within("the number of layers", c->n_layers, MAX_LAYERS, e));
    if (c->kv_layers < 0 || c->kv_layers >= c->n_layers)
        return err_set(e, E_INPUT, "%d of %d layers with keys and values of their own are no SwiftKV model",
                       c->kv_layers, c->n_layers);
    TRY(within("the hidden size", c->hidden, MAX_HIDDEN, e));
    TRY(within("the number of heads", c->n_heads, MAX_HEADS, e));
    TRY(within("the number of kv heads", c->n_kv_heads, c->n_heads, e));
    TRY(within("the head size", c->head_dim, MAX_HEAD_DIM, e));
    TRY(within("the intermediate size", c->intermediate, MAX_FFN, e));
    TRY(within("the vocabulary", c->vocab, MAX_VOCAB, e));
    TRY(within("the context length", c->context, MAX_CONTEXT, e));
    if (c->n_heads % c->n_kv_heads)
        return err_set(e, E_INPUT, "%d heads cannot share %d kv heads evenly", c->n_heads, c->n_kv_heads);
    if (c->head_dim % 2)
        return err_set(e, E_INPUT, "the head size %d is odd; RoPE turns pairs", c->head_dim);
    if (c->rope_dim < 2 || c->rope_dim > c->head_dim || c->rope_dim % 2 || c->rope_dim > MODEL_MAX_ROPE)
        return err_set(e, E_INPUT, "RoPE over %d elements does not fit a head of %d", c->rope_dim, c->head_dim);
    if (c->window < 0 || c->window > MAX_CONTEXT)
        return err_set(e, E_INPUT, "the sliding window %d is out of range", c->window);
    if (!(c->norm_eps > 0 && c->norm_eps <= 0.1f))
        return err_set(e, E_INPUT, "the RMSNorm epsilon %g is out of range (above 0, at most 0.1)",
                       (double)c->norm_eps);
    return 0;
}

int config_set_rope(struct model_config *c, const struct rope_rule *r, struct err *e)
{
    return rope_build(r, c->rope_dim, c->inv_freq, &c->rope_scale, e);
}

void config_set_name(struct model_config *c, const char *name, size_t n)
{
    size_t len = 0;
    for (size_t i = 0; i < n && len < sizeof c->name - 1; i++)
        c->name[len++] = name[i] >= 32 && name[i] < 127 ? name[i] : '?';
    c->name[len] = 0;
}

/* ---- config.json ---- */

/* Absent and null mean the same in a config.json. */
static const struct json *field(const struct json *o, const char *key)
{
    const struct json *v = json_find(o, key);
    return json_type(v) == JSON_NULL ? NULL : v;
}

/* missing < 0: the key must be there. Range checks of what the config means are config_check's. */
static int get_int(const struct json *o, const char *key, int missing, int *out, struct err *e)
{
    const struct json *v = field(o, key);
    int64_t i;
    *out = missing;
    if (!v)
        return missing < 0 ? err_set(e, E_INPUT, "config.json has no \"%s\"", key) : 0;
    if (!json_i64(v, &i) || i < 0 || i > INT32_MAX)
        return err_set(e, E_INPUT, "config.json: \"%s\" must be a whole number from 0 to %d", key, INT32_MAX);
    *out = (int)i;
    return 0;
}

static int get_number(const struct json *o, const char *key, double missing, double *out, struct err *e)
{
    const struct json *v = field(o, key);
    *out = v ? json_number(v) : missing;
    if (!v && isnan(missing))
        return err_set(e, E_INPUT, "config.json has no \"%s\"", key);
    if (v && json_type(v) != JSON_NUMBER)
        return err_set(e, E_INPUT, "config.json: \"%s\" must be a number, not %s", key, json_type_name(v));
    return 0;
}

static int get_bool(const struct json *o, const char *key, bool *out, struct err *e)
{
    const struct json *v = field(o, key);
    *out = v && json_true(v);
    if (v && json_type(v) != JSON_BOOL)
        return err_set(e, E_INPUT, "config.json: \"%s\" must be true or false, not %s", key, json_type_name(v));
    return 0;
}

static int get_text(const struct json *o, const char *key, const char *missing, const char **out, struct err *e)
{
    const struct json *v = field(o, key);
    *out = missing;
    if (v && json_type(v) != JSON_STRING)
        return err_set(e, E_INPUT, "config.json: \"%s\" must be a string, not %s", key, json_type_name(v));
    if (v)
        *out = json_text(v);
    return 0;
}

static int read_family(struct model_config *c, const struct json *o, struct err *e)
{
    char known[200];
    family_list(known, sizeof known, true);
    const struct json *first =
        json_type(field(o, "architectures")) == JSON_ARRAY ? json_first(field(o, "architectures")) : NULL;
    const char *arch = json_text(first);
    if (!arch)
        return err_set(e, E_INPUT, "config.json names no architecture (\"architectures\": [\"...\"]); supported: %s",
                       known);
    c->family = family_find_hf(arch);
    if (!c->family && c->embeds)
        c->family = family_find_hf_base(arch);
    if (!c->family)
        return err_set(e, E_UNSUPPORTED, "config.json: architecture %.80s is not supported; supported: %s", arch,
                       known);
    return 0;
}

static int read_sizes(struct model_config *c, const struct json *o, struct err *e)
{
    const struct family *f = c->family;
    TRY(get_int(o, "num_hidden_layers", -1, &c->n_layers, e));
    TRY(get_int(o, "hidden_size", -1, &c->hidden, e));
    TRY(get_int(o, "num_attention_heads", -1, &c->n_heads, e));
    TRY(get_int(o, "num_key_value_heads", f->default_kv_heads ? f->default_kv_heads : c->n_heads, &c->n_kv_heads, e));
    TRY(get_int(o, "intermediate_size", -1, &c->intermediate, e));
    TRY(get_int(o, "vocab_size", -1, &c->vocab, e));
    TRY(get_int(o, "max_position_embeddings", -1, &c->context, e));
    TRY(get_int(o, "head_dim", f->default_head_dim, &c->head_dim, e));
    if (c->head_dim == 0) {
        if (c->n_heads == 0 || c->hidden % c->n_heads)
            return err_set(e, E_INPUT,
                           "config.json: %d heads do not divide the hidden size %d, and no \"head_dim\" is given",
                           c->n_heads, c->hidden);
        c->head_dim = c->hidden / c->n_heads;
    }
    c->rope_dim = c->head_dim;
    double eps;
    TRY(get_number(o, "rms_norm_eps", 1e-6, &eps, e));
    c->norm_eps = (float)eps;
    return 0;
}

/* What SwiftKV's trainer knows and its published models do not use. */
static int refuse_kinds_of_swiftkv(const struct json *o, struct err *e)
{
    static const char *const tuned[] = {"mlp_tuning_enabled", "layernorm_tuning_enabled"};
    int group;
    bool v;
    TRY(get_int(o, "key_value_group_size", 1, &group, e));
    if (group > 1)
        return err_set(
            e, E_UNSUPPORTED,
            "config.json: \"key_value_group_size\": %d, layers that share keys and values, is not supported (1 "
            "is)",
            group);
    const struct json *map = field(o, "kv_sharing_map");
    if (map && (json_type(map) != JSON_OBJECT || json_count(map) > 0))
        return err_set(e, E_UNSUPPORTED, "config.json: \"kv_sharing_map\" is not supported");
    for (size_t i = 0; i < sizeof tuned / sizeof *tuned; i++) {
        TRY(get_bool(o, tuned[i], &v, e));
        if (v)
            return err_set(e, E_UNSUPPORTED, "config.json: \"%s\": true is not supported", tuned[i]);
    }
    TRY(get_bool(o, "swiftkv", &v, e));
    if (field(o, "swiftkv") && !v)
        return err_set(e, E_UNSUPPORTED,
                       "config.json: \"swiftkv\": false asks for the model that this one was distilled from: load that "
                       "one, or leave the field out");
    return 0;
}

/* SwiftKV (arXiv 2410.03960): N = num_key_value_layers; N absent or all layers is an ordinary model. */
static int read_swiftkv(struct model_config *c, const struct json *o, struct err *e)
{
    int n;
    TRY(get_int(o, "num_key_value_layers", c->n_layers, &n, e));
    if (n == c->n_layers)
        return 0;
    if (n < 1 || n > c->n_layers)
        return err_set(e, E_INPUT,
                       "config.json: \"num_key_value_layers\" is %d; 1 to the number of layers, %d, is possible", n,
                       c->n_layers);
    if (!c->family->swiftkv)
        return err_set(
            e, E_UNSUPPORTED,
            "config.json: \"num_key_value_layers\" is not supported in a %s (LlamaSwiftKVForCausalLM may have "
            "it)",
            c->family->hf_arch);
    c->kv_layers = n;
    return refuse_kinds_of_swiftkv(o, e);
}

/* "layer_types" says per layer what the window applies to; only all or none is one window. */
static int read_layer_types(const struct json *o, const struct model_config *c, bool *sliding, struct err *e)
{
    const struct json *types = field(o, "layer_types");
    if (!types)
        return 0;
    if (json_type(types) != JSON_ARRAY || json_count(types) != (size_t)c->n_layers)
        return err_set(e, E_INPUT, "config.json: \"layer_types\" must list %d layers", c->n_layers);
    int n_sliding = 0;
    for (const struct json *t = json_first(types); t; t = json_next(t)) {
        const char *name = json_text(t);
        if (!name || (strcmp(name, "full_attention") != 0 && strcmp(name, "sliding_attention") != 0))
            return err_set(e, E_UNSUPPORTED,
                           "config.json: layer type %.40s is not supported (full_attention and "
                           "sliding_attention are)",
                           name ? name : json_type_name(t));
        n_sliding += name[0] == 's';
    }
    if (n_sliding && n_sliding != c->n_layers)
        return err_set(e, E_UNSUPPORTED, "config.json: a sliding window in only %d of %d layers is not supported",
                       n_sliding, c->n_layers);
    *sliding = n_sliding > 0;
    return 0;
}

static int read_window(struct model_config *c, const struct json *o, struct err *e)
{
    const struct json *stated = json_find(o, "sliding_window");
    int window = 0, first = 0;
    bool sliding = true;
    TRY(get_int(o, "sliding_window", stated ? 0 : c->family->default_window, &window, e));
    if (field(o, "use_sliding_window")) {
        TRY(get_bool(o, "use_sliding_window", &sliding, e));
        TRY(get_int(o, "max_window_layers", 0, &first, e));
        if (sliding && first && !field(o, "layer_types"))
            return err_set(e, E_UNSUPPORTED, "config.json: \"use_sliding_window\" from layer %d on is not supported",
                           first);
    }
    TRY(read_layer_types(o, c, &sliding, e));
    c->window = sliding ? window : 0;
    return 0;
}

static int read_flags(struct model_config *c, const struct json *o, struct err *e)
{
    static const char *const refused[] = {"attention_bias", "mlp_bias", "rope_interleaved", "is_encoder_decoder"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        bool v;
        TRY(get_bool(o, refused[i], &v, e));
        if (v)
            return err_set(e, E_UNSUPPORTED, "config.json: \"%s\": true is not supported", refused[i]);
    }
    const char *act;
    double part;
    TRY(get_text(o, "hidden_act", "silu", &act, e));
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return err_set(e, E_UNSUPPORTED, "config.json: activation %.40s is not supported (silu is)", act);
    TRY(get_number(o, "partial_rotary_factor", 1, &part, e));
    if (part != 1)
        return err_set(e, E_UNSUPPORTED, "config.json: \"partial_rotary_factor\": %g is not supported (1 is)", part);
    TRY(get_bool(o, "tie_word_embeddings", &c->tied, e));
    c->qkv_bias = c->family->qkv_bias;
    c->qk_norm = c->family->qk_norm;
    c->rope_halves = true;
    return 0;
}

/* Tokens see what comes before them, and a vector is made of what the last one has seen: a model that looks both ways
 * says so here, or brings code that does. */
static int check_embedder(const struct json *o, struct err *e)
{
    const struct json *causal = field(o, "is_causal");
    bool both;
    if (field(o, "auto_map"))
        return err_set(
            e, E_UNSUPPORTED,
            "config.json: \"auto_map\": a model for embeddings that brings code of its own is not supported");
    if (causal && !json_true(causal))
        return err_set(e, E_UNSUPPORTED, "config.json: \"is_causal\": false is not supported");
    TRY(get_bool(o, "use_bidirectional_attention", &both, e));
    return both ? err_set(e, E_UNSUPPORTED, "config.json: \"use_bidirectional_attention\": true is not supported") : 0;
}

static int read_yarn(struct rope_rule *r, struct model_config *c, const struct json *s, struct err *e)
{
    static const char *const foreign[] = {"mscale", "mscale_all_dim"};
    for (size_t i = 0; i < 2; i++)
        if (field(s, foreign[i]))
            return err_set(e, E_UNSUPPORTED, "config.json: RoPE scaling with \"%s\" is not supported", foreign[i]);
    bool exact = field(s, "truncate") && !json_true(field(s, "truncate"));
    if (exact)
        return err_set(e, E_UNSUPPORTED, "config.json: RoPE scaling with \"truncate\": false is not supported");
    TRY(get_number(s, "original_max_position_embeddings", c->context, &r->original, e));
    TRY(get_number(s, "beta_fast", 32, &r->beta_fast, e));
    TRY(get_number(s, "beta_slow", 1, &r->beta_slow, e));
    TRY(get_number(s, "attention_factor", rope_yarn_attention(r->factor), &r->attention_factor, e));
    r->kind = ROPE_YARN;
    return 0;
}

static int read_llama3(struct rope_rule *r, const struct json *s, struct err *e)
{
    r->kind = ROPE_LLAMA3;
    TRY(get_number(s, "low_freq_factor", NAN, &r->low_freq, e));
    TRY(get_number(s, "high_freq_factor", NAN, &r->high_freq, e));
    return get_number(s, "original_max_position_embeddings", NAN, &r->original, e);
}

/* With linear and yarn scaling the file states the context before scaling, with Llama 3 the one after it. */
static int stretch_context(struct model_config *c, double from, double factor, struct err *e)
{
    double context = from * factor;
    if (!(context >= 1 && context <= MAX_CONTEXT))
        return err_set(e, E_INPUT, "config.json: a context of %g tokens is out of range (1 to %d)", context,
                       MAX_CONTEXT);
    c->context = (int)context;
    return 0;
}

static int read_scaling(struct rope_rule *r, struct model_config *c, const struct json *s, struct err *e)
{
    const char *type;
    if (json_type(s) != JSON_OBJECT)
        return err_set(e, E_INPUT, "config.json: RoPE scaling must be an object, not %s", json_type_name(s));
    for (const struct json *m = json_first(s); m; m = json_next(m))
        if (json_type(m) == JSON_OBJECT)
            return err_set(e, E_UNSUPPORTED,
                           "config.json: RoPE that differs between layers (\"%.40s\") is not supported", json_key(m));
    TRY(get_text(s, "type", "default", &type, e));
    TRY(get_text(s, "rope_type", type, &type, e));
    TRY(get_number(s, "rope_theta", r->base, &r->base, e));
    if (strcmp(type, "default") == 0)
        return 0;
    TRY(get_number(s, "factor", NAN, &r->factor, e));
    if (strcmp(type, "llama3") == 0)
        return read_llama3(r, s, e);
    if (strcmp(type, "linear") == 0) {
        r->kind = ROPE_LINEAR;
        return stretch_context(c, c->context, r->factor, e);
    }
    if (strcmp(type, "yarn") == 0) {
        TRY(read_yarn(r, c, s, e));
        return stretch_context(c, r->original, r->factor, e);
    }
    return err_set(e, E_UNSUPPORTED, "config.json: RoPE scaling %.40s is not supported (linear, llama3 and yarn are)",
                   type);
}

static int read_rope(struct model_config *c, const struct json *o, struct err *e)
{
    double base;
    TRY(get_number(o, "rope_theta", 10000, &base, e));
    struct rope_rule r = rope_rule_plain(base);
    const struct json *s = field(o, "rope_scaling"), *parameters = field(o, "rope_parameters"); /* newer files */
    if (s)
        TRY(read_scaling(&r, c, s, e));
    else if (parameters)
        TRY(read_scaling(&r, c, parameters, e));
    return config_set_rope(c, &r, e);
}

static int read_config(struct model_config *c, const struct json *o, struct err *e)
{
    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_INPUT, "config.json must be an object, not %s", json_type_name(o));
    TRY(read_family(c, o, e));
    TRY(read_sizes(c, o, e));
    TRY(read_swiftkv(c, o, e));
    TRY(read_window(c, o, e));
    TRY(read_flags(c, o, e));
    if (c->embeds)
        TRY(check_embedder(o, e));
    TRY(config_check(c, e)); /* before anything is built from the sizes */
    TRY(read_rope(c, o, e));
    const char *name;
    TRY(get_text(o, "_name_or_path", "", &name, e));
    config_set_name(c, name, strlen(name));
    return config_check(c, e);
}

static int read_text(struct model_config *out, const char *text, size_t n, struct err *e)
{
    static const struct json_limits limits = {.bytes = 1 << 20, .depth = 32, .nodes = 100000};
    struct json *root = json_parse(text, n, &limits, e);
    if (!root)
        return err_prefix(e, E_INPUT, "config.json");
    int rc = read_config(out, root, e);
    json_free(root);
    return rc;
}

int config_from_hf(struct model_config *out, const char *text, size_t n, struct err *e)
{
    *out = (struct model_config){0};
    return read_text(out, text, n, e);
}

int config_embedder_from_hf(struct model_config *out, const char *text, size_t n, struct err *e)
{
    *out = (struct model_config){.embeds = true};
    return read_text(out, text, n, e);
}
