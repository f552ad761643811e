/* The bytes of an answer: SSE frames for streams, the body for whole answers. Frames are written straight into the
 * connection's buffer, one a token, O(1) each. Invariant: every frame has a choice, except the usage frame that was
 * asked for. */
#ifndef SERVE_OPENAI_FRAME_H
#define SERVE_OPENAI_FRAME_H

#include "engine/serve/openai/answer.h"

void openai_frame_prepare(struct openai_answer *a);        /* a->head */
void openai_frame_open(struct openai_choice *c);           /* headers if still to come; chat: the role */
void openai_frame_text(struct openai_choice *c, size_t n); /* the first n bytes to be shown, with what goes with them */
void openai_frame_calls(struct openai_choice *c);          /* the calls that were read */
void openai_frame_last(struct openai_choice *c);           /* what is left to be shown, then the finish reason */
void openai_frame_close(struct openai_answer *a);          /* usage if wanted, [DONE]; x is over */
void openai_frame_whole(struct openai_answer *a);          /* x is over */

#endif
