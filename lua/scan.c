#include "lua/scan.h"

#include <lauxlib.h>
#include <luajit.h>
#include <lualib.h>
#include <stdio.h>
#include <string.h>

#include "lua/sandbox.h"
#include "lua/vm.h"

/* Walks the prototypes of a compiled chunk. It asks the compiler itself how it encodes a global, so no opcode
 * is written down here. Returns a flat list: line, kind, name, field or false, ... */
static const char walker[] =
    "local util, band, rshift, compile, chunk = ...\n"
    "local function op(code, pc) return band(util.funcbc(compile(code), pc), 255) end\n"
    "local GGET, GSET, TGETS, KCDATA = op('return x', 1), op('x = 1', 2), op('return x.y', 2), op('return "
    "1LL', 1)\n"
    "local found, n = {}, 0\n"
    "local function add(line, kind, name, field)\n"
    "  found[n + 1], found[n + 2], found[n + 3], found[n + 4] = line, kind, name, field\n"
    "  n = n + 4\n"
    "end\n"
    "local function walk(proto)\n"
    "  local info = util.funcinfo(proto)\n"
    "  local name, register\n"
    "  for pc = 1, info.bytecodes - 1 do\n"
    "    local ins = util.funcbc(proto, pc)\n"
    "    local o = band(ins, 255)\n"
    "    local line = util.funcinfo(proto, pc).currentline\n"
    "    if o == TGETS and name and rshift(ins, 24) == register then\n"
    "      add(line, 'field', name, util.funck(proto, -band(rshift(ins, 16), 255) - 1))\n"
    "    end\n"
    "    name = nil\n"
    "    if o == KCDATA then add(line, 'cdata', '', false) end\n"
    "    if o == GGET or o == GSET then\n"
    "      local k = util.funck(proto, -rshift(ins, 16) - 1)\n"
    "      add(line, o == GGET and 'get' or 'set', k, false)\n"
    "      if o == GGET then name, register = k, band(rshift(ins, 8), 255) end\n"
    "    end\n"
    "  end\n"
    "  for i = 1, info.gcconsts do\n"
    "    local k = util.funck(proto, -i)\n"
    "    if type(k) == 'proto' then walk(k)\n"
    "    elseif type(k) == 'cdata' then add(info.lastlinedefined, 'cdata', '', false) end\n"
    "  end\n"
    "end\n"
    "walk(chunk)\n"
    "return found\n";

struct scan {
    const char *source, *chunkname;
    size_t n;
    char file[NAME_BYTES + 8];
    int line; /* of the first thing found wrong; 0: nothing */
    struct err worst;
};

static void push_util(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_getfield(L, -1, "jit.util");
    lua_remove(L, -2);
    lua_pushliteral(L, "jit.util");
    lua_call(L, 1, 1);
}

static void judge_get(struct scan *s, const char *name, int line)
{
    const char *why = sandbox_why_absent(name), *near = sandbox_nearest(name);
    if (why)
        err_set(&s->worst, E_INPUT, "%s:%d: '%s' is not offered: %s", s->file, line, name, why);
    else if (near)
        err_set(&s->worst, E_INPUT, "%s:%d: unknown global '%s'; did you mean '%s'?", s->file, line, name, near);
    else
        err_set(&s->worst, E_INPUT, "%s:%d: unknown global '%s'; is it a local that is not declared?", s->file, line,
                name);
}

/* Keeps the wrong thing with the smallest line. */
static void judge(struct scan *s, int line, const char *kind, const char *name, const char *field)
{
    bool get = strcmp(kind, "get") == 0, is_field = strcmp(kind, "field") == 0;
    if (get && sandbox_allows(name))
        return;
    if (is_field && (!sandbox_is_library(name) || sandbox_allows_field(name, field)))
        return;
    if (s->line && s->line <= line)
        return;
    s->line = line > 0 ? line : 1;
    if (get)
        judge_get(s, name, line);
    else if (is_field)
        err_set(&s->worst, E_INPUT, "%s:%d: '%s.%s' is not offered%s", s->file, line, name, field,
                strcmp(name, "math") == 0 && strncmp(field, "random", 6) == 0 ? ": use rng(seed)" : "");
    else if (strcmp(kind, "set") == 0)
        err_set(&s->worst, E_INPUT, "%s:%d: assignment to the global '%s'; declare it local", s->file, line, name);
    else
        err_set(&s->worst, E_INPUT, "%s:%d: a 64-bit or imaginary constant (1LL, 2ULL, 3i); use plain numbers", s->file,
                s->line);
}

static void read_findings(lua_State *L, struct scan *s)
{
    for (int i = 1;; i += 4) {
        lua_settop(L, 1);
        for (int k = 0; k < 4; k++)
            lua_rawgeti(L, 1, i + k);
        if (lua_isnil(L, 2))
            return;
        char name[80], field[80] = "";
        vm_escape(name, sizeof name, lua_tostring(L, 4), lua_objlen(L, 4));
        if (lua_type(L, 5) == LUA_TSTRING)
            vm_escape(field, sizeof field, lua_tostring(L, 5), lua_objlen(L, 5));
        judge(s, (int)lua_tonumber(L, 2), lua_tostring(L, 3), name, field);
    }
}

static void body(lua_State *L, void *arg)
{
    struct scan *s = arg;
    static const lua_CFunction libraries[] = {luaopen_base, luaopen_bit, luaopen_jit};
    for (int i = 0; i < 3; i++) {
        lua_pushcfunction(L, libraries[i]);
        lua_pushstring(L, i == 2 ? LUA_JITLIBNAME : i == 1 ? LUA_BITLIBNAME : "");
        lua_call(L, 1, 0);
    }
    luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF); /* opening jit turned it on */
    lua_settop(L, 0);
    if (luaL_loadbuffer(L, walker, sizeof walker - 1, "=walker"))
        lua_error(L);
    push_util(L);
    lua_getglobal(L, "bit");
    lua_getfield(L, -1, "band");
    lua_getfield(L, -2, "rshift");
    lua_remove(L, -3);
    lua_getglobal(L, "loadstring");
    if (luaL_loadbufferx(L, s->source, s->n, s->chunkname, "t")) {
        const char *why = lua_tostring(L, -1);
        if (why && (strstr(why, "wrong mode") || strstr(why, "malformed bytecode")))
            luaL_error(L, "%s:1: this is compiled code, and only source is loaded", s->file);
        lua_error(L);
    }
    lua_call(L, 5, 1);
    read_findings(L, s);
}

int scan_source(const char *name, const char *source, size_t n, struct lua_watchdog *watchdog, struct err *e)
{
    struct scan s = {.source = source, .n = n};
    char chunkname[NAME_BYTES + 16];
    snprintf(s.file, sizeof s.file, "%.50s.lua", name);
    snprintf(chunkname, sizeof chunkname, "@%s", s.file);
    s.chunkname = chunkname;
    struct vm vm;
    TRY(vm_create(&vm, watchdog, (size_t)32 << 20, e));
    enum verdict v = vm_call(&vm, (struct vm_budget){.hard_ns = 500000000}, body, &s, e);
    vm_destroy(&vm);
    if (!verdict_stands(v)) {
        if (e)
            e->code = E_INPUT;
        return E_INPUT;
    }
    return s.line ? err_set(e, E_INPUT, "%s", s.worst.text) : 0;
}
