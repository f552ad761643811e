#include "lua/params.h"

#include <lauxlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "lua/sandbox.h"

static const char *const type_names[] = {"number", "integer", "boolean", "string", "map"};

void params_free(struct params *p)
{
    mem_free(p->items);
    *p = (struct params){0};
}

/* ---- one value */

/* What is wrong with this number for this param; NULL: nothing. */
static const char *number_fault(const struct param *p, double v, char *text, size_t cap)
{
    if (!isfinite(v))
        return "must be a finite number";
    if (p->type == PARAM_INTEGER && v != floor(v))
        return "must be a whole number";
    if (v < p->min)
        snprintf(text, cap, "must be at least %.14g", p->min);
    else if (v > p->max)
        snprintf(text, cap, "must be at most %.14g", p->max);
    else
        return NULL;
    return text;
}

static const char *text_fault(const struct param *p, const char *s, char *text, size_t cap)
{
    if (strlen(s) >= PARAM_TEXT)
        return "is too long (at most 63 bytes)";
    for (int i = 0; i < p->n_choices; i++)
        if (strcmp(p->choices[i], s) == 0)
            return NULL;
    if (!p->n_choices)
        return NULL;
    size_t n = (size_t)snprintf(text, cap, "must be one of");
    for (int i = 0; i < p->n_choices && n < cap; i++)
        n += (size_t)snprintf(text + n, cap - n, "%s \"%s\"", i ? "," : "", p->choices[i]);
    return text;
}

/* Puts an entry in its place. */
static const char *map_put(const struct param *p, struct param_value *v, const char *key, double number, char *text,
                           size_t cap)
{
    if (v->n == MAX_MAP)
        return "has more than 64 entries";
    if (!*key || strlen(key) >= PARAM_NAME)
        return "has a key that is empty or longer than 39 bytes";
    const char *fault = number_fault(p, number, text, cap);
    if (fault)
        return fault;
    int i = v->n++;
    for (; i > 0 && strcmp(v->entries[i - 1].key, key) > 0; i--)
        v->entries[i] = v->entries[i - 1];
    snprintf(v->entries[i].key, PARAM_NAME, "%s", key);
    v->entries[i].number = number;
    return NULL;
}

/* ---- declarations, from Lua */

static const char *const fields[] = {"default", "min", "max", "doc", "type", "unit", "choices"};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static void check_fields(lua_State *L, int decl, const char *name)
{
    for (lua_pushnil(L); lua_next(L, decl); lua_pop(L, 1)) {
        const char *field = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "(a number)";
        bool known = false;
        for (int i = 0; i < N_FIELDS; i++)
            known |= strcmp(fields[i], field) == 0;
        if (known)
            continue;
        const char *near = nearest_word(field, fields, N_FIELDS);
        luaL_error(L, "params.%s: unknown field '%s'%s%s%s", name, field, near ? "; did you mean '" : "",
                   near ? near : "", near ? "'?" : " (default, min, max, doc, type, unit, choices)");
    }
}

static double bound(lua_State *L, int decl, const char *name, const char *field, double otherwise)
{
    lua_getfield(L, decl, field);
    double v = lua_isnil(L, -1) ? otherwise : lua_tonumber(L, -1);
    if (!lua_isnil(L, -1) && (lua_type(L, -1) != LUA_TNUMBER || isnan(v)))
        luaL_error(L, "params.%s: %s must be a number", name, field);
    lua_pop(L, 1);
    return v;
}

static void read_type(lua_State *L, struct param *p, int value_type)
{
    int i = value_type == LUA_TNUMBER    ? PARAM_NUMBER
            : value_type == LUA_TBOOLEAN ? PARAM_BOOLEAN
            : value_type == LUA_TSTRING  ? PARAM_TEXTUAL
            : value_type == LUA_TTABLE   ? PARAM_MAP
                                         : -1;
    if (i < 0)
        luaL_error(L, "params.%s: a default is needed: a number, boolean, string, or a table of numbers by name",
                   p->name);
    if (lua_type(L, -1) == LUA_TSTRING && strcmp(lua_tostring(L, -1), "integer") == 0 && i == PARAM_NUMBER)
        i = PARAM_INTEGER;
    else if (!lua_isnil(L, -1) && (lua_type(L, -1) != LUA_TSTRING || strcmp(lua_tostring(L, -1), type_names[i]) != 0))
        luaL_error(L, "params.%s: the type does not fit the default, which is a %s", p->name, type_names[i]);
    p->type = (enum param_type)i;
}

static void refuse_unit(lua_State *L, const struct param *p, const char *word)
{
    const char *near = unit_nearest(word);
    if (near)
        luaL_error(L, "params.%s: unknown unit '%s'; did you mean '%s'?", p->name, word, near);
    luaL_Buffer all;
    luaL_buffinit(L, &all);
    for (int u = UNIT_NONE + 1; u < N_UNITS; u++) {
        luaL_addstring(&all, u > UNIT_NONE + 1 ? ", " : "");
        luaL_addstring(&all, unit_name((enum unit)u));
    }
    luaL_pushresult(&all);
    luaL_error(L, "params.%s: unknown unit '%s' (there are: %s)", p->name, word, lua_tostring(L, -1));
}

/* A word of the closed list. A share is 0 to 1 without being told so, and nothing else. */
static void read_unit(lua_State *L, struct param *p)
{
    double low, high;
    if (lua_isnil(L, -1))
        return;
    if (lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "params.%s: unit must be a text", p->name);
    if (p->type == PARAM_BOOLEAN || p->type == PARAM_TEXTUAL)
        luaL_error(L, "params.%s: only numbers have a unit, and this is a %s", p->name, type_names[p->type]);
    const char *word = lua_tostring(L, -1);
    p->unit = unit_named(word);
    if (p->unit == UNIT_NONE)
        refuse_unit(L, p, word);
    unit_range(p->unit, &low, &high);
    if (p->unit != UNIT_SHARE)
        return;
    if ((isfinite(p->min) && (p->min < low || p->min > high)) || (isfinite(p->max) && (p->max > high || p->max < low)))
        luaL_error(L, "params.%s: a share is 0 to 1, and its bounds are within that; else the unit is a ratio",
                   p->name);
    p->min = fmax(p->min, low);
    p->max = fmin(p->max, high);
}

static void read_choices(lua_State *L, struct param *p)
{
    if (lua_isnil(L, -1))
        return;
    if (lua_type(L, -1) != LUA_TTABLE || p->type != PARAM_TEXTUAL)
        luaL_error(L, "params.%s: choices must be a list of texts, for a text", p->name);
    int n = (int)lua_objlen(L, -1);
    if (n < 1 || n > 8)
        luaL_error(L, "params.%s: 1 to 8 choices, please", p->name);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, -1, i + 1);
        if (lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) >= PARAM_TEXT)
            luaL_error(L, "params.%s: choices must be texts of at most 63 bytes", p->name);
        snprintf(p->choices[i], PARAM_TEXT, "%s", lua_tostring(L, -1));
        lua_pop(L, 1);
    }
    p->n_choices = n;
}

static void read_map(lua_State *L, struct param *p, int table)
{
    char text[200];
    int n = sandbox_sorted_keys(L, table), keys = lua_gettop(L);
    for (int i = 1; i <= n; i++) {
        lua_rawgeti(L, keys, i);
        lua_pushvalue(L, -1);
        lua_rawget(L, table);
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TNUMBER)
            luaL_error(L, "params.%s: the default must be a table of numbers by name", p->name);
        const char *fault = map_put(p, &p->by_default, lua_tostring(L, -2), lua_tonumber(L, -1), text, sizeof text);
        if (fault)
            luaL_error(L, "params.%s: the default %s", p->name, fault);
        lua_pop(L, 2);
    }
    lua_pop(L, 1);
}

static void read_default(lua_State *L, struct param *p)
{
    char text[300];
    const char *fault = NULL;
    switch (p->type) {
    case PARAM_MAP:
        read_map(L, p, lua_gettop(L));
        break;
    case PARAM_TEXTUAL:
        fault = text_fault(p, lua_tostring(L, -1), text, sizeof text);
        snprintf(p->by_default.text, PARAM_TEXT, "%s", lua_tostring(L, -1));
        break;
    case PARAM_BOOLEAN:
        p->by_default.number = lua_toboolean(L, -1);
        break;
    default:
        p->by_default.number = lua_tonumber(L, -1);
        fault = number_fault(p, p->by_default.number, text, sizeof text);
    }
    if (fault)
        luaL_error(L, "params.%s: the default %s", p->name, fault);
}

static void read_param(lua_State *L, struct param *p, int decl)
{
    if (lua_type(L, decl) != LUA_TTABLE)
        luaL_error(L, "params.%s must be a table: { default = ..., min = ..., max = ..., doc = \"...\" }", p->name);
    check_fields(L, decl, p->name);
    p->min = bound(L, decl, p->name, "min", -INFINITY);
    p->max = bound(L, decl, p->name, "max", INFINITY);
    lua_getfield(L, decl, "doc");
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "params.%s: doc must be a text", p->name);
    snprintf(p->doc, sizeof p->doc, "%s", lua_isnil(L, -1) ? "" : lua_tostring(L, -1));
    lua_pop(L, 1);
    lua_getfield(L, decl, "default");
    lua_getfield(L, decl, "type");
    read_type(L, p, lua_type(L, -2));
    lua_pop(L, 1);
    lua_getfield(L, decl, "unit");
    read_unit(L, p);
    lua_pop(L, 1);
    lua_getfield(L, decl, "choices");
    read_choices(L, p);
    lua_pop(L, 1);
    read_default(L, p);
    lua_pop(L, 1);
    p->now = p->by_default;
}

void params_declare(struct params *p, lua_State *L, int index)
{
    if (lua_isnil(L, index))
        return;
    if (lua_type(L, index) != LUA_TTABLE)
        luaL_error(L, "params must be a table of declarations by name");
    int n = sandbox_sorted_keys(L, index), keys = lua_gettop(L);
    if (n > MAX_PARAMS)
        luaL_error(L, "params: at most %d", MAX_PARAMS);
    p->items = mem_new_array((size_t)(n ? n : 1), sizeof *p->items);
    for (int i = 0; i < n; i++) {
        lua_rawgeti(L, keys, i + 1);
        if (lua_type(L, -1) != LUA_TSTRING || lua_objlen(L, -1) >= PARAM_NAME)
            luaL_error(L, "params: names must be texts of at most %d bytes", PARAM_NAME - 1);
        snprintf(p->items[i].name, PARAM_NAME, "%s", lua_tostring(L, -1));
        lua_rawget(L, index);
        read_param(L, &p->items[i], lua_gettop(L));
        lua_settop(L, keys);
        p->n = i + 1;
    }
    lua_settop(L, keys - 1);
}

/* ---- new values, from JSON */

static int set_fault(const struct param *p, const struct json *j, struct param_value *v, struct err *e)
{
    char text[300];
    const char *fault = NULL;
    enum json_type want = p->type == PARAM_BOOLEAN   ? JSON_BOOL
                          : p->type == PARAM_TEXTUAL ? JSON_STRING
                          : p->type == PARAM_MAP     ? JSON_OBJECT
                                                     : JSON_NUMBER;
    if (json_type(j) != want)
        return err_set(e, E_INPUT, "param '%s' must be %s %s, not %s", p->name, p->type == PARAM_INTEGER ? "an" : "a",
                       type_names[p->type], json_type_name(j));
    switch (p->type) {
    case PARAM_BOOLEAN:
        v->number = json_true(j);
        break;
    case PARAM_TEXTUAL:
        fault = text_fault(p, json_text(j), text, sizeof text);
        snprintf(v->text, PARAM_TEXT, "%s", json_text(j));
        break;
    case PARAM_MAP:
        for (const struct json *m = json_first(j); m && !fault; m = json_next(m))
            fault = json_type(m) == JSON_NUMBER ? map_put(p, v, json_key(m), json_number(m), text, sizeof text)
                                                : "must be an object of numbers";
        break;
    default:
        v->number = json_number(j);
        fault = number_fault(p, v->number, text, sizeof text);
    }
    return fault ? err_set(e, E_INPUT, "param '%s' %s", p->name, fault) : 0;
}

static int unknown_param(const struct params *p, const char *name, struct err *e)
{
    const char *names[MAX_PARAMS];
    for (int i = 0; i < p->n; i++)
        names[i] = p->items[i].name;
    const char *near = nearest_word(name, names, p->n);
    if (near)
        return err_set(e, E_INPUT, "the policy has no param '%.60s'; did you mean '%s'?", name, near);
    return err_set(e, E_INPUT, "the policy has no param '%.60s'%s", name, p->n ? "" : ": it declares none");
}

int params_set(struct params *p, const char *json, size_t n, struct err *e)
{
    struct json_limits limits = {.bytes = 64 << 10, .depth = 4, .nodes = 4096};
    struct json *root = json_parse(json, n, &limits, e);
    if (!root)
        return E_INPUT;
    int rc = json_type(root) == JSON_OBJECT
                 ? 0
                 : err_set(e, E_INPUT, "params must be an object, not %s", json_type_name(root));
    struct param_value *fresh = mem_new_array((size_t)(p->n ? p->n : 1), sizeof *fresh);
    bool named[MAX_PARAMS] = {false};
    for (const struct json *m = json_first(root); !rc && m; m = json_next(m)) {
        int i = 0;
        while (i < p->n && strcmp(p->items[i].name, json_key(m)) != 0)
            i++;
        if (i == p->n)
            rc = unknown_param(p, json_key(m), e);
        else {
            fresh[i] = (struct param_value){0};
            named[i] = true;
            rc = set_fault(&p->items[i], m, &fresh[i], e);
        }
    }
    for (int i = 0; !rc && i < p->n; i++)
        if (named[i])
            p->items[i].now = fresh[i];
    mem_free(fresh);
    json_free(root);
    return rc;
}

struct param_value *params_keep(const struct params *p)
{
    struct param_value *kept = mem_new_array((size_t)(p->n ? p->n : 1), sizeof *kept);
    for (int i = 0; i < p->n; i++)
        kept[i] = p->items[i].now;
    return kept;
}

void params_restore(struct params *p, const struct param_value *kept)
{
    for (int i = 0; i < p->n; i++)
        p->items[i].now = kept[i];
}

/* ---- out */

static void write_number(double v, struct buf *out)
{
    if (v == floor(v) && fabs(v) < 9e15)
        buf_printf(out, "%.0f", v);
    else
        json_put_double(out, v);
}

static void write_value(const struct param *p, const struct param_value *v, struct buf *out)
{
    switch (p->type) {
    case PARAM_BOOLEAN:
        buf_puts(out, v->number ? "true" : "false");
        break;
    case PARAM_TEXTUAL:
        buf_put_json(out, v->text, strlen(v->text));
        break;
    case PARAM_MAP:
        buf_putc(out, '{');
        for (int i = 0; i < v->n; i++) {
            buf_puts(out, i ? "," : "");
            buf_put_json(out, v->entries[i].key, strlen(v->entries[i].key));
            buf_putc(out, ':');
            write_number(v->entries[i].number, out);
        }
        buf_putc(out, '}');
        break;
    default:
        write_number(v->number, out);
    }
}

void params_write(const struct params *ps, struct buf *out)
{
    buf_putc(out, '{');
    for (int i = 0; i < ps->n; i++) {
        const struct param *p = &ps->items[i];
        buf_puts(out, i ? "," : "");
        buf_put_json(out, p->name, strlen(p->name));
        buf_puts(out, ":{\"value\":");
        write_value(p, &p->now, out);
        buf_puts(out, ",\"default\":");
        write_value(p, &p->by_default, out);
        if (isfinite(p->min)) {
            buf_puts(out, ",\"min\":");
            write_number(p->min, out);
        }
        if (isfinite(p->max)) {
            buf_puts(out, ",\"max\":");
            write_number(p->max, out);
        }
        for (int k = 0; k < p->n_choices; k++) {
            buf_puts(out, k ? "," : ",\"choices\":[");
            buf_put_json(out, p->choices[k], strlen(p->choices[k]));
        }
        buf_puts(out, p->n_choices ? "]" : "");
        buf_printf(out, ",\"type\":\"%s\"", type_names[p->type]);
        if (p->unit != UNIT_NONE)
            buf_printf(out, ",\"unit\":\"%s\"", unit_name(p->unit));
        buf_puts(out, ",\"doc\":");
        buf_put_json(out, p->doc, strlen(p->doc));
        buf_putc(out, '}');
    }
    buf_putc(out, '}');
}

void params_push(const struct params *ps, lua_State *L, int index)
{
    for (int i = 0; i < ps->n; i++) {
        const struct param *p = &ps->items[i];
        if (p->type == PARAM_BOOLEAN)
            lua_pushboolean(L, p->now.number != 0);
        else if (p->type == PARAM_TEXTUAL)
            lua_pushstring(L, p->now.text);
        else if (p->type == PARAM_MAP) {
            lua_createtable(L, 0, p->now.n);
            for (int k = 0; k < p->now.n; k++) {
                lua_pushnumber(L, p->now.entries[k].number);
                lua_setfield(L, -2, p->now.entries[k].key);
            }
        } else
            lua_pushnumber(L, p->now.number);
        lua_setfield(L, index, p->name);
    }
}
