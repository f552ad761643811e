#include "lua/value.h"

#include <lauxlib.h>
#include <math.h>
#include <string.h>

#include "lua/sandbox.h"

static void push_members(lua_State *L, const struct json *j)
{
    bool is_list = json_type(j) == JSON_ARRAY;
    lua_createtable(L, is_list ? (int)json_count(j) : 0, is_list ? 0 : (int)json_count(j));
    int i = 0;
    for (const struct json *m = json_first(j); m; m = json_next(m)) {
        value_push(L, m);
        if (is_list)
            lua_rawseti(L, -2, ++i);
        else
            lua_setfield(L, -2, json_key(m));
    }
}

void value_push(lua_State *L, const struct json *j)
{
    luaL_checkstack(L, 4, "the value is nested too deeply");
    switch (json_type(j)) {
    case JSON_NULL:
        lua_pushnil(L);
        break;
    case JSON_BOOL:
        lua_pushboolean(L, json_true(j));
        break;
    case JSON_NUMBER:
        lua_pushnumber(L, json_number(j));
        break;
    case JSON_STRING:
        lua_pushstring(L, json_text(j));
        break;
    default:
        push_members(L, j);
    }
}

static void write(lua_State *L, int index, struct buf *out, int depth);

/* keys: the sorted keys of the table at index, on top of the stack. */
static bool is_list(lua_State *L, int keys, int n)
{
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        bool in_place = lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) == i;
        lua_pop(L, 1);
        if (!in_place)
            return false;
    }
    return true;
}

static void write_table(lua_State *L, int index, struct buf *out, int depth)
{
    if (depth >= VALUE_DEPTH)
        luaL_error(L, "the state is nested deeper than %d levels (or contains itself)", VALUE_DEPTH);
    int n = sandbox_sorted_keys(L, index), keys = lua_gettop(L);
    bool list = n > 0 && is_list(L, keys, n);
    buf_putc(out, list ? '[' : '{');
    for (int i = 1; i <= n; i++) {
        if (i > 1)
            buf_putc(out, ',');
        lua_rawgeti(L, keys, i);
        if (!list && lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "a table of the state has the key %f; keys must be 1..n or texts", lua_tonumber(L, -1));
        if (!list) {
            size_t len;
            const char *text = lua_tolstring(L, -1, &len);
            buf_put_json(out, text, len);
            buf_putc(out, ':');
        }
        lua_rawget(L, index);
        write(L, lua_gettop(L), out, depth + 1);
        lua_pop(L, 1);
    }
    buf_putc(out, list ? ']' : '}');
    lua_settop(L, keys - 1);
}

static void write(lua_State *L, int index, struct buf *out, int depth)
{
    if (out->len > VALUE_BYTES)
        luaL_error(L, "the state is larger than %d KiB", VALUE_BYTES >> 10);
    switch (lua_type(L, index)) {
    case LUA_TNIL:
        buf_puts(out, "null");
        break;
    case LUA_TBOOLEAN:
        buf_puts(out, lua_toboolean(L, index) ? "true" : "false");
        break;
    case LUA_TNUMBER:
        if (!isfinite(lua_tonumber(L, index)))
            luaL_error(L, "the state holds a number that is not finite");
        json_put_double(out, lua_tonumber(L, index));
        break;
    case LUA_TSTRING: {
        size_t n;
        const char *text = lua_tolstring(L, index, &n);
        if (n > VALUE_BYTES)
            luaL_error(L, "the state is larger than %d KiB", VALUE_BYTES >> 10);
        if (memchr(text, 0, n))
            luaL_error(L, "the state holds a text with a NUL byte");
        buf_put_json(out, text, n);
        break;
    }
    case LUA_TTABLE:
        write_table(L, index, out, depth);
        break;
    default:
        luaL_error(L, "the state holds a %s; it must be plain data", luaL_typename(L, index));
    }
}

void value_write(lua_State *L, int index, struct buf *out)
{
    size_t before = out->len;
    write(L, index, out, 0);
    if (out->len - before > VALUE_BYTES)
        luaL_error(L, "the state is larger than %d KiB", VALUE_BYTES >> 10);
}
