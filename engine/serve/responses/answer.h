/* The answers of /v1/responses: a response is a list of items, what the model thought, said and called, in that order
 * as it came; a stream tells of each as it begins, grows and ends. Front thread only. Invariant: what a stream's last
 * event says is what the whole answer would have been. */
#ifndef SERVE_RESPONSES_ANSWER_H
#define SERVE_RESPONSES_ANSWER_H

#include "engine/serve/openai/api.h"

extern const struct openai_api responses_api;

#endif
