/* The parameters that a policy begins with, from a file and from NAME=VALUE pairs, as the JSON object that a
 * policy takes. Pure but for the file, main thread. Invariant: a NAME=VALUE pair overrides the file. */
#ifndef CLI_POLICY_PARAMS_H
#define CLI_POLICY_PARAMS_H

#include "engine/cli/opts.h"

/* A value that is a JSON number, true or false stays one, all else is a string. file may be NULL. E_INPUT, E_SYS: the
 * file. */
int policy_params_json(const char *file, const struct strings *pairs, struct buf *out, struct err *e);

#endif
