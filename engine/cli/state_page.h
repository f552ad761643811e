/* What a running server does, for a person: the answer of GET /admin/state as lines of text. Pure text, any thread.
 * Invariant: nothing that a terminal would obey comes out, whatever the JSON holds. */
#ifndef CLI_STATE_PAGE_H
#define CLI_STATE_PAGE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

/* before: an earlier answer of the same server, for rates; NULL: there are none. Appended to out, each line with its
 * newline. E_INPUT: it is no such answer. */
int state_page(const struct json *now, const struct json *before, struct buf *out, struct err *e);

#endif
