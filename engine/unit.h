/* What a number of a policy's parameter counts: a closed list of units, so that a person reads a value right, the
 * control room can say it, and a search leaves out what no run can reach (engine/lab/search/tune_limits.h). Pure
 * functions, any thread. Invariant: unit_named(unit_name(u)) is u. */
#ifndef ENGINE_UNIT_H
#define ENGINE_UNIT_H

#include <stdbool.h>

enum unit {
    UNIT_NONE, /* nothing is said */
    UNIT_MS,
    UNIT_S,
    UNIT_SHARE, /* of a whole: 0 to 1, whatever is declared */
    UNIT_RATIO, /* of one thing to another */
    UNIT_TOKENS,
    UNIT_TOKENS_REQUEST, /* of one request: its prompt, its answer, both */
    UNIT_TOKENS_STEP,
    UNIT_TOKENS_S,
    UNIT_S_1000_TOKENS,
    UNIT_REQUESTS, /* that are here, waiting or running */
    UNIT_REQUESTS_STEP,
    UNIT_REQUESTS_S,
    UNIT_STEPS,
    UNIT_BLOCKS, /* of KV */
    UNIT_RANKS,
    UNIT_GROUPS,
    UNIT_STAGES,
    UNIT_BATCHES, /* micro-batches of a step */
    UNIT_LAYER,   /* its number */
    UNIT_PRIORITY,
    UNIT_STATUS, /* of an HTTP answer */
    N_UNITS
};

const char *unit_name(enum unit u);         /* "tokens/step"; "" for none. Static */
enum unit unit_named(const char *name);     /* UNIT_NONE: there is no such unit */
const char *unit_nearest(const char *name); /* the unit that a wrong word may mean; NULL: none. Static */
/* What numbers of this unit can be at all, wherever they run; infinite where it does not say. */
void unit_range(enum unit u, double *low, double *high);

#endif
