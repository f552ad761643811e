/* A small random decoder for embeddings in memory, of Qwen3's shape: config.json's text and a safetensors file. Tests
 * and fuzz targets. One thread. */
#ifndef RIG_DECODER_BUILD_H
#define RIG_DECODER_BUILD_H

#include "tests/rig/bert_build.h"

struct decoder_build {
    int hidden, heads, kv_heads, dim, ffn, layers, vocab, positions;
    const char *prefix; /* of the tensors' names: "model." or "" */
    uint64_t seed;
};

/* Frees with st_free. */
static inline const struct buf *decoder_file(struct st_build *st, const struct decoder_build *d)
{
    const int q = d->heads * d->dim, kv = d->kv_heads * d->dim;
    const struct {
        const char *name;
        int rows, cols; /* rows 0: a norm */
    } of_layer[] = {
        {"input_layernorm", 0, d->hidden},    {"self_attn.q_proj", q, d->hidden},
        {"self_attn.k_proj", kv, d->hidden},  {"self_attn.v_proj", kv, d->hidden},
        {"self_attn.q_norm", 0, d->dim},      {"self_attn.k_norm", 0, d->dim},
        {"self_attn.o_proj", d->hidden, q},   {"post_attention_layernorm", 0, d->hidden},
        {"mlp.gate_proj", d->ffn, d->hidden}, {"mlp.up_proj", d->ffn, d->hidden},
        {"mlp.down_proj", d->hidden, d->ffn},
    };
    struct bert_build noise = {.seed = d->seed};
    char name[128];
    snprintf(name, sizeof name, "%sembed_tokens.weight", d->prefix);
    build_floats(st, &noise, name, d->vocab, d->hidden, 0);
    for (int l = 0; l < d->layers; l++)
        for (size_t i = 0; i < sizeof of_layer / sizeof *of_layer; i++) {
            snprintf(name, sizeof name, "%slayers.%d.%s.weight", d->prefix, l, of_layer[i].name);
            build_floats(st, &noise, name, of_layer[i].rows, of_layer[i].cols, of_layer[i].rows ? 0 : 1);
        }
    snprintf(name, sizeof name, "%snorm.weight", d->prefix);
    build_floats(st, &noise, name, 0, d->hidden, 1);
    return st_file(st);
}

/* more: further members, each with a comma before it. */
static inline void decoder_config_text(struct buf *out, const struct decoder_build *d, const char *more)
{
    buf_printf(out,
               "{\"architectures\":[\"Qwen3Model\"],\"hidden_size\":%d,\"num_attention_heads\":%d,"
               "\"num_key_value_heads\":%d,\"head_dim\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
               "\"vocab_size\":%d,\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-6,\"rope_theta\":10000%s}",
               d->hidden, d->heads, d->kv_heads, d->dim, d->ffn, d->layers, d->vocab, d->positions, more);
}

#endif
