/* The partition of the node: which ranks form which groups, and the changes that are asked for and wait (for running
 * steps to end, or for sequences to finish). A switch is an order to bind ranks into one group, or to release a group's
 * ranks; groups that overlap it are dissolved when it is carried out, and each of their sequences meets the fate that
 * the order names: it stays (same placement), moves, is parked with its KV, goes to host memory, or is recomputed.
 * Everything here is bookkeeping: bytes are copied by moves that the engine posts. Owned by the world, engine thread
 * only. What a policy has set going here (orders that wait, closed groups, ranks left out, algorithms) ends with it:
 * partition_let_go. Invariants: a rank is in at most one group; a group takes no step while an order holds it; a
 * waiting order has a request or a policy that wants it, and ends at its deadline. Source: bind and release are Flying
 * Serving's. */
#ifndef WORLD_PARTITION_H
#define WORLD_PARTITION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/world/ffn.h"
#include "engine/world/headmap.h"
#include "engine/world/ids.h"
#include "engine/world/layout.h"
#include "engine/world/shape.h"

enum { MAX_NAMED = 16, SWITCH_EVENTS = 64 };

/* When a switch may interrupt: at the next step boundary; when the running sequences have ended; the same, but the
 * requests that it is for may start meanwhile on ranks that are free; at the next step boundary after the weights have
 * come that it asks for, as many as there is room for, and until then the groups go on as before. */
enum switch_when { WHEN_HARD, WHEN_DRAIN, WHEN_SOFT, WHEN_READY };
/* What becomes of a sequence whose group goes. */
enum kv_fate { FATE_KEEP, FATE_MIGRATE, FATE_PARK, FATE_RECOMPUTE, FATE_HOST };
const char *switch_when_name(enum switch_when w);
const char *kv_fate_name(enum kv_fate f);

/* A group of ranks that runs one forward together. */
struct group {
    int id; /* names it in plans; never used again; 0: an empty slot */
    int n_ranks;
    int ranks[MAX_RANKS]; /* by share */
    uint64_t mask;
    int place;             /* its KV placement in the pool */
    struct layout base;    /* the layout whose rank order it has, {n,1,1}: the identity; and its stages, pp */
    struct layout layout;  /* of its last step */
    struct layout weights; /* which its ranks hold, where a rank holds a cut of them (residency.h); else all 0 */
    uint64_t loading;      /* ranks whose weights are still to come: it takes no step */
    bool idle;             /* no step under way, nothing loading */
    bool held;             /* takes no step: an order waits for its ranks */
    bool closed;           /* finishes what it has: admits only the requests that the waiting order is for */
    bool shut;             /* the policy closed it: finishes what it has */
    bool canary;           /* a canary decides for it (side.h) */
    int n_running;         /* requests of it */
    int64_t load;          /* tokens ahead of a newcomer, as route.h counts them; of the last plan */
    int64_t busy_since_ns, last_step_ns, bound_ns; /* last_step_ns: measured duration of its last step */
    int last_step_tokens;
    bool told;          /* the ranks that load have been */
    double mean_tokens; /* of its steps, averaged over about 16 */
    uint64_t n_steps;
    struct ffn_modes ffn; /* where weights are pooled: of its next step */
    uint64_t watched;     /* the last round (engine_state.h) in which a step of it said when its FFN layers ran */
};

struct switch_order {
    bool release;          /* of all groups that overlap the mask; no new group */
    uint64_t mask;         /* the ranks */
    struct layout base;    /* {n,1,1} or {1,n,1}: identity; pp: the stages of the group */
    struct layout weights; /* a reshard: the ranks are to hold those of this layout; all 0: what they hold */
    enum switch_when when;
    enum kv_fate fate;
    int64_t max_wait_ns; /* drain, soft: then it becomes hard */
    int n_named;
    req_id named[MAX_NAMED];   /* the requests it is for */
    char reason[REASON_BYTES]; /* the policy's words */
};

struct switch_pending {
    struct switch_order order;
    uint64_t serial; /* of orders as they are asked for; its event has another */
    int64_t since_ns, deadline_ns;
    bool forced; /* past its deadline, or hard from the start */
    enum weights_state {
        WEIGHTS_WANTED, /* they are to come beside the steps; nobody was told yet */
        WEIGHTS_COMING, /* the ranks have been told */
        WEIGHTS_THERE,  /* as many as there is room for; or none are wanted beforehand */
    } weights;
};

/* What a switch was and what it cost; the last SWITCH_EVENTS are kept. An order becomes one when it ends, so who has
 * seen all events up to a serial misses none that was still pending then. */
struct switch_event {
    struct switch_order order;
    uint64_t serial;           /* from 1, as they ended */
    int64_t asked_ns, done_ns; /* done - asked: the wait */
    int64_t cutover_ns;        /* engine's own time to carry it out; set by the engine */
    uint64_t bytes;            /* of its moves, counted as they land */
    int n_kept, n_moved, n_parked, n_recomputed;
    int n_open;             /* streams that have had no token since */
    int64_t worst_stall_ns; /* longest time between two tokens that any of its streams saw across it */
    bool superseded;        /* it was not carried out: another order took its ranks, or it was */
    bool dropped; /* because nothing needs it any more: its policy has gone, or all requests that it was for */
    bool failure; /* a rank failed: no policy ordered it */
};

struct world;
struct request;

struct partition {
    struct group groups[MAX_RANKS]; /* slots */
    int order[MAX_RANKS];           /* slots in use, by first rank */
    int n_groups;
    uint64_t free_ranks, dead_ranks; /* in no group; failed */
    uint64_t left_out;        /* of the free: their group went by an order, and no order has put them into another */
    int algorithms[MAX_SETS]; /* of the all-reduces of a set of ranks, by its place in the shape: enum comm_algorithm;
                                 0: by size */
    struct layout start; /* of the groups that the node starts with: stages, and where ranks hold cuts the layout */
    uint64_t epoch, next_serial; /* of orders */
    struct switch_pending pending[MAX_RANKS];
    int n_pending;
    struct switch_event events[SWITCH_EVENTS]; /* event s is at s % SWITCH_EVENTS */
    uint64_t n_events;                         /* the serial of the last */
    uint64_t n_switches;                       /* carried out */
};

/* All ranks free, no group. */
void partition_init(struct partition *p, int n_ranks);
/* Groups and events come in two ways: to look at, and (_slot) to change. The i-th group is by first rank. */
static inline const struct group *partition_group(const struct partition *p, int i)
{
    return &p->groups[p->order[i]];
}
static inline struct group *partition_slot(struct partition *p, int i)
{
    return &p->groups[p->order[i]];
}
const struct group *partition_find(const struct partition *p, int id); /* NULL: no such group (any more) */
struct group *partition_find_slot(struct partition *p, int id);
/* The layout that it runs when nobody says which: the one whose weights its ranks hold; else tensor parallel over all
 * ranks of a stage where that can be, or as wide as can be. */
struct layout group_usual_layout(const struct world *w, const struct group *g);
/* The ranks of a group by share, in the order that its base asks for. Returns how many. */
int partition_ranks(uint64_t mask, struct layout base, int *ranks);
/* One more step of the group has ended. */
void group_note_step(struct group *g, int n_tokens, int64_t ns);
/* The group of exactly these ranks in this order, or NULL. */
const struct group *partition_match(const struct partition *p, uint64_t mask, struct layout base);

/* Why this order cannot be given now, or NULL. An order for what already is (or is asked for already) is no error. */
const char *partition_refusal(struct world *w, const struct switch_order *o);
/* Would this order change nothing? It waits already, or it is so and nothing waits that would change it. */
bool partition_stands(const struct partition *p, const struct switch_order *o);
/* Gives a lawful order. It replaces waiting orders that overlap it, and waits no longer than they would have. Carried
 * out by partition_advance. */
void partition_ask(struct world *w, const struct switch_order *o, int64_t now_ns);
/* Whoever gave orders here has gone: those that wait are dropped, closed groups open, algorithms are by size again, and
 * ranks that were left out form groups. Groups stay as they are, with their base layouts; only stages are no other
 * policy's affair: groups with more or fewer than the node has started with are ordered back. Undone by putting the
 * struct back as it was. */
void partition_let_go(struct world *w, int64_t now_ns);
/* Would that change nothing? */
bool partition_is_free(const struct partition *p);
/* Drops orders whose requests have all ended, and carries out every order that is ready; groups change, sequences meet
 * their fate, moves appear in w->copies. Returns how many. */
int partition_advance(struct world *w, int64_t now_ns);
/* When an order becomes hard by itself; INT64_MAX: none does. */
int64_t partition_next_ns(const struct partition *p);
/* A rank failed and its group is not in a step any more: the group goes, all that lay on the rank is lost, its
 * sequences wait to be recomputed, and the living ranks of the group form the largest groups that the node's sets
 * allow. */
void partition_lose(struct world *w, int rank, int64_t now_ns);
/* May this waiting request start on this group now? One of the other side (side.h) never. */
bool partition_admits(const struct partition *p, const struct group *g, const struct request *r);
/* The all-reduces of these ranks (enum comm_algorithm; 0: by size), and from now on. They are a set of the shape. */
int partition_algorithm(const struct world *w, uint64_t ranks);
void partition_set_algorithm(struct world *w, uint64_t ranks, int algorithm);
/* The weights of a waiting order are there, as many as there is room for. False: it waits no more. */
bool partition_weights_there(struct world *w, uint64_t serial);
/* The ranks of a group that loaded have all they need, or one of them never will. */
void partition_loaded(struct world *w, int group);
/* A stream had a token (or ended) after a switch that touched it. */
void partition_note_token(struct partition *p, struct request *r, int64_t gap_ns);
const struct switch_event *partition_event(const struct partition *p, uint64_t serial); /* NULL: forgotten */
struct switch_event *partition_event_slot(struct partition *p, uint64_t serial);
bool partition_check(const struct world *w); /* recount; false = a bug */

#endif
