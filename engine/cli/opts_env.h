/* Variables of the environment as flags: MOONSHIFT_MAX_NUM_SEQS is --max-num-seqs. Pure functions over the table of
 * settings, any thread. Invariant: a misspelt variable is an error. */
#ifndef CLI_OPTS_ENV_H
#define CLI_OPTS_ENV_H

#include <stdbool.h>

#include "engine/base/err.h"

enum { ENV_NAME = 64 };

struct env_variable {
    char spelling[ENV_NAME + 16]; /* as it stands in the environment */
    char name[ENV_NAME];          /* of the flag, without dashes in front */
    const char *value;            /* in the entry */
};

/* entry: "NAME=value". False: it is none of ours, or belongs to our build, tests and tools. */
bool opts_env_read(const char *entry, struct env_variable *v);
/* No flag of this command has that name: 0 when another command's has, else E_INPUT with the nearest. */
int opts_env_unknown(const struct env_variable *v, struct err *e);

#endif
