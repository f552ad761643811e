/* A pattern as a tree of parts, which is made into a grammar once it has been read: what follows a part has to be made
 * before it, so the children of one hang together backwards. What reads patterns (pattern.h) builds it. Plain
 * data, the thread of its owner. Invariant: a part's children were added after it, or before it and hang nowhere else.
 */
#ifndef MODELS_GUIDE_PARTS_H
#define MODELS_GUIDE_PARTS_H

#include "models/guide/grammar.h"

enum { PARTS_MOST_REPEATS = 1000, PARTS_MOST_DEPTH = 64, CODE_MOST = 0x10FFFF };

enum part_kind { PART_CHARS, PART_ALL_OF, PART_ONE_OF, PART_REPEAT, PART_CALL };

struct part {
    enum part_kind kind;
    int last, prev; /* its last child; the one before it under the same parent; -1: none */
    int min, max;   /* PART_REPEAT; max -1: any number */
    int32_t rule;   /* PART_CALL */
    struct grammar_set set;
    bool wide; /* PART_CHARS: and all beyond ASCII */
};

struct parts {
    struct part *list;
    int n, cap;
    bool in_string; /* inside a JSON string: quotes and backslashes come escaped, control characters do not come */
};

/* Characters, as ranges of code points; sorted and apart once parts_class has taken them. */
struct char_range {
    uint32_t from, to;
};
struct char_class {
    struct char_range *ranges;
    int n, cap;
};

void parts_free(struct parts *p);
int parts_add(struct parts *p, enum part_kind kind);
void parts_hang(struct parts *p, int parent, int child);
int parts_byte(struct parts *p, unsigned char b);
int parts_code(struct parts *p, uint32_t code); /* its bytes hang together: a quantifier is of all of them */

void char_class_add(struct char_class *c, uint32_t from, uint32_t to);
void char_class_free(struct char_class *c);
/* One character of the class, or, inverted, any other one. */
int parts_class(struct parts *p, struct char_class *c, bool inverted);

/* The entry of what this part says, which goes on at next. */
int32_t parts_make(const struct parts *p, struct grammar_maker *m, int part, int32_t next);

#endif
