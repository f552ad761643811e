/* The versions of policies that a server knows: what came under which name, when and from whom, what became of it, and
 * which hashes are in quarantine. It is made from the audit log alone: every entry that is logged goes through
 * book_take, at a start those of the log do, so that both say the same. Sources are put beside it, in memory. Bounded:
 * BOOK_VERSIONS and BOOK_BYTES of sources; book_surplus says what has to go. Front thread; before the server runs, the
 * main thread. Invariant: the live version, the one before it and the last good one are never surplus. */
#ifndef SERVE_VERSIONS_BOOK_H
#define SERVE_VERSIONS_BOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/serve/versions/audit.h"
#include "engine/serve/versions/good.h"

enum { BOOK_VERSIONS = 64, BOOK_BYTES = 8 << 20, BOOK_QUARANTINED = 256, BOOK_CAPACITY = 2 * BOOK_VERSIONS };

struct version {
    char name[AUDIT_NAME], sha256[65], actor[AUDIT_ACTOR];
    char why[AUDIT_REASON]; /* refused: the reason; else "" */
    bool refused, accepted; /* it never passed; it has passed at least once */
    int64_t at_s;           /* when it came last */
    uint64_t seen;          /* grows with each event about it */
    uint64_t lived;         /* grows with each time that it went live; 0: never */
    uint64_t good;          /* the same for each time that it was found good */
    char *source;           /* NULL: none is kept */
    size_t n_source;
    char *params; /* that were set when it was live; NULL: none */
};

struct quarantined {
    char sha256[65], why[AUDIT_REASON];
};

struct book {
    struct version all[BOOK_CAPACITY];
    int n;
    char live[65], live_name[AUDIT_NAME], previous[65], good[65]; /* "": none that is known */
    uint64_t moment;
    struct quarantined quarantine[BOOK_QUARANTINED]; /* the newest; a ring */
    uint64_t n_quarantined;
};

void book_free(struct book *b);
/* What an entry says becomes so. It copies. */
void book_take(struct book *b, const struct audit_entry *a);
/* What the engine says is live, and was before. */
void book_live(struct book *b, const char *name, const char *live, const char *previous);
/* A process begins: nothing is live. Versions without a source (but refused ones) are forgotten. */
void book_begin(struct book *b);
/* The source (copied) of all versions with that hash. */
void book_keep(struct book *b, const char *sha256, const char *source, size_t n);

struct version *book_find(struct book *b, const char *name, const char *sha256); /* NULL: none; name NULL: the newest */
/* The one whose hash begins so (`prefix`: at least SHA_PREFIX_MIN digits), of that name (NULL: any). E_INPUT: no
 * prefix; it is of several; E_NOTFOUND. */
int book_resolve(struct book *b, const char *name, const char *prefix, struct version **out, struct err *e);
struct version *book_newest(struct book *b, const char *name); /* with a source; NULL: none */
/* Which was live last, is not now, and may be again (not in quarantine); name NULL: of any. NULL: none. */
struct version *book_before(struct book *b, const char *name);
/* The n-th last good one that may be loaded, 0: the newest; NULL: there is none. */
struct version *book_good(struct book *b, int nth);
const char *book_quarantined(const struct book *b, const char *sha256); /* why; NULL: it is not */
bool book_is_needed(const struct book *b, const struct version *v);     /* live, previous, or good last */
bool book_has_source(const struct book *b, const char *sha256);
/* The next version that has to go; NULL: there is room. */
struct version *book_surplus(struct book *b);
/* The array of GET /admin/policies, oldest first. */
void book_put(struct book *b, struct buf *json);

#endif
