/* The groups of the node as Lua tables: view.groups and view.idle. A group has one table for as long as it lives, and
 * another group gets another table, so a policy that keeps one never finds a different group in it. Only what changed
 * is written; C keeps a copy of every number, so that a policy that writes into its view is found out. Owned by the
 * bind of one script; used in vm bodies only. Invariant: no decision of the engine rests on what these tables hold. */
#ifndef LUA_GROUPS_H
#define LUA_GROUPS_H

#include <lua.h>

#include "engine/base/rng.h"
#include "engine/world/view.h"

/* What changes while a group lives. The last three lie in its `layout`. */
enum group_fact {
    GROUP_N_RUNNING,
    GROUP_LOAD,
    GROUP_KV_FREE,
    GROUP_STEPS,
    GROUP_LAST_TOKENS,
    GROUP_LAST_MS,
    GROUP_SINCE_MS,
    GROUP_MEAN_TOKENS,
    GROUP_IDLE,
    GROUP_HELD,
    GROUP_CLOSED,
    GROUP_FFN, /* a word */
    GROUP_SP,
    GROUP_TP,
    GROUP_PP,
    GROUP_FACT_COUNT
};

struct group_table {
    int id; /* of the group it shows; 0: none */
    int ref, layout_ref;
    double facts[GROUP_FACT_COUNT]; /* as last written */
    bool counted;                   /* its memory is in the floor already */
};

struct groups {
    int keys_ref, meta_ref, list_ref, idle_ref;
    struct group_table tables[MAX_RANKS]; /* by slot of the partition */
    int n_listed, listed[MAX_RANKS];
    int n_idle;
    struct rng rng;
};

/* Makes the lists and hangs them into the view table on top of the stack. A body. */
void groups_create(struct groups *g, lua_State *L);
/* Hangs them there again. */
void groups_hang(const struct groups *g, lua_State *L);
/* Brings the tables up to date. False: one is not what was written (then groups_reset). A body, with the host's reserve
 * open. */
bool groups_sync(struct groups *g, lua_State *L, const struct view *v);
/* Fresh tables; the next sync fills them. A body. */
void groups_reset(struct groups *g, lua_State *L);
/* Bytes by which the Lua tables may now grow: what the engine's groups take is not the policy's debt. */
size_t groups_reserve(struct groups *g, const struct world *w);
/* A list of the ranks of a mask, pushed. */
void groups_push_ranks(lua_State *L, uint64_t mask);
/* { sp =, tp = }, pushed. */
void groups_push_layout(lua_State *L, struct layout l);
/* Every fact is what was written (groups_sync looks at one). A body. */
bool groups_untouched(const struct groups *g, lua_State *L);

#endif
