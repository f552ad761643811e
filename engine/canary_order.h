/* The order that makes a policy a canary (canary.h): what IN_CANARY carries from whoever asks to the engine. Made by
 * the front, or by a replay; moves to the engine, which frees it. Any thread, one at a time. */
#ifndef ENGINE_CANARY_ORDER_H
#define ENGINE_CANARY_ORDER_H

#include "engine/policy.h"

struct canary_order {
    struct policy policy;  /* moves */
    int groups[MAX_RANKS]; /* their ids */
    int n_groups;
    int64_t for_ns; /* it ends by itself after that */
};

#endif
