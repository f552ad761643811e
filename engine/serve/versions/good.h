/* last-good.json: the version that a server begins with after a restart, and the params that had been set. Pure
 * functions over text, any thread; params belong to whoever holds the struct. Invariant: what good_put writes,
 * good_read takes. */
#ifndef SERVE_VERSIONS_GOOD_H
#define SERVE_VERSIONS_GOOD_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/serve/versions/audit.h"

enum { GOOD_BYTES = 128 << 10 };

struct good {
    char name[AUDIT_NAME], sha256[65]; /* "": there is none */
    char *params;                      /* a JSON object; NULL: none were set */
};
void good_put(const struct good *g, struct buf *out);
int good_read(struct good *g, const char *text, size_t n, struct err *e); /* E_INPUT; g has nothing then */
void good_free(struct good *g);

/* What versions are called and known by. */
enum { VERSION_NAME_MAX = 40, SHA_PREFIX_MIN = 8 };
bool version_name_ok(const char *name);
bool version_sha_ok(const char *sha, size_t least); /* so many or more hexadecimal digits, 64 at most */

#endif
