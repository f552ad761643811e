/* The table of model families and the table of tensors. Pure tables, any thread. Invariant: every difference between
 * the supported families is a row, a column or a flag here; no code asks for a family by name. */
#ifndef MODELS_LOAD_FAMILY_H
#define MODELS_LOAD_FAMILY_H

#include <stdbool.h>
#include <stddef.h>

#include "models/load/model.h"

const struct family *family_find_gguf(const char *arch, size_t n); /* NULL: not supported */
const struct family *family_find_hf(const char *arch);             /* NULL: not supported */
/* By the class without a head: "Qwen3Model" is Qwen3ForCausalLM's. NULL: not supported. */
const struct family *family_find_hf_base(const char *arch);
/* For messages: "llama, qwen2, qwen3" or the Hugging Face names. */
void family_list(char *out, size_t bytes, bool hf);

bool tensor_per_layer(enum tensor_role role);
bool tensor_is_vector(enum tensor_role role); /* norms and biases: kept as F32, one row */
bool tensor_wanted(const struct model_config *c, enum tensor_role role);
void tensor_shape(const struct model_config *c, enum tensor_role role, int *rows, int *cols);
/* The name a GGUF file gives it, e.g. "blk.3.attn_q.weight". */
void tensor_gguf_name(enum tensor_role role, int layer, char *out, size_t bytes);
/* The name a Hugging Face checkpoint gives it, e.g. "model.layers.3.self_attn.q_proj.weight", or, in a later layer of a
 * SwiftKV model, "model.layers.3.self_attn.q_proj_swiftkv.weight". */
void tensor_hf_name(const struct model_config *c, enum tensor_role role, int layer, char *out, size_t bytes);
/* Is this the Hugging Face name of a tensor that such a checkpoint may hold, and that has no part in the forward? What
 * a SwiftKV model was distilled from: q, k and v of the layers that have SwiftKV's own instead; and SwiftKV's norm
 * where no layer takes anything from it. */
bool tensor_is_left_over(const struct model_config *c, const char *name);

#endif
