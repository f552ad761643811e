/* A speculator: small heads that guess the next tokens from a model's own last hidden state ("Accelerating Production
 * LLMs with Combined Token/Embedding Speculators", arXiv 2404.19124, and the LSTM of Arctic Inference). A folder with a
 * config.json and safetensors files as vLLM and Arctic Inference read them; all of it untrusted. Immutable once open,
 * any thread. Invariant: what was opened has every tensor that its config names, of the shape that it makes it, and no
 * other one.
 *
 * Head i turns a state h (at first the hidden state) and a token (at first the one just sampled, then the guess of the
 * head before) into the next state, whose product with the head's matrix are logits; the most likely token is the
 * guess. N is x / rms(x) * gain + bias, E the token's row of a table, a the weight of the embedding:
 *
 *   MLP    h' = gelu(N(W h + a E))
 *   LSTM   f, i, o, z = W h + a E, each with its own W; c' = c sig(f) + gelu(N(z)) sig(i); h' = gelu(N'(c')) sig(o);
 *          c begins at 0 */
#ifndef MODELS_LOAD_SPECULATOR_H
#define MODELS_LOAD_SPECULATOR_H

#include "models/load/model.h"

enum { SPECULATOR_GATES = 4, SPECULATOR_HEADS = 16 };

struct speculator_config {
    bool lstm;
    bool nested;      /* names have one number more: "emb.0.0.weight" */
    bool tied;        /* all heads are one, but for the first W */
    bool tied_tables; /* LSTM: the gates have one table */
    bool scale_input; /* the hidden state first becomes h / rms(h) / sqrt 2 */
    int n_predict;    /* heads */
    int n_used;       /* of them, from the first on */
    int hidden;       /* of the model that it is for */
    int inner, vocab;
};

enum speculator_role {
    SPEC_TABLE, /* [vocab, inner]; of a gate */
    SPEC_PROJ,  /* W: [inner, hidden] of the first head, [inner, inner] of the others; of a gate */
    SPEC_HEAD,  /* [vocab, inner] */
    SPEC_GAIN,  /* [inner]: N */
    SPEC_BIAS,
    SPEC_STATE_GAIN, /* LSTM: N' */
    SPEC_STATE_BIAS,
    SPEC_ROLES
};

struct speculator;

/* E_INPUT: what is wrong with a file, E_UNSUPPORTED: a kind that is not run. */
int speculator_open(struct speculator **out, const char *dir, struct err *e);
/* The same from memory, which must outlive it: the text of config.json, and one safetensors file. */
int speculator_open_memory(struct speculator **out, struct model_text config, const void *file, size_t n,
                           struct err *e);
void speculator_close(struct speculator *s); /* NULL is fine */
/* Pure: config.json alone. */
int speculator_config_read(struct speculator_config *out, const char *json, size_t n, struct err *e);
const struct speculator_config *speculator_config(const struct speculator *s);
/* Can it guess for this model? E_INPUT names the two numbers that differ. */
int speculator_fits(const struct speculator *s, const struct model_config *model, struct err *e);
/* Before its tensors are asked for: only the first n heads are used. E_INPUT: it has fewer. */
int speculator_limit(struct speculator *s, int n, struct err *e);
/* gate: 0 where there is one; forget, input, output, cell. Tied heads share one tensor: it has the same data. Vectors
 * have one row. */
struct weight_src speculator_tensor(const struct speculator *s, enum speculator_role role, int head, int gate);
static inline int speculator_gates(const struct speculator_config *c)
{
    return c->lstm ? SPECULATOR_GATES : 1;
}
/* The weight of the token's embedding, a. */
float speculator_emb_weight(const struct speculator_config *c);

#endif
