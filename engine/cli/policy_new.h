/* moonshift policy new NAME: writes a policy to begin with, a commented one with tests, or a copy of another with the
 * libraries that it names. Main thread, before any other starts. Invariant: no file that is there is changed. */
#ifndef CLI_POLICY_NEW_H
#define CLI_POLICY_NEW_H

#include "engine/base/err.h"

struct policy_new {
    const char *name; /* NAME, NAME.lua, or with a folder before it that is there */
    const char *from; /* a policy to copy, as --policy names it; NULL: the one to begin with */
    const char *dir;  /* where named policies lie; "": there is no such folder */
};

/* Prints what was written and what can be done with it. E_INPUT: the name is none, or the file is there; E_NOTFOUND:
 * there is no such policy to copy. */
int policy_new(const struct policy_new *n, struct err *e);

#endif
