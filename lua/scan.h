/* Reads a policy's source without running it: syntax, then every global it names, checked against the sandbox's list,
 * and every constant. The source is compiled in a machine of its own, which is thrown away. Any thread. Invariant: no
 * code of the policy runs here. */
#ifndef LUA_SCAN_H
#define LUA_SCAN_H

#include "engine/base/err.h"
#include "lua/host.h"

/* 0, or E_INPUT with "name.lua:12: what is wrong". name: without ".lua". */
int scan_source(const char *name, const char *source, size_t n, struct lua_watchdog *watchdog, struct err *e);

#endif
