/* Who watches an engine: told of everything that can influence a decision, in the order and with the times in which the
 * engine takes it in, and of every decision. A recorder writes it down (engine/lab/recording/record.c); a replay uses
 * the same seam to put recorded verdicts in the place of its own. Calls come on the engine's thread and must be short;
 * what they are given is borrowed for the call. Any slot may be NULL. Invariant: a witness changes nothing that it is
 * shown, except the verdicts that it may replace. */
#ifndef ENGINE_WITNESS_H
#define ENGINE_WITNESS_H

#include "engine/exec/move.h"
#include "engine/exec/replicate.h"
#include "engine/exec/reshard.h"
#include "engine/exec/step.h"
#include "engine/policy.h"

struct engine_message;
struct draft_guess;

/* The engine's own time of an event: one for everything that follows from it. */
struct witness {
    void *ctx;
    /* A request was handed in. r: as it entered the world, before the policy is asked about it; NULL: it was turned
     * away. */
    void (*submitted)(void *ctx, int64_t now_ns, const struct request_spec *s, struct request *r);
    void (*cancelled)(void *ctx, int64_t now_ns, const struct request *r, enum ending how);
    /* Any other message that changes something: a policy, params, rollback, reset of the prefix cache, drain, stop, and
     * limits that are not refused. Before it is obeyed. */
    void (*ordered)(void *ctx, int64_t now_ns, const struct engine_message *m);
    /* A step's results are taken in: for each new token, then for the step. r has the token already. */
    void (*sampled)(void *ctx, struct request *r, bool is_stop);
    /* Before that, where it had draft tokens (it->drafts.n): how many were right; ended: nothing was said about the one
     * behind them. */
    void (*verified)(void *ctx, const struct request *r, const struct step_item *it, int right, bool ended);
    void (*stepped)(void *ctx, int64_t now_ns, const struct step *s, double predicted_ns,
                    int failed_rank); /* -1: it did not fail */
    void (*moved)(void *ctx, int64_t now_ns, const struct move *m);
    /* The copies of an FFN layer are whole, could not be made, or are gone. */
    void (*replicated)(void *ctx, int64_t now_ns, const struct replica_task *t);
    /* Weights have come, beside the steps or for a group that waited; or were dropped. */
    void (*resharded)(void *ctx, int64_t now_ns, const struct reshard_task *t);
    void (*ended)(void *ctx, int64_t now_ns, const struct request *r, enum ending how);
    /* A turn of the engine that did something. p: what was decided, before it is carried out; NULL: nothing was. */
    void (*turned)(void *ctx, int64_t now_ns, const struct plan *p);
    void (*rests)(void *ctx); /* the engine has nothing to do */
    /* A source of draft tokens was asked for `most` of them, in the policy's call that is under way; g: what it said.
     */
    void (*guessed)(void *ctx, const struct request *r, int most, const struct draft_guess *g);
    /* A call of the policy: cut is asked before it (true: it is not made and *v is how it ended), judged after it, and
     * may change the verdict. */
    bool (*cut)(void *ctx, enum policy_hook h, enum verdict *v);
    void (*judged)(void *ctx, enum policy_hook h, enum verdict *v);
    bool only_watches; /* nobody will replay what it was told decision by decision: what no replay could know (probes,
                          an encoder, KV on disk, trees of draft tokens, steps ahead) stays on, and no step is watched
                          for it */
};

/* Is a replay to take the same decisions? Then what it could not know is left off. w NULL: nobody watches. */
static inline bool witness_is_exact(const struct witness *w)
{
    return w && !w->only_watches;
}

#endif
