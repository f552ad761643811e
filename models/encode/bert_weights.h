/* The tensors of a BERT encoder, found in a safetensors file or a GGUF file and checked against the config. The files
 * are untrusted. Plain values that point into the file, which must stay open; one thread. Invariant: once found, every
 * tensor has the shape that the config makes it, and nothing of the file was passed over that the forward should use.
 */
#ifndef MODELS_ENCODE_BERT_WEIGHTS_H
#define MODELS_ENCODE_BERT_WEIGHTS_H

#include "kernels/dtype.h"
#include "models/encode/bert_config.h"
#include "models/load/gguf.h"
#include "models/load/safetensors.h"

enum bert_role { /* each a matrix and a vector: weight and bias, or a norm's gain and bias; tables have no bias */
                 BERT_WORDS,
                 BERT_POSITIONS,
                 BERT_TYPES,
                 BERT_NORM,
                 BERT_POOLER, /* of a classification head */
                 BERT_CLASSES,
                 BERT_QUERY, /* from here on one for each layer */
                 BERT_KEY,
                 BERT_VALUE,
                 BERT_OUT,
                 BERT_OUT_NORM,
                 BERT_UP,
                 BERT_DOWN,
                 BERT_DOWN_NORM,
                 BERT_ROLES
};

struct bert_tensor {
    enum dtype type;
    const uint8_t *data; /* of any alignment */
    int rows, cols;      /* a vector has one row */
};

struct bert_weights {
    struct bert_tensor *weight, *bias; /* by bert_weights_at */
    int n_layers;
};

/* Exactly one of st and g. Free it in any case. E_INPUT, E_UNSUPPORTED. */
int bert_weights_find(struct bert_weights *w, const struct bert_config *c, const struct safetensors *st,
                      const struct gguf *g, struct err *e);
void bert_weights_free(struct bert_weights *w);
size_t bert_weights_at(const struct bert_weights *w, enum bert_role role, int layer);
/* A tensor row as floats: cols of them. room: as many bytes as a row has, aligned to 8. */
void bert_tensor_row(const struct bert_tensor *t, int row, void *room, float *out);

#endif
