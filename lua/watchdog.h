/* The watchdog: one thread per process that stops Lua code past its deadline. A VM holds a watch, which it opens when a
 * call turns out to be long (vm.c: short ones are over before) and shuts after it. While a watch is open and late, the
 * watchdog pins it, arms the VM's count hook and lets go; shut waits for a pin, so a hook is never armed on a VM that
 * has returned. A timer wakes the thread at the earliest deadline only: calls that end in time cost no wake-up of their
 * own. Any thread may own watches; a watch belongs to one thread at a time. Invariant: lua_sethook is called only on a
 * VM whose watch is open. */
#ifndef LUA_WATCHDOG_H
#define LUA_WATCHDOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"

struct lua_State;
struct lua_watchdog;
struct watch;

/* E_SYS when the system refuses a timer or a thread. */
int lua_watchdog_start(struct lua_watchdog **out, struct err *e);
/* Every watch must have been given back. NULL is fine. */
void lua_watchdog_stop(struct lua_watchdog *d);

/* What the watchdog does to a late VM; called on the watchdog's thread while the watch is pinned. */
typedef void (*watch_fire)(struct lua_State *L);

struct watch *watch_new(struct lua_watchdog *d, struct lua_State *L, watch_fire fire); /* NULL: all are in use */
void watch_free(struct watch *w);                                                      /* shut; NULL is fine */
void watch_open(struct watch *w, int64_t deadline_ns);                                 /* clock: CLOCK_MONOTONIC */
/* True when it fired (since it was opened): the caller takes its hook off. */
bool watch_shut(struct watch *w);

#endif
