/* What a simulation of two policies on the same traffic predicts of a swap from the one to the other: the changes of
 * the means, of the whole window and of its single stretches. Pure, any thread. Invariant: where the simulation had too
 * little to say of a figure, nothing is predicted of it. */
#ifndef SERVE_WHATIF_FORETELL_H
#define SERVE_WHATIF_FORETELL_H

#include "engine/base/json.h"
#include "engine/prediction.h"

/* live, other: runs as `simulate --what-if --json` has them. stretch_s: about how long a stretch is. is_strict and
 * ago_s stay. */
void whatif_foretell(const struct json *live, const struct json *other, double stretch_s, struct prediction *out);

#endif
