/* Where a rank holds only its cut of the weights (engine/world/residency.h): what each rank is opened with, how large
 * every cut is, and how much room ranks have for them. Made by the node while it opens. Engine thread. Invariant: all
 * ranks have the same room. */
#ifndef ENGINE_CUTS_H
#define ENGINE_CUTS_H

#include "engine/node.h"

/* The cuts that the ranks are to load: of the layout to start with, group by group; ranks that are in no group hold
 * nothing. E_UNSUPPORTED: not on this machine; E_INPUT: not in this layout. */
int cuts_begin(struct node *n, const struct engine_setup *s, struct err *e);
/* Once ranks have loaded theirs: sizes, and the room. E_FULL: there is less than the start takes. */
int cuts_measure(struct node *n, const struct engine_setup *s, struct err *e);
void cuts_free(struct node *n);

#endif
