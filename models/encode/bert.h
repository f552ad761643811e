/* BERT on a machine (Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers"): learned positions,
 * segments, attention both ways, norms after each part, GELU; then pooling, or a classification head. The weights
 * belong to the model, which is immutable once opened; a run belongs to one thread, with helpers of its own. Invariant:
 * a vector depends on its sequence alone. */
#ifndef MODELS_ENCODE_BERT_H
#define MODELS_ENCODE_BERT_H

#include "models/encode/bert_config.h"
#include "models/encode/encoder.h"
#include "models/load/gguf.h"
#include "models/load/safetensors.h"

struct bert;
struct bert_run;

/* Copies the weights out of exactly one of st and g. */
int bert_open(struct bert **out, const struct bert_config *c, const struct safetensors *st, const struct gguf *g,
              struct err *e);
void bert_close(struct bert *b); /* NULL is fine */
/* Bytes of the linear layers as they are kept, and their type in the file. */
size_t bert_matrix_bytes(const struct bert *b, enum dtype *type);

/* isa: as in struct encode_opts. */
int bert_run_open(struct bert_run **out, const struct bert *b, int n_threads, int max_rows, const char *isa,
                  struct err *e);
void bert_run_close(struct bert_run *r); /* NULL is fine */
/* seqs as encoder_replica_run has checked them. E_DEVICE: a vector is not finite (the weights are no model's). */
int bert_run(struct bert_run *r, const struct encoder_seq *seqs, int n, struct err *e);

#endif
