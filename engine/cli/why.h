/* The story of a request for a person: what /admin/requests answers, as text with a bar for each part of its time. Pure
 * text, any thread. Invariant: nothing that a terminal would obey comes out, whatever the JSON holds. */
#ifndef CLI_WHY_H
#define CLI_WHY_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

/* All requests of the reply; id: only those called so (the answer's id, exactly); NULL: all. E_INPUT: it is no such
 * reply; E_NOTFOUND: nobody in it is called so. Appended to out. */
int why_render(const struct json *reply, const char *id, struct buf *out, struct err *e);

struct opts;
/* `moonshift policy why --file`. */
int why_command(const struct opts *o, struct err *e);

#endif
