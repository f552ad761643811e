/* A request for vectors or scores, from its JSON body to token ids: the wall of /v1/embeddings, /rerank and /score.
 * Everything is checked here, and what is not offered is refused by name. Reading and tokenising run on text workers;
 * parts of the inputs may be tokenised by several at once, as they only read what embed_ask_read made. Pure. Invariant:
 * behind it there is at least one sequence, each has 1 to max_tokens ids, all of the vocabulary. */
#ifndef SERVE_EMBED_ASK_H
#define SERVE_EMBED_ASK_H

#include "engine/base/json.h"
#include "engine/serve/front/fault.h"
#include "models/encode/encoder.h"

enum embed_route { EMBED_EMBEDDINGS, EMBED_RERANK, EMBED_SCORE, EMBED_ROUTES };
enum { EMBED_MAX_INPUTS = 2048, EMBED_MAX_TEXT_TOKENS = 1 << 20 };

/* The model as clients know it. Made once; never changes. */
struct embed_model {
    const struct encoder *encoder; /* borrowed */
    const struct encoder_facts *facts;
    const char *name, *root;
    const char *const *others; /* names of the generating model, for a better answer to whoever mixes them up */
    int n_others;
    int n_suffix; /* special tokens at the end of each sequence: they stay when it is cut */
};
int embed_model_init(struct embed_model *m, const struct encoder *c, struct err *e);

struct embed_input {
    struct encoder_text text;
    const struct json *ids; /* NULL: a text */
    int at;                 /* its place in the client's list, for errors */
    const char *param;      /* and the list's name, a literal */
};

struct embed_ask {
    const struct embed_model *model;
    enum embed_route route;
    bool base64;    /* embeddings: bytes of the floats, not numbers */
    int dim;        /* embeddings: floats of a vector, perhaps fewer than the model's */
    bool documents; /* rerank: texts come back */
    int top_n;      /* rerank: so many at most; 0: all */
    int truncate;   /* 0: too long is an error; else tokens that are kept */
    struct json *body;
    struct embed_input *inputs; /* what is computed */
    int n;
    size_t bytes; /* of all texts */
    int n_scores; /* 0: vectors are the answer */
    int n_left;   /* scores of vectors: 1 or n_scores come first, then n_scores others; 0: each input is a pair */
    bool has_ids; /* input came as token ids */
    const struct json *docs; /* rerank: the list of documents */
};

/* Reads body, an object. E_INPUT with f. Free it in both cases. */
int embed_ask_read(struct embed_ask *a, const struct embed_model *m, const char *body, size_t n, struct fault *f);
void embed_ask_free(struct embed_ask *a); /* may come once there are ids: the texts are gone then, numbers stay */
/* The text of one rerank document: a string or {"text": ...}. NULL: neither. */
const char *embed_ask_document(const struct json *doc);

/* Appends the ids of inputs [from, to) to out, one after the other, and sets n and n_first of their sequences. E_INPUT
 * with f. */
struct embed_part {
    int from, to;
    struct cancel *cancel;
};
int embed_ask_tokenize(const struct embed_ask *a, const struct embed_part *part, struct encoder_seq *seqs,
                       struct tokens *out, struct fault *f);

#endif
