/* What the routes share: the handles to the engine, the text workers and the books. Made and owned by
 * server.c; front thread only, except `model_text` and the names, which never change. */
#ifndef SERVE_FRONT_FRONT_H
#define SERVE_FRONT_FRONT_H

#include "engine/base/rng.h"
#include "engine/serve/front/calls.h"
#include "engine/serve/front/counts.h"
#include "engine/serve/front/fault.h"
#include "engine/serve/front/front_text.h"
#include "engine/serve/front/text.h"
#include "engine/serve/http/http.h"

struct front {
    struct clock *clock;
    struct http *http;
    struct queue *inbox; /* of the engine; NULL: there is none, `alone` */
    struct text *text;
    struct front_text model_text;
    const char *const *names; /* the model's served names; the first is canonical */
    int n_names;
    const char *root;        /* the model's path or origin */
    const char *chat_source; /* the template's text, NULL: none */
    int64_t created_s;
    struct calls calls;
    struct counts counts;
    struct rng rng;
    int max_live; /* sequences at once, 0: no bound here */
    int n_live;   /* with the engine without an ending, or on the way there; an order that is read counts as one */
    int places, step_tokens;             /* sequences that run at once, tokens of a step; 0: unknown */
    int ping_s;                          /* SSE comments while nothing comes; 0: none */
    const char *encoder;                 /* its name; NULL: none is served */
    bool alone;                          /* it is the only model: nothing here writes */
    char down[160];                      /* why no request can be served any more; "": they can */
    bool force_usage, draining, stopped; /* stopped: nothing may be handed to the engine any more */
};

/* The engine's limits, from now on: sequences that run, tokens of a step, sequences that wait (0: no bound here). Those
 * that are here already stay. */
void front_set_limits(struct front *f, int places, int step_tokens, int queued);
/* Answers with an error object: OpenAI's, or below /v1/messages Anthropic's. */
void front_fault(struct http_exchange *x, const struct fault *f);
void front_refuse_busy(struct http_exchange *x, const char *why); /* 503 with Retry-After */
void front_json(struct http_exchange *x, const struct buf *body);
/* 404: what is asked needs a model that writes, and there is only an encoder. */
void front_refuse_alone(const struct front *f, struct http_exchange *x);
/* The client's request id when it is a plain word (true), else a new one. */
bool front_request_id(struct front *f, const struct http_exchange *x, char out[NAME_BYTES]);

#endif
