/* The seam between the engine and whoever decides. engine/policy_fcfs.c is the native policy: default, and fallback for
 * any other; lua/host.c runs a script. The engine calls admit when a request arrives, step at every scheduling point,
 * finish when a request ended, idle while the devices compute. All on the engine thread, except destroy, which runs on
 * whichever thread retires the policy once the engine has let go of it. Invariant: a policy changes the world only
 * through the plan that it was given. */
#ifndef ENGINE_POLICY_H
#define ENGINE_POLICY_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/prediction.h"
#include "engine/world/plan.h"
#include "engine/world/view.h"

/* How a call ended. OK, SLOW (by the clock) and HEAVY (by what it executed) stand; after any other nothing of the call
 * stands and the native policy decides. */
enum verdict {
    VERDICT_OK,
    VERDICT_SLOW,
    VERDICT_HEAVY,
    VERDICT_ERROR,
    VERDICT_TIMEOUT,
    VERDICT_OOM,
    VERDICT_MALFORMED,
    VERDICT_STALLED,
    VERDICT_STARVED,
    VERDICT_CRASHED, /* its process has ended, and with it all that it remembered */
    VERDICT_COUNT
};
const char *verdict_name(enum verdict v); /* "ok", "slow", ... */
static inline bool verdict_stands(enum verdict v)
{
    return v == VERDICT_OK || v == VERDICT_SLOW || v == VERDICT_HEAVY;
}
static inline bool verdict_torn(enum verdict v) /* its state may be half changed: it may never run again */
{
    return v == VERDICT_TIMEOUT || v == VERDICT_OOM;
}

/* Depends on more than what the policy saw: a replay has to be told. */
static inline bool verdict_by_chance(enum verdict v)
{
    return v == VERDICT_SLOW || v == VERDICT_HEAVY || v == VERDICT_CRASHED || verdict_torn(v);
}
/* Nothing of the call has happened: a replay leaves it out. */
static inline bool verdict_cuts(enum verdict v)
{
    return v == VERDICT_CRASHED || verdict_torn(v);
}

enum policy_hook { HOOK_START, HOOK_ADMIT, HOOK_STEP, HOOK_FINISH, HOOK_EXPORT, HOOK_IMPORT, HOOK_COUNT };
const char *policy_hook_name(enum policy_hook h);

struct admission {
    double key; /* set by the caller to the default (arrival, seconds); smaller is sooner; finite */
    bool refused;
    int code, retry_after_s; /* refused: HTTP status 400..599; seconds, -1: none */
    int64_t hold_until_ns;   /* held back until then; 0: not */
    char why[200];           /* of the refusal, or the hold */
};
/* The request takes its place in the queue, and waits there as long as it is held. */
static inline void admission_obey(const struct admission *a, struct world *w, struct request *r, int64_t now_ns)
{
    world_rekey(w, r, a->key);
    if (a->hold_until_ns && r->state == REQ_WAITING && !hold_refusal(r, a->hold_until_ns, now_ns))
        world_hold(w, r, a->hold_until_ns, a->why, now_ns);
}

struct comm_pool;

/* What never changes while the process lives. */
struct node_facts {
    int n_ranks;
    size_t memory_bytes, weight_bytes, kv_bytes; /* of a rank */
    int kv_blocks, tokens_per_block;             /* of a rank; of a block that holds all kv heads */
    int host_kv_blocks;                          /* of host memory, each of tokens_per_block tokens; 0: there is none */
    const struct node_shape *shape; /* which rank sets may be groups, which layouts run, what a block holds */
    struct heads heads;
    const struct comm_pool *comms;           /* what the node's communicators measured; NULL: there are none */
    const struct residency_facts *residency; /* where ranks hold cuts of the weights; NULL: they do not */
    const struct ffn_setup *ffn;             /* how FFN weights are pooled; NULL: every rank has all weights */
    size_t ffn_layer_bytes;                  /* FFN matrices of the largest layer */
    size_t ffn_freed_bytes; /* by pooling, of the rank on which it is least: those of the layers that it does not
                               hold, less its slots. Both are 0 on simulated devices */
    int ffn_replica_blocks; /* KV blocks that a rank lends for a copy of one layer */
    struct limits limits;
    char model[128], device[96];
};

enum { POLICY_LIBS = 8, POLICY_LIBS_TEXT = POLICY_LIBS * NAME_BYTES };

struct policy {
    const struct policy_ops *ops;
    void *ctx;
    char name[NAME_BYTES];
    char sha256[65]; /* of the source and of its libraries; "native" for policy_fcfs */
    char doc[200];
    char libs[POLICY_LIBS_TEXT]; /* the libraries it is made of, with spaces between */
    uint64_t generation;         /* set by the engine when it goes live: 1, 2, ... */
    struct prediction predicted; /* of its going live next, by whoever orders that; all 0: nothing is */
};

struct policy_ops {
    /* Each returns a verdict and, when it does not stand, the cause (file:line: text) in e. Slots may be NULL: nothing
     * happens, the call is OK. */
    /* start: each time that the policy takes over. It may give orders for the partition through p (which is dropped
     * when the call does not stand). */
    enum verdict (*start)(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p,
                          struct err *e);
    enum verdict (*admit)(void *ctx, const struct request *r, const struct view *v, struct admission *a, struct err *e);
    enum verdict (*step)(void *ctx, const struct view *v, struct plan *p, struct err *e);
    enum verdict (*finish)(void *ctx, const struct request *r, enum ending how, const struct view *v, struct err *e);
    void (*idle)(void *ctx); /* housekeeping in the device's shadow */
    /* State across a swap, as JSON text. export: appended to out (nothing: no state). import: into a fresh policy
     * before it goes live. */
    enum verdict (*export_state)(void *ctx, struct buf *out, struct err *e);
    enum verdict (*import_state)(void *ctx, const char *json, size_t n, struct err *e);
    /* Declared params. get: a JSON object name -> {value, default, min, max, choices, type, unit, doc}, those that
     * are declared. set: all or nothing; E_INPUT names what is wrong. */
    void (*params_get)(void *ctx, struct buf *json);
    int (*params_set)(void *ctx, const char *json, size_t n, struct err *e);
    /* The next call of step is followed, line by line: what it saw, which lines ran, what it logged is appended to out,
     * one JSON object (lua/follow.h), when that call has ended; out stays until then. For replays: it is slow. */
    void (*follow)(void *ctx, struct buf *out);
    /* A request entered, moved, changed or left: for policies that keep columns. Called right after the change. */
    void (*metrics)(void *ctx, const char *labels,
                    struct buf *out); /* own series; labels like policy="fcfs",version="ab12" */
    /* Its process has crashed: a fresh one of the same source and params takes its place, and remembers nothing. Start
     * is called next. NULL: it has none to crash. */
    int (*renew)(void *ctx, struct err *e);
    void (*destroy)(void *ctx);
};

/* The native first-come, first-served policy. Static, never destroyed. */
void policy_fcfs(struct policy *out);

#endif
