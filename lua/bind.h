/* What a policy sees and may do, as Lua values: the view (scalars, groups, orders, the columns of both queues), the
 * node, a request, and the table of verbs. The tables live as long as the machine and are patched before each call.
 * Verbs go to the plan (engine/world/plan.h), which checks them, as calls that are data (verb_call.h). Owned by one
 * script; used inside its vm bodies only, except bind_free. Invariant: a verb changes only the plan or the admission.
 */
#ifndef LUA_BIND_H
#define LUA_BIND_H

#include "engine/policy.h"
#include "lua/columns.h"
#include "lua/groups.h"
#include "lua/orders.h"
#include "lua/scalars.h"
#include "lua/verb_call.h"
#include "lua/vm.h"

struct script;

enum { MAX_LOGS = 20 }; /* log lines outside a step, a second */

/* One handle a slot of the partition, handed out by act.batch; valid while `serial` is the plan's. */
struct batch_handle {
    uint64_t serial;
    struct plan_batch *batch;
};

struct bind {
    struct script *script;
    int view_ref, act_ref, params_ref, request_ref, batch_meta_ref, keys_ref;
    int handle_refs[MAX_RANKS]; /* by slot of the partition */
    struct groups groups;
    struct orders orders;
    const void *request_pointer;
    bool named, told_end; /* the request table has `name`, which is made when it is read; has what only finish knows */
    int tenant_ref;       /* the text of `tenant` */
    char tenant[NAME_BYTES];      /* of the request before */
    double scalars[SCALAR_COUNT]; /* as last written */
    struct columns waiting, running;
    req_id *list; /* a list of ids that a verb was given */
    size_t cap_list;
    struct verb_way way; /* go NULL: verbs are carried out here */
    req_id *admitted;    /* by slot: the requests this script has given a key */
    int n_admitted;
    struct rng rng;
    const struct comm_pool *comms; /* of the node; NULL: it has none, or this is a rehearsal */
    bool watched;                  /* dry runs: at every call the whole view is looked at, not some of it */
    /* the call under way */
    enum policy_hook hook;
    const struct view *facts;
    struct plan *plan;             /* step; and start, for orders. Read here, changed by verb_carry_out alone */
    struct admission *admission;   /* admit only */
    const struct request *subject; /* admit, finish */
    struct buf *transcript;        /* not NULL: log lines go there (tests, checks) */
    int64_t log_second;
    int n_logs, n_logs_dropped;
};

/* Makes all tables. needs: stack index of the policy's `needs`. Pushes nothing. A body. */
void bind_create(struct bind *b, lua_State *L, struct script *s, int needs);
void bind_free(struct bind *b);
/* How much of the view a hook needs fresh. */
enum freshness { FRESH_SCALARS, FRESH_GROUPS, FRESH_ALL };
/* Writes what changed since the last call. A body. False: the policy has changed its view; everything has been
 * put right again. */
bool bind_sync(struct bind *b, lua_State *L, const struct view *v, enum freshness how);
/* The policy has not written into its view. A body. */
bool bind_untouched(struct bind *b, lua_State *L);
/* The next view is of another world: request ids mean something else there. A body. */
void bind_forget(struct bind *b, lua_State *L);
void bind_push(const struct bind *b, lua_State *L, int ref);
/* Pushes the one request table, filled. how != END_NONE: with what finish may know. A body. */
void bind_push_request(struct bind *b, lua_State *L, const struct request *r, enum ending how);
/* This script has given r a key: when it is asked again, the request says so. */
void bind_note_admitted(struct bind *b, const struct request *r);
void bind_forget_admitted(struct bind *b);
void bind_push_node(lua_State *L, const struct node_facts *node);
const char *ending_name(enum ending how);
/* Keys as interned strings: faster to push than C strings. */
void bind_write_params(struct bind *b, lua_State *L);

struct bind *bind_of(lua_State *L);

#endif
