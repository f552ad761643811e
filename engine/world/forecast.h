/* What if the node were partitioned so: how long the requests that are here would take, and those that come meanwhile.
 * The queue is dealt to the groups in its order, each request to the group that would be done with its prompt first, of
 * those whose KV holds it. A group computes prompts one after another beside its running answers, in steps of one size,
 * the one that is best for all its requests; then the answers alone, each step in the layout that the estimator says
 * takes least. Pure arithmetic over the estimator (estimate.h), nothing is changed; engine thread. O((waiting +
 * running) * groups * step sizes). Invariant: the same world gives the same forecast. */
#ifndef WORLD_FORECAST_H
#define WORLD_FORECAST_H

#include "engine/world/world.h"

struct forecast_ask {
    enum side side;          /* whose requests */
    int sizes[MAX_RANKS], n; /* of the groups */
    double output;           /* tokens that an answer is expected to have yet, within what it may have; 0: all it may */
    double tpot;             /* the time per token of each answer counts so many times besides */
    int most;                /* tokens of a step */
    double prompt, ahead_ns; /* requests go on coming as lately for so long, with prompts of so many tokens; 0: none */
    int64_t now_ns;
    bool settles; /* when no prompt waits any more, answers go on as here, or in equal groups, whichever takes least;
                     in the present groups only where prompts are there for less than half of the time */
    bool moves;   /* it is another partition than the present one: KV has to move there */
};

struct forecast {
    double sum_ns; /* over all of them: until its first token, and until it has ended; its time per token as asked; what
                      passes a client's wish; and what those that come wait and are crowded */
    double queue_ns;            /* until the last of those that wait has its first token */
    int step_tokens[MAX_RANKS]; /* of each group, its answers included, while it has prompts */
};

/* NULL, or why no forecast can be made. */
const char *forecast_make(const struct world *w, const struct forecast_ask *ask, struct forecast *out);

#endif
