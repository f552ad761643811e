/* `moonshift reproduce`: the numbers that papers published beside what `moonshift simulate` says, from a list that is data: what was published, which
 * command lines are run, and which of their results (or what sum of them) answers it; or why nothing can. Results to stdout, progress to stderr.
 * Main thread. Never true: a number of the list that is passed over in silence. */
#ifndef FRONT_REPRODUCE_H
#define FRONT_REPRODUCE_H

#include "engine/front/opts.h"

/* The list is a wall: E_INPUT names the entry. E_POLICY: a bar is missed (with opts.bars). E_GONE: interrupted. */
int reproduce(const struct opts *o, struct err *e);

#endif
