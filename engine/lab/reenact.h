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

struct reenact_setup {
    const struct replay_setup *replay; /* engine: the recording's, its policy moves; arrivals are not used */
    struct recording *recording;       /* just opened */
    /* Another policy went live. E_NOTFOUND: it is not here. */
    int (*find_policy)(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e);
    void *ctx;
};

/* What the engine that was recorded is built from: ops, node, limits, partition; no policy. play and model must live as
 * long as it is used. */
void reenact_engine(struct engine_setup *out, struct engine_play *play, const struct recording_head *h,
                    struct model *model);
/* Plays to the end or to the first difference. E_INPUT: the recording is malformed. out and what are freed by the
 * caller, on failure too. */
int reenact_run(struct reenactment *out, struct replay *what, const struct reenact_setup *s, struct err *e);
void reenact_free(struct reenactment *r);

#endif
