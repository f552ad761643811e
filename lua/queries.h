/* What a policy may ask of its view beyond the facts that are already there: rows in the queue's order, counts by
 * tenant, who would have to give way. C functions for Lua, used inside vm bodies. They cost nothing until they are
 * called. Invariant: a query changes nothing. */
#ifndef LUA_QUERIES_H
#define LUA_QUERIES_H

#include <lua.h>

/* Hangs them into the view table on top of the stack. */
void queries_add(lua_State *L);

#endif
