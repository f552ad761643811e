/* The audit log's lines: which policy followed which, by whose order, and how it went. Each line is bound to the one
 * before it by that one's SHA-256, so that a line that was changed, left out or put in shows. Pure functions over text,
 * any thread. A line is a JSON object and ends with a newline; seq counts from 1, `prev` of the first is 64 zeros,
 * times are RFC 3339 in UTC. Invariant: what audit_put writes, audit_read takes. */
#ifndef SERVE_VERSIONS_AUDIT_H
#define SERVE_VERSIONS_AUDIT_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

enum {
    AUDIT_LINE = 8192, /* bytes of the longest */
    AUDIT_NAME = 64,   /* of a policy, NUL included */
    AUDIT_ACTOR = 72,
    AUDIT_REASON = 400,
    AUDIT_WORD = 16
};

/* A value: it is copied as it is. Texts may be empty; longer ones are cut. */
struct audit_entry {
    int64_t at_s;            /* Unix */
    char actor[AUDIT_ACTOR]; /* "key:NAME", "key" (one without a name), "open" (no key is needed), "file", "signal",
                                "engine", "boot" */
    char event[AUDIT_WORD], policy[AUDIT_NAME], from[65], to[65], result[AUDIT_WORD], reason[AUDIT_REASON];
};

struct audit_chain {
    uint64_t seq;  /* of the last line; 0: there is none */
    char prev[65]; /* its SHA-256 */
};
void audit_begin(struct audit_chain *c);
void audit_show(const struct audit_entry *a, struct buf *json);                      /* its members, without braces */
void audit_put(struct audit_chain *c, const struct audit_entry *a, struct buf *out); /* appends a line; c goes on */

typedef void (*audit_fn)(void *ctx, uint64_t seq, const struct audit_entry *a);
struct audit_found {
    struct audit_chain chain;
    size_t whole; /* bytes of whole lines; what follows has no newline: the writer died over it */
};
/* Every line, as far as they verify; fn may be NULL. E_INPUT: the number of the first line that does not, and why. */
int audit_read(const char *text, size_t n, audit_fn fn, void *ctx, struct audit_found *out, struct err *e);

#endif
