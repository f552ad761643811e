/* A request of /v1/messages, Anthropic's API, as one of /v1/chat/completions: a message's content is a list of blocks
 * (text, thoughts, calls, their results), the system's words lie beside the messages, and fields of other routes' are
 * passed on. Pure; any thread. */
#ifndef SERVE_MESSAGES_REQUEST_H
#define SERVE_MESSAGES_REQUEST_H

#include "engine/base/json.h"
#include "engine/serve/front/fault.h"

/* body, an object, as a chat request; echo stays as it is: answers repeat nothing. E_INPUT with f. */
int messages_translate(const struct json *body, struct buf *request, struct buf *echo, struct fault *f);
/* The same for a body whose prompt is only counted: it needs no max_tokens. */
int messages_translate_prompt(const struct json *body, struct buf *request, struct buf *echo, struct fault *f);

#endif
