/* How a sequence chooses its next token, as the client asked for it, in vLLM's order: logit_bias (and allowed ids,
 * min_tokens), repetition, frequency, presence penalties, then greedy when temperature < 1e-5, else temperature, min_p,
 * top_k, top_p, draw. Pure data, owned by the request that carries it; immutable once submitted. */
#ifndef WORLD_SAMPLING_H
#define WORLD_SAMPLING_H

#include <stdint.h>

enum { SAMPLING_MAX_LOGPROBS = 20, SAMPLING_MAX_BIAS = 1024 };

struct logit_bias {
    int32_t token;
    float bias;
};

struct sampling {
    float temperature;                         /* >= 0; 1 by default */
    float top_p, min_p;                        /* (0,1]; [0,1] */
    int top_k;                                 /* 0: all */
    float repetition_penalty;                  /* > 0; 1 is off; over prompt and output */
    float frequency_penalty, presence_penalty; /* [-2,2]; 0 is off; over output only */
    uint64_t seed;                             /* with the position it fixes the draw: neighbours never matter */
    int n_logprobs;                            /* top logprobs per output token; -1: none, 0: the chosen token's only */
    int n_prompt_logprobs;                     /* the same for the prompt's tokens */
    int n_bias;
    struct logit_bias
        *bias;        /* sorted by token; shared (base/shared.h) by the sequences of a request, held by each spec */
    int n_allowed;    /* 0: all tokens are allowed */
    int32_t *allowed; /* sorted; shared in the same way */
};

#endif
