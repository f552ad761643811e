/* moonshift policy test FILE|FOLDER: runs what an author wrote to test policies, their own `tests` and their busted
 * specs, once or at every change of a file. Main thread, before any other starts (--watch blocks SIGINT and SIGTERM).
 * Invariant: every spec is run or reported as skipped. */
#ifndef CLI_POLICY_TEST_H
#define CLI_POLICY_TEST_H

#include <stdbool.h>

#include "engine/base/err.h"

/* Exit statuses. */
enum {
    POLICY_TEST_PASSED = 0,
    POLICY_TEST_FAILED = 1,
    POLICY_TEST_NO_BUSTED = 3 /* all that could be run has passed */
};

/* path: a policy, a spec (NAME_spec.lua), or a folder. watch: until SIGINT or SIGTERM. E_NOTFOUND, E_INPUT: there is
 * nothing to test there. *status: one of those above. */
int policy_test(const char *path, bool watch, int *status, struct err *e);
/* moonshift lua-path: prints what a shell has to say so that Lua finds the module of specs; or the pattern alone.
 * E_NOTFOUND: there is no module. */
int policy_test_path(bool pattern, struct err *e);

#endif
