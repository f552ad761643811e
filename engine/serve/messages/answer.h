/* The answers of /v1/messages: a message is a list of blocks, what the model thought, said and called, in that order as
 * it came; a stream tells of each as it begins, grows and ends. Front thread only. */
#ifndef SERVE_MESSAGES_ANSWER_H
#define SERVE_MESSAGES_ANSWER_H

#include "engine/serve/openai/api.h"

extern const struct openai_api messages_api;

#endif
