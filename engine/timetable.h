/* What is under way in virtual time: steps, moves, copies of FFN layers and reshards that end at a known time, soonest
 * first, ties in the order they were posted; and until when each rank has something to do, since what is posted to a
 * rank begins when what was posted before it has ended. Owned by an engine that is not threaded, its thread; a threaded
 * one leaves it empty. Invariant: a rank does one thing at a time. */
#ifndef ENGINE_TIMETABLE_H
#define ENGINE_TIMETABLE_H

#include "engine/exec/move.h"
#include "engine/exec/replicate.h"
#include "engine/exec/reshard.h"
#include "engine/exec/step.h"

struct timetable_entry {
    int64_t done_ns;
    struct step *step; /* one of the four */
    struct move *move;
    struct replica_task *replica;
    struct reshard_task *reshard;
};

struct timetable {
    struct timetable_entry *entries;
    int n, cap;
    int64_t busy_ns[MAX_RANKS]; /* until then */
    int64_t link_ns[MAX_RANKS]; /* until then something goes over its link to the machine's memory */
};

/* Begins when all its ranks are free, at the earliest when it was posted, and keeps them for lag_ns longer than it
 * takes them. The table has it until timetable_take. */
void timetable_add_step(struct timetable *t, struct step *s, int64_t lag_ns);
void timetable_add_move(struct timetable *t, struct move *m);
/* Weights take the link of each rank to the machine's memory, one after another with KV that goes there; those that a
 * group waits for keep the ranks busy, too. */
void timetable_add_reshard(struct timetable *t, struct reshard_task *r);
/* Keeps no rank busy: it is behind what steps need. */
void timetable_add_replica(struct timetable *t, struct replica_task *r);
/* These ranks do nothing else from now_ns on for ns, after what they do. Asking twice at one time is asking once. */
void timetable_occupy(struct timetable *t, uint64_t ranks, int64_t now_ns, int64_t ns);
/* Ends when it is released (timetable_release), and not by itself; keeps no rank busy. */
void timetable_hold(struct timetable *t, struct timetable_entry what);
/* The step of this group, or the move of this number, leaves the table, whenever it was to end. false: there is none.
 */
bool timetable_release(struct timetable *t, int group, uint64_t move, struct timetable_entry *out);
bool timetable_release_replica(struct timetable *t, int layer, struct timetable_entry *out);
bool timetable_release_reshard(struct timetable *t, uint64_t ranks, struct timetable_entry *out);
int timetable_steps(const struct timetable *t);       /* how many are under way */
int64_t timetable_next_ns(const struct timetable *t); /* INT64_MAX: nothing is under way */
/* What ended by now_ns, soonest first. */
bool timetable_take(struct timetable *t, int64_t now_ns, struct timetable_entry *out);
void timetable_free(struct timetable *t); /* what is left in it is the caller's to take first */

#endif
