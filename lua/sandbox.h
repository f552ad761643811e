/* The environment of a policy's code: a short list of names and nothing else. The list is built up from nothing, not
 * cut down from everything. Absent on purpose, since each has stopped or crashed a process that embeds Lua: pcall,
 * coroutines, pairs, metatables, raw*, load, require, string patterns, string.rep, table.sort, table.concat, unpack,
 * newproxy, collectgarbage, debug, jit, ffi, io, os. Invariant: no C function within reach calls back into Lua, runs
 * long between two instructions, or shows an address. */
#ifndef LUA_SANDBOX_H
#define LUA_SANDBOX_H

#include <stdbool.h>

#include <lua.h>

/* Replaces the globals of L by the allowed ones. Called by a vm body, once, before anything of the policy is
 * loaded. */
void sandbox_open(lua_State *L);
/* Adds one global of the host's: the function on top of the stack, which is popped. name must be in the list
 * below. */
void sandbox_add(lua_State *L, const char *name);
bool sandbox_allows(const char *global);
/* Is this a field of an allowed library? Only for libraries: false for anything else. */
bool sandbox_allows_field(const char *library, const char *field);
bool sandbox_is_library(const char *global);
/* The allowed name nearest to this one, for messages; NULL when none is near. */
const char *sandbox_nearest(const char *global);
/* Why a well-known name is absent and what to use instead; NULL for any other. */
const char *sandbox_why_absent(const char *global);

/* string.format without %p and %q, widths and precisions of at most two digits, results of at most 16 KiB;
 * tables and functions print as their type (format.c). */
int sandbox_format(lua_State *L);
/* A value as tostring gives it: no addresses. Pushes the text. */
void sandbox_tostring(lua_State *L, int index);
/* Pushes an array of the keys of the table at this (absolute) index: numbers first, then texts by their
 * bytes. Returns how many. Raises on other keys and on more than 4096. */
int sandbox_sorted_keys(lua_State *L, int index);

#endif
