/* The card of an encoder: what a Hugging Face folder (config.json, modules.json, 1_Pooling/config.json,
 * sentence_bert_config.json) or a GGUF file says of how its tokens become a vector, whatever the family. The files are
 * untrusted. Plain values, any thread. Invariant: a pooling or a module that is not computed is refused by name. */
#ifndef MODELS_ENCODE_CARD_H
#define MODELS_ENCODE_CARD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"
#include "models/encode/encoder.h"
#include "models/load/gguf.h"

enum card_file { CARD_CONFIG, CARD_MODULES, CARD_POOLING, CARD_SENTENCE, CARD_FILES };
/* Paths inside a folder; the first one must be there. */
const char *card_file_name(enum card_file f);

struct card_text {
    const char *data; /* NULL: there is no such file */
    size_t n;
};

struct encoder_card {
    enum encoder_pooling pooling;
    bool named;      /* a file names the pooling, or the GGUF key does; else it is the mean */
    bool scores;     /* GGUF: pooling type rank */
    bool normalised; /* vectors get length 1 */
    int max_tokens;  /* 0: it does not say */
    struct encoder_cuts cuts;
};
/* Without a card vectors are means and keep their length, as sentence-transformers has it. */
int card_read(struct encoder_card *c, const struct card_text files[CARD_FILES], struct err *e);
/* GGUF files say nothing of length: vectors get length 1, as in llama.cpp's server. */
int card_from_gguf(struct encoder_card *c, const struct gguf *g, struct err *e);

/* Is this config.json (or GGUF file) an encoder's of any family, run here or not? modules: there is a modules.json,
 * which makes a decoder a model for embeddings. */
bool card_is_encoder(const char *config, size_t n, bool modules);
bool card_gguf_is_encoder(const struct gguf *g);
/* Is it one of a family that models/load reads: a decoder? */
bool card_is_decoder(const char *config, size_t n);
bool card_gguf_is_decoder(const struct gguf *g);

#endif
