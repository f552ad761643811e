/* The engine: owns the world, the ranks and the live policy, and turns messages into steps. One thread runs engine_run
 * (or, under a virtual clock, a driver calls engine_turn). Fronts and ranks talk to it through its inbox; it answers
 * through its outbox. Messages are small and by value; what a payload points to moves with the message. The loop body
 * is ingest, view, decide, check, post, absorb. Invariant: every request has exactly one ending. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/base/clock.h"
#include "engine/base/hash.h"
#include "engine/base/queue.h"
#include "engine/exec/drafter.h"
#include "engine/exec/prepare.h"
#include "engine/policy.h"
#include "engine/witness.h"
#include "engine/world/draft.h"
#include "models/load/model.h"
#include "models/load/speculator.h"

struct engine;
struct profile;

/* What a played step takes: its ranks, and what goes by besides until it is taken in. */
struct played_step {
    int64_t ns, lag_ns;
};

/* A machine that is played back: the ranks run nothing, steps and moves take as long as they are told to. Only for an
 * engine that is not threaded. */
struct engine_play {
    const struct node_facts *facts; /* the node as it was recorded, shape included; borrowed until engine_destroy */
    const struct comm_measure
        *comms; /* [number of rank sets with a communicator, in the pool's order] what they measured; NULL: nothing */
    /* How long it takes. NULL: until the driver hands it back (engine_take_step, engine_take_move,
     * engine_take_replica, engine_take_reshard). */
    struct played_step (*step)(void *ctx, const struct step *s,
                               int beside); /* beside: other groups in a step, those posted with it included */
    int64_t (*move_ns)(void *ctx, const struct move *m);
    int64_t (*replica_ns)(void *ctx, const struct replica_task *t);
    int64_t (*reshard_ns)(void *ctx, const struct reshard_task *t);
    void *ctx;
    struct ffn_cost ffn; /* with step, of a step that fetches all pooled FFN layers that it lacks */
};

/* A file for KV that outlives the server. */
struct disk_setup {
    const char *path; /* NULL: none; borrowed until engine_destroy */
    size_t bytes;
    struct sha256 model; /* changes with the weights (engine/cli/model_files.h) */
};

struct engine_setup {
    const struct backend_ops *ops;
    struct device_opts device;
    int devices[MAX_RANKS]; /* device.index of each rank */
    struct model *model;    /* borrowed until engine_destroy; for sim only its config is used */
    struct limits limits;
    enum dtype kv_dtype;
    size_t kv_bytes;              /* 0: memory_share of what the device has left */
    double memory_share;          /* (0, 1) */
    int graph_sizes[GRAPH_SIZES]; /* rows of the graphs to record, descending; machines without graphs record none */
    int n_graph_sizes;
    bool rehearse;             /* try steps of every layout before anything is served */
    bool tunes;                /* and ways of products, where a machine has several */
    const char *tuning_folder; /* where what was chosen is kept, borrowed while opening; NULL: nowhere */
    int ahead;      /* steps that may be posted behind a step of decodes before it has ended, one at a time, as long as
                       nothing happens that a policy would want to know. 0: none. Threaded only; not with a witness
                       that is exact */
    int block_size; /* tokens of a block that holds all kv heads, a multiple of 16 */
    int n_ranks;    /* 1 .. MAX_RANKS; 0: 1 */
    const struct numa *numa; /* threaded ranks stay on its nodes, each of which has its own copy of what ranks share;
                                borrowed while opening; NULL: they run anywhere */
    struct layout start; /* the partition to begin with: as many groups of sp * tp ranks as there is room for; 0: one
                            group of all */
    const uint64_t
        *comm_sets; /* rank sets that may be groups beyond the aligned power-of-two ranges and the full set */
    int n_comm_sets;
    bool copy_shards;            /* --shift-weights copy */
    const struct ffn_setup *ffn; /* --weights pooled: how, borrowed until engine_destroy; NULL: every rank can read all
                                    weights */
    bool sharded; /* --weights sharded: a rank holds a cut of the layers, at first that of its share of `start` */
    size_t shard_memory;  /* of each rank for its cuts, old and new; 0: twice the largest of `start` and of the layouts
                             that cut them most */
    size_t host_kv_bytes; /* memory of the machine for KV of all ranks; 0: none */
    struct disk_setup disk; /* below that */
    size_t rank_memory; /* each rank has so many bytes of its own for weights, slots, working memory and KV; 0: ranks of
                           one device share its memory (pooled weights: an even part of it) */
    int fail_rank;      /* tests: this rank fails in its step number fail_at_step (0: never) */
    uint64_t fail_at_step;
    struct clock *clock;
    bool threaded; /* ranks in threads of their own; false: a step completes at clock + its cost (virtual time) */
    bool lockstep; /* a described machine in virtual time: groups begin their steps together, each padded to the rows of
                      the largest, and wait for the slowest, as the data parallelism of vLLM in 2025 did; else they are
                      independent */
    const struct engine_play *play;      /* NULL: the ranks do the work */
    const struct witness *witness;       /* NULL: none; borrowed until engine_destroy */
    const struct speculator *speculator; /* draft heads that steps guess with, for the source of engine/draft/heads.h;
                                            borrowed while opening; NULL: none */
    const struct drafter_plan *drafter;  /* a model that steps guess with, for the source of engine/draft/model.h, whose
                                            blocks are as many; borrowed until engine_destroy; NULL: none */
    const struct draft_sources *drafts;  /* what act.draft guesses with; NULL: prompt lookup, in virtual time nothing.
                                            Borrowed until engine_destroy */
    const struct embed_link *embed;      /* an encoder that the front serves beside, for the policy; NULL: none. Not
                                            with a witness that is exact. Borrowed until engine_destroy */
    const struct thinking *thinking;     /* how it ends, for probes; NULL: nothing is probed. Not with a witness that is
                                            exact, nor in virtual time. Borrowed until engine_destroy */
    const struct guide_tokens *guide_tokens; /* for requests with a grammar; NULL: they are refused. Borrowed until
                                                engine_destroy */
    struct policy policy;                    /* goes live at once; ctx moves to the engine */
    char model_name[128];
    int outbox_events;   /* from so many on that the front has not taken, tokens wait with their requests; 0: 16384, in
                            virtual time no bound */
    double shadow_share; /* of the engine's time, that a policy may take that decides beside the live one */
    size_t decision_bytes; /* of the decision log (engine/decisions.h); 0: none */
    int story_keep;        /* requests that ended whose stories are kept (engine/story.h); 0: no stories */
    bool quiet;            /* no log lines */
    bool quiet_stats;      /* no periodic line of rates */
};

/* Opens ranks, loads weights, sizes the KV cache. E_INPUT/E_FULL say what would fit ("max-model-len 65536 needs 2.45
 * GiB of KV cache, 1.9 GiB available: ..."). */
int engine_create(struct engine **out, const struct engine_setup *s, struct err *e);
void engine_destroy(struct engine *engine); /* after engine_run returned */

/* ---- in */
enum engine_in {
    IN_SUBMIT,  /* payload: struct request_spec * (moves) */
    IN_CANCEL,  /* tag; code: enum ending to report (END_ABORT, or END_STOP when the front found a stop string) */
    IN_POLICY,  /* payload: struct policy * (heap, moves): goes live at the next step boundary; answered by EV_REPLY */
    IN_PARAMS,  /* payload: char * JSON text (moves), n: bytes; answered by EV_REPLY */
    IN_LIMITS,  /* payload: struct limits_order * (heap, moves), obeyed at once, by whoever decides next; NULL: a
                   question.  Answered by EV_REPLY: payload char * JSON, the limits of now, of the start, and their
                   ranges; or why  the order is refused */
    IN_METRICS, /* answered by EV_REPLY: payload char * text */
    IN_STATE,   /* answered by EV_REPLY: payload char * JSON (requests, queues, KV, policy) */
    IN_PROFILE, /* answered by EV_REPLY: payload char * JSON, what the ranks have counted of their steps
                   (engine/profile_report.h); E_UNSUPPORTED: their ops are not watched */
    IN_PULSE, /* n: the newest switch (its serial) that the asker knows. Answered by EV_REPLY: payload char * JSON, what
                 happened since the last IN_PULSE: for one watcher, who looks a few times a second */
    IN_ROLLBACK,           /* the previous good policy becomes live again; answered by EV_REPLY */
    IN_RESET_PREFIX_CACHE, /* cached blocks become free; answered by EV_REPLY */
    IN_DRAIN,              /* take no more; EV_DRAINED when the last request has ended */
    IN_STOP,               /* end everything now (END_ABORT) and return from engine_run */
    IN_STEP_DONE,          /* from a rank: payload struct step * */
    IN_MOVE_DONE,          /* from a rank: payload struct move * */
    IN_REPLICA_DONE,       /* from a rank: payload struct replica_task * */
    IN_RESHARD_DONE,       /* from a rank: payload struct reshard_task * */
    IN_DISK_DONE,          /* from the disk: payload struct disk_job * */
    IN_STORY,     /* payload: char * the id of a request (moves); NULL: the n slowest. Answered by EV_REPLY: char * JSON
                     (engine/story.h); E_NOTFOUND: nobody is known by it; E_UNSUPPORTED: none are kept */
    IN_DECISIONS, /* payload: struct decisions_ask * (heap, moves). Answered by EV_REPLY: payload char * JSON;
                     E_UNSUPPORTED: none are logged */
    IN_SHADOW,    /* payload: struct shadow_order * (heap, moves): a policy that decides beside the live one
                     (engine/shadow.h). Answered by EV_REPLY: payload char * JSON, or why it does not start */
    IN_SHADOW_END,   /* it ends; E_NOTFOUND: there is none. Answered as IN_SHADOW */
    IN_SHADOW_STATE, /* what is known of it, or of the last one; answered as IN_SHADOW */
    IN_CANARY,     /* payload: struct canary_order * (heap, moves): a policy decides for some groups (engine/canary.h).
                      Answered by EV_REPLY: payload char * JSON, or why it cannot be */
    IN_CANARY_END, /* it ends; E_NOTFOUND: there is none. Answered as IN_CANARY */
    IN_CANARY_STATE,   /* what is known of it, or of the last one; answered as IN_CANARY */
    IN_POLICY_REFUSED, /* a policy did not get as far as IN_POLICY. payload: char * why (moves); counted and shown, not
                          answered */
};

struct engine_message {
    enum engine_in kind;
    int code;
    uint64_t tag; /* request, or the asker's own mark for replies */
    size_t n;
    void *payload;
};

/* ---- out */
enum engine_out {
    EV_TOKEN,           /* one output token; flags; payload: struct token_logprobs * (heap, moves) or NULL */
    EV_TOKENS,          /* several, when the front is behind: payload: struct token_run * (heap, one piece, moves). See
                           engine_event_token */
    EV_PROMPT_LOGPROBS, /* payload: struct prompt_logprobs * (heap, moves); before the first token */
    EV_END,   /* the one ending: code = enum ending; usage; payload: char * message or NULL (refused, error) */
    EV_REPLY, /* to an asker: code 0 or err_code; payload: char * text (moves); n bytes */
    EV_DRAINED,
    EV_DOWN,   /* no request can be served any more; payload: char * why (moves) */
    EV_POLICY, /* the engine has withdrawn the live policy, sent it back for what requests met, kept it after its
                  probation, or tries one again: payload: char * JSON (moves), n bytes: event "withdraw", "rollback",
                  "commit" or "retry", rests, probation (of the one that is live now), reason, from {name, sha256}, to:
                  as in IN_STATE's policy.active. Or the one beside it has ended: event "shadow-end", name, sha256,
                  reason; or a canary has: "canary-end", the same */
    EV_EMBED,  /* by which rule replicas of the encoder take texts from now on: tag is embed_rule_pack's */
};

struct engine_event {
    enum engine_out kind;
    int code; /* END: enum ending; REPLY: error code */
    uint64_t tag;
    int32_t token;
    bool is_stop;                     /* TOKEN, TOKENS: it (the last) is a stop id: counted, its text is not shown */
    int http_status, retry_after_s;   /* END refused: 0 and -1 when there is nothing to say */
    int n_prompt, n_output, n_cached; /* END: usage */
    size_t n;
    void *payload;
};

struct token_run {
    int n;
    int32_t *tokens;
    struct token_logprobs *logprobs; /* NULL: none were asked for */
};

/* The i-th token of an event, as if it had come alone; its payload stays the event's. false: the event has fewer
 * tokens.
 */
bool engine_event_token(const struct engine_event *ev, int i, struct engine_event *out);

struct queue *engine_inbox(struct engine *engine); /* of struct engine_message; unbounded */
/* Of struct engine_event; has an eventfd (threaded setups). Bounded: see outbox.c. */
struct queue *engine_outbox(struct engine *engine);
void engine_run(void *engine); /* thread body: until IN_STOP */

/* ---- virtual time (setup.threaded false): the driver owns the clock */
bool engine_turn(struct engine *engine);             /* one turn; true when it did something */
int64_t engine_next_ns(const struct engine *engine); /* next step completion or wake; INT64_MAX: none */
/* Takes in one message now, without the rest of a turn: what a turn is made of, for drivers that know where turns began
 * and ended. */
void engine_take(struct engine *engine, struct engine_message *m);
/* A played machine: what is under way in this group, or the move of this number (NULL: there is none), leaves the
 * timetable; the driver fills in what came of it and hands it back with engine_take, IN_STEP_DONE, IN_MOVE_DONE,
 * IN_REPLICA_DONE or IN_RESHARD_DONE. */
struct step *engine_take_step(struct engine *engine, int group);
struct move *engine_take_move(struct engine *engine, uint64_t serial);
struct replica_task *engine_take_replica(struct engine *engine, int layer);      /* and the copies of this layer */
struct reshard_task *engine_take_reshard(struct engine *engine, uint64_t ranks); /* of these ranks */
struct request *engine_find(struct engine *engine,
                            uint64_t tag); /* NULL: gone. For drivers that know a request's prefix keys beforehand */
const struct node_facts *engine_node(const struct engine *engine);
int64_t engine_started_ns(const struct engine *engine);
const struct policy *engine_policy(const struct engine *engine); /* the live one; the engine's thread */
const struct plan *engine_plan(const struct engine *engine);     /* what was decided last; valid while its step runs */
const struct world *engine_world(const struct engine *engine);   /* for drivers and tests on the engine's thread */
bool engine_profile(const struct engine *engine, struct profile *out); /* false: ops are not watched; any thread */
void engine_probe(const struct engine *engine); /* the ranks' peaks once more, once engine_run has returned */

#endif
