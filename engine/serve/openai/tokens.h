/* POST /tokenize, /detokenize and /v1/messages/count_tokens, GET /tokenizer_info: text to ids and back for clients that
 * count tokens (lm-eval, vllm bench). The work is done by the text workers. Front thread, except the jobs' run.
 * Invariant: the tokenizer is the one that serves. */
#ifndef SERVE_OPENAI_TOKENS_H
#define SERVE_OPENAI_TOKENS_H

#include "engine/base/json.h"
#include "engine/serve/front/front.h"

void tokens_api_tokenize(struct front *f, struct http_exchange *x);
void tokens_api_detokenize(struct front *f, struct http_exchange *x);
/* What a request that translate makes a chat request would have as its prompt, counted: {"input_tokens":N}. */
void tokens_api_count(struct front *f, struct http_exchange *x,
                      int (*translate)(const struct json *, struct buf *, struct buf *, struct fault *));
void tokens_api_info(struct front *f, struct http_exchange *x);

#endif
