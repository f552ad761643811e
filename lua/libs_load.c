#include <lauxlib.h>
#include <stdio.h>
#include <string.h>

#include "lua/sandbox.h"
#include "lua/script.h"
#include "lua/strict.h"

void libs_open(lua_State *L, struct script *s)
{
    lua_createtable(L, 0, POLICY_LIBS);
    strict_guard(L, "lib, which is filled when the whole file has run,");
    lua_pushvalue(L, -1);
    s->lib_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    sandbox_add(L, "lib");
}

/* One loading: which libraries run now (each names the next) and which have run. */
struct loading {
    struct script *script;
    struct libs *libs;
    enum { LIB_NEW, LIB_OPEN, LIB_DONE } states[POLICY_LIBS];
    int stack[POLICY_LIBS], depth;
};

struct running {
    struct script *script;
    const struct lib *lib;
    struct lib_names names;
};

/* Runs a library's file: what it returns becomes lib.NAME. */
static void body(lua_State *L, void *arg)
{
    struct running *r = arg;
    char chunkname[NAME_BYTES + 16];
    snprintf(chunkname, sizeof chunkname, "@lib/%s.lua", r->lib->name);
    if (luaL_loadbufferx(L, r->lib->source.data ? r->lib->source.data : "", r->lib->source.len, chunkname, "t"))
        lua_error(L);
    lua_call(L, 0, 1);
    if (lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "lib/%s.lua:1: a library returns a table, not a %s", r->lib->name, luaL_typename(L, -1));
    int table = lua_gettop(L);
    libs_declared(L, table, &r->names);
    vm_host_enter(&r->script->vm);
    lua_rawgeti(L, LUA_REGISTRYINDEX, r->script->lib_ref);
    lua_pushvalue(L, table);
    lua_setfield(L, -2, r->lib->name);
    vm_host_leave(&r->script->vm);
}

static int load(struct loading *l, const struct lib_user *by, const char *name, struct err *e);

static int load_all(struct loading *l, const struct lib_user *by, const struct lib_names *names, struct err *e)
{
    for (int i = 0; i < names->n; i++)
        TRY(load(l, by, names->items[i], e));
    return 0;
}

static int circle(const struct loading *l, const struct lib_user *by, int place, struct err *e)
{
    struct buf path = {0};
    int from = 0;
    while (l->stack[from] != place)
        from++;
    for (int i = from; i < l->depth; i++)
        buf_printf(&path, "%s, ", l->libs->items[l->stack[i]].name);
    const char *name = l->libs->items[place].name;
    int rc = err_set(e, E_INPUT, "%s:%d: libraries name each other in a circle: %s%s", by->file,
                     libs_line(by->source, by->n, name), path.data ? path.data : "", name);
    buf_free(&path);
    return rc;
}

static int load(struct loading *l, const struct lib_user *by, const char *name, struct err *e)
{
    int place;
    TRY(libs_find(l->libs, by, name, &place, e));
    if (l->states[place] == LIB_OPEN)
        return circle(l, by, place, e);
    if (l->states[place] == LIB_DONE)
        return 0;
    struct script *s = l->script;
    const struct lib *lib = &l->libs->items[place];
    struct running r = {.script = s, .lib = lib};
    char file[NAME_BYTES + 16];
    snprintf(file, sizeof file, "lib/%s.lua", lib->name);
    if (!verdict_stands(vm_call(&s->vm, script_generous(s), body, &r, e))) {
        if (e && !strstr(e->text, ".lua:"))
            err_prefix(e, E_POLICY, "%s:1", file);
        return E_POLICY;
    }
    l->states[place] = LIB_OPEN;
    l->stack[l->depth++] = place;
    TRY(load_all(l, &(struct lib_user){file, lib->source.data ? lib->source.data : "", lib->source.len}, &r.names, e));
    l->depth--;
    l->states[place] = LIB_DONE;
    return 0;
}

int libs_load(struct script *s, const char *source, size_t n, struct err *e)
{
    struct libs none = {.n_policy = n};
    struct loading l = {.script = s, .libs = s->opts.libs ? s->opts.libs : &none};
    char file[NAME_BYTES + 8];
    snprintf(file, sizeof file, "%s.lua", s->name);
    int rc = load_all(&l, &(struct lib_user){file, source, n}, &s->libs, e);
    libs_free(&none);
    return rc;
}
