#include "lua/sandbox.h"

#include <lauxlib.h>
#include <lualib.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/base/nearest.h"

enum {
    MAX_TABLE_MOVE = 1 << 16, /* elements that one table.insert or table.remove may move */
    MAX_SORTED = 4096,        /* keys of one sorted_pairs */
};

static const char *const allowed[] = {
    "assert", "error", "ipairs", "select",       "tonumber", "type",  "tostring", "math",
    "string", "table", "bit",    "sorted_pairs", "rng",      "clamp", "log",      "lib",
};
enum { N_ALLOWED = sizeof allowed / sizeof *allowed };

static const struct {
    const char *name, *why;
} absent[] = {
    {"pairs", "its order differs from run to run; use sorted_pairs"},
    {"next", "its order differs from run to run; use sorted_pairs"},
    {"pcall", "an error drops the step, and the engine's own policy decides it"},
    {"xpcall", "an error drops the step, and the engine's own policy decides it"},
    {"print", "use log"},
    {"os", "a policy has no clock, file or process; the time is view.now"},
    {"io", "a policy has no files"},
    {"require", "name files of lib/ beside the policy in its table, lib = { \"NAME\" }, and use lib.NAME"},
    {"dofile", "name files of lib/ beside the policy in its table, lib = { \"NAME\" }, and use lib.NAME"},
    {"loadfile", "name files of lib/ beside the policy in its table, lib = { \"NAME\" }, and use lib.NAME"},
    {"load", "a policy cannot compile code"},
    {"loadstring", "a policy cannot compile code"},
    {"unpack", "name the elements"},
    {"setmetatable", "metatables are not offered"},
    {"getmetatable", "metatables are not offered"},
    {"coroutine", "coroutines are not offered"},
    {"_G", "globals are not offered; use a local"},
};

bool sandbox_allows(const char *global)
{
    for (int i = 0; i < N_ALLOWED; i++)
        if (strcmp(allowed[i], global) == 0)
            return true;
    return false;
}

/* The libraries and, of each, the fields that come from LuaJIT and those of our own. */
static const struct {
    const char *name, *theirs, *ours;
} libraries[] = {
    {"math", "abs ceil floor max min sqrt exp log fmod huge pi", ""},
    {"string", "byte sub len", "format"},
    {"table", "", "insert remove"},
    {"bit", "tobit tohex bnot band bor bxor lshift rshift arshift rol ror bswap", ""},
};
enum { N_LIBRARIES = sizeof libraries / sizeof *libraries };

static bool listed(const char *list, const char *word)
{
    size_t len = strlen(word);
    for (const char *p = list; *p;) {
        size_t n = strcspn(p, " ");
        if (n == len && memcmp(p, word, n) == 0)
            return true;
        p += n + (p[n] == ' ');
    }
    return false;
}

bool sandbox_allows_field(const char *library, const char *field)
{
    for (int i = 0; i < N_LIBRARIES; i++)
        if (strcmp(libraries[i].name, library) == 0)
            return listed(libraries[i].theirs, field) || listed(libraries[i].ours, field);
    return false;
}

bool sandbox_is_library(const char *global)
{
    for (int i = 0; i < N_LIBRARIES; i++)
        if (strcmp(libraries[i].name, global) == 0)
            return true;
    return false;
}

const char *sandbox_nearest(const char *global)
{
    return nearest_word(global, allowed, N_ALLOWED);
}

const char *sandbox_why_absent(const char *global)
{
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strcmp(absent[i].name, global) == 0)
            return absent[i].why;
    return NULL;
}

/* ---- text */

void sandbox_tostring(lua_State *L, int index)
{
    switch (lua_type(L, index)) {
    case LUA_TNUMBER:
    case LUA_TSTRING:
        lua_pushvalue(L, index);
        lua_tostring(L, -1);
        break;
    case LUA_TBOOLEAN:
        lua_pushstring(L, lua_toboolean(L, index) ? "true" : "false");
        break;
    default:
        lua_pushstring(L, luaL_typename(L, index));
    }
}

static int l_tostring(lua_State *L)
{
    luaL_checkany(L, 1);
    sandbox_tostring(L, 1);
    return 1;
}

/* ---- tables: bounded, since no instruction runs while C moves elements */

static int table_size(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    size_t n = lua_objlen(L, 1);
    if (n > (1 << 30))
        luaL_error(L, "the table is too long");
    return (int)n;
}

static int position(lua_State *L, int arg, int n, const char *verb)
{
    double pos = luaL_checknumber(L, arg);
    if (!(pos >= 1 && pos <= n) || pos != floor(pos))
        luaL_error(L, "table.%s: position %f is not in 1..%d", verb, pos, n);
    if (n - pos > MAX_TABLE_MOVE)
        luaL_error(L, "table.%s: more than %d elements would move", verb, MAX_TABLE_MOVE);
    return (int)pos;
}

static int l_insert(lua_State *L)
{
    int n = table_size(L), at = n + 1, value = 2;
    if (lua_gettop(L) > 2) {
        at = position(L, 2, n + 1, "insert");
        value = 3;
    }
    luaL_checkany(L, value);
    for (int i = n; i >= at; i--) {
        lua_rawgeti(L, 1, i);
        lua_rawseti(L, 1, i + 1);
    }
    lua_pushvalue(L, value);
    lua_rawseti(L, 1, at);
    return 0;
}

static int l_remove(lua_State *L)
{
    int n = table_size(L);
    if (n == 0)
        return 0;
    int at = lua_isnoneornil(L, 2) ? n : position(L, 2, n, "remove");
    lua_rawgeti(L, 1, at);
    for (int i = at; i < n; i++) {
        lua_rawgeti(L, 1, i + 1);
        lua_rawseti(L, 1, i);
    }
    lua_pushnil(L);
    lua_rawseti(L, 1, n);
    return 1;
}

/* ---- sorted_pairs: keys in one order on every machine: numbers, then strings by their bytes */

struct sort_key {
    const char *text; /* NULL: a number */
    size_t n;
    double number;
};

static int compare_keys(const void *pa, const void *pb)
{
    const struct sort_key *a = pa, *b = pb;
    if (!a->text || !b->text)
        return a->text ? 1 : b->text ? -1 : (a->number > b->number) - (a->number < b->number);
    int c = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n);
    return c ? c : (a->n > b->n) - (a->n < b->n);
}

/* The strings stay alive: they are keys of the table at `index`, which lies on the stack. */
static int collect_keys(lua_State *L, int index, struct sort_key *keys)
{
    int n = 0;
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        int type = lua_type(L, -2);
        if (type != LUA_TNUMBER && type != LUA_TSTRING)
            luaL_error(L, "a key of the table is a %s; keys must be numbers or texts", lua_typename(L, type));
        if (keys && type == LUA_TSTRING)
            keys[n].text = lua_tolstring(L, -2, &keys[n].n);
        else if (keys)
            keys[n] = (struct sort_key){.number = lua_tonumber(L, -2)};
        if (++n > MAX_SORTED)
            luaL_error(L, "the table has more than %d keys", MAX_SORTED);
    }
    return n;
}

int sandbox_sorted_keys(lua_State *L, int index)
{
    luaL_checkstack(L, 6, NULL);
    int n = collect_keys(L, index, NULL);
    struct sort_key *keys = lua_newuserdata(L, (size_t)(n ? n : 1) * sizeof *keys);
    collect_keys(L, index, keys);
    qsort(keys, (size_t)n, sizeof *keys, compare_keys);
    lua_createtable(L, n, 0);
    for (int i = 0; i < n; i++) {
        if (keys[i].text)
            lua_pushlstring(L, keys[i].text, keys[i].n);
        else
            lua_pushnumber(L, keys[i].number);
        lua_rawseti(L, -2, i + 1);
    }
    lua_remove(L, -2);
    return n;
}

/* Upvalues: the table, its sorted keys, how many were visited. Keys that were removed since are left out.
 */
static int next_sorted(lua_State *L)
{
    int i = (int)lua_tonumber(L, lua_upvalueindex(3));
    for (;;) {
        lua_rawgeti(L, lua_upvalueindex(2), ++i);
        if (lua_isnil(L, -1))
            return 1;
        lua_pushvalue(L, -1);
        lua_rawget(L, lua_upvalueindex(1));
        if (!lua_isnil(L, -1))
            break;
        lua_pop(L, 2);
    }
    lua_pushnumber(L, i);
    lua_replace(L, lua_upvalueindex(3));
    return 2;
}

static int l_sorted_pairs(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    sandbox_sorted_keys(L, 1);
    lua_pushnumber(L, 0);
    lua_pushcclosure(L, next_sorted, 3);
    return 1;
}

/* ---- rng and clamp */

static int draw(lua_State *L)
{
    struct rng *r = lua_touserdata(L, lua_upvalueindex(1));
    if (lua_isnoneornil(L, 1)) {
        lua_pushnumber(L, rng_unit(r));
        return 1;
    }
    double n = luaL_checknumber(L, 1);
    if (!(n >= 1 && n <= 9007199254740992.0))
        luaL_error(L, "rng: %f is not in 1..2^53", n);
    lua_pushnumber(L, (double)(1 + rng_below(r, (uint64_t)n)));
    return 1;
}

/* rng(seed): a function that draws from [0, 1), or from 1..n when called with n; the same numbers for the
 * same seed, everywhere. */
static int l_rng(lua_State *L)
{
    double seed = luaL_checknumber(L, 1);
    if (!(fabs(seed) <= 9007199254740992.0))
        luaL_error(L, "rng: the seed must be a finite number up to 2^53");
    rng_init(lua_newuserdata(L, sizeof(struct rng)), (uint64_t)(int64_t)seed);
    lua_pushcclosure(L, draw, 1);
    return 1;
}

static int l_clamp(lua_State *L)
{
    double x = luaL_checknumber(L, 1), low = luaL_checknumber(L, 2), high = luaL_checknumber(L, 3);
    lua_pushnumber(L, x < low ? low : x > high ? high : x);
    return 1;
}

/* ---- the table of globals */

static void open_library(lua_State *L, lua_CFunction open, const char *name)
{
    lua_pushcfunction(L, open);
    lua_pushstring(L, name);
    lua_call(L, 1, 0);
}

/* Copies fields named in a space-separated list from the table on top into a new table, which is set in the
 * table `into` under name ("" sets each field in `into` itself). Pops the source. */
static void take(lua_State *L, int into, const char *name, const char *fields)
{
    int source = lua_gettop(L), target = into;
    if (*name) {
        lua_newtable(L);
        target = source + 1;
    }
    while (*fields) {
        size_t n = strcspn(fields, " ");
        lua_pushlstring(L, fields, n);
        lua_pushvalue(L, -1);
        lua_rawget(L, source);
        lua_rawset(L, target);
        fields += n + (fields[n] == ' ');
    }
    if (*name)
        lua_setfield(L, into, name);
    lua_settop(L, source - 1);
}

static void add_functions(lua_State *L, int globals, const char *table, const luaL_Reg *functions)
{
    if (*table)
        lua_getfield(L, globals, table);
    else
        lua_pushvalue(L, globals);
    for (; functions->name; functions++) {
        lua_pushcfunction(L, functions->func);
        lua_setfield(L, -2, functions->name);
    }
    lua_pop(L, 1);
}

static void set_string_metatable(lua_State *L, int globals)
{
    lua_pushliteral(L, "");
    lua_newtable(L);
    lua_getfield(L, globals, "string");
    lua_setfield(L, -2, "__index");
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
}

void sandbox_open(lua_State *L)
{
    static const luaL_Reg base[] = {
        {"tostring", l_tostring}, {"sorted_pairs", l_sorted_pairs}, {"rng", l_rng}, {"clamp", l_clamp}, {NULL, NULL}};
    static const luaL_Reg table[] = {{"insert", l_insert}, {"remove", l_remove}, {NULL, NULL}};
    static const luaL_Reg string[] = {{"format", sandbox_format}, {NULL, NULL}};
    open_library(L, luaopen_base, "");
    open_library(L, luaopen_math, LUA_MATHLIBNAME);
    open_library(L, luaopen_string, LUA_STRLIBNAME);
    open_library(L, luaopen_bit, LUA_BITLIBNAME);
    lua_newtable(L);
    int globals = lua_gettop(L);
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    take(L, globals, "", "assert error ipairs select tonumber type");
    for (int i = 0; i < N_LIBRARIES; i++) {
        if (*libraries[i].theirs)
            lua_getglobal(L, libraries[i].name);
        else
            lua_newtable(L);
        take(L, globals, libraries[i].name, libraries[i].theirs);
    }
    add_functions(L, globals, "", base);
    add_functions(L, globals, "table", table);
    add_functions(L, globals, "string", string);
    set_string_metatable(L, globals);
    lua_replace(L, LUA_GLOBALSINDEX);
    /* The last ways back to what was left out. */
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
}

void sandbox_add(lua_State *L, const char *name)
{
    lua_setfield(L, LUA_GLOBALSINDEX, name);
}
