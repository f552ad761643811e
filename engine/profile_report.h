/* The profile of the steps (kernels/profile.h) for people and for programs: by how many rows a step has, and in that by
 * op, with what is no op of a step, and all of it. Pure functions; any thread. Invariant: the times of the rows add up
 * to the total, which is what the steps took. */
#ifndef ENGINE_PROFILE_REPORT_H
#define ENGINE_PROFILE_REPORT_H

#include "engine/base/buf.h"
#include "kernels/profile.h"

void profile_table(const struct profile *p, struct buf *out); /* lines; kinds of steps that there were */
void profile_json(const struct profile *p, struct buf *out);  /* an object */

#endif
