/* A plan as a table, for a policy's own tests to look at. Pushed in a vm body; owns nothing. Invariant: looking at a
 * plan does not change it. */
#ifndef LUA_TRIAL_PLAN_H
#define LUA_TRIAL_PLAN_H

#include <lua.h>

#include "engine/world/plan.h"

/* Pushes a list of { name, tokens, starts, ranks }, with the fields tokens (in all), forwards (a list of { ranks, sp,
 * tp, tokens, n }), orders (a list of { bind or release = ranks, when, kv, base, reason, requests }), preempted
 * (names), remapped (kv by name), closed and opened (lists of rank lists), refused (codes by name: the table at this
 * index, completed), held ({ reason, until } by name: who is held after it) and wake (ms). */
void trial_push_plan(lua_State *L, const struct plan *p, int refused);

#endif
