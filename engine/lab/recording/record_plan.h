/* A decision as one line of text: what a recording holds of a plan and a replay compares. Small enough to be written at
 * every scheduling point. Requests are named by the order in which they were admitted. Pure functions, any thread. The
 * parts, with a blank between them:
 *
 * - D<digest>: over all of the plan, so that no difference is lost (which requests decode is in the digest only)
 * - B<group>:<sp>x<tp>:<tokens>:<requests>:<decodes>[:<request>+<tokens>[*][~<source>x<drafts>],...]: a batch, the
 * prompts in it and who has draft tokens; *: the request is started by this plan
 * - P<request>:<how>: preempt
 * - R<request>:<code>:<retry>: refuse
 * - M<request>:<group>:<fate>: remap
 * - O<ranks>:<bind|release>:<when>:<fate>:<sp>x<tp>:<max wait>[:<request>,...]: an order
 * - C<group>:<closed>: a group is closed or opened
 * - A<ranks>:<algorithm>: which algorithm a communicator uses
 * - F<group>:<from>:<to>:<local|was|cas>: the way that pooled FFN layers [from, to) take; group -1: of all groups
 * - E<rule>: what of the texts kept for draft tokens goes first
 * - H<request>:<ns from now>: hold; 0: let go
 * - W<ns from now>: wake */
#ifndef LAB_RECORDING_RECORD_PLAN_H
#define LAB_RECORDING_RECORD_PLAN_H

#include "engine/base/buf.h"
#include "engine/world/plan.h"

void record_plan(struct buf *out, const struct plan *p);
/* The same in words, for people. text is what record_plan wrote, or anything else. */
void record_plan_words(struct buf *out, const char *text);

#endif
