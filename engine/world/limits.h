/* The limits of the node: how many requests run and wait, how large a step is, how long a request may be parked or get
 * no further. Some of them (enum limit) change while the server runs: an order names one or several and is obeyed as a
 * whole, or refused as a whole against what the node was built for. Nobody is thrown out by a lower limit: what is
 * above it ends by itself, and nothing new begins until there is room. Pure values, any thread; the live ones are the
 * world's, engine thread. Invariant: limits that an order has left are such as the node could have been opened with. */
#ifndef WORLD_LIMITS_H
#define WORLD_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct limits {
    int max_num_seqs;              /* running at once */
    int max_num_batched_tokens;    /* of a step */
    int max_model_len;             /* tokens of a sequence */
    int max_num_queued_reqs;       /* waiting; 0 = MAX_REQUESTS */
    int64_t max_num_queued_tokens; /* prompt tokens waiting; 0 = no limit */
    bool prefix_caching;
    int64_t starvation_ns; /* a request that waits longer with room for it, and behind none without, is a strike
                              against the policy; 0: off */
    int64_t probation_ns;  /* how long a policy is watched after a swap (engine/probation.h); 0: not at all */
    int64_t park_ns;       /* how long a waiting request may keep its KV; then it is recomputed. 0: no bound */
};

/* Those that change while the server runs. Numbers and tokens are counts, the last two nanoseconds. */
enum limit {
    LIMIT_SEQS,
    LIMIT_STEP_TOKENS,
    LIMIT_QUEUED_REQS,
    LIMIT_QUEUED_TOKENS,
    LIMIT_PARK,
    LIMIT_STARVATION,
    LIMIT_COUNT
};
const char *limit_name(enum limit which); /* as JSON has it: "max_num_seqs", "max_park_seconds" */
int64_t limit_of(const struct limits *l, enum limit which);
/* What it may be set to on a node that was opened with `built`. */
void limit_range(const struct limits *built, enum limit which, int64_t *least, int64_t *most);

struct limits_order {
    bool given[LIMIT_COUNT];
    int64_t values[LIMIT_COUNT];
};
/* An object of some of the names, from outside: a wall. E_INPUT: what is wrong; a value that no node could have is. */
int limits_read(struct limits_order *out, const char *json, size_t n, struct err *e);
/* All of it, or nothing: E_INPUT names the limit, what it may be, and the flag that changes that. */
int limits_obey(struct limits *l, const struct limits *built, const struct limits_order *o, struct err *e);

/* {"max_num_seqs":128,...}: those of enum limit; seconds with a fraction. */
void limits_put(const struct limits *l, struct buf *json);
/* {"max_num_seqs":{"least":1,"most":4096},...} */
void limits_put_ranges(const struct limits *built, struct buf *json);
/* "max_num_seqs 128 -> 64, max_park_seconds 10 -> 2.5"; nothing where all are equal. */
void limits_put_change(const struct limits *from, const struct limits *to, struct buf *words);

#endif
