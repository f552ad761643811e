/* Plain data between Lua and JSON: nil, booleans, finite numbers, texts, and tables that are either lists (1..n) or
 * objects (text keys). For the state that crosses a swap. Called inside vm bodies; both may raise. Invariant: what gets
 * through has no cycles and no functions, and is at most 8 deep. */
#ifndef LUA_VALUE_H
#define LUA_VALUE_H

#include <lua.h>

#include "engine/base/json.h"

enum { VALUE_DEPTH = 8, VALUE_BYTES = 64 << 10 };

void value_push(lua_State *L, const struct json *j);
/* Appends the value at index as JSON, keys sorted; raises on what is not plain data and past 64 KiB. */
void value_write(lua_State *L, int index, struct buf *out);

#endif
