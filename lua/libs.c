#include "lua/libs.h"

#include <lauxlib.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "lua/scan.h"
#include "lua/script.h"

/* ---- what a table names */

static void read_name(lua_State *L, struct lib_names *out)
{
    char shown[80];
    struct err e = {0};
    if (lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "lib must be a list of names, lib = { \"victims\" }, and has a %s", luaL_typename(L, -1));
    vm_escape(shown, sizeof shown, lua_tostring(L, -1), lua_objlen(L, -1));
    if (out->n == POLICY_LIBS)
        luaL_error(L, "lib names more than %d files", POLICY_LIBS);
    char *name = out->items[out->n];
    if (strlen(lua_tostring(L, -1)) != lua_objlen(L, -1) || script_name(name, lua_tostring(L, -1), &e) ||
        strcmp(name, lua_tostring(L, -1)) != 0)
        luaL_error(L, "lib: '%s' is no name of a file lib/NAME.lua (letters, digits, '_', '-', without .lua)", shown);
    for (int i = 0; i < out->n; i++)
        if (!strcmp(out->items[i], name))
            luaL_error(L, "lib names '%s' twice", shown);
    out->n++;
}

void libs_declared(lua_State *L, int table, struct lib_names *out)
{
    out->n = 0;
    lua_getfield(L, table, "lib");
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TTABLE)
        luaL_error(L, "lib must be a list of names, lib = { \"victims\" }, not a %s", luaL_typename(L, -1));
    size_t n = lua_isnil(L, -1) ? 0 : lua_objlen(L, -1), n_all = 0;
    if (!lua_isnil(L, -1))
        for (lua_pushnil(L); lua_next(L, -2); lua_pop(L, 1))
            n_all++;
    if (n_all != n)
        luaL_error(L, "lib must be a list of names, lib = { \"victims\" }, without names of its own");
    for (size_t i = 1; i <= n; i++) {
        lua_rawgeti(L, -1, (int)i);
        read_name(L, out);
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

/* ---- where it names them */

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

/* Does `lib =` begin here, as a word? */
static bool is_lib(const char *source, const char *at, const char *end)
{
    const char *p = at + 3;
    if (end - at < 4 || strncmp(at, "lib", 3) != 0 || (at > source && is_word(at[-1])))
        return false;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    return p + 1 < end && *p == '=' && p[1] != '=';
}

int libs_line(const char *source, size_t n, const char *name)
{
    const char *end = source + n, *at = source;
    size_t len = strlen(name);
    int line = 1;
    for (; at < end && !is_lib(source, at, end); at++)
        line += *at == '\n';
    int declared = at < end ? line : 1;
    for (; at < end; at++) {
        line += *at == '\n';
        if ((*at == '"' || *at == '\'') && (size_t)(end - at) > len + 1 && !strncmp(at + 1, name, len) &&
            at[len + 1] == *at)
            return line;
    }
    return declared;
}

/* ---- reading */

static int not_found(const struct libs *l, const struct lib_user *by, const char *name, struct err *e)
{
    int line = libs_line(by->source, by->n, name);
    if (!l->folder)
        return err_set(e, E_NOTFOUND, "%s:%d: lib '%s': this policy has no folder in which lib/%s.lua could lie",
                       by->file, line, name, name);
    return err_set(e, E_NOTFOUND, "%s:%d: there is no lib/%s.lua in %.200s", by->file, line, name, l->folder);
}

static size_t total(const struct libs *l)
{
    size_t n = l->n_policy;
    for (int i = 0; i < l->n; i++)
        n += l->items[i].source.len;
    return n;
}

int libs_read(const char *folder, const char *name, struct buf *out, struct err *e)
{
    char path[PATH_MAX];
    int len = folder ? snprintf(path, sizeof path, "%s/lib/%s.lua", folder, name) : -1;
    if (len < 0 || len >= PATH_MAX || access(path, F_OK) != 0)
        return err_set(e, E_NOTFOUND, "there is no lib/%s.lua", name);
    return file_read_within(out, folder, path, LUA_SOURCE_BYTES, e);
}

static int read_source(struct libs *l, const struct lib_user *by, struct lib *lib, struct err *e)
{
    char file[NAME_BYTES + 8];
    struct err why = {0};
    size_t had = total(l), room = had < LUA_SOURCE_BYTES ? LUA_SOURCE_BYTES - had : 0;
    int rc = l->reader && l->folder ? l->reader->read(l->reader->ctx, lib->name, &lib->source, &why)
                                    : libs_read(l->folder, lib->name, &lib->source, &why);
    if (rc == E_NOTFOUND)
        return not_found(l, by, lib->name, e);
    if (rc)
        return err_set(e, why.code, "%s:%d: lib '%s' cannot be read: %s", by->file,
                       libs_line(by->source, by->n, lib->name), lib->name, why.text);
    if (lib->source.len > room)
        return err_set(e, E_INPUT, "%s:%d: with lib '%s' the policy has %zu bytes; at most %d are taken", by->file,
                       libs_line(by->source, by->n, lib->name), lib->name, had + lib->source.len, LUA_SOURCE_BYTES);
    snprintf(file, sizeof file, "lib/%s", lib->name);
    return scan_source(file, lib->source.data ? lib->source.data : "", lib->source.len, l->watchdog, e);
}

int libs_find(struct libs *l, const struct lib_user *by, const char *name, int *place, struct err *e)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].name, name)) {
            *place = i;
            return 0;
        }
    if (l->n == POLICY_LIBS)
        return err_set(e, E_INPUT,
                       "%s:%d: lib '%s' is one too many: a policy has at most %d, those of its libraries "
                       "included",
                       by->file, libs_line(by->source, by->n, name), name, POLICY_LIBS);
    struct lib *lib = &l->items[l->n];
    *lib = (struct lib){0};
    snprintf(lib->name, sizeof lib->name, "%s", name);
    int rc = read_source(l, by, lib, e);
    if (rc) {
        buf_free(&lib->source);
        return rc;
    }
    *place = l->n++;
    return 0;
}

void libs_free(struct libs *l)
{
    for (int i = 0; i < l->n; i++)
        buf_free(&l->items[i].source);
    l->n = 0;
}

/* ---- all of them */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct lib *const *)a)->name, (*(const struct lib *const *)b)->name);
}

static void in_order(const struct libs *l, const struct lib *out[POLICY_LIBS])
{
    for (int i = 0; i < l->n; i++)
        out[i] = &l->items[i];
    qsort(out, (size_t)l->n, sizeof *out, by_name);
}

/* The lengths go before the texts, so that no two policies are the same bytes. No Lua file begins so. */
void libs_text(const struct libs *l, const char *source, size_t n, struct buf *out)
{
    const struct lib *items[POLICY_LIBS];
    in_order(l, items);
    if (l->n)
        buf_printf(out, "policy %zu\n", n);
    for (int i = 0; i < l->n; i++)
        buf_printf(out, "lib %s %zu\n", items[i]->name, items[i]->source.len);
    buf_put(out, source, n);
    for (int i = 0; i < l->n; i++)
        buf_put(out, items[i]->source.data ? items[i]->source.data : "", items[i]->source.len);
}

struct sha256 libs_sha256(const struct libs *l, const char *source, size_t n)
{
    struct buf all = {0};
    libs_text(l, source, n, &all);
    struct sha256 sum = hash_sha256(all.data ? all.data : "", all.len);
    buf_free(&all);
    return sum;
}

/* Digits up to the end of a line, no more than a source may have bytes. NULL: they are none; else what follows. */
static const char *read_size(const char *at, const char *end, size_t *n)
{
    const char *first = at;
    for (*n = 0; at < end && *at >= '0' && *at <= '9' && at - first < 7; at++)
        *n = 10 * *n + (size_t)(*at - '0');
    return at > first && at < end && *at == '\n' && *n <= LUA_SOURCE_BYTES ? at + 1 : NULL;
}

/* A line "lib NAME N". NULL: it is none; else what follows. */
static const char *read_head(const char *at, const char *end, char name[NAME_BYTES], size_t *n)
{
    char word[NAME_BYTES];
    struct err e = {0};
    if (end - at < 4 || memcmp(at, "lib ", 4) != 0)
        return NULL;
    at += 4;
    const char *space = memchr(at, ' ', (size_t)(end - at));
    if (!space || space - at >= NAME_BYTES)
        return NULL;
    snprintf(word, sizeof word, "%.*s", (int)(space - at), at);
    if (script_name(name, word, &e) || strcmp(name, word) != 0)
        return NULL;
    return read_size(space + 1, end, n);
}

/* The heads of the libraries: their names, and where the policy begins. NULL: the lengths do not add up. */
static const char *read_heads(struct libs *l, const char *at, const char *end, size_t n, size_t sizes[POLICY_LIBS])
{
    size_t sum = n;
    for (l->n = 0; sum != (size_t)(end - at); l->n++) {
        if (l->n == POLICY_LIBS)
            return NULL;
        struct lib *lib = &l->items[l->n];
        *lib = (struct lib){0};
        at = read_head(at, end, lib->name, &sizes[l->n]);
        for (int i = 0; at && i < l->n; i++)
            at = strcmp(l->items[i].name, lib->name) ? at : NULL;
        if (!at)
            return NULL;
        sum += sizes[l->n];
    }
    return l->n && sum <= LUA_SOURCE_BYTES ? at : NULL;
}

int libs_split(struct libs *l, const char *name, const char **source, size_t *n, struct err *e)
{
    static const char begins[] = "policy ";
    const char *end = *source + *n, *at;
    size_t own, sizes[POLICY_LIBS];
    if (*n < sizeof begins || memcmp(*source, begins, sizeof begins - 1) != 0)
        return 0;
    at = read_size(*source + sizeof begins - 1, end, &own);
    if (!at)
        return 0;
    at = read_heads(l, at, end, own, sizes);
    if (!at) {
        l->n = 0;
        return err_set(e, E_INPUT, "%s:1: the text begins as that of a policy with its libraries, and is not whole",
                       name);
    }
    *source = at;
    *n = l->n_policy = own;
    at += own;
    for (int i = 0; i < l->n; at += sizes[i++])
        buf_put(&l->items[i].source, at, sizes[i]);
    l->folder = NULL; /* nothing else is read */
    return 0;
}

int libs_take_apart(struct libs *l, const char *name, const char **source, size_t *n, struct err *e)
{
    TRY(libs_split(l, name, source, n, e));
    for (int i = 0; i < l->n; i++) {
        char file[NAME_BYTES + 8];
        snprintf(file, sizeof file, "lib/%s", l->items[i].name);
        const struct buf *b = &l->items[i].source;
        TRY(scan_source(file, b->data ? b->data : "", b->len, l->watchdog, e));
    }
    return 0;
}

void libs_list(const struct libs *l, char out[POLICY_LIBS_TEXT])
{
    const struct lib *items[POLICY_LIBS];
    size_t len = 0;
    in_order(l, items);
    out[0] = 0;
    for (int i = 0; i < l->n; i++)
        len += (size_t)snprintf(out + len, POLICY_LIBS_TEXT - len, "%s%s", i ? " " : "", items[i]->name);
}
