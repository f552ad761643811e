/* Who starves: whom the policy lets wait, or lets run without getting further, for --starvation-seconds although it
 * could do otherwise. A look at plans that the policy has made, ten times a second; live.c asks, and draws the
 * consequences. Owned by the live policy, engine thread only. Invariant: nobody starves who is merely behind others in
 * the order of the keys, or waits for room that goes to those. */
#ifndef ENGINE_STARVE_H
#define ENGINE_STARVE_H

#include <stdint.h>

#include "engine/world/plan.h"

/* What looks have seen so far. All 0: nothing. */
struct starve_watch {
    int64_t next_ns[2]; /* looks at plans without room for one more, and with: counted apart, since those without must
                           not use up the looks at requests for which there is room */
    struct {
        req_id id;        /* who waits late with room beside it; 0: nobody did at the last look */
        int64_t since_ns; /* when it was not passed over, the last time */
        req_id one;       /* who came later and was computed before it, once in --starvation-seconds; 0: nobody */
        int64_t one_ns;
    } late;
    struct {
        req_id id; /* the first of those that wait late; 0: nobody did */
        int64_t since_ns, last_ns;
        int n; /* that began before it since then, up to last_ns */
    } passed;
};

/* A request that has made no progress for too long, and e says how: it is at the front for the native policy now.
 * NULL: none, or it is not time to look. */
struct request *starve_find(struct starve_watch *s, struct plan *p, struct err *e);

#endif
