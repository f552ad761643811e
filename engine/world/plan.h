/* A plan: what a policy asks for at one scheduling point, as a transaction. Every verb is checked when it is called,
 * against the world as it would be after the verbs before it; a refused verb returns false and leaves a reason, and the
 * plan stands as it was. Nothing in the world changes until plan_apply; a plan that is dropped leaves no trace. Owned
 * by the engine, lives for one scheduling point (its arena), engine thread. Both the native policy and the Lua host
 * speak through these functions, so they have the same law. Invariant: a plan that was accepted can be carried out. */
#ifndef WORLD_PLAN_H
#define WORLD_PLAN_H

#include "engine/base/mem.h"
#include "engine/world/draft.h"
#include "engine/world/view.h"

struct plan_item {
    struct request *request;
    int n_tokens;           /* of its timeline, from n_computed (after the prefix hit) on */
    struct drafts drafts;   /* rows behind them, of tokens that may follow; in the plan's arena */
    int source;             /* whose they are */
    int asks;               /* tokens that the step is to guess behind it, for the next one (draft_made); 0: none */
    int asked;              /* with asks: the source that they are for */
    int n_prefix;           /* tokens that the prefix cache gives a newly started request */
    bool starts;            /* waiting -> running by this plan */
    int from_place, n_from; /* n_from > 0: its prefix is n_from blocks of another place, to be copied */
    bool from_host;         /* it is parked in host memory */
    struct kv_copy *copy;   /* made by plan_apply */
};

enum { MOST_AHEAD = 1024, MOST_MICRO = 1024 };
struct plan_batch {
    struct plan *plan;
    int group_id;
    struct group *group;
    struct plan_item *items;
    int n_items, cap_items;
    int n_tokens; /* rows of the step */
    int n_decodes;
    bool anybody; /* prefill takes the queue as it comes: no routing */
    bool forwarded;
    struct layout layout;
    int n_asks;  /* of the items, those that ask */
    int n_micro; /* of a pipelined group: micro-batches of the step; 0: not decided yet */
    int ahead;   /* steps that may follow it unasked, each with one more token of every sequence; -1: as many as the
                    engine likes */
};

enum plan_verb_kind {
    PLAN_PREEMPT,
    PLAN_REFUSE,
    PLAN_LOG,
    PLAN_SWITCH,
    PLAN_REMAP,
    PLAN_CLOSE,
    PLAN_COMM,
    PLAN_HOLD,
    PLAN_FFN,
    PLAN_WEIGHTS,
    PLAN_EVICT,
    PLAN_EMBED,
    PLAN_PROBE,
    PLAN_CONCLUDE
};
enum { PLAN_VERB_KINDS = PLAN_CONCLUDE + 1 };
const char *plan_verb_name(enum plan_verb_kind k); /* "preempt", "refuse", ... */
enum { PLAN_ALL_GROUPS = -1 };
enum preempt_how { PREEMPT_RECOMPUTE, PREEMPT_HARD };

struct plan_verb {
    enum plan_verb_kind kind;
    bool canary; /* the canary's, not the live policy's */
    struct request *request;
    enum preempt_how how;
    bool unparks;                     /* preempt: it was parked, and can start anywhere from now on */
    int code, retry_after_s;          /* refuse: HTTP status, seconds or -1 */
    const char *text;                 /* refuse, log, hold: in the plan's arena */
    const struct switch_order *order; /* switch: in the plan's arena */
    int group;                        /* remap: where to; close, ffn: which */
    enum kv_fate fate;                /* remap */
    bool closed;                      /* close: or open again */
    uint64_t ranks;                   /* comm */
    int64_t until_ns;                 /* hold; 0: let go */
    int algorithm;                    /* comm: 0 by size, 1 one-shot, 2 two-shot, 3 library */
    int from, to;                     /* ffn, weights: layers [from, to) */
    enum ffn_mode mode;               /* ffn */
    bool replicated;                  /* weights; or pooled */
    enum draft_evict evict;           /* evict: of what was said, for draft tokens */
    struct embed_rule embed;          /* embed */
};

/* Where the canary's part begins: what the plan was until then. */
struct plan_mark {
    bool set;
    int n_batches, n_verbs, n_running;
    int *blocks_free;
    struct ffn_modes *ffn;
    int64_t wake_ns;
    uint64_t leaving;
    bool pressed;
};

struct plan {
    struct world *world;
    enum side side;        /* whose verbs are being called: they reach its groups and requests only (side.h) */
    struct plan_mark mark; /* of the canary's part, if there is one */
    int64_t now_ns;
    uint64_t serial;
    struct arena arena;
    struct plan_batch *batches[MAX_RANKS];
    int n_batches;
    struct plan_verb *verbs;
    int n_verbs, cap_verbs;
    int *blocks_free;      /* [n_ranks] as they would be after the verbs so far */
    int n_running;         /* the same, of the side */
    int seats;             /* how many of them there may be */
    struct ffn_modes *ffn; /* the same of groups by slot, and of groups to come; NULL: no verb was about them */
    int64_t wake_ns;       /* 0: none; else absolute */
    int n_logs;
    uint64_t leaving;   /* ranks from which KV is on its way to host memory, or will be by this plan */
    bool pressed;       /* a request of the side gave way because KV ran out: no new one starts in this plan */
    bool apart;         /* it is never carried out, so nobody is to notice it: sources of draft tokens are not asked */
    const char *reason; /* why the last verb was refused */
};

void plan_init(struct plan *p, struct world *w);
void plan_free(struct plan *p);
/* Forgets everything and begins a new one at this time, of the live policy. */
void plan_begin(struct plan *p, int64_t now_ns);
/* From here on the verbs are a canary's, on the plan as it stands. Called again, what it has put in since goes, and it
 * begins once more. plan_end_canary: the plan is one whole. */
void plan_begin_canary(struct plan *p);
void plan_end_canary(struct plan *p);

/* A batch for an idle group; one per group and plan. NULL with p->reason. */
struct plan_batch *plan_batch(struct plan *p, int group);
/* One token for every running request that decodes, in queue order. When KV runs out, the last in order that the plan
 * does not need yet is preempted (recompute), as vLLM does; where there is none, one that is parked for a group that is
 * not there. Returns how many were added. */
int plan_decodes(struct plan_batch *b);
/* Chunks up to `budget` tokens in the batch: first running requests of the group whose prompt is not done, then
 * list[0..n) (waiting requests, in that order; NULL: the waiting queue). Where there are several groups, requests that
 * another one should take (route.h) are left to it, unless b->anybody. Stops at the first that does not fit (KV for its
 * whole prompt, max_num_seqs). Returns the tokens added. */
int plan_prefill(struct plan_batch *b, const req_id *list, int n, int budget);
/* One request with up to n tokens (0: all that remain). Returns the tokens added, 0 with a reason. */
int plan_add(struct plan_batch *b, req_id id, int n);
/* Draft tokens (draft.h) for a request that decodes in a batch of this plan, as far as there is room for them without
 * anybody giving way. *g: what was guessed, as far as it is verified. False with a reason; g->n is 0 where nobody has
 * an idea. Called again for the same request it keeps the first w->most of those that it has. w->next says what its
 * step guesses for the next one. */
bool plan_draft(struct plan *p, req_id id, const struct draft_wish *w, struct draft_guess *g);
/* What it takes in ns, behind the step of this batch, that source guesses n tokens for each of so many of its requests,
 * as they are spread over the group's ranks. 0: its guesses take no time of their own; *seen: the forwards of a draft
 * model that this rests on. */
double plan_draft_ns(const struct plan_batch *b, int source, int n, int requests, uint64_t *seen);
/* What goes first of what sources of draft tokens keep, from now on, until the policy ends. */
bool plan_evict(struct plan *p, enum draft_evict rule);
/* By which rule the replicas of the encoder take texts from now on, until the policy ends. */
bool plan_embed(struct plan *p, struct embed_rule r);
/* A running request is asked what it would answer if it stopped thinking now (probe.h): from the next plan on its probe
 * waits, a request like others, for the group that its parent runs in. */
bool plan_probe(struct plan *p, req_id id);
/* A running request stops thinking: it goes on as if it had said the words of a probe. It takes no other part in this
 * plan. */
bool plan_conclude(struct plan *p, req_id id);
/* Runs the batch in this layout, which has as many stages as the group. A batch that is never forwarded is dropped.
 * Where n_micro is 0 it becomes what the estimator finds best. */
bool plan_forward(struct plan_batch *b, struct layout l);
bool plan_preempt(struct plan *p, req_id id, enum preempt_how how);
/* The partition. An order is carried out when the ranks that it needs are ready, at the earliest after this plan; until
 * then groups that it holds are not idle to policies. Asking again for what waits, or is, changes nothing; a new order
 * takes the place of waiting ones that overlap it. */
bool plan_switch(struct plan *p, const struct switch_order *o);
/* A running or parked request that is in no step: its KV moves to the group's placement and it runs on there; or it is
 * parked where it is, or in host memory; or begins again. FATE_KEEP: only where the group has its placement already.
 * What is parked in host memory starts by itself in any group that has room, when its turn comes. */
bool plan_remap(struct plan *p, req_id id, int group, enum kv_fate fate);
/* Hard: all of an idle group's requests are parked. Drain or soft: it admits no request until it is opened again
 * or bound again. */
bool plan_preempt_group(struct plan *p, int group, enum switch_when how);
bool plan_open_group(struct plan *p, int group);
/* Which algorithm the communicator of these ranks uses from now on (enum comm_algorithm). */
bool plan_comm(struct plan *p, uint64_t ranks, int algorithm);
/* Where weights are pooled: the FFN of the layers [from, to) goes this way from the group's next step on, that of this
 * plan included; PLAN_ALL_GROUPS: of all groups, and of those to come. FFN_LOCAL: only where every rank of the group
 * owns all these layers. Steps with tp > 1 fetch all layers, whatever is asked for. */
bool plan_ffn(struct plan *p, int group, int from, int to, enum ffn_mode mode);
/* Where weights are pooled: the layers [from, to) shall lie on every rank, which gives up KV blocks for them, or shall
 * be pooled again. Refused where those blocks are held or needed. The copies count for steps once all of them are
 * whole. */
bool plan_weights(struct plan *p, int from, int to, bool replicated);
/* What the batch's step would look like to the estimator: in the layout in which it is forwarded; before that, with
 * tp = 1. */
struct step_size plan_size(const struct plan_batch *b);
/* What pooled weights add to that, were it a step of this group in this layout, after this plan (or NULL). */
void plan_size_ffn(const struct world *w, const struct plan *p, const struct group *g, struct layout l,
                   struct step_size *s);
/* The modes of a step in this layout, of those that its group has. */
struct ffn_modes ffn_of_step(const struct world *w, const struct ffn_modes *group, struct layout l);
/* Which way the FFN layers take that its ranks do not all own: an enum ffn_mode when they all take the same, else
 * FFN_MIXED. Without pooled weights, and where there are no such layers: FFN_LOCAL. */
enum { FFN_MIXED = FFN_CAS + 1 };
int ffn_way(const struct world *w, const struct group *g);
const char *ffn_way_name(int way);
/* Ranks of the groups that are in a step, or begin one with this plan (or NULL), the group's own included; 0: weights
 * are not pooled. */
int ffn_ranks_at_work(const struct world *w, const struct group *g, const struct plan *p);
/* Blocks of the group's placement that the plan may still take. */
int plan_blocks(const struct plan *p, int group);
bool plan_refuse(struct plan *p, req_id id, int code, int retry_after_s, const char *why);
/* A waiting request is held back until then, HOLD_MAX_NS after its first hold at the latest. 0: it is let go. */
bool plan_hold(struct plan *p, req_id id, int64_t until_ns, const char *why);
/* Does the plan run this request; or does it settle by a verb that it is not run now (refused, held, moved)? */
bool plan_deals_with(const struct plan *p, const struct request *r);
bool plan_wake(struct plan *p, double after_ms);           /* (0, 60000] */
bool plan_log(struct plan *p, const char *text, size_t n); /* at most 8 a plan, 500 bytes each */
bool plan_is_empty(const struct plan *p);                  /* no forward, of the side */
/* Does a verb change what can run next, so that whoever decides is asked again at once? */
bool plan_opens_more(const struct plan_verb *v);
/* Carries out preemptions, remaps, orders, choices of algorithms, of FFN modes and of where FFN weights lie, starts and
 * block reservations of the forwarded batches; cannot fail. Refusals, probes, conclusions and log lines are the
 * caller's to act on. */
void plan_apply(struct plan *p);

#endif
