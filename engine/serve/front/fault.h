/* What went wrong with a request, as the client will read it: an HTTP status and the OpenAI error object. Filled by
 * whoever finds it, on any thread; owned by its holder. Invariant: the status is 400 or above. */
#ifndef SERVE_FRONT_FAULT_H
#define SERVE_FRONT_FAULT_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct fault {
    int status;        /* 0: none */
    int retry_after_s; /* -1: say nothing */
    const char *code;  /* a literal, e.g. "context_length_exceeded"; NULL: null */
    char param[64];    /* "": null */
    char text[600];
    int n_prompt, n_ctx; /* context_length_exceeded only: numbers for agents; 0 else */
};

/* Sets all but the numbers and returns E_INPUT, so that `return fault_set(...)` reads well. param may be
 * NULL. */
int fault_set(struct fault *f, int status, const char *code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* {"error":{"message","type","param","code"}} */
void fault_put(const struct fault *f, struct buf *out);
/* The same as Anthropic's clients read it: {"type":"error","error":{"type","message"}} */
void fault_put_message(const struct fault *f, struct buf *out);
const char *fault_type(int status);

#endif
