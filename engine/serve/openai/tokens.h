/* POST /tokenize and /detokenize, GET /tokenizer_info: text to ids and back for clients that count tokens (lm-eval,
 * vllm bench). The work is done by the text workers. Front thread, except the jobs' run. Invariant: the tokenizer is
 * the one that serves. */
#ifndef SERVE_OPENAI_TOKENS_H
#define SERVE_OPENAI_TOKENS_H

#include "engine/serve/front/front.h"

void tokens_api_tokenize(struct front *f, struct http_exchange *x);
void tokens_api_detokenize(struct front *f, struct http_exchange *x);
void tokens_api_info(struct front *f, struct http_exchange *x);

#endif
