#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/load/config.h"
#include "models/load/family.h"

/* The keys of an architecture begin with its name: "llama.block_count". */
struct keys {
    const struct gguf *g;
    const char *arch;
};

struct key {
    char text[96];
};

/* A string of the file for messages: short and printable. */
static struct key show(struct gguf_string s)
{
    struct key out;
    size_t n = s.len < 40 ? s.len : 40;
    for (size_t i = 0; i < n; i++)
        out.text[i] = s.data[i] >= 32 && s.data[i] < 127 ? s.data[i] : '?';
    out.text[n] = 0;
    return out;
}

static bool is(struct gguf_string s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

static struct key key_of(const struct keys *k, const char *name)
{
    struct key out;
    snprintf(out.text, sizeof out.text, "%s.%s", k->arch, name);
    return out;
}

/* missing < 0: the key must be there. */
static int get_int(const struct keys *k, const char *name, int missing, int *out, struct err *e)
{
    uint64_t v;
    struct key key = key_of(k, name);
    if (!gguf_u64(k->g, key.text, &v)) {
        if (gguf_has(k->g, key.text))
            return err_set(e, E_UNSUPPORTED,
                           "GGUF: key %s is not one whole number (values per layer are not supported)", key.text);
        if (missing < 0)
            return err_set(e, E_INPUT, "GGUF: key %s is missing", key.text);
        v = (uint64_t)missing;
    }
    if (v > INT32_MAX)
        return err_set(e, E_INPUT, "GGUF: key %s is %llu, which is out of range", key.text, (unsigned long long)v);
    *out = (int)v;
    return 0;
}

/* missing NaN: the key must be there. */
static int get_number(const struct keys *k, const char *name, double missing, double *out, struct err *e)
{
    struct key key = key_of(k, name);
    if (gguf_f64(k->g, key.text, out))
        return 0;
    if (gguf_has(k->g, key.text))
        return err_set(e, E_INPUT, "GGUF: key %s is not a number", key.text);
    if (isnan(missing))
        return err_set(e, E_INPUT, "GGUF: key %s is missing", key.text);
    *out = missing;
    return 0;
}

static int read_family(struct model_config *c, const struct gguf *g, struct err *e)
{
    struct gguf_string arch, kind;
    char known[120];
    uint64_t parts;
    family_list(known, sizeof known, false);
    if (!gguf_string(g, "general.architecture", &arch))
        return err_set(e, E_INPUT, "GGUF: key general.architecture is missing; supported: %s", known);
    c->family = family_find_gguf(arch.data, arch.len);
    if (!c->family)
        return err_set(e, E_UNSUPPORTED, "GGUF: architecture %s is not supported; supported: %s", show(arch).text,
                       known);
    if (gguf_string(g, "general.type", &kind) && !is(kind, "model"))
        return err_set(e, E_UNSUPPORTED, "GGUF: the file holds no whole model but a part of one (general.type %s)",
                       show(kind).text);
    if (gguf_u64(g, "split.count", &parts) && parts > 1)
        return err_set(e, E_UNSUPPORTED,
                       "GGUF: the model is split over %llu files; join them with llama-gguf-split --merge",
                       (unsigned long long)parts);
    return 0;
}

/* Keys of llama-like files that the forward does not implement. Zero and absence are fine. */
static int read_refusals(const struct keys *k, bool embeds, struct err *e)
{
    static const char *const refused[] = {
        "expert_count",
        "expert_used_count",
        "attention.clamp_kqv",
        "attention.max_alibi_bias",
        "use_parallel_residual",
        "attention.scale",
        "residual_scale",
        "embedding_scale",
        "logit_scale",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.scaling.yarn_log_multiplier",
        "attention.sliding_window_pattern",
        "pooling_type", /* the last: a model for embeddings has it */
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused - embeds; i++) {
        struct key key = key_of(k, refused[i]);
        double v = 0;
        bool flag = false;
        if (!gguf_f64(k->g, key.text, &v) && !gguf_bool(k->g, key.text, &flag) && gguf_has(k->g, key.text))
            flag = true;
        if (v != 0 || flag)
            return err_set(e, E_UNSUPPORTED, "GGUF: key %s asks for something this engine does not do%s", key.text,
                           i < 2 ? " (a mixture of experts)" : "");
    }
    bool causal;
    if (gguf_bool(k->g, key_of(k, "attention.causal").text, &causal) && !causal)
        return err_set(e, E_UNSUPPORTED, "GGUF: attention that is not causal is not supported");
    return 0;
}

/* The vocabulary is what the embedding has rows for; the token list and the stated size must agree with it. */
static int read_vocab(struct model_config *c, const struct keys *k, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(k->g, "token_embd.weight");
    struct gguf_array tokens;
    int stated;
    if (!t)
        return err_set(e, E_INPUT, "GGUF: tensor token_embd.weight is missing");
    if (t->dims[1] > INT32_MAX)
        return err_set(e, E_INPUT, "GGUF: token_embd.weight has %lld rows", (long long)t->dims[1]);
    c->vocab = (int)t->dims[1];
    TRY(get_int(k, "vocab_size", c->vocab, &stated, e));
    if (stated != c->vocab)
        return err_set(e, E_INPUT, "GGUF: the file says %d tokens and embeds %d", stated, c->vocab);
    if (gguf_array(k->g, "tokenizer.ggml.tokens", &tokens) && tokens.count != (size_t)c->vocab)
        return err_set(e, E_INPUT, "GGUF: the tokenizer has %zu tokens and the model embeds %d", tokens.count,
                       c->vocab);
    return 0;
}

static int read_sizes(struct model_config *c, const struct keys *k, struct err *e)
{
    TRY(get_int(k, "block_count", -1, &c->n_layers, e));
    TRY(get_int(k, "embedding_length", -1, &c->hidden, e));
    TRY(get_int(k, "attention.head_count", -1, &c->n_heads, e));
    TRY(get_int(k, "attention.head_count_kv", c->n_heads, &c->n_kv_heads, e));
    TRY(get_int(k, "feed_forward_length", -1, &c->intermediate, e));
    TRY(get_int(k, "context_length", -1, &c->context, e));
    TRY(get_int(k, "attention.sliding_window", 0, &c->window, e));
    int whole = c->n_heads && c->hidden % c->n_heads == 0 ? c->hidden / c->n_heads : 0, value_dim;
    TRY(get_int(k, "attention.key_length", whole, &c->head_dim, e));
    TRY(get_int(k, "attention.value_length", c->head_dim, &value_dim, e));
    if (value_dim != c->head_dim)
        return err_set(e, E_UNSUPPORTED, "GGUF: keys of %d and values of %d elements a head are not supported",
                       c->head_dim, value_dim);
    TRY(get_int(k, "rope.dimension_count", c->head_dim, &c->rope_dim, e));
    double eps;
    TRY(get_number(k, "attention.layer_norm_rms_epsilon", NAN, &eps, e));
    c->norm_eps = (float)eps;
    return 0;
}

static int read_scaling(struct rope_rule *r, const struct keys *k, int context, struct err *e)
{
    struct gguf_string type = {"", 0};
    double old;
    bool named = gguf_string(k->g, key_of(k, "rope.scaling.type").text, &type);
    TRY(get_number(k, "rope.scale_linear", 1, &old, e)); /* what older files have */
    TRY(get_number(k, "rope.scaling.factor", old, &r->factor, e));
    if (named ? is(type, "linear") : r->factor != 1 && r->factor != 0) {
        r->kind = ROPE_LINEAR;
        return 0;
    }
    if (!named || is(type, "none"))
        return 0;
    if (!is(type, "yarn"))
        return err_set(e, E_UNSUPPORTED, "GGUF: RoPE scaling %s is not supported (linear and yarn are)",
                       show(type).text);
    double more, blend;
    r->kind = ROPE_YARN;
    TRY(get_number(k, "rope.scaling.original_context_length", context, &r->original, e));
    TRY(get_number(k, "rope.scaling.yarn_beta_fast", 32, &r->beta_fast, e));
    TRY(get_number(k, "rope.scaling.yarn_beta_slow", 1, &r->beta_slow, e));
    TRY(get_number(k, "rope.scaling.yarn_ext_factor", 1, &blend, e));
    TRY(get_number(k, "rope.scaling.yarn_attn_factor", 1, &more, e));
    TRY(get_number(k, "rope.scaling.attn_factor", more, &more, e));
    if (blend != 1)
        return err_set(e, E_UNSUPPORTED, "GGUF: yarn with an extrapolation factor of %g is not supported (1 is)",
                       blend);
    r->attention_factor = more * rope_yarn_attention(r->factor);
    return 0;
}

/* Llama 3 files carry the divisors of the frequencies as a tensor. */
static int apply_freqs(struct model_config *c, const struct gguf *g, struct err *e)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, "rope_freqs.weight");
    if (!t)
        return 0;
    if (t->type != DT_F32 || t->dims[0] != c->rope_dim / 2 || t->dims[1] != 1)
        return err_set(e, E_INPUT, "GGUF: rope_freqs.weight must be %d F32 values", c->rope_dim / 2);
    for (int i = 0; i < c->rope_dim / 2; i++) {
        float f;
        memcpy(&f, (const char *)t->data + (size_t)i * 4, 4);
        if (!(f >= 1e-6f && f <= 1e6f))
            return err_set(e, E_INPUT, "GGUF: rope_freqs.weight: value %d is %g", i, (double)f);
        c->inv_freq[i] /= f;
    }
    return 0;
}

/* The family decides about biases and per-head norms, but a llama-like file may have biases of its own. */
static void read_extras(struct model_config *c, const struct gguf *g)
{
    c->tied = !gguf_tensor_find(g, "output.weight");
    c->qkv_bias = c->family->qkv_bias || gguf_tensor_find(g, "blk.0.attn_q.bias");
    c->qk_norm = c->family->qk_norm;
    c->rope_halves = c->family->rope_halves_gguf;
}

static int read_file(struct model_config *c, const struct gguf *g, struct err *e)
{
    TRY(read_family(c, g, e));
    struct keys k = {g, c->family->gguf_arch};
    struct gguf_string name = {"", 0};
    double base;
    TRY(read_refusals(&k, c->embeds, e));
    TRY(read_vocab(c, &k, e));
    TRY(read_sizes(c, &k, e));
    read_extras(c, g);
    TRY(config_check(c, e));
    TRY(get_number(&k, "rope.freq_base", 10000, &base, e));
    struct rope_rule r = rope_rule_plain(base);
    TRY(read_scaling(&r, &k, c->context, e));
    TRY(config_set_rope(c, &r, e));
    TRY(apply_freqs(c, g, e));
    if (gguf_string(g, "general.name", &name))
        config_set_name(c, name.data, name.len);
    return 0;
}

int config_from_gguf(struct model_config *c, const struct gguf *g, struct err *e)
{
    *c = (struct model_config){0};
    return read_file(c, g, e);
}

int config_embedder_from_gguf(struct model_config *c, const struct gguf *g, struct err *e)
{
    *c = (struct model_config){.embeds = true};
    return read_file(c, g, e);
}
