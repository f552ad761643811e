/* A request of /v1/responses as one of /v1/chat/completions: the conversation is a list of items (messages, what the
 * model thought, calls, their results), tools and formats lie flat, and fields of other routes' are passed on. Nothing
 * is kept between requests, so what refers to an earlier response is refused by name. Pure; any thread. */
#ifndef SERVE_RESPONSES_REQUEST_H
#define SERVE_RESPONSES_REQUEST_H

#include "engine/base/json.h"
#include "engine/serve/front/fault.h"

/* body, an object, as a chat request; echo: the members of the response that repeat it. E_INPUT with f. */
int responses_translate(const struct json *body, struct buf *request, struct buf *echo, struct fault *f);

#endif
