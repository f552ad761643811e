#include "lua/strict.h"

#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "lua/columns.h"
#include "engine/base/nearest.h"
#include "lua/vm.h"

enum { MAX_NAMES = 80, WHAT = 1, IS_QUEUE = 2 }; /* upvalues */

/* The names that the table at 1 has; they stay alive in it. */
static int names_of(lua_State *L, const char *names[MAX_NAMES])
{
    int n = 0;
    lua_pushnil(L);
    while (n < MAX_NAMES && lua_next(L, 1)) {
        lua_pop(L, 1);
        if (lua_type(L, -1) == LUA_TSTRING)
            names[n++] = lua_tostring(L, -1);
    }
    return n;
}

static void key_text(lua_State *L, char out[80])
{
    if (lua_type(L, 2) == LUA_TSTRING)
        vm_escape(out, 80, lua_tostring(L, 2), lua_objlen(L, 2));
    else if (lua_type(L, 2) == LUA_TNUMBER)
        snprintf(out, 80, "%.14g", lua_tonumber(L, 2));
    else
        snprintf(out, 80, "a %s", luaL_typename(L, 2));
}

static void missing_column(lua_State *L, const char *queue, const char *name)
{
    for (int c = 0; c < NEED_COUNT; c++)
        if (!strcmp(column_names[c], name))
            luaL_error(L, "view.%s.%s is not there: add \"%s.%s\" to needs (or \"%s\", for both queues)", queue, name,
                       queue, name, name);
    const char *near = nearest_word(name, column_names, NEED_COUNT);
    if (near)
        luaL_error(L, "view.%s has no column '%s'; did you mean '%s'?", queue, name, near);
    luaL_error(L, "view.%s has no column '%s'", queue, name);
}

static int on_read(lua_State *L)
{
    const char *what = lua_tostring(L, lua_upvalueindex(WHAT)), *names[MAX_NAMES];
    char key[80];
    lua_settop(L, 2);
    key_text(L, key);
    if (lua_toboolean(L, lua_upvalueindex(IS_QUEUE)))
        missing_column(L, what, key);
    const char *near = lua_type(L, 2) == LUA_TSTRING ? nearest_word(key, names, names_of(L, names)) : NULL;
    if (near)
        return luaL_error(L, "%s has no '%s'; did you mean '%s'?", what, key, near);
    return luaL_error(L, "%s has no '%s'", what, key);
}

static int on_write(lua_State *L)
{
    char key[80];
    if (vm_of(L)->hosting) { /* the host puts right what a policy has taken away */
        lua_rawset(L, 1);
        return 0;
    }
    key_text(L, key);
    return luaL_error(L, "%s is read only: '%s' cannot be set", lua_tostring(L, lua_upvalueindex(WHAT)), key);
}

static void push(lua_State *L, const char *what, bool is_queue)
{
    static const struct {
        const char *event;
        lua_CFunction f;
    } events[] = {{"__index", on_read}, {"__newindex", on_write}};
    lua_createtable(L, 0, 2);
    for (int i = 0; i < 2; i++) {
        lua_pushstring(L, what);
        lua_pushboolean(L, is_queue);
        lua_pushcclosure(L, events[i].f, 2);
        lua_setfield(L, -2, events[i].event);
    }
}

void strict_push(lua_State *L, const char *what)
{
    push(L, what, false);
}

void strict_guard(lua_State *L, const char *what)
{
    push(L, what, false);
    lua_setmetatable(L, -2);
}

void strict_guard_queue(lua_State *L, const char *queue)
{
    push(L, queue, true);
    lua_setmetatable(L, -2);
}
