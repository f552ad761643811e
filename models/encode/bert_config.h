/* The sizes and the card of a BERT encoder, from a Hugging Face folder or from the keys of a GGUF file. The files are
 * untrusted. Plain values, any thread. Invariant: a config that was read is one that can be run; all else was refused
 * by name. */
#ifndef MODELS_ENCODE_BERT_CONFIG_H
#define MODELS_ENCODE_BERT_CONFIG_H

#include "models/encode/card.h"

struct bert_config {
    int hidden, n_layers, n_heads, ffn;
    int n_vocab, n_positions, n_types;
    int n_labels; /* of a classification head; 0: none */
    float eps;    /* of the norms */
    struct encoder_card card;
    bool sigmoid;   /* scores go through one */
    int max_tokens; /* as the card says, at most n_positions */
};

int bert_config_read(struct bert_config *c, const struct card_text files[CARD_FILES], struct err *e);
int bert_config_gguf(struct bert_config *c, const struct gguf *g, struct err *e);

#endif
