/* An encoder: a model that turns a text into one vector (an embedding), or two texts into scores (a cross-encoder), and
 * not into more text. It has no KV cache and no next token: a batch of whole sequences goes through it at once, packed
 * row after row without padding. Opened once and immutable from then on, any thread; each replica is one thread's, and
 * shares the weights. Invariant: the vector of a sequence depends on its tokens alone, bit for bit: not on what else is
 * in the batch, nor on the number of threads. */
#ifndef MODELS_ENCODE_ENCODER_H
#define MODELS_ENCODE_ENCODER_H

#include <stdbool.h>

#include "engine/base/err.h"
#include "models/tokenizer/tokenizer.h"

enum encoder_pooling { POOL_CLS, POOL_MEAN, POOL_LAST };

/* Lengths to which a vector may be cut, as the model was trained for it ("Matryoshka"); n 0 and not any: none. */
enum { ENCODER_MOST_CUTS = 32 };
struct encoder_cuts {
    bool any;
    int n, at[ENCODER_MOST_CUTS];
};

struct encoder_facts {
    char name[128];
    int dim;         /* floats that a sequence gives: hidden, or n_labels of a cross-encoder */
    int max_tokens;  /* of a sequence, with its special tokens, as its card says */
    int n_positions; /* the model itself has so many, perhaps more: a replica takes them */
    int n_vocab;
    int n_labels;                 /* 0: it embeds; else outputs of its classification head (a cross-encoder has 1) */
    enum encoder_pooling pooling; /* as its card says (1_Pooling/config.json) */
    bool normalised;              /* vectors have length 1 (modules.json says so) */
    struct encoder_cuts cuts;     /* each below dim */
    bool decoder;                 /* a decoder's: its weights stay as the file has them */
    size_t matrix_bytes;          /* of the linear layers: 13-bit integers of two bytes (kernels/encode.h); of a decoder
                                     all weights; sim: 0 */
    const char *matrix_type;      /* and what they were in the file; sim: NULL */
};

struct encoder;
struct encoder_replica;

/* path: a Hugging Face folder or a GGUF file. device: "cpu", or "sim": the same tokens and shapes, vectors of no
 * meaning. E_INPUT: what is wrong with a file; E_UNSUPPORTED: a family, a pooling or a device that is not run. */
int encoder_open(struct encoder **out, const char *path, const char *device, struct err *e);
void encoder_close(struct encoder *c); /* NULL is fine; its replicas are freed before */
const struct encoder_facts *encoder_facts(const struct encoder *c);

/* Whether a file or folder is an encoder's, by its family: false for a generating model, and for what is neither. */
bool encoder_is(const char *path);
/* Whether it is one that is run here, by its config alone. E_UNSUPPORTED names the architecture. */
int encoder_check(const char *path, struct err *e);

struct encoder_text {
    const char *text, *pair; /* pair NULL: one text */
    size_t n, n_pair;
};
/* Appends the ids of a text, or of a pair of texts, with the model's special tokens. *n_first: tokens of the first
 * segment, [CLS] and its [SEP] included. Errors as tokenizer_encode; max_tokens of `how` counts the special tokens. */
int encoder_tokenize(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how, struct tokens *out,
                     int *n_first, struct err *e);

struct encoder_seq {
    const int32_t *ids; /* [n], of the vocabulary, special tokens included */
    int n, n_first;     /* 1 <= n <= n_positions; tokens from n_first on are of the second segment (n: none) */
    float *out;         /* [dim]: written. A cross-encoder's scores have the activation of its card (for one label a
                           sigmoid, if it names none) */
};
/* Working memory for up to max_rows tokens at once, and n_threads threads. E_FULL without memory. */
int encoder_replica_new(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                        struct err *e);
void encoder_replica_free(struct encoder_replica *r); /* NULL is fine */
/* Runs n sequences of together at most max_rows tokens. On an error nothing in out counts. */
int encoder_replica_run(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e);

#endif
