/* A policy as the command line names it: NAME or FILE, and params of its own behind a colon,
 * "shift:threshold=256,budget=4096". The same in every command. Owned by the caller, main thread. Invariant: every
 * command accepts the same names. */
#ifndef CLI_POLICY_REF_H
#define CLI_POLICY_REF_H

#include <limits.h>

#include "engine/cli/opts.h"

struct policy_ref {
    char *name;            /* a NAME, a path, or "native" */
    struct strings params; /* NAME=VALUE: `common`, but for those that have a value of their own here, then these */
    bool is_path;          /* it has a '/' or ends in .lua */
};

/* E_INPUT: a param that is no NAME=VALUE. Freed in every case. `common` has to outlive it. */
int policy_ref_read(struct policy_ref *r, const char *asked, const struct strings *common, struct err *e);
void policy_ref_free(struct policy_ref *r);
/* The file it names; dir: where named ones lie, "": there is no such folder. E_NOTFOUND: there is none, with what there
 * is that is called nearly so. */
int policy_ref_path(const struct policy_ref *r, const char *dir, char out[PATH_MAX], struct err *e);

#endif
