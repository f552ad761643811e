/* A decoder as an encoder: the forward pass of a generating model (models/forward) over whole sequences, and a vector
 * pooled from the rows behind the final norm. Each token sees those before it, so it is the last one that has seen all
 * (POOL_LAST: Qwen3-Embedding, e5-mistral), or the mean is taken. Keys and values of one layer at a time are kept, for
 * the step that makes them. Weights are multiplied as the file has them. They belong to the decoder, which is immutable
 * once opened; a run belongs to one thread, with helpers of its own. Invariant: a vector depends on its sequence alone.
 */
#ifndef MODELS_ENCODE_DECODER_H
#define MODELS_ENCODE_DECODER_H

#include "models/encode/card.h"
#include "models/load/model.h"

struct decoder;
struct decoder_run;

/* What is not run, by name: SwiftKV, scores, no pooling. */
int decoder_check(const struct model_config *c, const struct encoder_card *card, struct err *e);
/* m: opened as an embedder; not needed afterwards. E_FULL without memory. */
int decoder_open(struct decoder **out, const struct model *m, const struct encoder_card *card, struct err *e);
void decoder_close(struct decoder *d);                           /* NULL is fine */
size_t decoder_bytes(const struct decoder *d, enum dtype *type); /* of its weights; type: of most matrices */

/* isa: as in struct device_opts. */
int decoder_run_open(struct decoder_run **out, const struct decoder *d, int n_threads, int max_rows, const char *isa,
                     struct err *e);
void decoder_run_close(struct decoder_run *r); /* NULL is fine */
/* seqs as encoder_replica_run has checked them. E_DEVICE: a vector is not finite (the weights are no model's). */
int decoder_run(struct decoder_run *r, const struct encoder_seq *seqs, int n, struct err *e);

#endif
