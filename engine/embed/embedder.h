/* The embedder: replicas of one encoder, a thread each, and the line before them. Whoever owns it (the front's thread)
 * posts requests, is woken through an fd when batches come back, and then collects: done() runs for every request whose
 * sequences have all been computed, or that failed, or was cancelled. All state is of that one thread; batches go to a
 * replica and back as messages, at most two on each, so that it never waits for the front. Which replica takes a batch
 * is a rule's to say (engine/world/embed.h), which may change at any time. A batch that fails is tried again, its
 * requests then each alone; a replica that fails several times in a row is left out. Invariants: done() runs exactly
 * once for each request that was accepted; a vector is the same bits in whatever batch it was computed
 * (models/encode/encoder.h); whatever waits has a replica that may take it, as long as one lives. */
#ifndef EMBED_EMBEDDER_H
#define EMBED_EMBEDDER_H

#include "engine/embed/line.h"
#include "engine/world/embed.h"

enum { EMBED_STRIKES = 3, EMBED_TRIES = 3 };

struct embedder;

/* What computes. For an encoder: embed_encoder_ops, ctx the encoder; tests bring their own. */
struct embed_ops {
    int (*open)(void **replica, void *ctx, int n_threads, int max_tokens, struct err *e);
    int (*run)(void *replica, const struct encoder_seq *seqs, int n, struct err *e); /* on the replica's thread */
    void (*close)(void *replica);
};
extern const struct embed_ops embed_encoder_ops;

struct embed_setup {
    const struct embed_ops *ops;
    void *ctx;
    int n_replicas, n_threads; /* threads of each */
    int batch_tokens;          /* of a batch */
    int longest;               /* a sequence: where it has more than batch_tokens, it is a batch alone. 0: none has */
    struct embed_link *link;   /* what waits and runs is put there; NULL: nobody asks */
    int64_t max_tokens;        /* that may wait; 0: no bound. A request is always taken when nothing waits */
    int max_inputs;            /* the same of sequences */
};

int embedder_create(struct embedder **out, const struct embed_setup *s, struct err *e);
/* Waits for batches that run; every request that is left ends with E_GONE, through done(). NULL is fine. */
void embedder_destroy(struct embedder *m);
/* The job is the embedder's until done(). E_FULL: too much waits; E_DEVICE: no replica is left; the job is still the
 * caller's. */
int embedder_post(struct embedder *m, struct embed_job *j, struct err *e);
/* Nobody waits for it: no more of it is computed. done() follows: at once, or when the batches come back that hold some
 * of it. */
void embedder_cancel(struct embedder *m, struct embed_job *j);
void embedder_fail_all(struct embedder *m, const char *why); /* as if each were cancelled, with a reason */
int embedder_fd(const struct embedder *m);                   /* readable when batches came back */
void embedder_collect(struct embedder *m);
void embedder_route(struct embedder *m, struct embed_rule rule); /* of batches from now on */
struct embed_rule embedder_rule(const struct embedder *m);
bool embedder_is_down(const struct embedder *m); /* no replica is left */

struct embed_counts {
    uint64_t jobs, inputs, tokens; /* computed whole */
    uint64_t batches, batch_tokens, failed_batches;
    int64_t tokens_waiting, tokens_flying; /* flying: on replicas, as their loads say */
    int inputs_waiting, jobs_waiting, inputs_flying, replicas, replicas_alive, replicas_allowed;
};
void embedder_count(const struct embedder *m, struct embed_counts *out);

#endif
