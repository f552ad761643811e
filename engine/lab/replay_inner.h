/* What the drivers of an engine in virtual time share: replay.c, which writes down what it does; replay_run.c, which
 * submits a trace to one or several; and reenact.c, which replays a recording. Included by these only. */
#ifndef LAB_REPLAY_INNER_H
#define LAB_REPLAY_INNER_H

#include "engine/lab/replay.h"

/* A step under way. */
struct running_step {
    int group, layout;
    uint64_t n_steps; /* of the group, before */
    int64_t posted_ns;
};

/* An engine that is driven. Its clock is the driver's. */
struct drive {
    struct replay *out;
    const struct replay_setup *setup;
    struct clock *clock;
    int64_t start_ns; /* what the replay calls time 0 */
    struct engine *engine;
    struct router *router; /* hears of endings; NULL: there is none */
    struct drive *nodes;   /* all that write into out, this one among them */
    int n_nodes;
    struct gauges {
        int running, waiting, groups;
        double kv_used;
    } gauges;
    uint64_t step_seen, switches_seen, generated_seen;
    struct running_step steps[MAX_RANKS];
    int n_steps;
    uint64_t n_events;
};

/* Nothing has been written down. */
void replay_begin(struct replay *out);
/* The engine of s->engine with the policy p, under the clock as it stands. The policy moves in every case. */
int replay_open(struct drive *d, struct replay *out, const struct replay_setup *s, const struct policy *p,
                struct clock *clock, struct err *e);
uint64_t replay_note_arrival(struct drive *d, const struct replay_request *q, const char *tenant); /* its tag */
void replay_note_turn(struct drive *d);                                                            /* after each turn */
void replay_listen(struct drive *d);     /* to what the engine said since */
void replay_note_first(struct drive *d); /* before anything has happened */
bool replay_shall_stop(struct drive *d);
void replay_close_books(struct drive *d);
void *replay_grown(void *old, size_t n, size_t *cap, size_t size); /* with room for one more of the size */

#endif
