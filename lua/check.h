/* What a source goes through before it may decide anything: size and text, syntax and globals (scan.h), its table
 * (script.h), its params, its own tests and made-up views decided twice (rehearse.h). Any control thread. Invariant:
 * none of the hooks of the script that is handed out has run yet. */
#ifndef LUA_CHECK_H
#define LUA_CHECK_H

#include "lua/script.h"

struct check {
    const char *name, *source;
    size_t n;
    const char *params_json; /* or NULL */
    struct lua_opts opts;    /* filled in (script_opts) */
    struct buf *report;      /* or NULL */
};

/* A fresh script of a source that passed everything. */
int check_policy(const struct check *c, struct script **out, struct err *e);
/* All of its tests, whatever becomes of each, and then the made-up views, for an author: what came of each is a line of
 * the report. E_INPUT, E_POLICY: the first that failed. */
int check_tests(const struct check *c, struct err *e);

#endif
