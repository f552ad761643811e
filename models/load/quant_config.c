#include "models/load/quant_config.h"

#include <string.h>

#include "engine/base/json.h"

static const char supported[] =
    "quant_method \"fp8\" and \"compressed-tensors\" with 8-bit float weights are supported";

/* Absent and null mean the same. */
static const struct json *field(const struct json *o, const char *key)
{
    const struct json *v = json_find(o, key);
    return json_type(v) == JSON_NULL ? NULL : v;
}

/* "" for what is no text. */
static const char *text_of(const struct json *o, const char *key)
{
    const char *text = json_text(field(o, key));
    return text ? text : "";
}

static bool is(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* Absent, or one of these. */
static bool allows(const struct json *o, const char *key, const char *a, const char *b)
{
    const char *text = json_text(field(o, key));
    return !field(o, key) || (text && (is(text, a) || is(text, b)));
}

/* [128, 128] */
static int check_block(const struct json *block, struct err *e)
{
    const struct json *rows = json_first(block);
    int64_t r, c;
    if (json_type(block) != JSON_ARRAY || json_count(block) != 2 || !json_i64(rows, &r) ||
        !json_i64(json_next(rows), &c))
        return err_set(e, E_INPUT, "quantization_config: the block size must be two whole numbers");
    if (r != 128 || c != 128)
        return err_set(e, E_UNSUPPORTED, "quantization_config: blocks of %lld x %lld are not supported (128 x 128 are)",
                       (long long)r, (long long)c);
    return 0;
}

/* DeepSeek, Qwen3-FP8, and FP8 checkpoints by AutoFP8. */
static int read_fp8(struct quant_config *q, const struct json *o, struct err *e)
{
    if (!allows(o, "fmt", "e4m3", "float8_e4m3fn"))
        return err_set(e, E_UNSUPPORTED, "quantization_config: fp8 format \"%.40s\" is not supported (e4m3 is)",
                       text_of(o, "fmt"));
    if (!allows(o, "activation_scheme", "dynamic", "static"))
        return err_set(e, E_UNSUPPORTED,
                       "quantization_config: activation_scheme \"%.40s\" is not supported (dynamic and static are, and "
                       "change nothing "
                       "here: activations are never quantised by scales of a file)",
                       text_of(o, "activation_scheme"));
    q->blocks = field(o, "weight_block_size") != NULL;
    return q->blocks ? check_block(field(o, "weight_block_size"), e) : 0;
}

/* The weights of a group of layers. */
static int read_weights(const struct json *w, bool *blocks, struct err *e)
{
    int64_t bits;
    const char *strategy = text_of(w, "strategy"), *type = text_of(w, "type");
    if (!json_i64(field(w, "num_bits"), &bits) || bits != 8 || !is(type, "float"))
        return err_set(e, E_UNSUPPORTED,
                       "quantization_config: weights of type \"%.40s\", or of other than 8 bits, are not supported; %s",
                       type, supported);
    if (field(w, "symmetric") && !json_true(field(w, "symmetric")))
        return err_set(e, E_UNSUPPORTED, "quantization_config: weights with zero points are not supported");
    if (!is(strategy, "block") && !allows(w, "strategy", "tensor", "channel"))
        return err_set(e, E_UNSUPPORTED,
                       "quantization_config: strategy \"%.40s\" is not supported (tensor, channel and block are)",
                       strategy);
    *blocks = is(strategy, "block");
    return *blocks ? check_block(field(w, "block_structure"), e) : 0;
}

static bool is_empty(const struct json *v)
{
    return !v || json_count(v) == 0;
}

static int read_compressed(struct quant_config *q, const struct json *o, struct err *e)
{
    const struct json *groups = field(o, "config_groups");
    const struct json *sparse = field(o, "sparsity_config");
    if (!allows(o, "format", "float-quantized", "naive-quantized"))
        return err_set(e, E_UNSUPPORTED, "quantization_config: format \"%.40s\" is not supported; %s",
                       text_of(o, "format"), supported);
    if (!allows(sparse, "format", "dense", ""))
        return err_set(e, E_UNSUPPORTED, "quantization_config: sparse weights (\"%.40s\") are not supported",
                       text_of(sparse, "format"));
    if (!is_empty(field(o, "transform_config")))
        return err_set(e, E_UNSUPPORTED,
                       "quantization_config: transformed activations (transform_config) are not supported");
    if (json_type(groups) != JSON_OBJECT || !json_count(groups))
        return err_set(e, E_INPUT, "quantization_config: no config_groups say how weights are stored");
    for (const struct json *g = json_first(groups); g; g = json_next(g)) {
        bool blocks;
        TRY(read_weights(field(g, "weights"), &blocks, e));
        if (g != json_first(groups) && blocks != q->blocks)
            return err_set(e, E_UNSUPPORTED,
                           "quantization_config: blocks in some groups of layers only are not supported");
        q->blocks = blocks;
    }
    return 0;
}

static int read_quantization(struct quant_config *q, const struct json *root, struct err *e)
{
    const struct json *o = field(root, "quantization_config");
    if (!o && field(root, "compression_config"))
        o = field(root, "compression_config");
    if (!o)
        return 0;
    if (json_type(o) != JSON_OBJECT)
        return err_set(e, E_INPUT, "config.json: quantization_config must be an object, not %s", json_type_name(o));
    const char *method = text_of(o, "quant_method");
    q->fp8 = true;
    if (is(method, "fp8"))
        return read_fp8(q, o, e);
    if (is(method, "compressed-tensors"))
        return read_compressed(q, o, e);
    return err_set(e, E_UNSUPPORTED, "quantization_config: quant_method \"%.40s\" is not supported; %s", method,
                   supported);
}

int quant_config_read(struct quant_config *out, const char *json, size_t n, struct err *e)
{
    static const struct json_limits limits = {.bytes = 1 << 20, .depth = 32, .nodes = 100000};
    *out = (struct quant_config){0};
    struct json *root = json_parse(json, n, &limits, e);
    if (!root)
        return err_prefix(e, E_INPUT, "config.json");
    int rc = read_quantization(out, root, e);
    json_free(root);
    return rc;
}
