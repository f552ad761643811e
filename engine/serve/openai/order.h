/* A completion request between its body and the engine: a text job that reads the body on a worker and brings back what
 * to submit, or the fault. Owned by the front, by the worker while it runs. Invariant: the result is either specs or a
 * fault. */
#ifndef SERVE_OPENAI_ORDER_H
#define SERVE_OPENAI_ORDER_H

#include "engine/serve/openai/api.h"
#include "engine/serve/openai/prompt.h"
#include "engine/serve/front/text.h"
#include "engine/world/request.h"

struct openai_order {
    struct text_job job; /* first: a job is an order */
    /* in */
    const struct front_text *model_text;
    const char *const *names; /* a model by any of these is ours */
    int n_names;
    const struct openai_api *api;
    struct buf body;
    char tenant[NAME_BYTES], id[NAME_BYTES + 16]; /* id: "chatcmpl-...", with the client's own word where it gave one */
    char name[NAME_BYTES];                        /* the engine's: no two are alike */
    bool offline;                                 /* nobody waits for it: a line of a batch */
    char salt[NAME_BYTES];                        /* whose prefix cache */
    int64_t arrival_ns;
    double slo_ttft_ms, slo_tpot_ms;
    uint64_t random; /* for requests without a seed */
    int max_specs;   /* more sequences than this are refused */
    void *owner;     /* for whoever gets it back */
    /* out */
    struct fault fault; /* status 0: none */
    struct buf echo;    /* what the answer repeats of the request */
    struct openai_params params;
    struct openai_prompts prompts;
    struct request_spec **specs; /* [prompts.n * params.n], prompt-major; tags not set yet */
    int n_specs;
};

void openai_order_read(struct text_job *job); /* the job's run */
void openai_order_free(struct openai_order *o);

#endif
