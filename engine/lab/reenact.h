/* Replays a recording exactly: the engine is given what it was given, at the same times, and its decisions are compared
 * with the recorded ones. Nothing is modelled: steps end when they ended. Owned by whoever runs it, one thread.
 * Invariant: a decision counts as equal only after it was compared. */
#ifndef LAB_REENACT_H
#define LAB_REENACT_H

#include "engine/lab/recording/recording.h"
#include "engine/lab/replay.h"

struct reenactment {
    uint64_t n_decisions; /* compared and equal */
    bool equal, complete; /* complete: the recording ended in good order */
    int64_t end_ns;       /* of the recording, or of the first difference */
    char *difference;     /* in words, when not equal */
};

/* A decision, for whoever looks at it. */
struct reenact_decision {
    uint64_t number, line;           /* from 1 on, as differences are told; of the recording */
    int64_t t_ns;                    /* since its start */
    const char *recorded, *came_out; /* the plans, as record_plan writes them */
    const char *call;                /* what policy_ops.follow told, JSON; NULL: no call of a script was made */
};

/* Somebody who looks on. Any slot may be NULL. What they are given is borrowed for the call. */
struct reenact_look {
    void *ctx;
    /* Asked before each decision; true: it is the one, and the last that is replayed. */
    bool (*wants)(void *ctx, uint64_t number, int64_t t_ns);
    void (*show)(void *ctx, struct engine *engine, const struct reenact_decision *d); /* it was taken */
    void (*over)(void *ctx, struct engine *engine); /* the replay has ended, and nothing is let go yet */
};

struct reenact_setup {
    const struct replay_setup *replay; /* engine: the recording's, its policy moves; arrivals are not used */
    struct recording *recording;       /* just opened */
    /* Another policy went live. E_NOTFOUND: it is not here. */
    int (*find_policy)(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e);
    void *ctx;
    const struct reenact_look *look; /* NULL: nobody */
};

/* What the engine that was recorded is built from: ops, node, limits, partition; no policy. play and model must live as
 * long as it is used. */
void reenact_engine(struct engine_setup *out, struct engine_play *play, const struct recording_head *h,
                    struct model *model);
/* Plays to the end, to the decision that is looked at, or to the first difference. E_INPUT: the recording is malformed.
 * out and what are freed by the caller, on failure too. */
int reenact_run(struct reenactment *out, struct replay *what, const struct reenact_setup *s, struct err *e);
void reenact_free(struct reenactment *r);

#endif
