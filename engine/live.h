/* The live policy: which policy decides now, which one decided before, what each did wrong, and the native policy
 * underneath. Every call of a policy goes through here and comes back with a valid decision: the policy's own, or the
 * native one. live.c makes and judges the calls; succession.c says which policy comes next, and what ends with a
 * policy. Owned by the engine, engine thread only. Invariants: a policy is always live; what a policy has set going
 * ends with it. */
#ifndef ENGINE_LIVE_H
#define ENGINE_LIVE_H

#include "engine/policy.h"
#include "engine/probation.h"
#include "engine/retired.h"
#include "engine/starve.h"
#include "engine/witness.h"

enum {
    LIVE_STRIKES = 3,
    LIVE_COSTLY_STRIKES = 100,
    LIVE_WINDOW = 1000,
    LIVE_MAX_BARREN = 64,
    LIVE_TRIES = 5,
    DECISION_COUNT = 5
};

/* A policy that was withdrawn for slowness alone: the machine may be less busy later. */
struct live_rest {
    struct policy policy; /* ops NULL: none rests */
    int64_t until_ns;
    int n_tries;   /* so often has the live policy, or the one that rests, been tried again */
    bool unproven; /* it was on probation when it was withdrawn */
};

/* What the engine has decided about the live policy by itself, and who follows that has not been told. */
enum live_change_kind { CHANGE_NONE, CHANGE_WITHDRAWN, CHANGE_SENT_BACK, CHANGE_KEPT, CHANGE_RETRIED };
struct live_change {
    enum live_change_kind kind;
    bool rests;                        /* withdrawn for slowness alone: it is tried again, or could be */
    char name[NAME_BYTES], sha256[65]; /* of the policy that was live */
    char why[PROBATION_REASON_BYTES];
};

struct live {
    struct policy active, previous, native;
    bool canary; /* its policy decides for the canary's side (canary.h), not for the live one */
    bool has_previous;
    bool fallen;     /* the active one is withdrawn: it is not called any more, and another is to take its place */
    bool crashed;    /* its process has: it is not called until live_settle has renewed it */
    bool may_return; /* it is withdrawn for nothing but slowness */
    char why_fallen[200];
    struct live_rest rest;
    struct live_change change; /* the last one; whoever tells it takes it away */
    struct node_facts node;
    const struct witness *witness; /* NULL: none; set by the engine */
    struct retired *retired;       /* where policies go that have gone; NULL: they are destroyed at once */
    struct probation probation;    /* of the active policy. Its guards are set by the engine once it has begun */
    bool quiet;
    uint64_t next_generation;
    uint64_t calls[HOOK_COUNT], verdicts[HOOK_COUNT][VERDICT_COUNT];
    uint64_t fallbacks[VERDICT_COUNT]; /* steps the native policy decided, by cause */
    uint64_t n_swaps, n_refused_swaps, n_rollbacks, n_reverts, n_retries;
    uint64_t n_decisions[DECISION_COUNT]; /* admit, preempt, refuse, forward, hold */
    uint64_t strike_steps[LIVE_STRIKES];  /* ring of the steps of the last strikes */
    int n_strikes;
    int64_t wake_ns; /* when the active one wants to be asked again; 0: never */
    int n_barren;    /* plans in a row that change what could run next and run nothing although something could */
    int64_t barren_since_ns;   /* the first of the plans in a row that run nothing although something could run; 0: the
                                  last one was not so */
    enum verdict last_verdict; /* of the last step */
    bool last_native;          /* the native policy decided it, by right or in the policy's stead */
    struct {
        uint64_t from, n; /* so many calls since this step */
    } slow, heavy;        /* that stand, and cost more than they may */
    int64_t last_swap_ns;
    struct starve_watch starve;
    char last_error[512]; /* of the last call or swap that failed; log and /admin/policy show it */
    double last_swap_seconds;
    bool unsaid; /* the log does not know yet that the active one has replaced the previous one */
};

void live_init(struct live *l, const struct node_facts *node, bool quiet);
void live_free(struct live *l);

/* The end of a turn: what a swap has left for later, when the step that it was before has begun. */
void live_tend(struct live *l);
/* p goes live (ctx moves, also on failure: it is destroyed then). Exports the old state, imports it, ends what the old
 * one left behind, calls start, asks admit for new keys of all requests. On failure the old policy goes on, with all
 * that it has ordered, and e says why. */
int live_swap(struct live *l, struct policy *p, struct world *w, int64_t now_ns, struct err *e);
/* A policy that was to go live did not get so far; why begins with its name. */
void live_refused(struct live *l, const char *why);
/* Back to the previous good policy, whose start is called again. E_NOTFOUND when there is none; E_POLICY when it cannot
 * start: then the native one serves. */
int live_rollback(struct live *l, struct world *w, int64_t now_ns, struct err *e);
/* When the process of the active policy has crashed, a fresh one takes its place, and the policy begins again as if it
 * took over. When it has been withdrawn, the one before it takes over as in a rollback, else the native one. True: so
 * it was. Only in a turn, or before an order about policies is obeyed: what a recording can say the moment of. */
bool live_settle(struct live *l, struct world *w, int64_t now_ns);
/* A policy that was withdrawn for slowness alone has rested long enough: it is swapped in again. True: so it was. Only
 * in a turn. */
bool live_retry(struct live *l, struct world *w, int64_t now_ns);
/* A policy on probation is judged when it is time: it is kept, or goes back to the one before, whose state is that of
 * the moment of the swap. True: something was looked at. *changed: another policy decides now. Only in a turn. */
bool live_watch(struct live *l, struct world *w, int64_t now_ns, bool *changed);
struct verdict_counts live_verdicts(const struct live *l); /* of all policies so far */
/* Asks again for the keys of all waiting and running requests of its side (after a swap or a change of params). */
void live_rekey(struct live *l, struct world *w, int64_t now_ns);

/* The sort key of a new request, or a refusal. r is in the table, not yet shown in a queue order of its own. */
void live_admit(struct live *l, const struct request *r, const struct view *v, struct admission *a);
/* Fills the plan: the policy's when its call stands and is lawful, else the native one's. A canary's part is put behind
 * what the plan has, and only that goes when the call does not stand. v: of its side. */
void live_step(struct live *l, const struct view *v, struct plan *p);
enum side live_side(const struct live *l, const struct world *w); /* what it decides for now */
void live_finish(struct live *l, const struct request *r, enum ending how, const struct view *v);
void live_idle(struct live *l);

/* The change that nobody was told of, as the JSON of EV_POLICY; false: there is none. */
bool live_take_change(struct live *l, struct buf *json);
void live_metrics(const struct live *l, struct buf *out);
void live_state(const struct live *l, int64_t now_ns, struct buf *json); /* the object of GET /admin/policy */

#endif
