/* The state folder (--state-dir): the sources of policies by their SHA-256, the audit log, and which version was good
 * last. Opened on the main thread before the server runs; then one thread at a time, in strict order: the policy lane,
 * and once that has ended the front thread. A lock keeps a second server out. Writes are complete when a function
 * returns 0: synced, and renamed where a file is replaced. A write that fails leaves what was there. Without a folder
 * (dir NULL) the log is kept in memory, its newest part, and sources and last-good are nowhere. Invariants: a file of
 * a source holds what its name says; the log only grows, by whole lines. */
#ifndef SERVE_VERSIONS_STORE_H
#define SERVE_VERSIONS_STORE_H

#include "engine/base/buf.h"
#include "engine/serve/versions/audit.h"
#include "engine/serve/versions/good.h"

struct store;

/* fn (may be NULL) gets every line of the log, in order. A last line that has no end is put aside, to
 * audit.torn-TIME, and one in the log says so. E_INPUT: another server has the folder, or the log does not verify;
 * E_SYS: it cannot be made, read or written. */
int store_open(struct store **out, const char *dir, audit_fn fn, void *ctx, struct err *e);
void store_close(struct store *s);            /* NULL is fine */
const char *store_dir(const struct store *s); /* NULL: none */

/* Nothing happens where it is there. E_SYS. */
int store_put(struct store *s, const char *sha256, const void *source, size_t n, struct err *e);
/* Appends to out. E_NOTFOUND; E_INPUT: it is not what its name says. */
int store_get(struct store *s, const char *sha256, size_t limit, struct buf *out, struct err *e);
void store_drop(struct store *s, const char *sha256);
/* Which sources lie there, for each of them once. */
void store_each(struct store *s, void (*fn)(void *ctx, const char *sha256), void *ctx);

int store_log(struct store *s, const struct audit_entry *a, struct err *e); /* E_SYS */
/* So many lines at most, as they stand in the log, from seq `from` on; 0: the newest ones. */
int store_lines(struct store *s, uint64_t from, int n, struct buf *out, struct err *e);

int store_set_good(struct store *s, const struct good *g, struct err *e);
int store_good(struct store *s, struct good *out, struct err *e); /* E_NOTFOUND: none yet; E_INPUT: not readable */

#endif
