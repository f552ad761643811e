/* The line of those who wait for an encoder: which sequences go into the next batch. Requests of one owner take turns,
 * and so do owners: each turn is a slice of a request's sequences, so one request of thousands of texts delays a short
 * one by a slice and not by all of itself (deficit round robin, Shreedhar and Varghese 1995, with a quantum of one
 * slice). A request's sequences go longest first. Nothing is padded: a batch has so many tokens, whatever the lengths.
 * Owned by the embedder; one thread at a time; no threads, no time. Invariant: a job is in the line exactly while it
 * has sequences that no batch holds. */
#ifndef EMBED_LINE_H
#define EMBED_LINE_H

#include "engine/base/list.h"
#include "models/encode/encoder.h"

enum { EMBED_OWNER_BYTES = 64, EMBED_BATCH_SEQS = 512 };

struct embed_owner;

/* A request: n sequences that end together. Whoever posts it fills the first part, and keeps it until done(). */
struct embed_job {
    struct encoder_seq *seqs; /* [n], n >= 1; what they point to is the caller's, too */
    int n;
    int64_t n_tokens;              /* of all sequences */
    char owner[EMBED_OWNER_BYTES]; /* whose turn it takes; "" is an owner like any other */
    void (*done)(struct embed_job *job);
    /* out, at done() */
    int rc; /* 0: every out is written; E_GONE: cancelled or stopped; E_DEVICE: why says what failed */
    char why[200];
    /* the line's and the embedder's own */
    struct embed_owner *line_owner;
    struct list at, all;
    int *order;    /* [n], longest first */
    int next, end; /* [next, end) of the order: nobody has them; long ones are taken from the front, short ones where
                      they alone are wanted from the end */
    int n_flying, tries;
    bool cancelled, alone; /* alone: it failed in company and shares no batch any more */
};

struct embed_line {
    struct list owners; /* who has jobs here; the first is next */
    int64_t tokens;     /* that wait */
    int inputs;         /* sequences that wait */
    int jobs;
};

struct embed_piece {
    struct embed_job *job;
    int i; /* of its sequences */
};

/* What one replica runs at once. Made by the embedder; sequences longest first. */
struct embed_batch {
    int n, tokens;
    struct encoder_seq seqs[EMBED_BATCH_SEQS];
    struct embed_piece pieces[EMBED_BATCH_SEQS];
};

void embed_line_init(struct embed_line *l);
void embed_line_add(struct embed_line *l, struct embed_job *j); /* job->order is made; freed by embed_line_forget */
enum embed_lengths { EMBED_ANY, EMBED_SHORT, EMBED_LONG };
struct embed_take {
    int max_tokens;             /* of the batch; a sequence alone may have more */
    int slice;                  /* tokens of a turn; a turn is one sequence at least */
    enum embed_lengths lengths; /* which sequences are wanted; short ones have at most so many tokens: */
    int short_tokens;
};
/* Fills b. b->n 0: nobody who is wanted waits. A sequence that came back may go as what it is not, if others of its
 * request stand before it. */
void embed_line_take(struct embed_line *l, const struct embed_take *t, struct embed_batch *b);
/* A sequence that a batch held goes back: it is its job's next. */
void embed_line_return(struct embed_line *l, const struct embed_piece *p);
/* Out of the line, whatever it still has there; nothing that batches hold changes. Twice is fine. */
void embed_line_drop(struct embed_line *l, struct embed_job *j);
void embed_line_forget(struct embed_job *j); /* frees what the line made for it */

#endif
