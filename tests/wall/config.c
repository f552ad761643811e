/* Both walls of the hyperparameters: config.json (what it accepts, what it makes of it, what it refuses and how) and
 * the metadata and tensors of GGUF files. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "models/load/config.h"
#include "tests/rig/gguf_build.h"

/* ---- config.json ---- */

#define SIZES                                                                                                          \
    "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "          \
    "\"intermediate_size\": 128, \"vocab_size\": 1000, \"max_position_embeddings\": 2048"
#define LLAMA(more) "{\"architectures\": [\"LlamaForCausalLM\"], " SIZES more "}"
#define OF(arch, more) "{\"architectures\": [\"" arch "\"], " SIZES more "}"

static int parse(const char *text, struct model_config *c, struct err *e)
{
    *e = (struct err){0};
    return config_from_hf(c, text, strlen(text), e);
}

static struct model_config accept(const char *text)
{
    struct model_config c;
    struct err e;
    if (parse(text, &c, &e))
        fail_msg("%s: %s", text, e.text);
    return c;
}

static void refuse(const char *text, int code, const char *says)
{
    struct model_config c;
    struct err e;
    int rc = parse(text, &c, &e);
    if (rc != code || !strstr(e.text, says))
        fail_msg("%s: %d \"%s\" instead of %d \"...%s...\"", text, rc, e.text, code, says);
}

static void test_families(void **state)
{
    (void)state;
    struct model_config c = accept(LLAMA(""));
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope_dim, 16);
    assert_true(c.rope_halves && !c.tied && !c.qkv_bias && !c.qk_norm);
    assert_int_equal(c.window, 0);
    assert_true(c.norm_eps == 1e-6f && c.rope_scale == 1);
    assert_true(c.inv_freq[0] == 1 && fabsf(c.inv_freq[1] - (float)pow(10000, -2.0 / 16)) < 1e-7f);
    assert_int_equal(accept(OF("MistralForCausalLM", "")).window, 4096);
    assert_int_equal(accept(OF("MistralForCausalLM", ", \"sliding_window\": null")).window, 0);
    assert_int_equal(accept(OF("MistralForCausalLM", ", \"sliding_window\": 512")).window, 512);
    c = accept(
        OF("Qwen2ForCausalLM", ", \"sliding_window\": 512, \"use_sliding_window\": false, \"max_window_layers\": 2"));
    assert_true(c.qkv_bias && !c.qk_norm && c.window == 0);
    c = accept(OF("Qwen3ForCausalLM", ", \"tie_word_embeddings\": true, \"head_dim\": null"));
    assert_true(!c.qkv_bias && c.qk_norm && c.tied && c.head_dim == 128);
}

static void test_rope_scaling(void **state)
{
    (void)state;
    struct model_config c = accept(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}"));
    assert_true(c.inv_freq[0] == 0.5f && c.context == 4096);
    c = accept(
        LLAMA(", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
              "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 256}"));
    assert_true(c.inv_freq[0] == 1 && c.context == 2048);
    assert_true(fabs((double)c.inv_freq[7] * 8 / pow(500000, -14.0 / 16) - 1) < 1e-6);
    c = accept(
        LLAMA(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 1024}"));
    assert_true(c.context == 4096 && fabsf(c.rope_scale - 1.1386294f) < 1e-6f && c.inv_freq[0] == 1);
    c = accept(LLAMA(", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 100.0}"));
    assert_true(fabsf(c.inv_freq[4] - 0.1f) < 1e-7f);
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}"), E_UNSUPPORTED, "dynamic");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"linear\"}"), E_INPUT, "\"factor\"");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -1}"), E_INPUT, "");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e300}"), E_INPUT, "out of range");
    refuse(LLAMA(", \"rope_scaling\": 7"), E_INPUT, "object");
    refuse(LLAMA(", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1.0}}"), E_UNSUPPORTED,
           "full_attention");
    refuse(LLAMA(", \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
                 "\"high_freq_factor\": 4, "
                 "\"original_max_position_embeddings\": 256}"),
           E_INPUT, "low < high");
}

static void test_refusals(void **state)
{
    (void)state;
    refuse("", E_INPUT, "");
    refuse("[]", E_INPUT, "object");
    refuse("{}", E_INPUT,
           "LlamaForCausalLM, LlamaSwiftKVForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM");
    refuse(OF("Gemma2ForCausalLM", ""), E_UNSUPPORTED,
           "Gemma2ForCausalLM is not supported; supported: LlamaForCausalLM");
    refuse(OF("MixtralForCausalLM", ""), E_UNSUPPORTED, "MixtralForCausalLM");
    refuse("{\"architectures\": [\"LlamaForCausalLM\"]}", E_INPUT, "num_hidden_layers");
    refuse(LLAMA(", \"hidden_act\": \"gelu\""), E_UNSUPPORTED, "gelu");
    refuse(LLAMA(", \"attention_bias\": true"), E_UNSUPPORTED, "attention_bias");
    refuse(LLAMA(", \"mlp_bias\": true"), E_UNSUPPORTED, "mlp_bias");
    refuse(LLAMA(", \"mlp_bias\": 1"), E_INPUT, "true or false");
    refuse(LLAMA(", \"partial_rotary_factor\": 0.5"), E_UNSUPPORTED, "partial_rotary_factor");
    refuse(LLAMA(", \"vocab_size\": 0"), E_INPUT, "vocabulary");
    refuse(LLAMA(", \"vocab_size\": 1e9"), E_INPUT, "");
    refuse(LLAMA(", \"vocab_size\": \"many\""), E_INPUT, "vocab_size");
    refuse(LLAMA(", \"num_hidden_layers\": -1"), E_INPUT, "num_hidden_layers");
    refuse(LLAMA(", \"num_hidden_layers\": 100000"), E_INPUT, "layers");
    refuse(LLAMA(", \"num_attention_heads\": 0"), E_INPUT, "");
    refuse(LLAMA(", \"num_key_value_heads\": 3"), E_INPUT, "evenly");
    refuse(LLAMA(", \"num_key_value_heads\": 8"), E_INPUT, "kv heads");
    refuse(LLAMA(", \"hidden_size\": 66"), E_INPUT, "divide");
    refuse(LLAMA(", \"head_dim\": 15"), E_INPUT, "odd");
    refuse(LLAMA(", \"head_dim\": 1024"), E_INPUT, "head size");
    refuse(LLAMA(", \"rms_norm_eps\": 0"), E_INPUT, "epsilon");
    refuse(LLAMA(", \"rms_norm_eps\": 1e999"), E_INPUT, "");
    refuse(LLAMA(", \"rope_theta\": 0"), E_INPUT, "base");
    refuse(LLAMA(", \"rope_theta\": \"x\""), E_INPUT, "rope_theta");
    refuse(LLAMA(", \"max_position_embeddings\": 99999999999"), E_INPUT, "max_position_embeddings");
    refuse(OF("Qwen2ForCausalLM", ", \"use_sliding_window\": true, \"max_window_layers\": 2, \"sliding_window\": 8"),
           E_UNSUPPORTED, "layer 2");
    refuse(OF("Qwen3ForCausalLM", ", \"layer_types\": [\"full_attention\"]"), E_INPUT, "list 4 layers");
    refuse(OF("Qwen3ForCausalLM", ", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
                                  "\"full_attention\"]"),
           E_UNSUPPORTED, "1 of 4");
}

/* num_key_value_layers of four layers. */
#define SWIFTKV(more) OF("LlamaSwiftKVForCausalLM", more)
static void test_swiftkv(void **state)
{
    (void)state;
    assert_int_equal(accept(SWIFTKV(", \"num_key_value_layers\": 1")).kv_layers, 1);
    assert_int_equal(accept(SWIFTKV(", \"num_key_value_layers\": 3, \"swiftkv\": true")).kv_layers, 3);
    assert_int_equal(accept(SWIFTKV(", \"num_key_value_layers\": 4")).kv_layers, 0);
    assert_int_equal(accept(SWIFTKV(", \"num_key_value_layers\": null")).kv_layers, 0);
    assert_int_equal(accept(SWIFTKV("")).kv_layers, 0);
    assert_int_equal(accept(LLAMA(", \"num_key_value_layers\": 4")).kv_layers, 0);
    assert_int_equal(
        accept(SWIFTKV(", \"num_key_value_layers\": 2, \"key_value_group_size\": 1, \"kv_sharing_map\": {}, "
                       "\"mlp_tuning_enabled\": false"))
            .kv_layers,
        2);
    refuse(SWIFTKV(", \"num_key_value_layers\": 0"), E_INPUT,
           "\"num_key_value_layers\" is 0; 1 to the number of layers, 4");
    refuse(SWIFTKV(", \"num_key_value_layers\": 5"), E_INPUT, "\"num_key_value_layers\" is 5");
    refuse(LLAMA(", \"num_key_value_layers\": 0"), E_INPUT, "\"num_key_value_layers\" is 0");
    refuse(SWIFTKV(", \"num_key_value_layers\": -1"), E_INPUT, "num_key_value_layers");
    refuse(SWIFTKV(", \"num_key_value_layers\": 1e99"), E_INPUT, "num_key_value_layers");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2147483648"), E_INPUT, "num_key_value_layers");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2.5"), E_INPUT, "whole number");
    refuse(SWIFTKV(", \"num_key_value_layers\": \"2\""), E_INPUT, "whole number");
    refuse(SWIFTKV(", \"num_key_value_layers\": [2]"), E_INPUT, "whole number");
    refuse(SWIFTKV(", \"num_key_value_layers\": true"), E_INPUT, "whole number");
    refuse(SWIFTKV(", \"num_hidden_layers\": 0, \"num_key_value_layers\": 0"), E_INPUT, "number of layers");
    refuse(SWIFTKV(", \"num_hidden_layers\": 100000, \"num_key_value_layers\": 5"), E_INPUT, "number of layers");
    refuse(LLAMA(", \"num_key_value_layers\": 2"), E_UNSUPPORTED, "LlamaSwiftKVForCausalLM may have it");
    refuse(OF("Qwen3ForCausalLM", ", \"num_key_value_layers\": 2"), E_UNSUPPORTED, "a Qwen3ForCausalLM");
    refuse(OF("Qwen3SwiftKVForCausalLM", ""), E_UNSUPPORTED, "Qwen3SwiftKVForCausalLM is not supported");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"key_value_group_size\": 2"), E_UNSUPPORTED,
           "key_value_group_size");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"key_value_group_size\": \"1\""), E_INPUT, "key_value_group_size");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"kv_sharing_map\": {\"3\": 2}"), E_UNSUPPORTED, "kv_sharing_map");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"mlp_tuning_enabled\": true"), E_UNSUPPORTED, "mlp_tuning_enabled");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"layernorm_tuning_enabled\": true"), E_UNSUPPORTED, "layernorm");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"swiftkv\": false"), E_UNSUPPORTED, "distilled");
    refuse(SWIFTKV(", \"num_key_value_layers\": 2, \"swiftkv\": 1"), E_INPUT, "true or false");
}

/* A dummy has the norm, and the tensors of a seed are those of a model without it. */
static void test_swiftkv_dummy(void **state)
{
    (void)state;
    struct model *with, *without;
    struct err e;
    struct weight_src a, b;
    struct tensor_room ra = {0}, rb = {0};
    assert_int_equal(model_open_described(&with, SWIFTKV(", \"num_key_value_layers\": 2"), DT_BF16, &e), 0);
    assert_int_equal(model_open_described(&without, SWIFTKV(""), DT_BF16, &e), 0);
    assert_int_equal(model_shape(without, T_KV_NORM, 0, &a, &e), E_NOTFOUND);
    assert_int_equal(model_tensor(with, &ra, T_KV_NORM, 0, &a, &e), 0);
    assert_true(a.type == DT_F32 && a.rows == 1 && a.cols == 64);
    for (int i = 0; i < a.cols; i++)
        assert_true(((const float *)a.data)[i] > 0.7f && ((const float *)a.data)[i] < 1.3f);
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (role < T_ATTN_NORM ? 1 : 4); l++)
            if (model_tensor(without, &rb, (enum tensor_role)role, l, &b, &e) == 0) {
                assert_int_equal(model_tensor(with, &ra, (enum tensor_role)role, l, &a, &e), 0);
                assert_true(a.type == b.type && a.rows == b.rows && a.cols == b.cols);
                assert_memory_equal(a.data, b.data, (size_t)a.rows * dtype_row_bytes(a.type, a.cols));
            }
    tensor_room_free(&ra);
    tensor_room_free(&rb);
    model_close(with);
    model_close(without);
}

static void test_dummy_needs_whole_blocks(void **state)
{
    (void)state;
    struct model *m;
    struct err e = {0};
    assert_int_equal(model_open_dummy(&m, "tests/data/gold_llama3.json", DT_Q4_K, 0, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "Q4_K"));
    assert_int_equal(model_open_dummy(&m, "tests/data/absent.json", DT_F32, 0, &e), E_NOTFOUND);
}

/* ---- GGUF ---- */

enum { HIDDEN = 32, FFN = 64, VOCAB = 40, F32 = 0, I_Q4_1 = 3 };

struct file {
    struct gguf_build b;
    struct buf bytes;
    uint64_t offset;
    const char *arch, *skip, *swap; /* a tensor to leave out; one to give a wrong number of rows */
};

static void tensor(struct file *f, const char *name, int type, uint64_t cols, uint64_t rows)
{
    if (f->skip && strcmp(f->skip, name) == 0)
        return;
    rows += f->swap && strcmp(f->swap, name) == 0;
    build_tensor(&f->b, name, (uint32_t)type, cols, rows, f->offset);
    f->offset += (rows * (type == F32 ? cols * 4 : cols / 32 * 20) + 31) / 32 * 32;
}

static void number(struct file *f, const char *name, uint32_t v)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", f->arch, name);
    build_u32(&f->b, key, v);
}

static void real(struct file *f, const char *name, float v)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", f->arch, name);
    build_key(&f->b, key, GGUF_F32);
    buf_put(&f->b.keys, &v, 4);
}

static void begin(struct file *f, const char *arch)
{
    *f = (struct file){.arch = arch};
    build_string(&f->b, "general.architecture", arch);
    number(f, "block_count", 1);
    number(f, "embedding_length", HIDDEN);
    number(f, "attention.head_count", 2);
    number(f, "attention.head_count_kv", 1);
    number(f, "feed_forward_length", FFN);
    number(f, "context_length", 128);
    real(f, "attention.layer_norm_rms_epsilon", 1e-5f);
}

static void tensors(struct file *f)
{
    tensor(f, "token_embd.weight", I_Q4_1, HIDDEN, VOCAB);
    tensor(f, "output_norm.weight", F32, HIDDEN, 1);
    tensor(f, "blk.0.attn_norm.weight", F32, HIDDEN, 1);
    tensor(f, "blk.0.attn_q.weight", I_Q4_1, HIDDEN, 32);
    tensor(f, "blk.0.attn_k.weight", I_Q4_1, HIDDEN, 16);
    tensor(f, "blk.0.attn_v.weight", I_Q4_1, HIDDEN, 16);
    tensor(f, "blk.0.attn_output.weight", I_Q4_1, 32, HIDDEN);
    tensor(f, "blk.0.ffn_norm.weight", F32, HIDDEN, 1);
    tensor(f, "blk.0.ffn_gate.weight", I_Q4_1, HIDDEN, FFN);
    tensor(f, "blk.0.ffn_up.weight", I_Q4_1, HIDDEN, FFN);
    tensor(f, "blk.0.ffn_down.weight", I_Q4_1, FFN, HIDDEN);
}

/* Opens what was built. The model must go before the bytes: close_file. */
static int open_file(struct file *f, struct model **m, struct err *e)
{
    struct gguf *g;
    char *exact;
    *e = (struct err){0};
    *m = NULL;
    build_finish(&f->b, 3, (size_t)f->offset, &f->bytes);
    size_t n = f->bytes.len;
    exact = mem_try_aligned(n, 64);
    memcpy(exact, f->bytes.data, n);
    buf_free(&f->bytes);
    f->bytes.data = exact;
    int rc = gguf_open_memory(&g, exact, n, e);
    if (rc)
        return rc;
    rc = model_from_gguf(m, g, "file", e);
    if (rc)
        gguf_close(g);
    return rc;
}

static void close_file(struct file *f, struct model *m)
{
    model_close(m);
    mem_free(f->bytes.data);
}

static void refuse_file(struct file *f, int code, const char *says)
{
    struct model *m;
    struct err e;
    int rc = open_file(f, &m, &e);
    if (rc != code || !strstr(e.text, says))
        fail_msg("%d \"%s\" instead of %d \"...%s...\"", rc, e.text, code, says);
    close_file(f, m);
}

static void test_gguf_llama(void **state)
{
    (void)state;
    struct file f;
    struct model *m;
    struct err e;
    struct weight_src s;
    struct tensor_room none = {0}; /* what a file has as it is takes none */
    begin(&f, "llama");
    tensors(&f);
    assert_int_equal(open_file(&f, &m, &e), 0);
    const struct model_config *c = model_config(m);
    assert_true(c->tied && !c->rope_halves && !c->qkv_bias && c->vocab == VOCAB && c->head_dim == 16);
    assert_string_equal(c->name, "file");
    assert_int_equal(model_tensor(m, &none, T_DOWN, 0, &s, &e), 0);
    assert_true(s.type == DT_Q4_1 && s.rows == HIDDEN && s.cols == FFN && s.data);
    assert_int_equal(model_tensor(m, &none, T_HEAD, 0, &s, &e), E_NOTFOUND);
    assert_int_equal(model_tensor(m, &none, T_Q_BIAS, 0, &s, &e), E_NOTFOUND);
    assert_int_equal(model_shape(m, T_OUT_NORM, 0, &s, &e), 0);
    assert_true(s.rows == 1 && s.cols == HIDDEN && !s.data);
    close_file(&f, m);
}

static void test_gguf_biases(void **state)
{
    (void)state;
    static const char *const archs[] = {"llama", "qwen2"};
    for (int i = 0; i < 2; i++)
        for (int all = 0; all < 2; all++) {
            struct file f;
            struct model *m;
            struct err e;
            begin(&f, archs[i]);
            tensors(&f);
            tensor(&f, "blk.0.attn_q.bias", F32, 32, 1);
            tensor(&f, "blk.0.attn_k.bias", F32, 16, 1);
            if (!all) {
                refuse_file(&f, E_INPUT, "blk.0.attn_v.bias is missing");
                continue;
            }
            tensor(&f, "blk.0.attn_v.bias", F32, 16, 1);
            assert_int_equal(open_file(&f, &m, &e), 0);
            assert_true(model_config(m)->qkv_bias && model_config(m)->rope_halves == (i == 1));
            close_file(&f, m);
        }
    struct file f;
    begin(&f, "llama");
    tensors(&f);
    tensor(&f, "blk.0.attn_output.bias", F32, 32, 1);
    refuse_file(&f, E_UNSUPPORTED, "biases are supported on q, k and v only");
}

static void test_gguf_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"token_embd.weight", "output_norm.weight", "blk.0.attn_v.weight",
                                        "blk.0.ffn_down.weight"};
    struct file f;
    for (int i = 0; i < 4; i++) {
        begin(&f, "llama");
        f.skip = names[i];
        tensors(&f);
        refuse_file(&f, E_INPUT, "is missing");
        begin(&f, "llama");
        number(&f, "vocab_size", VOCAB);
        f.swap = names[i];
        tensors(&f);
        refuse_file(&f, E_INPUT, i ? names[i] : "tokens");
    }
    begin(&f, "llama");
    tensors(&f);
    tensor(&f, "blk.0.ffn_gate_exps.weight", I_Q4_1, HIDDEN, FFN);
    refuse_file(&f, E_UNSUPPORTED, "mixtures of experts");
    begin(&f, "llama");
    tensors(&f);
    tensor(&f, "blk.1.attn_norm.weight", F32, HIDDEN, 1);
    refuse_file(&f, E_UNSUPPORTED, "blk.1.attn_norm.weight is not part");
    begin(&f, "qwen3");
    tensors(&f);
    refuse_file(&f, E_INPUT, "blk.0.attn_q_norm.weight is missing");
}

static void test_gguf_keys(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        int code;
        const char *says;
    } bad[] = {
        {"expert_count", 8, E_UNSUPPORTED, "mixture of experts"},
        {"attention.key_length", 8, E_INPUT, "attn_q.weight"},
        {"attention.value_length", 8, E_UNSUPPORTED, "values of 8"},
        {"rope.dimension_count", 6, 0, ""},
        {"rope.dimension_count", 7, E_INPUT, "RoPE"},
        {"rope.dimension_count", 18, E_INPUT, "RoPE"},
        {"vocab_size", 41, E_INPUT, "embeds 40"},
        {"attention.sliding_window", 1u << 31, E_INPUT, "sliding_window"},
        {"logit_scale", 1, E_UNSUPPORTED, "logit_scale"},
        {"pooling_type", 1, E_UNSUPPORTED, "pooling_type"},
    };
    struct file f;
    struct model *m;
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        begin(&f, "llama");
        number(&f, bad[i].key, bad[i].value);
        tensors(&f);
        if (bad[i].code) {
            refuse_file(&f, bad[i].code, bad[i].says);
            continue;
        }
        assert_int_equal(open_file(&f, &m, &e), 0);
        close_file(&f, m);
    }
    begin(&f, "gemma");
    tensors(&f);
    refuse_file(&f, E_UNSUPPORTED, "architecture gemma is not supported; supported: llama, qwen2, qwen3");
    begin(&f, "llama");
    build_string(&f.b, "llama.rope.scaling.type", "longrope");
    tensors(&f);
    refuse_file(&f, E_UNSUPPORTED, "longrope");
    f = (struct file){.arch = "llama"};
    build_string(&f.b, "general.architecture", "llama");
    tensors(&f);
    refuse_file(&f, E_INPUT, "llama.block_count is missing");
}

static void test_gguf_rope_freqs(void **state)
{
    (void)state;
    for (int good = 0; good < 2; good++) {
        struct file f;
        struct gguf *g;
        struct model *m;
        struct err e;
        begin(&f, "llama");
        tensors(&f);
        tensor(&f, "rope_freqs.weight", F32, 8, 1);
        build_finish(&f.b, 3, (size_t)f.offset, &f.bytes);
        char *copy = mem_try_aligned(f.bytes.len, 64);
        memcpy(copy, f.bytes.data, f.bytes.len);
        for (int i = 0; i < 8 && good; i++)
            memcpy(copy + f.bytes.len - 32 + 4 * i, &(float){(float)(i + 1)}, 4);
        assert_int_equal(gguf_open_memory(&g, copy, f.bytes.len, &e), 0);
        int rc = model_from_gguf(&m, g, "f", &e);
        if (good) {
            assert_int_equal(rc, 0);
            assert_true(fabs((double)model_config(m)->inv_freq[4] - pow(10000, -8.0 / 16) / 5) < 1e-8);
            model_close(m);
        } else {
            assert_int_equal(rc, E_INPUT); /* zeros: a division by them */
            gguf_close(g);
        }
        buf_free(&f.bytes);
        mem_free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_dummy_needs_whole_blocks),
        cmocka_unit_test(test_gguf_llama),      cmocka_unit_test(test_gguf_biases),
        cmocka_unit_test(test_gguf_tensors),    cmocka_unit_test(test_gguf_keys),
        cmocka_unit_test(test_gguf_rope_freqs), cmocka_unit_test(test_swiftkv),
        cmocka_unit_test(test_swiftkv_dummy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
