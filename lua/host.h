/* Policies written in Lua. lua_policy_load turns a source into a struct policy that the engine runs like any other:
 * checked, tested, tried on made-up views, and from then on contained: whatever the script does ends as a verdict
 * (engine/policy.h). Loading runs on any control thread and touches nothing of the engine; the policy is then owned by
 * whoever runs it. Invariant: a loaded policy has run at least once before it goes live. */
#ifndef LUA_HOST_H
#define LUA_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/policy.h"
#include "lua/watchdog.h"

enum { LUA_SOURCE_BYTES = 256 << 10 };

struct nursery;
struct lib_reader;

struct lua_opts {
    struct lua_watchdog *watchdog; /* must outlive the policy */
    size_t heap_bytes;             /* 0: 1 MiB; at most 4 MiB */
    int64_t bytecodes;             /* 0: 20,000; a call that executes more stands and is called heavy */
    int64_t bytecodes_request;     /* 0: 40; added per request in the view */
    int64_t soft_ns; /* 0: 250 us of CPU time; a longer call stands and is called slow, where calls take too much of all
                        time */
    int64_t soft_request_ns; /* 0: 500 ns; added per request in the view */
    int64_t hard_ns;         /* 0: 2 ms; a longer call is stopped, half as long again in CPU time later; twice as
                                long again where it executes next to nothing, since then the machine stands still */
    bool relaxed;            /* at boot: loading and trying may take 20 times as long, since the source was accepted
                                before */
    bool again;              /* the same source passed just now: neither its tests nor made-up views are run */
    bool quiet;              /* no log lines */
    bool keep_text;          /* the policy keeps its text: it can be followed */
    const char *folder;      /* of the policy's file: its libraries lie in lib/ there. NULL: it may have none */
    const struct lib_reader *reader; /* who reads them; NULL: this process does */
    struct nursery
        *nursery;      /* not NULL: the policy gets a process of its own, in which all of this is done (apart.h) */
    struct libs *libs; /* those that were read; of the loader, NULL for its callers */
    int n_ranks;       /* of the node that it is for; more than 1: it must pass the dry runs of several ranks; else they
                          are made too, and failing them is only reported */
};

/* name: how it is called in errors, metrics and logs, with or without ".lua" (letters, digits, '_', '-', '.',
 * at most 40). source: text, at most 256 KiB with its libraries. params_json: an object of values for declared params,
 * or NULL. Its own `tests` run, then made-up views are decided by two fresh machines, whose decisions must be equal.
 * E_INPUT or E_POLICY with "name.lua:12: reason". */
int lua_policy_load(struct policy *out, const char *name, const char *source, size_t n, const struct lua_opts *o,
                    const char *params_json, struct err *e);
/* All that a policy is made of, as one text: its own and, where it has libraries, theirs from o->folder. Its SHA-256 is
 * the policy's, and each of these functions takes it in place of a source, whatever the folder has by then. Appends to
 * out. The same errors. */
int lua_policy_text(const char *name, const char *source, size_t n, const struct lua_opts *o, struct buf *out,
                    struct err *e);
/* Its own tests alone, all of them, and the made-up views: a line of the report for each. */
int lua_policy_test(const char *name, const char *source, size_t n, const struct lua_opts *o, struct buf *report,
                    struct err *e);
/* The same, and a report for the author: params, hooks, tests, cost of each hook in bytecodes at 8, 64 and
 * 512 requests, warnings. */
int lua_policy_check(const char *name, const char *source, size_t n, const struct lua_opts *o, const char *params_json,
                     struct buf *report, struct err *e);

/* For a host in another process (child.h): where the policy's verbs go, and what is to be known of it. */
struct verb_way;
void lua_policy_send(struct policy *p, const struct verb_way *way);
struct lua_inside {
    int hooks; /* bit h: it has this one */
    size_t heap_bytes, heap_limit;
    bool wants_rest; /* idle would do something */
};
void lua_policy_look(const struct policy *p, struct lua_inside *out);

#endif
