/* Reads a model's hyperparameters from a Hugging Face config.json or a GGUF file's metadata, both untrusted. Pure
 * functions, any thread. Invariant: what comes out is bounded and consistent; every product of two dimensions fits an
 * int. */
#ifndef MODELS_LOAD_CONFIG_H
#define MODELS_LOAD_CONFIG_H

#include "models/load/model.h"
#include "models/load/rope.h"

/* E_INPUT for what is wrong or missing, E_UNSUPPORTED (with the list of families) for what this engine does not run. */
int config_from_hf(struct model_config *out, const char *json, size_t n, struct err *e);
int config_from_gguf(struct model_config *out, const struct gguf *g, struct err *e);
/* The same of a model for embeddings (model_open_embedder); what a GGUF file says of pooling is not looked at. */
int config_embedder_from_hf(struct model_config *out, const char *json, size_t n, struct err *e);
int config_embedder_from_gguf(struct model_config *out, const struct gguf *g, struct err *e);
/* config_check: the bounds that both formats share. config_set_rope: the RoPE frequencies. */
int config_check(const struct model_config *c, struct err *e);
int config_set_rope(struct model_config *c, const struct rope_rule *r, struct err *e);
/* Keeps the printable characters. */
void config_set_name(struct model_config *c, const char *name, size_t n);

#endif
