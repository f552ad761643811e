/* The engine's state, shared by the engine's own files (absorb.c, ahead.c, arrive.c, disk.c, drafts.c, engine.c,
 * mend.c, obey.c, outbox.c, post.c, probing.c, replicate.c, report.c, reshard.c, set_limits.c, switch.c); everyone else
 * includes engine.h. Owned by the engine, engine thread only. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include "engine/canary.h"
#include "engine/decisions.h"
#include "engine/engine.h"
#include "engine/exec/disk_kv.h"
#include "engine/live.h"
#include "engine/node.h"
#include "engine/pulse.h"
#include "engine/shadow.h"
#include "engine/story.h"
#include "engine/timetable.h"

/* Rates for the periodic log line. */
struct rates {
    int64_t since_ns;
    uint64_t prompt_tokens, generation_tokens;
};

enum { MAX_IDLE_WAKES = 16, MAX_FRUITLESS = 64, PACE_NS = 1000000 };

struct engine {
    struct engine_setup setup;
    struct world world;
    struct metrics metrics;
    struct retired *retired; /* NULL: not threaded */
    struct live live;
    struct shadow shadow;
    struct canary canary;
    struct stories stories;
    struct guards *guards; /* NULL: no policy is put on probation */
    struct decisions decisions;
    struct plan plan;
    struct node node;
    struct draft_sources drafts; /* a copy, for policies to see (engine/base/seen.h) */
    struct ffn_setup ffn;        /* of pooled weights; owners change when ranks fail */
    uint64_t failing_ranks;      /* steps of others have found them failed; what they are in has yet to end */
    uint64_t mended_ranks;       /* failed, and their FFN layers lie elsewhere by now */
    const char *beyond_mending;  /* why no request can be served any more; NULL: they can */
    struct queue *inbox, *outbox;
    struct node_facts facts;
    struct timetable under_way;                              /* not threaded */
    int n_moving;                                            /* moves under way */
    struct replica_task *replicas[FFN_MAX_LAYERS];           /* copies of FFN layers that ranks make or give up */
    int n_replicating;                                       /* of those */
    void (*replica_done)(void *ctx, struct replica_task *t); /* given to ranks that are threaded */
    struct reshard_task *reshards[MAX_RANKS];                /* under way */
    int n_reshards;
    void (*reshard_done)(void *ctx, struct reshard_task *t);
    struct cut cuts[MAX_RANKS];     /* what the ranks have been told to hold */
    uint64_t staged_ranks;          /* have, or get, weights that they do not use yet */
    size_t staged_bytes[MAX_RANKS]; /* of those */
    uint64_t n_posted_moves;
    struct disk_kv *disk; /* NULL: none */
    bool disk_said[2];    /* that reading failed; that writing did */
    int64_t now_ns; /* of the event that is being taken in, or of the turn: whatever follows from one thing happens at
                       one time */
    uint64_t unanswered[8]; /* tags of swaps that went well: answered at the end of the turn */
    int n_unanswered;
    int64_t due_ns;   /* when the next parked request is due, or the next held one is let go; INT64_MAX: none */
    int n_idle_wakes; /* decisions since there was a request */
    bool saw_empty;   /* the policy has been asked since the last request ended */
    int n_fruitless;  /* decisions since a step ended */
    bool changed;     /* something happened since the last decision */
    bool draining, drained_said, stopping;
    bool was_idle;
    struct kv_cursor checked; /* how far the books of the KV have been recounted */
    bool outbox_full;         /* as it was when the step that is taken in began to be */
    uint64_t embed_told;      /* the rule that the front knows, packed */
    uint64_t probes_by;       /* the policy (its generation) whose probes there are */
    int n_behind;             /* requests with tokens that the front has not been told */
    uint64_t watch_round; /* pooled FFN weights, recorded: in each one step of every group says when its layers ran */
    int64_t watch_until_ns;
    int64_t started_ns;
    struct rates rates;
    struct pulse pulse;
};

/* outbox.c */
void engine_emit(struct engine *engine, const struct engine_event *ev);
void engine_tell_down(struct engine *engine, const char *why); /* no request can be served any more */
void engine_tell_change(struct engine *engine);    /* what it has decided about the live policy, if anything */
void engine_tell_shadow(struct engine *engine);    /* that the one beside it has ended, if it has */
void engine_tell_canary(struct engine *engine);    /* that a canary has ended, if it has */
void engine_look_at_outbox(struct engine *engine); /* before the tokens of a step are told */
void engine_tell_token(struct engine *engine, struct request *r, bool is_stop,
                       const struct token_logprobs *lp);         /* its newest; lp: copied; NULL: none */
void engine_tell_rest(struct engine *engine, struct request *r); /* what it has not been told yet */
bool engine_catch_up(struct engine *engine);                     /* tells what waits when there is room again */

/* obey.c: a canary that runs ends, since this is about to happen. */
void engine_end_canary(struct engine *engine, const char *why);
/* obey.c: orders about policies, and questions about what was decided; each is answered. */
void engine_obey(struct engine *engine, struct engine_message *m);
void engine_answer_swaps(struct engine *engine); /* those of this turn, when the step that they were before has begun */
void engine_reply(struct engine *engine, uint64_t tag, int code, char *text, size_t n); /* text: heap, moves */
void engine_reply_with(struct engine *engine, uint64_t tag, int code, struct buf *out); /* out: moves */

/* drafts.c: what act.draft guesses with, and who hears of it */
void engine_open_drafts(struct engine *engine);

/* absorb.c */
/* Ends a request that is not busy: tells the policy and the front, updates the books. http_status and why only for
 * refusals and errors. */
struct request_end {
    enum ending how, told; /* told: to the client; END_NONE: the same */
    int http_status, retry_after_s;
    const char *why; /* NULL: nothing to say */
};
void engine_end_request(struct engine *engine, struct request *r, const struct request_end *f);
/* Ends one that the policy refuses; an empty why has other words. */
void engine_refuse(struct engine *engine, struct request *r, int http_status, int retry_after_s, const char *why);

/* arrive.c: takes it into the queue, or tells the front why not. */
void engine_submit(struct engine *engine, struct request_spec *s);

/* set_limits.c: an IN_LIMITS, whose payload is freed */
void engine_take_limits(struct engine *engine, const struct engine_message *m);

/* probing.c: what a plan says of thinking is done. */
void engine_think(struct engine *engine, const struct plan_verb *v);
/* Before each decision: ends probes that have nothing to do any more, now or with their step, and all of them once
 * another policy decides. */
void engine_tend_probes(struct engine *engine);
/* One more token of a probe. Returns the ending it brings, or END_NONE. */
enum ending engine_take_probe_token(struct engine *engine, struct request *probe, int32_t token);
bool engine_is_stop_id(const struct request *r, int32_t token); /* absorb.c */

/* absorb.c: the results of a step become tokens, endings and published blocks. Frees the step. */
void engine_absorb(struct engine *engine, struct step *s);

/* ahead.c: puts the next step behind the newest one of its group, where that is lawful and nothing has happened; see
 * there. */
void engine_follow(struct engine *engine, struct step *s);

/* post.c */
void engine_post_plan(struct engine *engine, const struct plan *p); /* every batch that the plan forwards */
void engine_post(struct engine *engine, struct step *s);            /* to the inboxes of all its ranks */

/* The policy's orders are given or carried out, and what is possible now is another thing: it is asked again at once.
 * One that has done nothing else for MAX_FRUITLESS decisions is asked a little later: at once would be without end, at
 * one moment. */
void engine_note_change(struct engine *engine);

/* switch.c */
void engine_post_moves(struct engine *engine);
void engine_move_done(struct engine *engine, struct move *m); /* frees it */
bool engine_switch(struct engine *engine);
/* After a failed step has been absorbed: the node goes on without this rank. */
void engine_lose_rank(struct engine *engine, int rank, const char *why);
void engine_reset_comms(struct engine *engine, const struct step *s); /* of a failed step's ranks */

/* replicate.c */
bool engine_post_replicas(struct engine *engine);                        /* what is due; true: there was something */
void engine_replica_done(struct engine *engine, struct replica_task *t); /* frees it */
void engine_drop_replicas(struct engine *engine);                        /* the ranks are closed */

/* reshard.c */
bool engine_post_reshards(struct engine *engine);                        /* what is due; true: there was something */
void engine_reshard_done(struct engine *engine, struct reshard_task *t); /* frees it */
void engine_drop_reshards(struct engine *engine);                        /* the ranks are closed */

/* disk.c */
int engine_open_disk(struct engine *engine, struct err *e);       /* once there is host memory. As disk_kv_open */
void engine_tend_disk(struct engine *engine);                     /* brings what will be wanted, saves what is not */
bool engine_post_disk(struct engine *engine, struct kv_copy *v);  /* false: it is not for the disk */
void engine_disk_done(struct engine *engine, struct disk_job *j); /* frees it */

/* mend.c: pooled FFN weights after a rank has failed. False: not yet whole; no step may begin. */
bool engine_mend(struct engine *engine);
bool engine_waits_to_mend(const struct engine *engine); /* for what is under way */

/* Ranks have failed: a request that fits none of those left would wait for ever. It ends with an error, now or when it
 * has outgrown them. */
void engine_end_misfits(struct engine *engine);

/* report.c */
char *engine_metrics_text(struct engine *engine, size_t *n); /* heap */
char *engine_state_json(struct engine *engine, size_t *n);   /* heap */
/* What happened since the last call, and switches newer than `seen`. Heap. */
char *engine_pulse_json(struct engine *engine, uint64_t seen, size_t *n);
/* What IN_STORY and IN_DECISIONS are answered with: the code, and JSON or why there is none. */
int engine_put_story(const struct engine *engine, const char *id, int n, struct buf *out);
int engine_put_decisions(const struct engine *engine, const struct decisions_ask *ask, struct buf *out);
void engine_log_rates(struct engine *engine, int64_t now_ns); /* at most every 10 s, silent when idle */

#endif
