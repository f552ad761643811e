/* A decision as one line of text: what a recording holds of a plan and a replay compares. Small enough to be written at
 * every scheduling point: batches with group, layout, sizes and the prompts in them; verbs; and a digest over all of
 * it, so that no difference is lost (which requests decode is in the digest only). D<digest>
 * B<group>:<sp>x<tp>:<tokens>:<requests>:<decodes>[:<request>+<tokens>[*],...]   * it starts by this plan
 *   P<request>:<how> R<request>:<code>:<retry> M<request>:<group>:<fate>
 * O<ranks>:<bind|release>:<when>:<fate>:<sp>x<tp>:<max wait>[:<request>,...] C<group>:<closed> A<ranks>:<algorithm>
 * W<ns from now> Requests are called by the order in which they were admitted. Pure functions, any thread. */
#ifndef LAB_RECORDING_RECORD_PLAN_H
#define LAB_RECORDING_RECORD_PLAN_H

#include "engine/base/buf.h"
#include "engine/world/plan.h"

void record_plan(struct buf *out, const struct plan *p);
/* The same in words, for people. text is what record_plan wrote, or anything else. */
void record_plan_words(struct buf *out, const char *text);

#endif
