/* What a model thinks aloud before it answers, told from the answer as the text comes: `<think>...</think>Paris.` White
 * space around either goes; nothing else is lost. What is found does not depend on how the text was cut. Linear in the
 * text. A reader belongs to one text and one thread; marks are shared and never change. */
#ifndef SERVE_OPENAI_THOUGHTS_H
#define SERVE_OPENAI_THOUGHTS_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/serve/openai/stop.h"

enum { THINK_MOST_BYTES = 80 };

struct think_marks {
    char begin[THINK_MOST_BYTES], end[THINK_MOST_BYTES]; /* begin "": not known, so nothing can be told */
    struct stops ends;                                   /* the end, to look for */
    bool is_control; /* they are control tokens, which have to be shown to be seen */
    bool is_text;    /* they can be asked for: plain ASCII and no control tokens */
};

/* The marks of a model whose thoughts end with this, e.g. "</think>", 1 to THINK_MOST_BYTES - 1 bytes: the beginning is
 * the same without its '/', if it has one. */
void think_marks_set(struct think_marks *m, const char *end, bool is_control);
void think_marks_free(struct think_marks *m);

enum think_state {
    THINK_TEXT,   /* nothing is a thought any more */
    THINK_FIRST,  /* the text may begin with one */
    THINK_INSIDE, /* the prompt has begun one */
    THINK_BEHIND, /* one has just ended */
};

/* How a prompt that ends with this text leaves the model, TEXT if it has ended its thoughts. */
enum think_state think_state_after(const struct think_marks *m, const char *text, size_t n);

struct thought_reader {
    /* out: what was read and not yet taken by the caller */
    struct buf thought, text;
    /* inner */
    const struct think_marks *marks;
    enum think_state state;
    struct buf held; /* not decided yet */
    size_t settled;  /* of held: no end marker begins there */
    size_t solid;    /* of held: up to the last of those that is no white space */
    bool any;        /* a thought has begun to show */
    struct stop_scan scan;
};

/* marks outlive it. */
void thought_reader_init(struct thought_reader *r, const struct think_marks *marks, enum think_state state);
void thought_reader_free(struct thought_reader *r);
void thought_reader_put(struct thought_reader *r, const char *s, size_t n);
void thought_reader_end(struct thought_reader *r); /* nothing follows */
size_t thought_reader_bytes(const struct thought_reader *r);

#endif
