/* The two sides of a node on which a canary decides for some groups and the live policy for the others. A group is on
 * one side as long as the canary runs, and so is a request: those that run or are parked are with their group, those
 * that wait and those that come are dealt so that the canary has as large a share of them as of the ranks. Who looks or
 * plans for a side (view.h, plan.h) sees and touches nothing of the other. Without a canary there is one side with
 * everything. Owned by the world, engine thread only. Invariants: a running request is on the side of its group; the
 * counts are those that a walk through the queues would give. */
#ifndef WORLD_SIDE_H
#define WORLD_SIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Whose eyes: everything, where no canary runs; else one of the two. */
enum side { SIDE_ALL, SIDE_LIVE, SIDE_CANARY };

static inline bool side_has(enum side s, bool canary)
{
    return s == SIDE_ALL || (s == SIDE_CANARY) == canary;
}

struct world_sides {
    uint64_t ranks;           /* of the canary's groups; 0: no canary runs */
    int n_ranks, n_all;       /* of them; of all groups, when it began: its share of what comes */
    uint64_t epoch;           /* another one whenever requests have changed sides */
    uint64_t n_dealt;         /* since it began */
    int n_waiting, n_running; /* the canary's requests in the queues, probes included */
    int64_t waiting_tokens;   /* as world.waiting_tokens, of those */
};

struct world;
struct request;
struct request_spec;

enum side world_live_side(const struct world *w); /* what the live policy decides for */
/* What a side has, of what the world counts. Seats: of max_num_seqs, in the proportion of the ranks, at least one. */
int side_waiting(const struct world *w, enum side s);
int side_running(const struct world *w, enum side s);
int64_t side_waiting_tokens(const struct world *w, enum side s);
int side_seats(const struct world *w, enum side s);
uint64_t side_ranks(const struct world *w, enum side s); /* free and failed ones are the live policy's */
double side_share(const struct world *w, enum side s);   /* of the ranks in groups, 0 to 1 */

/* A canary begins on the groups of these ranks, which are whole groups and not all of them; and ends: all is one side
 * again. Groups that the policy before had closed are open, and whom it held back is let go, where another decides
 * from now on. Requests keep their keys: whoever decides for them now gives them new ones. */
void side_split(struct world *w, uint64_t ranks, int64_t now_ns);
void side_join(struct world *w, int64_t now_ns);
void side_open_groups(struct world *w, enum side s); /* those of it that its policy has closed */
/* The side of a request that comes: of n > 1 siblings that of the first, else dealt; where only one side has a group
 * that holds it, that one. Each call deals one. */
bool side_of_new(struct world *w, const struct request_spec *s);
/* One more that waits or runs, or one less; while it does, its tokens do not change. */
void world_count_waiting(struct world *w, struct request *r, int sign);
void world_count_running(struct world *w, struct request *r, int sign);
/* Does the first of its queue fit some group of it? Else the partition would have to change. */
bool side_fits_head(const struct world *w, enum side s);
bool side_check(const struct world *w); /* recount; false = a bug */

#endif
