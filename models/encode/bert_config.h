/* The sizes and the card of a BERT encoder, from a Hugging Face folder (config.json, modules.json,
 * 1_Pooling/config.json, sentence_bert_config.json) or from the keys of a GGUF file. The files are untrusted. Plain
 * values, any thread. Invariant: a config that was read is one that can be run; all else was refused by name. */
#ifndef MODELS_ENCODE_BERT_CONFIG_H
#define MODELS_ENCODE_BERT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"
#include "models/encode/encoder.h"
#include "models/load/gguf.h"

struct bert_config {
    int hidden, n_layers, n_heads, ffn;
    int n_vocab, n_positions, n_types;
    int n_labels; /* of a classification head; 0: none */
    float eps;    /* of the norms */
    enum encoder_pooling pooling;
    bool normalised; /* vectors get length 1 */
    bool sigmoid;    /* scores go through one */
    int max_tokens;  /* as the card says, at most n_positions */
};

enum bert_file { BERT_CONFIG, BERT_MODULES, BERT_POOLING, BERT_SENTENCE, BERT_FILES };
/* Paths inside a folder; the first one must be there. */
const char *bert_file_name(enum bert_file f);

struct bert_text {
    const char *data; /* NULL: there is no such file */
    size_t n;
};
/* Without a card vectors are means and keep their length, as sentence-transformers has it. */
int bert_config_read(struct bert_config *c, const struct bert_text files[BERT_FILES], struct err *e);
/* GGUF files say nothing of length: vectors get length 1, as in llama.cpp's server. */
int bert_config_gguf(struct bert_config *c, const struct gguf *g, struct err *e);
/* Is this config.json (or GGUF file) an encoder's of any family, run here or not? modules: there is a modules.json,
 * which makes a decoder a model for embeddings. */
bool bert_config_is_encoder(const char *config, size_t n, bool modules);
bool bert_gguf_is_encoder(const struct gguf *g);

#endif
