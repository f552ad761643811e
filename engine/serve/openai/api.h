/* One HTTP API of answers: what its requests are in the words of OpenAI's first two routes, and how its answers are
 * written. The rest (order.h, answer.h, openai.h) is the same for all of them. A table of functions that never changes;
 * translate runs on a text worker, the others on the front thread. Invariant: a function that writes leaves the answer
 * whole or open, never half a frame. */
#ifndef SERVE_OPENAI_API_H
#define SERVE_OPENAI_API_H

#include "engine/base/json.h"
#include "engine/serve/front/fault.h"
#include "engine/serve/openai/params.h"

struct openai_answer;
struct openai_choice;

struct openai_api {
    enum openai_route route; /* whose fields a request has, once it is translated */
    const char *id;          /* what ids of answers begin with */
    bool gathers;            /* whole answers are put together as they come, too: text, calls and close are called */
    /* The request as one of the route, and what the answer repeats of it. E_INPUT with f. NULL: it is one. */
    int (*translate)(const struct json *body, struct buf *request, struct buf *echo, struct fault *f);
    const char *const (*names)[2]; /* fields of the route that have another name here, in faults; {NULL}: the end */
    void (*prepare)(struct openai_answer *a);
    void (*open)(struct openai_choice *c);           /* streams: the first sign of life */
    void (*thought)(struct openai_choice *c);        /* what was read of its thoughts */
    void (*text)(struct openai_choice *c, size_t n); /* the first n bytes to be shown, with what goes with them */
    void (*calls)(struct openai_choice *c);          /* the calls that were read */
    void (*last)(struct openai_choice *c);           /* what is left to be shown, then how it ended */
    void (*close)(struct openai_answer *a);          /* the end of a stream; x is over */
    void (*whole)(struct openai_answer *a);          /* x is over */
    void (*fault)(struct openai_answer *a, const struct fault *f); /* in a stream; what was sent stands */
    const char *ping;                                              /* a frame that says nothing */
};

#endif
