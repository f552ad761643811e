#include "lua/module/read.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/nearest.h"

enum { MAX_FIELDS = 40, MAX_LEVELS = 40, LONGEST = 600 };

static void unknown_name(lua_State *L, const char *name, const char *names)
{
    char words[LONGEST];
    const char *list[MAX_FIELDS];
    int n = 0;
    snprintf(words, sizeof words, "%s", names);
    for (char *save = NULL, *w = strtok_r(words, " ", &save); w && n < MAX_FIELDS; w = strtok_r(NULL, " ", &save))
        list[n++] = w;
    const char *near = nearest_word(name, list, n);
    if (near)
        luaL_error(L, "unknown field '%s'; did you mean '%s'?", name, near);
    luaL_error(L, "unknown field '%s'; there are:%s", name, names);
}

void read_names(lua_State *L, int table, const char *names)
{
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        char name[64], padded[70];
        snprintf(name, sizeof name, "%s", lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(not a name)");
        snprintf(padded, sizeof padded, " %s ", name);
        if (strchr(name, ' ') || !strstr(names, padded))
            unknown_name(L, name, names);
    }
}

/* What lies on top of the stack. The limits are shown as whole as they are: %f of Lua's own has no precision. */
static double checked(lua_State *L, const char *what, double low, double high)
{
    char text[160];
    double v = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : NAN;
    if (!(v >= low && v <= high)) {
        snprintf(text, sizeof text, "%.40s must be a number from %.12g to %.12g", what, low, high);
        luaL_error(L, "%s, not %s", text, lua_type(L, -1) == LUA_TNUMBER ? lua_tostring(L, -1) : luaL_typename(L, -1));
    }
    return v;
}

static int64_t checked_whole(lua_State *L, const char *what, int64_t low, int64_t high)
{
    double v = checked(L, what, (double)low, (double)high);
    if (v != floor(v))
        luaL_error(L, "%s must be a whole number, not %s", what, lua_tostring(L, -1));
    return (int64_t)v;
}

double read_number(lua_State *L, int table, const char *field, double otherwise, double low, double high)
{
    lua_getfield(L, table, field);
    double v = lua_isnil(L, -1) ? otherwise : checked(L, field, low, high);
    lua_pop(L, 1);
    return v;
}

int64_t read_whole(lua_State *L, int table, const char *field, int64_t otherwise, int64_t low, int64_t high)
{
    lua_getfield(L, table, field);
    int64_t v = lua_isnil(L, -1) ? otherwise : checked_whole(L, field, low, high);
    lua_pop(L, 1);
    return v;
}

bool read_flag(lua_State *L, int table, const char *field, bool otherwise)
{
    lua_getfield(L, table, field);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TBOOLEAN)
        luaL_error(L, "%s must be true or false, not a %s", field, luaL_typename(L, -1));
    bool v = lua_isnil(L, -1) ? otherwise : lua_toboolean(L, -1);
    lua_pop(L, 1);
    return v;
}

void read_text(lua_State *L, int table, const char *field, char *out, size_t cap)
{
    lua_getfield(L, table, field);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "%s must be a text, not a %s", field, luaL_typename(L, -1));
    const char *s = lua_isnil(L, -1) ? "" : lua_tostring(L, -1);
    if (strlen(s) >= cap)
        luaL_error(L, "%s is too long: at most %d bytes", field, (int)cap - 1);
    snprintf(out, cap, "%s", s);
    lua_pop(L, 1);
}

int64_t read_whole_argument(lua_State *L, int arg, const char *what, int64_t low, int64_t high)
{
    lua_settop(L, arg);
    return checked_whole(L, what, low, high);
}

double read_number_argument(lua_State *L, int arg, const char *what, double low, double high)
{
    lua_settop(L, arg);
    return checked(L, what, low, high);
}

void read_find_file(lua_State *L, char *path, size_t cap)
{
    static const char *const above[] = {"", "../"};
    char tried[1024];
    lua_Debug ar;
    if (path[0] == '/' || access(path, R_OK) == 0)
        return;
    for (int level = 1; level < MAX_LEVELS && lua_getstack(L, level, &ar); level++) {
        lua_getinfo(L, "S", &ar);
        const char *file = ar.source[0] == '@' ? ar.source + 1 : NULL, *slash = file ? strrchr(file, '/') : NULL;
        for (int i = 0; i < 2 && file; i++) {
            int n =
                snprintf(tried, sizeof tried, "%.*s%s%s", slash ? (int)(slash - file) + 1 : 0, file, above[i], path);
            if (n < (int)sizeof tried && (size_t)n < cap && access(tried, R_OK) == 0) {
                memcpy(path, tried, (size_t)n + 1);
                return;
            }
        }
    }
}
