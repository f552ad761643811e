/* What a request may ask for that is not offered here: refused by name with what to do instead, never ignored, as soon
 * as it would change the answer. A value that means "off" is let through, since clients send their defaults. Pure; any
 * thread. */
#ifndef SERVE_OPENAI_OFFER_H
#define SERVE_OPENAI_OFFER_H

#include "engine/base/json.h"
#include "engine/serve/front/fault.h"

struct offer_refusal { /* names of vLLM, llama.cpp, SGLang, OpenAI, ... */
    const char *name, *hint;
    double off; /* the number that changes nothing */
};
/* The first of them that body, an object, asks for; the list ends with a name that is NULL. E_INPUT with f. */
int openai_refuse(const struct offer_refusal *list, const struct json *body, struct fault *f);
/* What no route offers. */
int openai_refuse_unoffered(const struct json *body, struct fault *f);
/* Tools are shown to the template; calls can be neither forced nor parsed. Each must be {"type": "function",
 * "function": {"name": ...}}. */
int openai_check_tools(const struct json *body, struct fault *f);
/* Does the request want the model to see tools? */
bool openai_wants_tools(const struct json *body);
/* Fields that are taken but change no token (user, metadata, ...) still have a type. */
int openai_check_labels(const struct json *body, struct fault *f);
bool openai_names_field(const char *name); /* is it one that the functions above look at? */

#endif
