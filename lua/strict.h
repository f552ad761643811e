/* Tables of the host that a policy reads by name (view, queues, groups, requests, params, node, act): a name that is
 * not there raises, with the name that was probably meant, in place of a nil that raises somewhere else or, worse,
 * nowhere; and no new name can be set. Costs nothing while names are right. Used inside vm bodies. Invariant: the host
 * can always set what it wants in a guarded table (with its reserve open). */
#ifndef LUA_STRICT_H
#define LUA_STRICT_H

#include <lua.h>

/* Pushes a metatable for tables that are called so in messages ("view", "a request"). */
void strict_push(lua_State *L, const char *what);
/* The same for one table, which is on top of the stack. */
void strict_guard(lua_State *L, const char *what);
/* For a queue of the view: a column that is not there is one that `needs` does not name. queue: "waiting" or "running".
 */
void strict_guard_queue(lua_State *L, const char *queue);

#endif
