/* A verb of a policy as data: what verbs*.c ask of the plan, in one form. In thread mode verb_do carries it out at
 * once; a policy that has a process of its own sends it to the engine (lua/apart.h), which checks that it is lawful and
 * carries it out by the same function. Used on the thread that calls the policy. Invariant: verbs reach the plan only
 * through verb_carry_out. */
#ifndef LUA_VERB_CALL_H
#define LUA_VERB_CALL_H

#include <lua.h>

#include "engine/exec/comm.h"
#include "engine/policy.h"

enum verb_call_kind {
    CALL_BATCH,
    CALL_DECODES,
    CALL_PREFILL,
    CALL_ADD,
    CALL_FORWARD,
    CALL_DRAFT,
    CALL_PROBE,
    CALL_CONCLUDE,
    CALL_PREEMPT,
    CALL_REMAP,
    CALL_PREEMPT_GROUP,
    CALL_OPEN,
    CALL_REFUSE,
    CALL_HOLD,
    CALL_WAKE,
    CALL_LOG,
    /* start may give these, too */
    CALL_SWITCH,
    CALL_COMM,
    CALL_FFN,
    CALL_WEIGHTS,
    CALL_EVICT,
    CALL_EMBED,
    /* questions that are no reads, in any hook that has a view */
    CALL_CACHED,   /* of a request in a group: tokens */
    CALL_MEASURED, /* of a communicator */
    /* a line of the log outside of a step */
    CALL_SAY,
    CALL_KINDS
};

/* Numbers only, so that any bytes are one. Texts, lists and orders are the caller's. */
struct verb_call {
    int kind;
    req_id id;
    int group; /* of a batch, too: a plan has one for each */
    int n;     /* add: tokens; prefill: budget; draft: the most; refuse: code; forward: ahead */
    int more;  /* refuse: retry_after; draft: next; forward: n_micro; ffn, weights: to */
    int from;  /* ffn, weights; draft: source */
    int how;   /* preempt, preempt_group, remap: fate, comm: algorithm, ffn: mode, weights, evict; draft: as a tree;
                  prefill: 1: anybody */
    int listed, n_list; /* prefill: of these, not of the queue */
    uint64_t ranks;
    int64_t until_ns;
    double ms;
    struct layout layout;
    struct embed_rule embed;
    const req_id *list;
    const struct switch_order *order;
    const char *text;
};

enum { VERB_TEXT = 512, VERB_REASON = 256 };

struct verb_result {
    bool done;
    int n; /* what was added; draft: tokens; cached */
    int match, source;
    float score;
    struct comm_measure measured; /* CALL_MEASURED; done: there is a communicator */
    const char *reason;           /* where it is not done; valid until the next call */
};

/* Where verbs go that are not carried out here; of a process of its own. */
struct verb_way {
    /* Returns what waiting has taken, in CPU time of this thread, in ns. */
    int64_t (*go)(void *ctx, const struct verb_call *c, struct verb_result *r);
    void *ctx;
};

/* What verbs may be carried out in a call, and on what. */
struct verb_scope {
    enum policy_hook hook;
    const struct view *view;       /* NULL: none */
    struct plan *plan;             /* NULL: none */
    const struct comm_pool *comms; /* NULL: none */
};

/* By the script's way, or at once. */
void verb_do(lua_State *L, const struct verb_call *c, struct verb_result *r);
/* The same, and the answer: true, or nil and the reason. */
int verb_done(lua_State *L, const struct verb_call *c);
void verb_carry_out(const struct verb_scope *s, const struct verb_call *c, struct verb_result *r);
/* Could this library have asked so, in this call? What it could not have asked comes from code that has broken out. */
bool verb_is_lawful(const struct verb_scope *s, const struct verb_call *c);

#endif
