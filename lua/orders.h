/* The rest of the partition as Lua tables: view.free_ranks, view.dead_ranks, and view.pending, the orders that wait.
 * Rewritten whenever there is anything to show, which is seldom. Owned by the bind of one script; used in vm bodies
 * only. Invariant: the engine reads none of these tables. */
#ifndef LUA_ORDERS_H
#define LUA_ORDERS_H

#include <lua.h>

#include "engine/world/view.h"

struct orders {
    int free_ref, dead_ref, pending_ref;
    int n_free, n_dead, n_pending; /* as last written */
};

/* Makes the lists and hangs them into the view table on top of the stack. A body. */
void orders_create(struct orders *o, lua_State *L);
void orders_hang(const struct orders *o, lua_State *L);
void orders_sync(struct orders *o, lua_State *L, const struct view *v);
/* Since the last switch, in ms; HUGE_VAL: there was none that is remembered. */
double orders_last_switch_ms(const struct view *v);

#endif
