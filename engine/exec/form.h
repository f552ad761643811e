/* The source "form": what a guided request has to say next whatever the model would choose (models/guide/forced.h), so
 * that it comes in one step, as draft tokens. It is looked up when a step's tokens have been taken in, for requests
 * that were asked about in that step: so the first time there is no guess. Engine thread only. Invariant: a guess is
 * given out for the timeline it was made for.
 */
#ifndef EXEC_FORM_H
#define EXEC_FORM_H

#include "engine/world/draft.h"

struct guides;
void form_source(struct guides *guides, struct draft_source *to); /* guides outlive it */

#endif
