/* What the files of the replayer of recordings share. Included by reenact.c and reenact_ranks.c only. */
#ifndef LAB_REENACT_INNER_H
#define LAB_REENACT_INNER_H

#include "engine/lab/reenact.h"
#include "engine/lab/reenact_drafts.h"
#include "engine/lab/replay_inner.h"

enum { STOP_ID = 1 }; /* the token that ends a request in a replay; all others are 0 */

/* A line that outlives the next one. */
struct held {
    struct recorded is;
    struct buf stops, key_orders, keys, drafts, text;
};

/* What is known of an ending from either side, by order. */
struct ending_seen {
    enum ending recorded, replayed;
    int32_t n_recorded, n_replayed;
};

struct reenactor {
    struct drive d;
    struct clock clock;
    const struct reenact_setup *setup;
    struct reenactment *out;
    struct witness witness;
    struct held now, next;
    bool has_next;
    struct prediction predicted; /* of the policy of the next line */
    uint64_t n_calls;
    struct reenact_drafts drafts;
    struct recorded *verdicts; /* read and not yet used, oldest first */
    size_t n_verdicts, cap_verdicts;
    uint64_t *tags; /* by order of admission */
    struct ending_seen *endings;
    size_t n_tags, cap_tags, cap_endings;
    struct buf came_out; /* the plan of this turn; empty: nothing was decided */
    bool turned;
    bool follows;    /* this is the decision that somebody looks at */
    struct buf call; /* what the policy told of its call */
};

/* Notes the first difference; why has one %" PRId64 ". */
void reenact_differ(struct reenactor *r, const char *why, int64_t number);
/* Was a request of this order admitted? If not, that is a difference. */
bool reenact_known(struct reenactor *r, int64_t order);
static inline struct kv_key recorded_key(uint64_t recorded)
{
    return (struct kv_key){{recorded, 1}};
}

/* reenact_ranks.c: a line of kind s, m, w, h. */
void reenact_step(struct reenactor *r, const struct recorded *x);
void reenact_move(struct reenactor *r, const struct recorded *x);
void reenact_replica(struct reenactor *r, const struct recorded *x);
void reenact_reshard(struct reenactor *r, const struct recorded *x);

#endif
