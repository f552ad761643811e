/* Policies in processes of their own (lua_opts.nursery): the same functions and the same struct policy as host.h, where
 * nothing of the policy runs in this process, not even its parser. What the process says is checked as the plan checks
 * any verb, and what no policy could say ends it. A process that crashes costs the call (VERDICT_CRASHED), and another
 * one, which has loaded the same source meanwhile, takes its place (policy_ops.renew); one that is late in spite of its
 * own watchdog is killed (VERDICT_TIMEOUT). Threads as in host.h. Invariant: nothing that a process writes is read
 * twice, or trusted. */
#ifndef LUA_APART_H
#define LUA_APART_H

#include "lua/host.h"

struct apart_source {
    const char *name, *source;
    size_t n;
    const char *params_json; /* NULL: none */
};

int apart_load(struct policy *out, const struct apart_source *s, const struct lua_opts *o, struct err *e);
/* The process that decides; 0: the policy has none, or has lost it. */
int apart_pid(const struct policy *p);
int apart_text(const struct apart_source *s, const struct lua_opts *o, struct buf *out, struct err *e);
int apart_check(const struct apart_source *s, const struct lua_opts *o, struct buf *report, struct err *e);
int apart_test(const struct apart_source *s, const struct lua_opts *o, struct buf *report, struct err *e);

#endif
