/* Looking back into a recording: one decision as a debugger shows it, or the stories of requests, out of an exact
 * replay. Owned by whoever asks, one thread. Invariant: what is shown was compared with the recording up to there;
 * where the replay leaves it, nothing is shown. */
#ifndef LAB_REVISIT_H
#define LAB_REVISIT_H

#include "engine/base/buf.h"
#include "engine/lab/recorded_policies.h"

enum { REVISIT_MOST_STORIES = 1 << 16 };

struct revisit_setup {
    const char *path; /* of the recording */
    /* How many ranks the recorded node has is known: before any policy is opened. */
    int (*begin)(void *ctx, int n_ranks, struct err *e);
    struct recorded_policies policies; /* `when` is set here; ctx is begin's, too */
};

/* Which decision: they are numbered from 1 on, as `moonshift simulate` tells differences. */
struct revisit_which {
    uint64_t number; /* 0: the first one from at_s on */
    double at_s;     /* seconds after the recording's start, of which whole microseconds count, as they are printed */
};

/* Appends a JSON object: decision, line, t_ns, policy {name, sha256}, plan {words, recorded, equal}, decided (as GET
 * /admin/decisions has it), error (of the policy's call; null: none), call (lua/follow.h; null: no script was asked).
 * E_NOTFOUND: there are fewer decisions, or a policy is not here; E_INPUT: it is no recording, or the replay leaves it
 * before that. */
int revisit_decision(const struct revisit_setup *s, const struct revisit_which *w, struct buf *out, struct err *e);
/* Appends what GET /admin/requests/ID would have answered when the recording ended; id NULL: GET
 * /admin/requests?slowest=N. An id that is a number, by which no request goes, is an order of admission as plans have
 * it. The last REVISIT_MOST_STORIES requests are known. The same errors; E_NOTFOUND: no such request. */
int revisit_stories(const struct revisit_setup *s, const char *id, int n, struct buf *out, struct err *e);

#endif
