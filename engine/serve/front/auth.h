/* API keys: which bearer token belongs to which tenant. Keys are kept and compared as SHA-256 digests, all of them in
 * constant time. Immutable once made. Invariant: no key appears in a log line or in the text of an error. */
#ifndef SERVE_FRONT_AUTH_H
#define SERVE_FRONT_AUTH_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/hash.h"
#include "engine/base/err.h"
#include "engine/world/ids.h"

struct auth_key {
    struct sha256 digest;
    char tenant[NAME_BYTES]; /* "": none was named */
    char salt[NAME_BYTES];   /* whose prefix cache: the tenant's; without one, of this key alone */
    bool offline;            /* of a batch: nobody waits for its answers */
};

struct auth {
    struct auth_key *keys;
    int n;
};

/* One key, whole. tenant may be "". E_INPUT: empty, with blanks, or a bad tenant name. */
int auth_add(struct auth *a, const char *key, const char *tenant, struct err *e);
/* KEY or KEY=TENANT, as on a command line: the last '=' divides, unless nothing or a '=' follows it (keys in base64 end
 * so). E_INPUT also when the key would have a '=' inside: nobody can tell what was meant. */
int auth_add_spec(struct auth *a, const char *spec, struct err *e);
/* Lines of KEY or KEY TENANT, divided by blanks, so a key may have a '=' anywhere; empty lines and those that begin
 * with '#' are left out. Errors name the line. E_INPUT also when there is no key. */
int auth_read(struct auth *a, const char *path, struct err *e);
void auth_free(struct auth *a);
/* Of an Authorization header's value ("Bearer KEY"); NULL: no such key. Without keys everyone has the same, of tenant
 * "". */
const struct auth_key *auth_find(const struct auth *a, const char *authorization);
const struct auth_key *auth_find_key(const struct auth *a, const char *key); /* of a bare key, as in X-Api-Key */
/* "3 keys, of tenants a, b" */
void auth_describe(const struct auth *a, struct buf *out);
bool auth_name_ok(const char *name); /* letters, digits, . _ - ; 1 to NAME_BYTES - 1 of them, not starting with a dot */

#endif
