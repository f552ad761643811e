/* Sampling a token from a row of logits, in vLLM's order (engine/world/sampling.h). Pure arithmetic on host memory,
 * any thread; a scratch belongs to one thread at a time. Invariant: the same logits and the same sample_row give the
 * same result on every machine and in every batch. A NaN counts as minus infinity, plus infinity as the largest float.
 *
 * Tokens are ordered by logit, larger first, then by id, lower first. Greedy sampling takes the first one. top_k,
 * top_p and min_p keep a prefix of that order. Top logprobs and ranks follow it, too. */
#ifndef CPU_SAMPLE_H
#define CPU_SAMPLE_H

#include <stddef.h>

#include "engine/base/err.h"
#include "kernels/backend.h"

struct sample_scratch;

/* Working memory for rows of up to max_vocab logits, made in memory that the caller owns: sample_scratch_bytes of it,
 * aligned to 64. */
size_t sample_scratch_bytes(int max_vocab);
struct sample_scratch *sample_scratch_init(void *memory, int max_vocab);

/* Fills *out; the logits are overwritten. vocab > 0. Token ids out of range in the row's lists are ignored. */
void sample_logits(float *logits, int vocab, const struct sample_row *row, struct sample_result *out,
                   struct sample_scratch *s);

#endif
