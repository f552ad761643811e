/* The messages of a conversation as /v1/chat/completions has them, written from APIs that tell one in smaller pieces:
 * what the system says first becomes one message, and what a model said, thought and called in one turn another. Pure;
 * used by one thread. Errors name no field: whoever knows it does. */
#ifndef SERVE_OPENAI_TURNS_H
#define SERVE_OPENAI_TURNS_H

#include <stdbool.h>

#include "engine/base/json.h"

struct turns {
    struct buf *out;     /* where the array of messages is written */
    bool any, answering; /* a message was written; the model's turn is open */
    bool has_text;       /* in that turn */
    struct buf system, text, thought, calls;
};

void turns_begin(struct turns *t, struct buf *out);
/* A message of the system, the user or the developer. text is UTF-8, and copied, here and below. */
void turns_message(struct turns *t, const char *role, const struct buf *text);
/* What the model said, thought, called; each may come again. id and arguments (JSON text of an object) of a call. */
void turns_said(struct turns *t, const struct buf *text);
void turns_thought(struct turns *t, const char *text);
void turns_called(struct turns *t, const char *id, const char *name, const char *arguments);
void turns_result(struct turns *t, const char *id, const struct buf *text); /* of a call */
void turns_end(struct turns *t);                                            /* the array is whole; frees */

#endif
