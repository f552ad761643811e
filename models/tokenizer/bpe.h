/* Byte-pair encoding: a table of pairs with their ranks, and the merging of one word. Filled once by whoever makes a
 * tokenizer, read-only afterwards, any thread; a scratch belongs to one call. Invariant: a pair is in the table at
 * most once. */
#ifndef MODELS_TOKENIZER_BPE_H
#define MODELS_TOKENIZER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/cancel.h"

enum {
    BPE_ID_BITS = 21, /* a pair of ids and a rank share 64 bits */
    BPE_RANK_BITS = 22,
    BPE_MAX_IDS = 1 << BPE_ID_BITS,
    BPE_MAX_MERGES = (1 << BPE_RANK_BITS) - 1,
};

struct bpe {
    uint64_t *slots; /* left << 43 | right << 22 | rank; all ones: empty */
    uint64_t mask;
    int32_t *merged; /* the id that the merge of each rank gives */
    size_t n_merges;
};

struct bpe_scratch { /* for long words; zero it, free it */
    void *memory;
    size_t bytes;
    struct cancel *cancel; /* looked at while a long word is merged; NULL: none */
};

/* n_merges at most BPE_MAX_MERGES. */
int bpe_init(struct bpe *b, size_t n_merges, struct err *e);
void bpe_free(struct bpe *b);
/* Sets the merge of (left, right); a pair given twice keeps the later rank. E_INPUT when hostile pairs crowd
 * the table. */
int bpe_set(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t merged, struct err *e);
/* Merges symbols[0..*n) in place, lowest rank first, leftmost first: n log n. Negative ids are not allowed.
 * E_FULL: no memory; what cancel_check says. */
int bpe_merge(const struct bpe *b, struct bpe_scratch *s, int32_t *symbols, size_t *n, struct err *e);
void bpe_scratch_free(struct bpe_scratch *s);

#endif
