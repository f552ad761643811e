#include "models/load/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"

/* Rows that share a GGUF name differ in Hugging Face's defaults only, so the first one answers for the file. */
static const struct family families[] = {
    {.gguf_arch = "llama", .hf_arch = "LlamaForCausalLM"}, /* Llama 2 and 3, SmolLM2 */
    {.gguf_arch = "llama", .hf_arch = "LlamaSwiftKVForCausalLM", .swiftkv = true},
    {.gguf_arch = "llama", .hf_arch = "MistralForCausalLM", .default_kv_heads = 8, .default_window = 4096},
    {.gguf_arch = "qwen2",
     .hf_arch = "Qwen2ForCausalLM",
     .rope_halves_gguf = true,
     .qkv_bias = true,
     .default_kv_heads = 32},
    {.gguf_arch = "qwen3",
     .hf_arch = "Qwen3ForCausalLM",
     .rope_halves_gguf = true,
     .qk_norm = true,
     .default_kv_heads = 32,
     .default_head_dim = 128},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const struct family *family_find_gguf(const char *arch, size_t n)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i].gguf_arch) == n && memcmp(families[i].gguf_arch, arch, n) == 0)
            return &families[i];
    return NULL;
}

const struct family *family_find_hf(const char *arch)
{
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(families[i].hf_arch, arch) == 0)
            return &families[i];
    return NULL;
}

const struct family *family_find_hf_base(const char *arch)
{
    static const char head[] = "ForCausalLM", base[] = "Model";
    size_t n = strlen(arch), tail = sizeof base - 1;
    if (n <= tail || strcmp(arch + n - tail, base) != 0)
        return NULL;
    for (int i = 0; i < N_FAMILIES; i++) {
        const char *own = families[i].hf_arch;
        if (strncmp(own, arch, n - tail) == 0 && strcmp(own + n - tail, head) == 0)
            return &families[i];
    }
    return NULL;
}

static const char *name_of(int i, bool hf)
{
    return hf ? families[i].hf_arch : families[i].gguf_arch;
}

void family_list(char *out, size_t bytes, bool hf)
{
    size_t len = 0;
    out[0] = 0;
    for (int i = 0; i < N_FAMILIES && len < bytes; i++)
        if (i == 0 || strcmp(name_of(i, hf), name_of(i - 1, hf)) != 0)
            len += (size_t)snprintf(out + len, bytes - len, "%s%s", i ? ", " : "", name_of(i, hf));
}

/* SwiftKV's names are those of LlamaSwiftKVModel in Snowflake's ArcticTraining (projects/swiftkv), which writes the
 * checkpoints, and of LlamaSwiftKVForCausalLM in its ArcticInference, which serves them with vLLM. */
enum dim { ONE, HIDDEN, VOCAB, Q_DIM, KV_DIM, HEAD_DIM, FFN };

static const struct {
    const char *name, *hf_name;
    enum dim rows, cols;
    const char *swiftkv; /* its Hugging Face name in layers that take K and V from one hidden state; NULL: the same */
} tensors[T_COUNT] = {
    [T_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", VOCAB, HIDDEN, NULL},
    [T_HEAD] = {"output.weight", "lm_head.weight", VOCAB, HIDDEN, NULL},
    [T_OUT_NORM] = {"output_norm.weight", "model.norm.weight", ONE, HIDDEN, NULL},
    [T_KV_NORM] = {"swiftkv_norm.weight", "model.norm_swiftkv.weight", ONE, HIDDEN, NULL}, /* no GGUF file has it */
    [T_ATTN_NORM] = {"blk.%d.attn_norm.weight", "model.layers.%d.input_layernorm.weight", ONE, HIDDEN, NULL},
    [T_Q] = {"blk.%d.attn_q.weight", "model.layers.%d.self_attn.q_proj.weight", Q_DIM, HIDDEN,
             "model.layers.%d.self_attn.q_proj_swiftkv.weight"},
    [T_K] = {"blk.%d.attn_k.weight", "model.layers.%d.self_attn.k_proj.weight", KV_DIM, HIDDEN,
             "model.layers.%d.self_attn.k_proj_swiftkv.weight"},
    [T_V] = {"blk.%d.attn_v.weight", "model.layers.%d.self_attn.v_proj.weight", KV_DIM, HIDDEN,
             "model.layers.%d.self_attn.v_proj_swiftkv.weight"},
    [T_Q_BIAS] = {"blk.%d.attn_q.bias", "model.layers.%d.self_attn.q_proj.bias", ONE, Q_DIM, NULL},
    [T_K_BIAS] = {"blk.%d.attn_k.bias", "model.layers.%d.self_attn.k_proj.bias", ONE, KV_DIM, NULL},
    [T_V_BIAS] = {"blk.%d.attn_v.bias", "model.layers.%d.self_attn.v_proj.bias", ONE, KV_DIM, NULL},
    [T_Q_NORM] = {"blk.%d.attn_q_norm.weight", "model.layers.%d.self_attn.q_norm.weight", ONE, HEAD_DIM, NULL},
    [T_K_NORM] = {"blk.%d.attn_k_norm.weight", "model.layers.%d.self_attn.k_norm.weight", ONE, HEAD_DIM, NULL},
    [T_O] = {"blk.%d.attn_output.weight", "model.layers.%d.self_attn.o_proj.weight", HIDDEN, Q_DIM, NULL},
    [T_FFN_NORM] = {"blk.%d.ffn_norm.weight", "model.layers.%d.post_attention_layernorm.weight", ONE, HIDDEN, NULL},
    [T_GATE] = {"blk.%d.ffn_gate.weight", "model.layers.%d.mlp.gate_proj.weight", FFN, HIDDEN, NULL},
    [T_UP] = {"blk.%d.ffn_up.weight", "model.layers.%d.mlp.up_proj.weight", FFN, HIDDEN, NULL},
    [T_DOWN] = {"blk.%d.ffn_down.weight", "model.layers.%d.mlp.down_proj.weight", HIDDEN, FFN, NULL},
};

bool tensor_per_layer(enum tensor_role role)
{
    return role >= T_ATTN_NORM;
}

bool tensor_is_vector(enum tensor_role role)
{
    return tensors[role].rows == ONE;
}

bool tensor_wanted(const struct model_config *c, enum tensor_role role)
{
    switch (role) {
    case T_HEAD:
        return !c->tied && !c->embeds;
    case T_KV_NORM:
        return c->kv_layers > 0;
    case T_Q_BIAS:
    case T_K_BIAS:
    case T_V_BIAS:
        return c->qkv_bias;
    case T_Q_NORM:
    case T_K_NORM:
        return c->qk_norm;
    default:
        return true;
    }
}

static int dim_of(const struct model_config *c, enum dim d)
{
    switch (d) {
    case ONE:
        return 1;
    case HIDDEN:
        return c->hidden;
    case VOCAB:
        return c->vocab;
    case Q_DIM:
        return c->n_heads * c->head_dim;
    case KV_DIM:
        return c->n_kv_heads * c->head_dim;
    case HEAD_DIM:
        return c->head_dim;
    case FFN:
        return c->intermediate;
    }
    UNREACHABLE();
}

void tensor_shape(const struct model_config *c, enum tensor_role role, int *rows, int *cols)
{
    *rows = dim_of(c, tensors[role].rows);
    *cols = dim_of(c, tensors[role].cols);
}

static void put_name(const char *name, int layer, char *out, size_t bytes)
{
    const char *number = strstr(name, "%d");
    if (number)
        snprintf(out, bytes, "%.*s%d%s", (int)(number - name), name, layer, number + 2);
    else
        snprintf(out, bytes, "%s", name);
}

void tensor_gguf_name(enum tensor_role role, int layer, char *out, size_t bytes)
{
    put_name(tensors[role].name, layer, out, bytes);
}

static bool takes_swiftkv(const struct model_config *c, int layer)
{
    return c->kv_layers > 0 && layer >= c->kv_layers;
}

void tensor_hf_name(const struct model_config *c, enum tensor_role role, int layer, char *out, size_t bytes)
{
    const char *later = takes_swiftkv(c, layer) ? tensors[role].swiftkv : NULL;
    put_name(later ? later : tensors[role].hf_name, layer, out, bytes);
}

/* Is name this matrix of a layer that takes SwiftKV, or its bias or scale? matrix: the table's name. */
static bool is_replaced(const struct model_config *c, const char *matrix, const char *name)
{
    const char *number = strstr(matrix, "%d"), *tail = number + 2;
    size_t before = (size_t)(number - matrix), after = (size_t)(strrchr(matrix, '.') + 1 - tail);
    char *end;
    if (strncmp(name, matrix, before) != 0 || name[before] < '0' || name[before] > '9')
        return false;
    long layer = strtol(name + before, &end, 10);
    return layer >= c->kv_layers && layer < c->n_layers && strncmp(end, tail, after) == 0;
}

bool tensor_is_left_over(const struct model_config *c, const char *name)
{
    if (!c->kv_layers)
        return c->family->swiftkv && strcmp(name, tensors[T_KV_NORM].hf_name) == 0;
    return is_replaced(c, tensors[T_Q].hf_name, name) || is_replaced(c, tensors[T_K].hf_name, name) ||
           is_replaced(c, tensors[T_V].hf_name, name);
}
