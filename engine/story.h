/* The stories of requests: where each nanosecond of a request's life went, and why. From its arrival on a request is in
 * exactly one span at a time; a span ends where the next one begins, at a time of the engine's clock that the engine
 * has already given to something else (a step's end, a decision). So the parts of a time to first token are exclusive
 * and add up to it, to the nanosecond: it is the one of the metrics, from the request's arrival at the front to the
 * step's end that brought its first token in; what the front does with the token afterwards is not in it. Why a request
 * waits is found at each decision, from the plan and from what the world lacks (story_cause.c), and holds until the
 * next one. Live requests have their stories (request.story), and the last `keep` that ended are kept. Probes have
 * none. Owned by the engine, engine thread only. Invariants: spans do not overlap and leave no gap; nothing here
 * changes a decision. */
#ifndef ENGINE_STORY_H
#define ENGINE_STORY_H

#include "engine/base/buf.h"
#include "engine/world/plan.h"

enum story_part {
    PART_FRONT,     /* at the front: read, made tokens of, on its way to the engine */
    PART_ENGINE,    /* from a step's end, or its coming, to the next decision */
    PART_PREFILL,   /* in a step that computes its prompt (or what it had, once more) */
    PART_DECODE,    /* in steps that make its next tokens */
    PART_STEP,      /* every group that could take it is in a step */
    PART_SEAT,      /* max_num_seqs requests run */
    PART_KV,        /* no room in the KV cache */
    PART_BUDGET,    /* the step has max_num_batched_tokens rows without it */
    PART_SWITCH,    /* its group, or all, are held, loading, or being bound anew */
    PART_CLOSED,    /* the policy has closed the groups that could take it */
    PART_NO_GROUP,  /* no group there is holds a request of its length */
    PART_MOVE,      /* its KV is being copied between ranks */
    PART_SWAP,      /* its KV is on its way to, or from, host memory or the disk */
    PART_HELD,      /* the policy holds it; with its words */
    PART_SIBLING,   /* for the prompt that it shares with a choice of the same order */
    PART_PASSED,    /* there was room, and the policy ran others; behind whom */
    PART_BEHIND,    /* there was room, but not for one that comes before it; behind whom */
    PART_ROUTED,    /* left to another group, which is to serve it sooner */
    PART_IDLE,      /* there was room, and the policy ran nothing: it has asked to be woken */
    PART_PREEMPTED, /* it had to give way */
    PART_UNEXPLAINED,
    PART_COUNT
};
const char *story_part_name(enum story_part p); /* a word for JSON: "front", "no_seat", ... */

enum { STORY_SPANS = 64, STORY_WORDS = 4, STORY_ASKED_MOST = 100 };

struct story_span {
    int64_t from_ns, to_ns;
    uint64_t behind;   /* tag of a request that was served meanwhile, or comes before it; 0: none */
    uint64_t step;     /* of the world, in which it was decided */
    int tokens, steps; /* prefill, decode */
    int group;
    struct layout layout; /* prefill, decode */
    int8_t words;         /* in the story's; -1: none */
    uint8_t part;
    bool again;      /* after it had to give way */
    bool mixed;      /* what followed until to_ns is in it: the story has no more spans */
    uint16_t others; /* behind so many others, too, one after another */
};

struct story {
    /* what every step touches */
    uint64_t mark; /* the plan that has dealt with it */
    int64_t
        between_ns; /* since when it is between two steps of decodes: most often the next one follows; 0: it is not */
    int64_t first_token_ns; /* 0: not yet */
    struct story_span now;
    /* the rest */
    struct story_span *spans;
    int n, cap;
    int64_t arrival_ns, end_ns; /* end: 0: not yet */
    uint64_t tag;
    int64_t ttft[PART_COUNT], after[PART_COUNT]; /* of closed spans */
    int choice;                                  /* of its order */
    int n_prompt, n_output, n_cached, n_preempted;
    enum ending how;
    char *words[STORY_WORDS];
    int n_words;
    char name[NAME_BYTES];
};

struct stories {
    int keep; /* how many that have ended; 0: no stories at all */
    struct story **ended;
    uint64_t n_ended;
    int n_open;               /* live ones */
    int n_between;            /* of them, those whose wait has no cause yet: in PART_ENGINE */
    bool stale;               /* a cause has passed without a decision */
    int next_look;            /* a long queue is looked at in turn */
    int64_t ttft[PART_COUNT]; /* of all requests that had a first token */
    uint64_t n_first;
};

void stories_init(struct stories *s, int keep);
void stories_free(struct stories *s); /* no request is live */

/* ---- what happens to a request; each does nothing where there are no stories */
void story_begin(struct stories *s, struct request *r, enum story_part first, int64_t now_ns); /* why it waits now */
void story_hold(struct stories *s, struct request *r, int64_t now_ns); /* its admission held it back */
/* A step in which it took part has been taken in; stays: it is in the one behind, too. */
void story_step_over(struct stories *s, struct request *r, int n_tokens, bool stays, int64_t now_ns);
void story_first_token(struct stories *s, struct request *r, int64_t now_ns);
void story_end(struct stories *s, struct request *r, enum ending how, int64_t now_ns);

/* A plan was made and is not carried out yet: who runs by it, and why the others do not. */
void stories_decided(struct stories *s, const struct plan *p);
/* A turn without a decision: whoever has no cause to wait, or one that has passed, gets one. */
void stories_look(struct stories *s, struct world *w, int64_t now_ns);

/* The request is in this from now on; words: copied, NULL: none. */
struct story_now {
    enum story_part part;
    uint64_t behind, step;
    int tokens, group;
    struct layout layout;
    const char *words;
    bool again;
};
void story_turn(struct stories *s, struct story *t, const struct story_now *is, int64_t now_ns);

/* story_json.c: what an operator is shown. */
/* {"requests": [...]}: the timelines of whoever has this id, newest first; "-K" behind it: choice K. False: nobody is
 * known by it. */
bool stories_put_id(const struct stories *s, const struct world *w, const char *id, int64_t now_ns, struct buf *out);
/* The same of the n slowest by time to first token, without spans. */
void stories_put_slowest(const struct stories *s, const struct world *w, int n, int64_t now_ns, struct buf *out);
const char *story_ending_name(enum ending how);
const struct story *stories_find(const struct stories *s, const struct world *w, uint64_t tag); /* NULL: forgotten */

#endif
