/* What a request asks its answer to be: JSON, a choice, an expression, a call. Read from its body under the names of
 * OpenAI, vLLM, llama.cpp and SGLang, and made into a grammar. Pure; any thread. */
#ifndef SERVE_OPENAI_GUIDED_H
#define SERVE_OPENAI_GUIDED_H

#include "engine/serve/front/front_text.h"
#include "engine/serve/openai/params.h"

/* Fills p->grammar and its key, if the body asks for one; p is read otherwise. E_INPUT with f. */
int openai_guided_read(const struct front_text *t, struct openai_params *p, const struct json *body, struct fault *f);

#endif
