/* What is known of the versions of policies, and its record: the book in memory and the store behind it, kept equal.
 * ledger_note says what has happened; the book has it at once, the store as soon as the policy lane gets to it, in the
 * order of the notes. The front thread never waits for a disk. A write that fails is logged and counted, and nothing
 * else follows from it here: who must not go on without a record asks for one first (ledger_record, on the lane).
 * Opened and closed on the main thread; front thread, except ledger_record. Invariant: one thread at a time touches the
 * store: the lane, and once that has ended (ledger_lane_ends) the front. */
#ifndef SERVE_VERSIONS_LEDGER_H
#define SERVE_VERSIONS_LEDGER_H

#include "engine/base/list.h"
#include "engine/serve/front/text.h"
#include "engine/serve/versions/book.h"
#include "engine/serve/versions/store.h"

struct ledger {
    struct store *store;
    struct book *book;
    struct text *text;   /* set by whoever serves; NULL: no lane, writes are made at once */
    struct list waiting; /* writes that found the lane full, in order */
    uint64_t *n_failed;  /* counts writes that failed; NULL: nobody asks */
    void (*heard)(void *ctx, const struct audit_entry *a); /* of what the book has taken; NULL: nobody asks */
    void *heard_ctx;
};

typedef void (*ledger_fn)(void *ctx, int rc);

/* dir NULL: in memory. Errors as of store_open. Sources that no version of the log has are removed. */
int ledger_open(struct ledger **out, const char *dir, struct err *e);
void ledger_close(struct ledger *l); /* NULL is fine; what waits is written */

/* An entry with the time of now. Texts may be NULL. */
struct audit_entry ledger_entry(const char *actor, const char *event, const char *policy, const char *to);

struct ledger_extra {
    const struct good *good;  /* last-good.json is written first; copied */
    const struct buf *source; /* of the entry's `to`, kept and written first; copied */
    bool later;               /* the book has it once it is written, and only then */
    bool drop;                /* the source of `to` is removed, unless another version has it */
    ledger_fn fn;             /* called once it is written, or could not be */
    void *ctx;
};
void ledger_note(struct ledger *l, const struct audit_entry *a,
                 const struct ledger_extra *more); /* more: may be NULL */
/* On the lane: the source and the entry are on the disk when it returns 0. The book is told by the front
 * (ledger_recorded). */
int ledger_record(struct ledger *l, const struct audit_entry *a, const struct buf *source, struct err *e);
void ledger_recorded(struct ledger *l, const struct audit_entry *a, const struct buf *source);
void ledger_tick(struct ledger *l);      /* tries again what found the lane full */
void ledger_lane_ends(struct ledger *l); /* the lane is about to be stopped; jobs that it gives back write at once */

#endif
