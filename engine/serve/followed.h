/* The files that a policy was made of, looked at now and then: its own and those of its libraries (lib/NAME.lua beside
 * it). Owned by whoever follows it; front thread. Invariant: a change is told once, when two looks in a row saw the
 * same files; one that is missing, as while it is replaced, tells nothing. */
#ifndef SERVE_FOLLOWED_H
#define SERVE_FOLLOWED_H

#include <sys/stat.h>

#include "engine/policy.h"

enum { FOLLOWED_PATH = 512 };

struct followed_file {
    char lib[NAME_BYTES];   /* "": the policy's own */
    struct stat seen, last; /* what was told (or there at the beginning); the look before this one */
};

struct followed {
    char path[FOLLOWED_PATH]; /* "": nothing is followed */
    struct followed_file files[1 + POLICY_LIBS];
    int n;
};

/* Follows the file at path, and no library yet. False: it is no regular file, and nothing is followed. */
bool followed_begin(struct followed *f, const char *path);
/* libs: as in struct policy. Those that are new are taken as they are now. */
void followed_set_libs(struct followed *f, const char *libs);
/* What there is now is known. */
void followed_seen(struct followed *f);
/* A look. True: something has changed since the last time that this was true, and stays. */
bool followed_changed(struct followed *f);

#endif
