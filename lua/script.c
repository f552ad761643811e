#include "lua/script.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "lua/follow.h"
#include "lua/sandbox.h"
#include "lua/value.h"
#include "lua/verbs.h"

/* ---- limits */

int script_opts(struct lua_opts *out, const struct lua_opts *in, struct err *e)
{
    *out = *in;
    if (!out->heap_bytes)
        out->heap_bytes = VM_HEAP_BYTES;
    if (!out->bytecodes)
        out->bytecodes = 20000;
    if (!out->bytecodes_request)
        out->bytecodes_request = 40;
    if (!out->soft_ns)
        out->soft_ns = 250000;
    if (!out->soft_request_ns)
        out->soft_request_ns = 500;
    if (!out->hard_ns)
        out->hard_ns = 2000000;
    if (out->heap_bytes < 64 << 10 || out->heap_bytes > VM_HEAP_BYTES_MAX)
        return err_set(e, E_INPUT, "the heap of a policy must be 64 KiB to 4 MiB");
    if (out->bytecodes < 0 || out->bytecodes_request < 0 || out->soft_ns < 0 || out->soft_request_ns < 0 ||
        out->hard_ns < 100000 || out->hard_ns > 10000000000)
        return err_set(e, E_INPUT, "the time of a policy call must be 0.1 ms to 10 s");
    return 0;
}

static struct vm_budget budget(const struct script *s, int n_requests)
{
    return (struct vm_budget){.soft = {.bytecodes = s->opts.bytecodes + s->opts.bytecodes_request * n_requests,
                                       .cpu_ns = s->opts.soft_ns + s->opts.soft_request_ns * n_requests},
                              .hard_ns = s->opts.hard_ns};
}

struct vm_budget script_generous(const struct script *s)
{
    return (struct vm_budget){.hard_ns = (s->opts.hard_ns < 10000000 ? 10000000 : s->opts.hard_ns) *
                                         (s->opts.relaxed ? 20 : 1)};
}

/* ---- loading */

static const char *const fields[] = {"api",    "doc",    "params", "needs", "start", "step", "admit",
                                     "finish", "export", "import", "tests", "fits",  "lib"};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static const char *const hook_fields[HOOK_COUNT] = {"start", "admit", "step", "finish", "export", "import"};

struct loading {
    struct script *script;
    const char *source;
    size_t n;
};

static void check_fields(lua_State *L, int table)
{
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            luaL_error(L, "the policy's table has a field that has no name");
        char field[80];
        bool known = false;
        vm_escape(field, sizeof field, lua_tostring(L, -2), lua_objlen(L, -2));
        for (int i = 0; i < N_FIELDS; i++)
            known |= strcmp(fields[i], field) == 0;
        if (known)
            continue;
        const char *near = nearest_word(field, fields, N_FIELDS);
        luaL_error(L, "unknown field '%s'%s%s%s", field, near ? "; did you mean '" : "", near ? near : "",
                   near ? "'?" : "");
    }
}

static void read_api(lua_State *L, int table)
{
    lua_getfield(L, table, "api");
    if (lua_type(L, -1) != LUA_TNUMBER)
        luaL_error(L, "api is missing: write api = %d", SCRIPT_API);
    if (lua_tonumber(L, -1) != SCRIPT_API)
        luaL_error(L, "api %f is not offered; this build has api %d", lua_tonumber(L, -1), SCRIPT_API);
    lua_pop(L, 1);
}

static void read_doc(lua_State *L, int table, struct script *s)
{
    lua_getfield(L, table, "doc");
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "doc must be a text, not a %s: say in one line what the policy does", luaL_typename(L, -1));
    if (!lua_isnil(L, -1))
        vm_escape(s->doc, sizeof s->doc, lua_tostring(L, -1), lua_objlen(L, -1));
    lua_pop(L, 1);
}

static void read_hooks(lua_State *L, int table, struct script *s)
{
    for (int h = 0; h < HOOK_COUNT; h++) {
        lua_getfield(L, table, hook_fields[h]);
        if (lua_isnil(L, -1)) {
            lua_pop(L, 1);
            continue;
        }
        if (lua_type(L, -1) != LUA_TFUNCTION)
            luaL_error(L, "%s must be a function, not a %s", hook_fields[h], luaL_typename(L, -1));
        s->hooks[h] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
    if (s->hooks[HOOK_STEP] == LUA_NOREF)
        luaL_error(L, "step is missing: step = function(view, act, p) ... end");
}

static void read_fits(lua_State *L, int table, struct script *s)
{
    lua_getfield(L, table, "fits");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    if (lua_type(L, -1) != LUA_TFUNCTION)
        luaL_error(L, "fits must be a function, not a %s", luaL_typename(L, -1));
    s->fits_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

static void read_tests(lua_State *L, int table, struct script *s)
{
    lua_getfield(L, table, "tests");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    if (lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "tests must be a table of functions by name");
    for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TFUNCTION)
            luaL_error(L, "tests must be a table of functions by name");
        s->n_tests++;
    }
    s->tests_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}

static void open_sandbox(lua_State *L, void *arg)
{
    (void)arg;
    sandbox_open(L);
    libs_open(L, script_of(L));
    lua_settop(L, 0);
    vm_set_floor(vm_of(L));
}

/* The chunk runs under the policy's own cap; what it returns is then read by the host. */
static void run_chunk(lua_State *L, void *arg)
{
    struct loading *l = arg;
    struct script *s = l->script;
    char chunkname[NAME_BYTES + 8];
    snprintf(chunkname, sizeof chunkname, "@%s.lua", s->name);
    if (luaL_loadbufferx(L, l->source, l->n, chunkname, "t"))
        lua_error(L);
    lua_call(L, 0, 1);
    if (lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "a policy returns its table, not a %s", luaL_typename(L, -1));
    int table = lua_gettop(L);
    check_fields(L, table);
    read_api(L, table);
    read_doc(L, table, s);
    lua_getfield(L, table, "params");
    params_declare(&s->params, L, table + 1);
    lua_settop(L, table);
    read_hooks(L, table, s);
    read_fits(L, table, s);
    read_tests(L, table, s);
    libs_declared(L, table, &s->libs);
    /* The host's own tables do not count against the policy. */
    struct vm *vm = &s->vm;
    vm_host_enter(vm);
    size_t before = vm->used;
    lua_getfield(L, table, "needs");
    bind_create(&s->bind, L, s, table + 1);
    verbs_create(&s->bind, L);
    vm->floor += vm->used - before;
    vm_host_leave(vm);
}

int script_name(char out[NAME_BYTES], const char *name, struct err *e)
{
    size_t n = strlen(name);
    if (n > 4 && strcmp(name + n - 4, ".lua") == 0)
        n -= 4;
    bool good = n >= 1 && n <= 40 && name[0] != '.';
    for (size_t i = 0; i < n && good; i++)
        good = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
               (name[i] >= '0' && name[i] <= '9') || strchr("_-.", name[i]);
    if (!good)
        return err_set(e, E_INPUT,
                       "a policy's name has 1 to 40 letters, digits, '_', '-' and '.', and does not begin with '.'");
    memcpy(out, name, n);
    out[n] = 0;
    return 0;
}

/* Every message begins with the file. */
static int failed(const struct script *s, struct err *e)
{
    char file[NAME_BYTES + 8];
    snprintf(file, sizeof file, "%s.lua", s->name);
    if (e && strncmp(e->text, file, strlen(file)) != 0)
        err_prefix(e, E_POLICY, "%s", file);
    return E_POLICY;
}

int script_open(struct script **out, const char *name, const char *source, size_t n, const struct lua_opts *o,
                struct err *e)
{
    struct script *s = mem_new(sizeof *s);
    s->opts = *o;
    s->tests_ref = s->fits_ref = LUA_NOREF;
    for (int h = 0; h < HOOK_COUNT; h++)
        s->hooks[h] = LUA_NOREF;
    int rc = script_name(s->name, name, e);
    if (!rc)
        rc = vm_create(&s->vm, o->watchdog, o->heap_bytes, e);
    if (rc) {
        mem_free(s);
        return rc;
    }
    s->vm.owner = s;
    struct loading l = {.script = s, .source = source, .n = n};
    if (!verdict_stands(vm_call(&s->vm, script_generous(s), open_sandbox, NULL, e)) ||
        !verdict_stands(vm_call(&s->vm, script_generous(s), run_chunk, &l, e)) || libs_load(s, source, n, e)) {
        rc = failed(s, e);
        script_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void script_close(struct script *s)
{
    if (!s)
        return;
    vm_destroy(&s->vm);
    bind_free(&s->bind);
    params_free(&s->params);
    mem_free(s);
}

/* ---- hooks */

struct call {
    struct script *script;
    const struct view *view;
    const struct node_facts *node;
    const struct request *request;
    enum ending how;
    struct admission *admission;
    struct buf *out;
    const struct json *state;
    struct err *e;
    bool malformed; /* the call returned, and what came back or what it left behind will not do: e says what */
};

static bool has(const struct script *s, enum policy_hook h)
{
    return s->hooks[h] != LUA_NOREF;
}

static enum verdict run(struct script *s, enum policy_hook h, struct vm_budget b, vm_body body, struct call *c,
                        struct err *e)
{
    struct bind *bind = &s->bind;
    struct err mine = {0};
    c->script = s;
    c->e = e ? e : &mine;
    s->n_calls++;
    bind->hook = h;
    bind->facts = c->view;
    bind->subject = c->request;
    bind->admission = c->admission;
    enum verdict v = vm_call(&s->vm, b, body, c, c->e);
    bind->hook = HOOK_COUNT;
    bind->facts = NULL;
    bind->subject = NULL;
    bind->admission = NULL;
    bind->plan = NULL;
    return verdict_stands(v) && c->malformed ? VERDICT_MALFORMED : v;
}

static void malformed(struct call *c, const char *why)
{
    c->malformed = true;
    err_set(c->e, E_POLICY, "%s.lua: %s", c->script->name, why);
}

static void note_place(struct script *s, lua_State *L, lua_Debug *ar)
{
    lua_getinfo(L, "S", ar);
    snprintf(s->spied_at, sizeof s->spied_at, "%s:%d", ar->short_src, ar->currentline);
}

/* Before each line of the call that is followed. */
static void on_line(lua_State *L, lua_Debug *ar)
{
    struct script *s = script_of(L);
    if (bind_untouched(&s->bind, L))
        note_place(s, L, ar);
    else
        lua_sethook(L, NULL, 0, 0);
}

static void begin(lua_State *L, struct call *c, enum policy_hook h, enum freshness how)
{
    struct script *s = c->script;
    struct bind *b = &s->bind;
    if (!bind_sync(b, L, c->view, how)) {
        malformed(c, script_writes);
        s->written_by = s->n_calls - 1;
    }
    if (s->n_calls == s->spied_call)
        lua_sethook(L, on_line, LUA_MASKLINE, 0); /* it has no watchdog: the call is known to end */
    bind_push(b, L, c->script->hooks[h]);
}

struct fitting {
    struct script *script;
    const struct node_facts *node;
    bool fits;
    char why[300];
};

static void body_fits(lua_State *L, void *arg)
{
    struct fitting *f = arg;
    struct bind *b = &f->script->bind;
    bind_push(b, L, f->script->fits_ref);
    vm_host_enter(vm_of(L));
    bind_push_node(L, f->node);
    vm_host_leave(vm_of(L));
    bind_push(b, L, b->params_ref);
    lua_call(L, 2, 2);
    f->fits = lua_toboolean(L, -2);
    if (!f->fits && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "fits returned neither true nor a reason: return true, or false and a text");
    if (!f->fits)
        vm_escape(f->why, sizeof f->why, lua_tostring(L, -1), lua_objlen(L, -1));
}

int script_fits(struct script *s, const struct node_facts *node, struct err *e)
{
    struct fitting f = {.script = s, .node = node, .fits = true};
    if (s->fits_ref != LUA_NOREF && !verdict_stands(vm_call(&s->vm, script_generous(s), body_fits, &f, e)))
        return E_POLICY;
    return f.fits ? 0 : err_set(e, E_INPUT, "%s.lua: %s", s->name, f.why);
}

static void body_start(lua_State *L, void *arg)
{
    struct call *c = arg;
    struct bind *b = &c->script->bind;
    begin(L, c, HOOK_START, FRESH_GROUPS);
    if (c->malformed)
        return;
    vm_host_enter(vm_of(L));
    bind_push_node(L, c->node);
    vm_host_leave(vm_of(L));
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    bind_push(b, L, b->view_ref);
    lua_call(L, 4, 0);
}

enum verdict script_start(struct script *s, const struct node_facts *node, const struct view *v, struct plan *p,
                          struct err *e)
{
    struct call c = {.node = node, .view = v};
    s->bind.comms = node->comms;
    if (script_fits(s, node, e))
        return VERDICT_ERROR;
    s->node = *node;
    s->started = true;
    bind_forget_admitted(&s->bind); /* while another policy was live, the keys were its own */
    if (!has(s, HOOK_START))
        return VERDICT_OK;
    s->bind.plan = p;
    return run(s, HOOK_START, script_generous(s), body_start, &c, e);
}

static void body_step(lua_State *L, void *arg)
{
    struct call *c = arg;
    struct bind *b = &c->script->bind;
    begin(L, c, HOOK_STEP, FRESH_ALL);
    if (c->script->follow)
        follow_view(c->script->follow, L, c->view);
    if (c->malformed)
        return;
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 3, 0);
}

enum verdict script_step(struct script *s, const struct view *v, struct plan *p, struct err *e)
{
    struct call c = {.view = v};
    s->bind.plan = p;
    return run(s, HOOK_STEP, budget(s, v->world->waiting.n + v->world->running.n), body_step, &c, e);
}

static void read_key(lua_State *L, struct call *c)
{
    if (lua_isnil(L, -1) || c->admission->refused)
        return;
    if (lua_type(L, -1) != LUA_TNUMBER) {
        char text[100];
        snprintf(text, sizeof text, "admit returned a %s; a sort key is a number", luaL_typename(L, -1));
        malformed(c, text);
    } else if (!isfinite(lua_tonumber(L, -1)))
        malformed(c, "admit returned a sort key that is not finite");
    else
        c->admission->key = lua_tonumber(L, -1);
}

static void body_admit(lua_State *L, void *arg)
{
    struct call *c = arg;
    struct bind *b = &c->script->bind;
    begin(L, c, HOOK_ADMIT, FRESH_SCALARS);
    bind_push_request(b, L, c->request, END_NONE);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->act_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 4, 1);
    if (!c->malformed)
        read_key(L, c);
}

enum verdict script_admit(struct script *s, const struct request *r, const struct view *v, struct admission *a,
                          struct err *e)
{
    struct call c = {.view = v, .request = r, .admission = a};
    if (!has(s, HOOK_ADMIT))
        return VERDICT_OK;
    enum verdict verdict = run(s, HOOK_ADMIT, budget(s, 0), body_admit, &c, e);
    if (verdict_stands(verdict))
        bind_note_admitted(&s->bind, r);
    return verdict;
}

static void body_finish(lua_State *L, void *arg)
{
    struct call *c = arg;
    struct bind *b = &c->script->bind;
    begin(L, c, HOOK_FINISH, FRESH_SCALARS);
    bind_push_request(b, L, c->request, c->how);
    bind_push(b, L, b->view_ref);
    bind_push(b, L, b->params_ref);
    lua_call(L, 3, 0);
}

enum verdict script_finish(struct script *s, const struct request *r, enum ending how, const struct view *v,
                           struct err *e)
{
    struct call c = {.view = v, .request = r, .how = how};
    return has(s, HOOK_FINISH) ? run(s, HOOK_FINISH, budget(s, 0), body_finish, &c, e) : VERDICT_OK;
}

/* ---- state across a swap */

static void body_export(lua_State *L, void *arg)
{
    struct call *c = arg;
    bind_push(&c->script->bind, L, c->script->hooks[HOOK_EXPORT]);
    lua_call(L, 0, 1);
    if (!lua_isnil(L, -1))
        value_write(L, lua_gettop(L), c->out);
}

enum verdict script_export(struct script *s, struct buf *out, struct err *e)
{
    struct call c = {.out = out};
    size_t before = out->len;
    if (!has(s, HOOK_EXPORT))
        return VERDICT_OK;
    enum verdict v = run(s, HOOK_EXPORT, script_generous(s), body_export, &c, e);
    if (!verdict_stands(v))
        out->len = before;
    return v;
}

static void body_import(lua_State *L, void *arg)
{
    struct call *c = arg;
    bind_push(&c->script->bind, L, c->script->hooks[HOOK_IMPORT]);
    value_push(L, c->state);
    lua_call(L, 1, 0);
}

enum verdict script_import(struct script *s, const char *json, size_t n, struct err *e)
{
    struct json_limits limits = {.bytes = 2 * VALUE_BYTES, .depth = VALUE_DEPTH + 2, .nodes = 65536};
    if (!has(s, HOOK_IMPORT))
        return VERDICT_OK;
    struct json *state = json_parse(json, n, &limits, e);
    if (!state)
        return VERDICT_MALFORMED;
    struct call c = {.state = state};
    enum verdict v = run(s, HOOK_IMPORT, script_generous(s), body_import, &c, e);
    json_free(state);
    return v;
}

/* ---- params, and other worlds */

static void body_forget(lua_State *L, void *arg)
{
    struct script *s = arg;
    if (s->bind.watched && !s->written_by && !bind_untouched(&s->bind, L))
        s->written_by = s->n_calls;
    bind_forget(&s->bind, L);
}

void script_forget(struct script *s)
{
    vm_call(&s->vm, script_generous(s), body_forget, s, NULL);
}

static void body_params(lua_State *L, void *arg)
{
    struct script *s = arg;
    vm_host_enter(&s->vm);
    bind_write_params(&s->bind, L);
    vm_host_leave(&s->vm);
}

static int write_params(struct script *s, struct err *e)
{
    return verdict_stands(vm_call(&s->vm, script_generous(s), body_params, s, e)) ? 0 : E_POLICY;
}

int script_params_set(struct script *s, const char *json, size_t n, struct err *e)
{
    struct param_value *before = params_keep(&s->params);
    int rc = params_set(&s->params, json, n, e);
    if (!rc)
        rc = write_params(s, e);
    if (!rc && s->started)
        rc = script_fits(s, &s->node, e);
    if (rc) {
        params_restore(&s->params, before);
        write_params(s, NULL);
    }
    mem_free(before);
    return rc;
}

int script_params_copy(struct script *s, const struct script *from, struct err *e)
{
    struct param_value *now = params_keep(&from->params);
    params_restore(&s->params, now);
    mem_free(now);
    return write_params(s, e);
}
