/* The inside of an encoder: what encoder.c shares with the implementations ("cpu" in encoder_cpu.c, "sim" in
 * encoder_sim.c). Owned by whoever opened it; read-only once opened, any thread, but a replica is one thread's.
 * Invariant: encoder.c has checked every argument before an implementation sees it. */
#ifndef MODELS_ENCODE_ENCODER_INNER_H
#define MODELS_ENCODE_ENCODER_INNER_H

#include "engine/base/buf.h"
#include "models/encode/bert_config.h"
#include "models/encode/encoder.h"
#include "models/load/gguf.h"
#include "models/load/model.h"
#include "models/load/safetensors.h"

struct encoder_ops {
    void (*close)(struct encoder *c); /* frees what is its own, and c */
    int (*tokenize)(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how, struct tokens *out,
                    int *n_first, struct err *e);
    /* c and the limits are set in the new replica by encoder.c */
    int (*replica_new)(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                       struct err *e);
    void (*replica_free)(struct encoder_replica *r);
    int (*replica_run)(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e);
};

struct encoder { /* the first member of an implementation's own */
    const struct encoder_ops *ops;
    struct encoder_facts facts;
    struct tokenizer *tokenizer;
};

struct encoder_replica { /* the same */
    const struct encoder *encoder;
    int max_rows;
};

/* What an encoder is opened from. */
struct encoder_files {
    const char *path;
    struct gguf *gguf; /* or */
    bool folder;
    bool decoder; /* which of the two there is: */
    struct bert_config bert;
    struct model_config model;
    struct encoder_card card; /* of a decoder */
};

/* Make an encoder, but for its facts and its tokenizer; what they need of the files they copy. */
int encoder_open_cpu(struct encoder **out, const struct encoder_files *files, struct err *e);
int encoder_open_sim(struct encoder **out, const struct encoder_files *files, struct err *e);
/* The ids of a text by the encoder's tokenizer, with [CLS] and [SEP]: the `tokenize` of both. */
int encoder_tokenize_pair(const struct encoder *c, const struct encoder_text *t, struct tokenize_how how,
                          struct tokens *out, int *n_first, struct err *e);

#endif
