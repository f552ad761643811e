/* The answers of /v1/chat/completions and /v1/completions: SSE frames for streams, the body for whole answers. Frames
 * are written straight into the connection's buffer, one a token, O(1) each. Invariant: every frame has a choice,
 * except the usage frame that was asked for. */
#ifndef SERVE_OPENAI_FRAME_H
#define SERVE_OPENAI_FRAME_H

#include "engine/serve/openai/answer.h"

extern const struct openai_api openai_chat_api, openai_completions_api;

#endif
