/* The answers of /v1/embeddings, /rerank and /score, written from the model's floats straight into the answer's bytes.
 * Shapes are OpenAI's, and vLLM's where OpenAI has none. Pure; any thread. */
#ifndef SERVE_EMBED_ANSWER_H
#define SERVE_EMBED_ANSWER_H

#include "engine/serve/embed/ask.h"

struct embed_result {
    const float *out; /* [ask.n][facts.dim] */
    int64_t n_tokens;
    const char *id;
    int64_t created_s;
};

/* Appends the whole answer. E_DEVICE with f: the model gave something that is no number. */
int embed_answer_put(const struct embed_ask *a, const struct embed_result *r, struct buf *out, struct fault *f);
/* About how many bytes that will be, and so how long it takes. */
size_t embed_answer_bytes(const struct embed_ask *a);

#endif
