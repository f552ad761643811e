/* Where the policies of a recording are found: a recording has their names and hashes, not their text. Borrowed by
 * whoever replays, one thread. Invariant: what is found has the very bytes that were live. */
#ifndef LAB_RECORDED_POLICIES_H
#define LAB_RECORDED_POLICIES_H

#include "engine/base/strings.h"
#include "engine/policy.h"

struct recorded_policies {
    /* As simulate_setup.open_policy: of a name, or a file, as --policy takes it. */
    int (*open)(void *ctx, const char *asked, const struct strings *params, bool again, struct policy *out,
                struct err *e);
    void *ctx;
    const char *when;            /* it is live, for the error: "from here on" */
    const struct strings *named; /* others to look at, NAME|FILE[:...]: their params do not count */
};

/* By its name, or any that was named; the bytes must be those. With these params (a JSON object). E_NOTFOUND: it is not
 * here; E_INPUT: it does not take the params. */
int recorded_policies_find(const struct recorded_policies *r, const char *name, const char *sha256, const char *params,
                           struct policy *out, struct err *e);

#endif
