/* API keys: which bearer token belongs to which tenant. Keys are kept and compared as SHA-256 digests, all of
 * them in constant time. Immutable once made. Never true: a key in a log line. */
#ifndef FRONT_AUTH_H
#define FRONT_AUTH_H

#include <stdbool.h>

#include "engine/base/hash.h"
#include "engine/base/err.h"
#include "engine/world/ids.h"

struct auth_key {
    struct sha256 digest;
    char tenant[NAME_BYTES];
};

struct auth {
    struct auth_key *keys;
    int n;
};

/* KEY or KEY=TENANT (the last '=' divides, unless nothing or a '=' follows it: keys in base64 end so).
 * E_INPUT: empty, or a bad tenant name. */
int auth_add(struct auth *a, const char *spec, struct err *e);
void auth_free(struct auth *a);
/* The tenant of an Authorization header's value ("Bearer KEY"); NULL: no such key. Without keys everyone is
 * "". */
const char *auth_tenant(const struct auth *a, const char *authorization);
bool auth_guards(const char *path); /* as vLLM: /v1, /v2, /inference, /cohere */
bool auth_name_ok(
    const char *name); /* letters, digits, . _ - ; 1 to NAME_BYTES - 1 of them, not starting with a dot */

#endif
