/* Policies that nobody will call again, on their way out: to take a Lua machine apart takes longer than a swap may, so
 * a thread of its own does that, one after the other. Owned by the engine; given to on the engine's thread. Invariant:
 * what was given is destroyed once, at the latest when this ends. */
#ifndef ENGINE_RETIRED_H
#define ENGINE_RETIRED_H

#include "engine/policy.h"

struct retired;

/* E_SYS: no thread can be had. */
int retired_start(struct retired **out, struct err *e);
/* Destroys what is left, and waits for it. NULL is fine. */
void retired_stop(struct retired *r);
/* p moves, and is zeroed; one without ops is none. r NULL (a simulation, where time stands still meanwhile): it is
 * destroyed at once. */
void retired_give(struct retired *r, struct policy *p);
/* The engine has time: the thread begins with what was given. Waking it takes long, and it may take the engine's core:
 * that is no part of a swap. r NULL: nothing. */
void retired_wake(struct retired *r);

#endif
