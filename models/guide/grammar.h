/* What an answer may be, as a recursive network over bytes: rules of nodes, each of which takes a byte, goes two ways,
 * calls another rule or ends its own. It is made back to front: a node is given what follows it, so parts are put
 * together by naming the entry of what comes next. A grammar is one piece of shared memory (base/shared.h): immutable
 * once made, held and dropped by any thread. */
#ifndef MODELS_GUIDE_GRAMMAR_H
#define MODELS_GUIDE_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/map.h"
#include "engine/base/strings.h"

enum { GRAMMAR_MOST_NODES = 200000 };

enum grammar_kind {
    GRAMMAR_BYTE,  /* a: the byte; b: the next node */
    GRAMMAR_SET,   /* a: of sets; b: the next node */
    GRAMMAR_SPLIT, /* a, b: either node */
    GRAMMAR_CALL,  /* a: the rule; b: the node behind it */
    GRAMMAR_END,   /* of the rule */
};

struct grammar_node {
    enum grammar_kind kind;
    int32_t a, b;
};

struct grammar_set {
    uint64_t bits[4];
};

struct grammar {
    int n_nodes, n_rules, n_sets;
    const struct grammar_node *nodes;
    const struct grammar_set *sets;
    const int32_t *rules; /* the first node of each; rule 0 is the whole */
};

size_t grammar_bytes(const struct grammar *g);

static inline bool grammar_set_has(const struct grammar_set *s, unsigned char b)
{
    return s->bits[b >> 6] >> (b & 63) & 1;
}

/* ---- making one; no call fails, but what grows beyond GRAMMAR_MOST_NODES is over, and grammar_finish says so */
struct grammar_maker {
    struct grammar_node *nodes;
    struct grammar_set *sets;
    int32_t *rules; /* -1: not made yet */
    int n_nodes, cap_nodes, n_sets, cap_sets, n_rules, cap_rules;
    struct map by_set; /* by grammar_key of a set, or the next free number behind it: its place */
    bool over;
};

void grammar_maker_free(struct grammar_maker *m);
uint64_t grammar_key(const void *p, size_t n); /* for maps of what clients name: nobody makes two that are equal */
int32_t grammar_rule(struct grammar_maker *m); /* a new one, to be made by grammar_make_rule */
void grammar_make_rule(struct grammar_maker *m, int32_t rule, int32_t first);

int32_t grammar_end(struct grammar_maker *m);
int32_t grammar_byte(struct grammar_maker *m, unsigned char b, int32_t next);
int32_t grammar_range(struct grammar_maker *m, unsigned char from, unsigned char to, int32_t next);
int32_t grammar_set(struct grammar_maker *m, const struct grammar_set *s,
                    int32_t next); /* an empty one takes nothing */
int32_t grammar_text(struct grammar_maker *m, const char *s, size_t n, int32_t next);
/* One of some texts, at least one; sorts them. What they begin with alike is there once, so that few ways are open. */
int32_t grammar_one_of(struct grammar_maker *m, struct strings *texts, int32_t next);
int32_t grammar_split(struct grammar_maker *m, int32_t a, int32_t b);
int32_t grammar_call(struct grammar_maker *m, int32_t rule, int32_t next);
/* A split whose first way is chosen later, for loops: grammar_close. */
int32_t grammar_open(struct grammar_maker *m, int32_t other);
void grammar_close(struct grammar_maker *m, int32_t split, int32_t way);

/* All of another grammar; its whole is the rule that is returned. */
int32_t grammar_include(struct grammar_maker *m, const struct grammar *g);
/* Any character of UTF-8 beyond ASCII. */
int32_t grammar_wide(struct grammar_maker *m, int32_t next);

/* Held once by the caller; shared_drop frees it. E_INPUT: too large, or a rule that calls itself before it takes a
 * byte. m is empty afterwards. */
int grammar_finish(struct grammar_maker *m, struct grammar **out, struct err *e);

#endif
