/* A decision of a recording for a person: the JSON of engine/lab/revisit.h as text. Pure text, any thread. Invariant:
 * nothing that a terminal would obey comes out, whatever the JSON holds. */
#ifndef CLI_STEP_VIEW_H
#define CLI_STEP_VIEW_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

enum { STEP_VIEW_ROWS = 40 }; /* of a queue; --json has all of them */

/* recording: its name, for the first line. E_INPUT: it is no such object. Appended to out. */
int step_render(const struct json *decision, const char *recording, struct buf *out, struct err *e);

#endif
