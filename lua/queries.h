/* What a policy may ask its view beyond the facts that lie ready: rows in the queue's order, counts by tenant. C
 * functions for Lua, used inside vm bodies. Costs nothing while nobody asks. Never true: a question that changes
 * anything. */
#ifndef LUA_QUERIES_H
#define LUA_QUERIES_H

#include <lua.h>

/* Hangs them into the view table on top of the stack. */
void queries_add(lua_State *L);

#endif
