/* What regular expressions (regex.h) and GBNF (gbnf.h) write alike, read into parts: alternatives, sequences, groups,
 * quantifiers, classes. What differs is the notation's. Plain data, the thread of its owner. Invariant: a pattern's
 * place only moves on, and a part that was read hangs in one place. */
#ifndef MODELS_GUIDE_PATTERN_H
#define MODELS_GUIDE_PATTERN_H

#include "engine/base/err.h"
#include "models/guide/parts.h"

struct pattern;

struct notation {
    int (*bad)(const struct pattern *p, size_t at, const char *why); /* E_INPUT, with the place in words */
    int (*atom)(struct pattern *p, int *out);                        /* anything but a group, as a part */
    int (*character)(struct pattern *p, uint32_t *out);              /* as a class lists it */
    int (*open)(struct pattern *p);                                  /* behind the ( of a group */
    bool (*ends)(struct pattern *p);                       /* outside of groups: does the sequence end here? */
    bool (*kind)(struct pattern *p, struct char_class *c); /* of a class, \d and the like; NULL: there are none */
    void (*skip)(struct pattern *p);                       /* blanks; NULL: they count */
    bool first_counts;                                     /* a ] that is a class's first is one of it */
};

struct pattern {
    const struct notation *how;
    const char *s;
    size_t n, at;
    int depth; /* of groups */
    struct parts parts;
    void *ctx; /* the notation's */
    struct err *e;
};

static inline bool pattern_is_next(const struct pattern *p, char c)
{
    return p->at < p->n && p->s[p->at] == c;
}

int pattern_bad(const struct pattern *p, const char *why); /* at the present place */
/* One character of UTF-8, as it stands. */
int pattern_plain(struct pattern *p, uint32_t *out);
/* A class, behind its [ . */
int pattern_class(struct pattern *p, int *out);
/* Alternatives, up to the end, a ) or where the notation ends them. */
int pattern_read(struct pattern *p, int *out);

#endif
