/* The tables that a spec hands to the module: every value is checked here, with its name in the error, so that what
 * comes behind is valid. All raise. One Lua state at a time. Invariant: every number that gets through is finite and in
 * range. */
#ifndef LUA_MODULE_READ_H
#define LUA_MODULE_READ_H

#include <lua.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every key of the table is one of these names, each between blanks. */
void read_names(lua_State *L, int table, const char *names);
double read_number(lua_State *L, int table, const char *field, double otherwise, double low, double high);
int64_t read_whole(lua_State *L, int table, const char *field, int64_t otherwise, int64_t low, int64_t high);
bool read_flag(lua_State *L, int table, const char *field, bool otherwise);
/* Copies a text; "" when there is none. cap holds it whole, or it raises. */
void read_text(lua_State *L, int table, const char *field, char *out, size_t cap);
/* An argument of a call. */
int64_t read_whole_argument(lua_State *L, int arg, const char *what, int64_t low, int64_t high);
double read_number_argument(lua_State *L, int arg, const char *what, double low, double high);
/* A file that is not where the path says: beside the Lua files that are now running (the spec), or in the folder above
 * theirs. Nothing found: path stays. */
void read_find_file(lua_State *L, char *path, size_t cap);

#endif
