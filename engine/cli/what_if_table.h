/* The answer of POST /admin/what-if for a person: figures of the live policy and of the other one side by side, what
 * went wrong with it, and how far to trust the figures. Pure text, any thread. Invariant: nothing that a terminal would
 * obey comes out, whatever the JSON holds. */
#ifndef CLI_WHAT_IF_TABLE_H
#define CLI_WHAT_IF_TABLE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

/* Appended to out. *good: the policy did not fail in it. E_INPUT: it is no such answer. */
int what_if_table(const struct json *answer, struct buf *out, bool *good, struct err *e);

#endif
