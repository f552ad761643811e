/* What live.c (calls and verdicts), succession.c (who comes next) and canary.c (who decides for a part) share. Included
 * by these only. */
#ifndef ENGINE_LIVE_INNER_H
#define ENGINE_LIVE_INNER_H

#include "engine/live.h"

/* A call that a witness says was cut off is not made: nothing of it would count. */
bool live_cut(const struct live *l, enum policy_hook h, enum verdict *v);
/* Every verdict of a policy passes through here. */
enum verdict live_heard(const struct live *l, enum policy_hook h, enum verdict v);
void live_note_error(struct live *l, const char *what, enum verdict v, const struct err *e);
/* p's start is called, for its side. What it orders counts from now on, when the call stands. */
int live_call_start(struct live *l, const struct policy *p, struct world *w, int64_t now_ns, struct err *e);
/* The active policy is not called any more, and live_settle puts another in its place. */
void live_withdraw(struct live *l, const char *why);

#endif
