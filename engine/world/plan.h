/* A plan: what a policy asks for at one scheduling point, as a transaction. Every verb is checked when it is called, against the world as it would be
 * after the verbs before it; a refused verb returns false and leaves a reason, and the plan stands as it was. Nothing in the world changes until plan_apply; a plan
 * that is dropped leaves no trace. Owned by the engine, lives for one scheduling point (its arena), engine thread. Both the native policy and the
 * Lua host speak through these functions, so they have the same law.
 * Never true: a plan that was applied and cannot be carried out. */
#ifndef WORLD_PLAN_H
#define WORLD_PLAN_H

#include "engine/base/mem.h"
#include "engine/world/view.h"

struct plan_item {
    struct request *request;
    int n_tokens;                   /* of its timeline, from n_computed (after the prefix hit) on */
    int n_prefix;                   /* tokens that the prefix cache gives a newly started request */
    bool starts;                    /* waiting -> running by this plan */
};

struct plan_batch {
    struct plan *plan;
    int group;                      /* id */
    struct plan_item *items;
    int n_items, cap_items;
    int n_tokens;                   /* rows of the step */
    int n_decodes;
    bool forwarded;
    struct layout layout;
};

enum plan_verb_kind { PLAN_PREEMPT, PLAN_REFUSE, PLAN_LOG };
enum preempt_how { PREEMPT_RECOMPUTE, PREEMPT_HARD };

struct plan_verb {
    enum plan_verb_kind kind;
    struct request *request;
    enum preempt_how how;
    int code, retry_after_s;        /* refuse: HTTP status, seconds or -1 */
    const char *text;               /* refuse, log: in the plan's arena */
};

struct plan {
    struct world *world;
    int64_t now_ns;
    uint64_t serial;
    struct arena arena;
    struct plan_batch *batches[MAX_RANKS];
    int n_batches;
    struct plan_verb *verbs;
    int n_verbs, cap_verbs;
    int blocks_free;                /* as they would be after the verbs so far */
    int n_running;                  /* the same */
    int64_t wake_ns;                /* 0: none; else absolute */
    int n_logs;
    bool pressed;                   /* somebody gave way because KV ran out: nobody new starts in this plan */
    const char *reason;             /* why the last verb was refused */
};

void plan_init(struct plan *p, struct world *w);
void plan_free(struct plan *p);
/* Forgets everything and begins a new one at this time. */
void plan_begin(struct plan *p, int64_t now_ns);

/* A batch for an idle group; one per group and plan. NULL with p->reason. */
struct plan_batch *plan_batch(struct plan *p, int group);
/* One token for every running request that decodes, in queue order. When KV runs out, the last in order that the plan does not need yet is preempted
 * (recompute), as vLLM does. Returns how many were added. */
int plan_decodes(struct plan_batch *b);
/* Chunks up to `budget` tokens in the batch: first running requests whose prompt is not done, then list[0..n) (waiting requests, in that order; NULL: the
 * waiting queue). Stops at the first that does not fit (KV for its whole prompt, max_num_seqs). Returns the tokens added. */
int plan_prefill(struct plan_batch *b, const req_id *list, int n, int budget);
/* One request with up to n tokens (0: all that remain). Returns the tokens added, 0 with a reason. */
int plan_add(struct plan_batch *b, req_id id, int n);
/* Runs the batch in this layout. A batch that is never forwarded is dropped. */
bool plan_forward(struct plan_batch *b, struct layout l);
bool plan_preempt(struct plan *p, req_id id, enum preempt_how how);
bool plan_refuse(struct plan *p, req_id id, int code, int retry_after_s, const char *why);
bool plan_wake(struct plan *p, double after_ms);    /* (0, 60000] */
bool plan_log(struct plan *p, const char *text, size_t n); /* at most 8 a plan, 500 bytes each */
bool plan_is_empty(const struct plan *p);           /* no forward */
/* Carries out preemptions, starts and block reservations of the forwarded batches; cannot fail. Refusals and log lines are the caller's to act on. */
void plan_apply(struct plan *p);

#endif
