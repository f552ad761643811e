/* Probes: a request that thinks aloud is asked now and then what it would answer if it stopped now (Dynasor, Fu et al.
 * 2024). A probe is a request of the engine's own: the thinking so far, then words that close the thinking and begin an
 * answer, and at most PROBE_TOKENS tokens behind them. It shares the KV of its parent's prefix by the prefix cache,
 * takes no place in the queue that clients see, is heard by nobody, and ends with its parent. What it said stays with
 * the parent, for the policy to compare: whether to ask and whether to stop is the policy's (plan_probe,
 * plan_conclude). Engine thread only. Invariant: a probe changes nothing of what its parent says. */
#ifndef WORLD_PROBE_H
#define WORLD_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/world/ids.h"

struct request;
struct world;

enum {
    PROBE_TOKENS = 20,     /* that a probe says */
    PROBE_BYTES = 256,     /* of what it said, kept */
    PROBE_WINDOW = 16,     /* answers that are kept */
    PROBE_LATE = 64,       /* tokens that its parent may say before a probe that has not begun is given up */
    PROBE_END_BYTES = 64,  /* of the marker */
    PROBE_MOST_SUFFIX = 64 /* tokens that close the thinking */
};

/* How the model's thinking ends. Made once (engine/command/probing.c), immutable. */
struct thinking {
    char end[PROBE_END_BYTES + 1]; /* the marker behind it, such as "</think>", and NUL */
    int n_end;                     /* its bytes, >= 1 */
    int32_t suffix[PROBE_MOST_SUFFIX];
    int n_suffix;                                                    /* >= 1: the marker and how an answer begins */
    int depth;                                                       /* braces that the suffix opens and leaves open */
    void (*piece)(const void *ctx, int32_t token, struct buf *text); /* appends the bytes of a token */
    const void *ctx;
};

/* What a probe said. The answer goes up to the brace that closes the last one left open by the suffix; where that opens
 * none, to the end of the line. */
struct probe_said {
    char text[PROBE_BYTES];
    int n, n_answer; /* bytes; of them the answer's */
    int depth;       /* braces open behind the text */
    bool complete;   /* the answer has ended */
};

/* Of a request that asked for an early stop. */
struct probe_book {
    req_id under_way;                     /* 0: none */
    int asked_at;                         /* tokens that it had said when it was probed last; 0: never */
    int64_t n_said;                       /* probes that came to their end */
    struct probe_said said[PROBE_WINDOW]; /* probe i is at i % PROBE_WINDOW */
    char tail[PROBE_END_BYTES];           /* the last bytes that it said, as many as the marker has */
    int n_tail;
    bool closed; /* its thinking is over */
};

/* Reads `end` and `text`, which is appended to it, and the ids of both together. False: too long, or braces are closed
 * that it does not open. */
bool thinking_set(struct thinking *t, const char *end, const char *text, const int32_t *suffix, int n_suffix);
/* The parent has said one more token: is its thinking over? Only for a request with a book. */
void probe_hear(const struct thinking *t, struct request *r, int32_t token);
/* A probe has said one more token. */
void probe_say(const struct thinking *t, struct probe_said *s, const char *bytes, size_t n);
/* What the k-th last probe said, from 1; NULL: there is none, or it is not kept. */
const struct probe_said *probe_last(const struct request *r, int64_t k);
/* The answer without its white space, in out (PROBE_BYTES and NUL); returns its bytes. 0: it is not complete, or
 * empty. */
int probe_answer(const struct probe_said *s, char out[PROBE_BYTES + 1]);
/* Do these words stand there, as words: no letter, digit or byte beyond ASCII beside them? Case does not count, and a
 * space is any white space. */
bool probe_has_words(const struct probe_said *s, const char *words, size_t n);

/* Why it cannot be probed now, or NULL. */
const char *probe_refusal(const struct world *w, const struct request *r);
/* Why its thinking cannot be closed now, or NULL. */
const char *conclude_refusal(const struct world *w, const struct request *r);
/* A probe of r, which none of these refuses, waits from now on. */
struct request *world_probe(struct world *w, struct request *r, int64_t now_ns);
/* Has a probe nothing to do any more: its parent has gone, waits, thinks no more or runs elsewhere, or it gave way? */
bool probe_is_over(const struct world *w, const struct request *probe);
/* It ends, by itself or not: its parent's book says so. For world_end. */
void probe_end(struct world *w, struct request *probe, bool by_itself);

#endif
