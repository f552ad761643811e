/* A model: its hyperparameters, its family's row of the table, and the source of its tensors (a GGUF file, a Hugging
 * Face folder or a seeded generator). Covers Llama 2 and 3, SmolLM2, SwiftKV's Llamas, Mistral, Qwen2 and Qwen3; any
 * other family is refused by name. Immutable once opened, any thread. Invariant: families differ in rows and flags of
 * struct family only. */
#ifndef MODELS_LOAD_MODEL_H
#define MODELS_LOAD_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/backend.h"
#include "models/load/gguf.h"

struct family {
    const char *gguf_arch; /* general.architecture: "llama", "qwen2", "qwen3" */
    const char *hf_arch;   /* config.json architectures[0] */
    bool rope_halves_gguf; /* which RoPE pairing the tensors of a GGUF file are laid out for */
    bool qkv_bias, qk_norm;
    bool swiftkv;         /* config.json may give num_key_value_layers */
    int default_kv_heads; /* what transformers takes when config.json does not say; 0: as many as heads */
    int default_head_dim; /* 0: hidden / heads */
    int default_window;   /* 0: none */
};

enum { MODEL_MAX_ROPE = 256 };

struct model_config {
    const struct family *family;
    char name[128];
    int n_layers;
    int kv_layers; /* SwiftKV: layers from this one on take their K and V from the residual before it; 0: none do */
    int hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab;
    int context; /* tokens the model was trained for */
    int window;  /* sliding window, 0 = none */
    float norm_eps;
    bool tied;   /* the head is the embedding table */
    bool embeds; /* it gives vectors and no tokens: it has no head, or none that is used */
    bool qkv_bias, qk_norm;
    bool rope_halves;
    int rope_dim;
    float rope_scale;
    float inv_freq[MODEL_MAX_ROPE / 2];
};

enum tensor_role {
    T_EMBED,
    T_HEAD,
    T_OUT_NORM,
    T_KV_NORM, /* once: SwiftKV's norm of what later layers take K and V from */
    T_ATTN_NORM,
    T_Q,
    T_K,
    T_V,
    T_Q_BIAS,
    T_K_BIAS,
    T_V_BIAS, /* per layer from here */
    T_Q_NORM,
    T_K_NORM,
    T_O,
    T_FFN_NORM,
    T_GATE,
    T_UP,
    T_DOWN,
    T_COUNT
};

struct model;

int model_open_gguf(struct model **out, const char *path, struct err *e);
/* The same over a parsed file, which the model owns from then on; on failure it stays the caller's. */
int model_from_gguf(struct model **out, struct gguf *g, const char *name, struct err *e);
/* A folder with config.json and safetensors files. */
int model_open_hf(struct model **out, const char *dir, struct err *e);
/* The same from memory: the text of config.json and the bytes of one safetensors file, which must outlive the model.
 * For tests. */
struct model_text {
    const char *text;
    size_t n;
};
int model_from_hf(struct model **out, struct model_text config, const void *safetensors, size_t n, struct err *e);
/* Seeded random weights for a Hugging Face config.json: dtype is the stored type of its matrices (e.g. DT_Q8_0,
 * DT_BF16). */
int model_open_dummy(struct model **out, const char *hf_config_path, enum dtype type, uint64_t seed, struct err *e);
int model_open_described(struct model **out, const char *hf_config, enum dtype type,
                         struct err *e); /* the same from the text of a config.json, seed 0 */
/* A GGUF file or a folder as a model for embeddings (models/encode/decoder.h): its head is not looked for, its class
 * may be the one without a head ("Qwen3Model"), and its tensors' names may lack "model.". E_UNSUPPORTED: its attention
 * looks both ways, or it brings code of its own. */
int model_open_embedder(struct model **out, const char *path, struct err *e);
int model_embedder_from_hf(struct model **out, struct model_text config, const void *safetensors, size_t n,
                           struct err *e); /* as model_from_hf */
int model_embedder_from_gguf(struct model **out, struct gguf *g, const char *name, struct err *e);
void model_close(struct model *m);

const struct model_config *model_config(const struct model *m);
const char *model_note(const struct model *m);        /* a remark for the user, or NULL */
const struct gguf *model_gguf(const struct model *m); /* NULL for all but GGUF files */
/* Memory of one reader for tensors that are made (dummies, fp8) and not in a file as they are; begins as zeros. */
struct tensor_room {
    void *data;
    float *row;
    size_t data_cap, row_cap;
};
void tensor_room_free(struct tensor_room *r);
/* The stored tensor of a role; data stays valid until the next call with this room, and of GGUF files until
 * model_close. E_NOTFOUND when the model has no such tensor (T_HEAD of a tied model, biases). Vectors have one row. */
int model_tensor(const struct model *m, struct tensor_room *room, enum tensor_role role, int layer,
                 struct weight_src *out, struct err *e);
/* The same without the bytes (data is NULL), at no cost: for a machine that computes nothing. */
int model_shape(const struct model *m, enum tensor_role role, int layer, struct weight_src *out, struct err *e);
/* Its files, one after the other; NULL: there are no more. */
const struct file_map *model_map(const struct model *m, size_t i);
/* Loading is done: gives back pages. */
void model_loaded(const struct model *m);

#endif
