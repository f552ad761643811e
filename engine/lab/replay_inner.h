/* What the drivers of an engine in virtual time share: replay.c, which submits a trace, and reenact.c, which replays a
 * recording. Included by these two only. */
#ifndef LAB_REPLAY_INNER_H
#define LAB_REPLAY_INNER_H

#include "engine/lab/replay.h"

static const int64_t START_NS = 1000000000; /* the engine takes 0 for "never" */

/* A step under way. */
struct running_step {
    int group, layout;
    uint64_t n_steps; /* of the group, before */
    int64_t posted_ns;
};

struct drive {
    struct replay *out;
    const struct replay_setup *setup;
    struct clock clock;
    int64_t start_ns; /* what the replay calls time 0 */
    struct engine *engine;
    struct trace_row next; /* the arrival after now */
    bool has_next;
    uint64_t step_seen, orders_seen, generated_seen;
    uint64_t noted[SWITCH_EVENTS]; /* serials */
    struct running_step steps[MAX_RANKS];
    int n_steps;
    uint64_t n_events;
    struct planned_cancel {
        int64_t at_ns;
        uint64_t tag;
    } * cancels; /* the next one last */
    size_t n_cancels, cap_cancels;
};

/* The engine of s->engine, under a clock that begins at start_ns. Its policy moves in every case. */
int replay_open(struct drive *d, struct replay *out, const struct replay_setup *s, int64_t start_ns, struct err *e);
uint64_t replay_note_arrival(struct drive *d, const struct replay_request *q); /* its tag */
void replay_note_turn(struct drive *d);                                        /* after each turn */
void replay_listen(struct drive *d);                                           /* to what the engine said since */
void replay_note_first(struct drive *d);                                       /* before anything has happened */
bool replay_shall_stop(struct drive *d);
void replay_close_books(struct drive *d);

#endif
