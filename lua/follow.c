#include "lua/follow.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "lua/sandbox.h"

enum {
    DEEPEST = 6,
    ROOM = 1 << 20, /* bytes of the machine's heap for what is written down meanwhile: no debt of the policy's */
};

/* ---- the lines that run */

static struct followed_file *file_of(struct follow *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->files[i].name, name))
            return &f->files[i];
    if (f->n == (int)(sizeof f->files / sizeof *f->files))
        return NULL;
    struct followed_file *x = &f->files[f->n++];
    snprintf(x->name, sizeof x->name, "%s", name);
    return x;
}

static struct followed_line *line_of(struct followed_file *x, int line)
{
    if (line > x->n) {
        int n = line + 64;
        x->lines = mem_resize(x->lines, (size_t)n, sizeof *x->lines);
        memset(x->lines + x->n, 0, (size_t)(n - x->n) * sizeof *x->lines);
        x->n = n;
    }
    return &x->lines[line - 1];
}

/* The lines of this function that have code. */
static void look_at_function(lua_State *L, lua_Debug *ar, struct followed_file *x)
{
    lua_getinfo(L, "L", ar);
    if (lua_type(L, -1) == LUA_TTABLE)
        for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
            line_of(x, (int)lua_tonumber(L, -2))->code = true;
    lua_pop(L, 1);
}

static int depth_of(lua_State *L)
{
    lua_Debug ar;
    int low = 0, high = FOLLOW_DEPTH;
    while (low < high) { /* lua_getstack walks down to the level that it is asked for */
        int middle = (low + high) / 2;
        if (lua_getstack(L, middle, &ar))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* LuaJIT tells of a line once more when a function that it has called returns to it. */
static bool goes_on(struct follow *f, lua_State *L, const struct followed_frame *now)
{
    int depth = depth_of(L), before = f->depth;
    f->depth = depth;
    if (depth >= FOLLOW_DEPTH)
        return false;
    struct followed_frame was = f->frames[depth];
    f->frames[depth] = *now;
    return before > depth && was.file == now->file && was.linedefined == now->linedefined && was.line == now->line;
}

static void on_line(lua_State *L, lua_Debug *ar, void *ctx)
{
    struct follow *f = ctx;
    lua_getinfo(L, "S", ar);
    struct followed_file *x = ar->currentline > 0 ? file_of(f, ar->short_src) : NULL;
    if (!x)
        return;
    struct followed_line *begins = line_of(x, ar->linedefined > 0 ? ar->linedefined : 1);
    if (!begins->looked) {
        begins->looked = true;
        look_at_function(L, ar, x);
    }
    struct followed_line *line = line_of(x, ar->currentline);
    line->code = true;
    if (!goes_on(f, L, &(struct followed_frame){x, ar->linedefined, ar->currentline}))
        line->count += line->count < UINT32_MAX;
}

struct follow *follow_begin(struct script *s)
{
    struct follow *f = mem_new(sizeof *f);
    f->script = s;
    s->follow = f;
    s->vm.floor += ROOM;
    vm_follow(&s->vm, on_line, f);
    return f;
}

/* ---- the facts */

static void put_number(struct buf *out, double v)
{
    if (!isfinite(v))
        buf_puts(out, "null");
    else if (v == floor(v) && fabs(v) < 1e15)
        buf_printf(out, "%.0f", v);
    else
        json_put_double(out, v);
}

static void put_value(lua_State *L, int index, struct buf *out, int depth);

static void put_list(lua_State *L, int table, struct buf *out, int depth)
{
    int n = (int)lua_objlen(L, table);
    buf_putc(out, '[');
    for (int i = 1; i <= n; i++) {
        buf_puts(out, i > 1 ? "," : "");
        lua_rawgeti(L, table, i);
        put_value(L, lua_gettop(L), out, depth + 1);
        lua_pop(L, 1);
    }
    buf_putc(out, ']');
}

static void put_object(lua_State *L, int table, struct buf *out, int depth)
{
    int n = sandbox_sorted_keys(L, table), keys = lua_gettop(L);
    bool any = false;
    buf_putc(out, '{');
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        lua_pushvalue(L, -1);
        lua_rawget(L, table);
        if (lua_type(L, -2) == LUA_TSTRING && lua_type(L, -1) != LUA_TFUNCTION) {
            buf_puts(out, any ? "," : "");
            buf_put_json(out, lua_tostring(L, -2), lua_objlen(L, -2));
            buf_putc(out, ':');
            put_value(L, lua_gettop(L), out, depth + 1);
            any = true;
        }
        lua_pop(L, 2);
    }
    buf_putc(out, '}');
    lua_settop(L, keys - 1);
}

static bool is_empty(lua_State *L, int table)
{
    lua_pushnil(L);
    if (!lua_next(L, table))
        return true;
    lua_pop(L, 2);
    return false;
}

static void put_value(lua_State *L, int index, struct buf *out, int depth)
{
    switch (lua_type(L, index)) {
    case LUA_TNUMBER:
        put_number(out, lua_tonumber(L, index));
        break;
    case LUA_TSTRING:
        buf_put_json(out, lua_tostring(L, index), lua_objlen(L, index));
        break;
    case LUA_TBOOLEAN:
        buf_puts(out, lua_toboolean(L, index) ? "true" : "false");
        break;
    case LUA_TTABLE:
        if (depth > DEEPEST)
            buf_puts(out, "null");
        else if (lua_objlen(L, index) || is_empty(L, index))
            put_list(L, index, out, depth);
        else
            put_object(L, index, out, depth);
        break;
    default:
        buf_puts(out, "null");
    }
}

/* A fact of the request in this row, which is in the needed column k. */
static void put_cell(lua_State *L, const struct columns *c, int k, int row, struct buf *out)
{
    buf_printf(out, ",\"%s\":", column_names[k]);
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->refs[k]);
    lua_rawgeti(L, -1, row);
    put_value(L, lua_gettop(L), out, DEEPEST);
    lua_pop(L, 2);
}

/* In the queue's order, each with its row, where the policy has rows at all; and with the names by which people know
 * it. */
static void put_rows(lua_State *L, const struct columns *c, const struct req_queue *q, struct buf *out)
{
    buf_puts(out, ",\"rows\":[");
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        int row = columns_row(c, r->id);
        buf_printf(out, "%s{\"request\":%llu,\"name\":", i ? "," : "", (unsigned long long)r->order);
        buf_put_json(out, r->spec->name, strlen(r->spec->name));
        if (row)
            buf_printf(out, ",\"row\":%d", row);
        for (int k = 0; k < COLUMN_COUNT && row; k++)
            if (c->mask & 1u << k)
                put_cell(L, c, k, row, out);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

static void put_queue(lua_State *L, const struct columns *c, const struct req_queue *q, struct buf *out)
{
    bool any = false;
    buf_printf(out, "{\"n\":%d,\"columns\":[", q->n);
    for (int k = 0; k < NEED_COUNT; k++)
        if (c->mask & 1u << k) {
            buf_printf(out, "%s\"%s\"", any ? "," : "", column_names[k]);
            any = true;
        }
    buf_putc(out, ']');
    for (int i = 0; i < 2; i++)
        if (c->mask & 1u << (COL_FIRST + i)) {
            buf_printf(out, ",\"%s\":", column_names[COL_FIRST + i]);
            lua_rawgeti(L, LUA_REGISTRYINDEX, c->end_refs[i]);
            put_list(L, lua_gettop(L), out, DEEPEST);
            lua_pop(L, 1);
        }
    put_rows(L, c, q, out);
    buf_putc(out, '}');
}

/* view.idle has the tables of view.groups: here their ids. */
static void put_idle(const struct view *v, struct buf *out)
{
    buf_putc(out, '[');
    for (int i = 0; i < v->n_idle; i++)
        buf_printf(out, "%s%d", i ? "," : "", v->idle[i]);
    buf_putc(out, ']');
}

static void put_fact(const struct follow *f, lua_State *L, const char *name, const struct view *v, struct buf *out)
{
    const struct bind *b = &f->script->bind;
    if (!strcmp(name, "waiting"))
        put_queue(L, &b->waiting, &v->world->waiting, out);
    else if (!strcmp(name, "running"))
        put_queue(L, &b->running, &v->world->running, out);
    else if (!strcmp(name, "idle"))
        put_idle(v, out);
    else
        put_value(L, lua_gettop(L), out, 0);
}

/* Whatever the view table has but its questions: what is added to the binding is in here, too. */
void follow_view(struct follow *f, lua_State *L, const struct view *v)
{
    struct buf *out = &f->view;
    bool any = false;
    luaL_checkstack(L, 32, NULL);
    bind_push(&f->script->bind, L, f->script->bind.view_ref);
    int view = lua_gettop(L), n = sandbox_sorted_keys(L, view), keys = lua_gettop(L);
    buf_clear(out);
    buf_putc(out, '{');
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        const char *name = lua_tostring(L, -1);
        lua_pushvalue(L, -1);
        lua_rawget(L, view);
        if (lua_type(L, -1) != LUA_TFUNCTION) {
            buf_printf(out, "%s\"%s\":", any ? "," : "", name);
            put_fact(f, L, name, v, out);
            any = true;
        }
        lua_pop(L, 2);
    }
    buf_putc(out, '}');
    lua_settop(L, view - 1);
}

/* ---- telling */

static void put_log(const struct plan *p, struct buf *out)
{
    bool any = false;
    buf_puts(out, ",\"log\":[");
    for (int i = 0; i < p->n_verbs; i++) {
        if (p->verbs[i].kind != PLAN_LOG)
            continue;
        buf_puts(out, any ? "," : "");
        buf_put_json(out, p->verbs[i].text, strlen(p->verbs[i].text));
        any = true;
    }
    buf_putc(out, ']');
}

static void put_source(struct follow *f, const char *name, const char *text, size_t n, struct buf *out)
{
    struct followed_file *x = file_of(f, name);
    const char *end = text + n;
    buf_puts(out, "{\"file\":");
    buf_put_json(out, name, strlen(name));
    buf_puts(out, ",\"lines\":[");
    for (int line = 1; text < end; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t len = (size_t)((stop ? stop : end) - text);
        const struct followed_line *l = x && line <= x->n ? &x->lines[line - 1] : NULL;
        buf_printf(out, "%s{\"line\":%d,", line > 1 ? "," : "", line);
        if (l && l->code)
            buf_printf(out, "\"count\":%u,", l->count);
        buf_puts(out, "\"text\":");
        buf_put_json(out, text, len && text[len - 1] == '\r' ? len - 1 : len);
        buf_putc(out, '}');
        text += len + 1;
    }
    buf_puts(out, "]}");
}

static bool has_run(const struct follow *f, const char *name)
{
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->files[i].name, name))
            return true;
    return false;
}

static void put_sources(struct follow *f, const struct follow_end *end, struct buf *out)
{
    struct libs libs = {0};
    char name[FOLLOW_FILE];
    const char *source = end->text;
    size_t n = end->n;
    snprintf(name, sizeof name, "%s.lua", f->script->name);
    libs_take_apart(&libs, name, &source, &n, NULL); /* it was loaded: it comes apart */
    buf_puts(out, ",\"sources\":[");
    put_source(f, name, source, n, out);
    for (int i = 0; i < libs.n; i++) {
        snprintf(name, sizeof name, "lib/%s.lua", libs.items[i].name);
        if (!has_run(f, name))
            continue;
        buf_putc(out, ',');
        put_source(f, name, libs.items[i].source.data ? libs.items[i].source.data : "", libs.items[i].source.len, out);
    }
    buf_putc(out, ']');
    libs_free(&libs);
}

void follow_tell(struct follow *f, const struct follow_end *end, struct buf *out)
{
    struct script *s = f->script;
    const struct vm *vm = &s->vm;
    unsigned long long bytecodes = vm->watch ? (unsigned long long)vm->gauge.bytecodes : vm->instructions;
    buf_printf(out, "{\"verdict\":\"%s\",\"error\":", verdict_name(end->verdict));
    if (end->error->text[0])
        buf_put_json(out, end->error->text, strlen(end->error->text));
    else
        buf_puts(out, "null");
    buf_printf(out, ",\"bytecodes\":%llu,\"params\":", bytecodes);
    params_write(&s->params, out);
    buf_puts(out, ",\"view\":");
    buf_puts(out, f->view.len ? f->view.data : "null");
    put_log(end->plan, out);
    put_sources(f, end, out);
    buf_putc(out, '}');
    vm_follow(&s->vm, NULL, NULL);
    s->vm.floor -= ROOM;
    s->follow = NULL;
    for (int i = 0; i < f->n; i++)
        mem_free(f->files[i].lines);
    buf_free(&f->view);
    mem_free(f);
}
