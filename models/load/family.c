#include "models/load/family.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"

/* Rows that share a GGUF name differ in Hugging Face's defaults only, so the first one answers for the file. */
static const struct family families[] = {
    {.gguf_arch = "llama", .hf_arch = "LlamaForCausalLM"}, /* Llama 2 and 3, SmolLM2 */
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

enum dim { ONE, HIDDEN, VOCAB, Q_DIM, KV_DIM, HEAD_DIM, FFN };

static const struct {
    const char *name, *hf_name;
    enum dim rows, cols;
} tensors[T_COUNT] = {
    [T_EMBED] = {"token_embd.weight", "model.embed_tokens.weight", VOCAB, HIDDEN},
    [T_HEAD] = {"output.weight", "lm_head.weight", VOCAB, HIDDEN},
    [T_OUT_NORM] = {"output_norm.weight", "model.norm.weight", ONE, HIDDEN},
    [T_ATTN_NORM] = {"blk.%d.attn_norm.weight", "model.layers.%d.input_layernorm.weight", ONE, HIDDEN},
    [T_Q] = {"blk.%d.attn_q.weight", "model.layers.%d.self_attn.q_proj.weight", Q_DIM, HIDDEN},
    [T_K] = {"blk.%d.attn_k.weight", "model.layers.%d.self_attn.k_proj.weight", KV_DIM, HIDDEN},
    [T_V] = {"blk.%d.attn_v.weight", "model.layers.%d.self_attn.v_proj.weight", KV_DIM, HIDDEN},
    [T_Q_BIAS] = {"blk.%d.attn_q.bias", "model.layers.%d.self_attn.q_proj.bias", ONE, Q_DIM},
    [T_K_BIAS] = {"blk.%d.attn_k.bias", "model.layers.%d.self_attn.k_proj.bias", ONE, KV_DIM},
    [T_V_BIAS] = {"blk.%d.attn_v.bias", "model.layers.%d.self_attn.v_proj.bias", ONE, KV_DIM},
    [T_Q_NORM] = {"blk.%d.attn_q_norm.weight", "model.layers.%d.self_attn.q_norm.weight", ONE, HEAD_DIM},
    [T_K_NORM] = {"blk.%d.attn_k_norm.weight", "model.layers.%d.self_attn.k_norm.weight", ONE, HEAD_DIM},
    [T_O] = {"blk.%d.attn_output.weight", "model.layers.%d.self_attn.o_proj.weight", HIDDEN, Q_DIM},
    [T_FFN_NORM] = {"blk.%d.ffn_norm.weight", "model.layers.%d.post_attention_layernorm.weight", ONE, HIDDEN},
    [T_GATE] = {"blk.%d.ffn_gate.weight", "model.layers.%d.mlp.gate_proj.weight", FFN, HIDDEN},
    [T_UP] = {"blk.%d.ffn_up.weight", "model.layers.%d.mlp.up_proj.weight", FFN, HIDDEN},
    [T_DOWN] = {"blk.%d.ffn_down.weight", "model.layers.%d.mlp.down_proj.weight", HIDDEN, FFN},
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
        return !c->tied;
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

void tensor_hf_name(enum tensor_role role, int layer, char *out, size_t bytes)
{
    put_name(tensors[role].hf_name, layer, out, bytes);
}
