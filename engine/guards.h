/* What a policy on probation is judged by: how much came and how much was served in each of the last spans of time (of
 * a second, where a policy is watched for 30 s), and samples of how long requests waited, for all, by class and by
 * tenant. Gathered as long as the engine runs, in bounded memory, at a cost that does not grow with the number of
 * requests: O(1) for each request and step, and one walk through the queue at the end of each span. Every time is the
 * engine's, counted from its start, so a replay gathers the same. Owned by the engine, engine thread only. Invariant:
 * guards_roll is called before anything is taken in, so what belongs to a span is in it whatever came later. Where a
 * function takes guards, NULL is fine: nothing is gathered. */
#ifndef ENGINE_GUARDS_H
#define ENGINE_GUARDS_H

#include "engine/world/world.h"

enum guard_kind {
    GUARD_TTFT,  /* from arrival to the first token */
    GUARD_TPOT,  /* between two tokens, the mean of a request */
    GUARD_QUEUE, /* from arrival until it began */
    GUARD_KINDS
};

enum guard_class {
    CLASS_PREMIUM, /* priority below 0 */
    CLASS_NORMAL,
    CLASS_LOW,     /* priority above 0 */
    CLASS_OFFLINE, /* lines of batches */
    CLASS_COUNT
};

enum {
    GUARD_WINDOW = 30,   /* spans that a policy is watched for, and that it is compared with */
    GUARD_SPANS = 64,    /* kept */
    GUARD_TENANTS = 32,  /* kept at once: one that is silent for a window makes room */
    GUARD_SAMPLES = 512, /* kept of each kind, for each key */
    GUARD_A_SPAN = 16,   /* of them from one span, drawn evenly: so they reach back for a whole window */
    GUARD_ALL = 0,       /* keys: all requests, then the classes, then the tenants */
    GUARD_CLASS = 1,
    GUARD_TENANT = GUARD_CLASS + CLASS_COUNT,
    GUARD_KEYS = GUARD_TENANT + GUARD_TENANTS
};

/* One span of time. */
struct guard_span {
    uint32_t n_first_tokens, n_ended, n_errors, n_refused, n_preempted, n_steps;
    uint32_t n_failed_calls, n_slow_calls; /* of the policy */
    uint64_t prompt_tokens;                /* served: computed for the first time, or found in the cache */
    uint64_t output_tokens, recomputed_tokens;
    double ttft_s, tpot_s; /* sums of the n_first_tokens, and of the n_tpot that ended with more than one token */
    uint32_t n_tpot;
    /* at its end: */
    uint32_t n_waiting;      /* have not begun, and are not lines of batches */
    uint64_t waiting_tokens; /* of their prompts */
    double oldest_s;         /* how long the oldest of them has waited */
};

struct guard_sample {
    int64_t arrival_ns;
    float seconds;
};

struct guard_series {
    struct guard_sample *items; /* ring of GUARD_SAMPLES; NULL: it has none yet */
    uint64_t n;                 /* ever kept */
    int64_t span;               /* of the newest */
    int n_kept, n_seen;         /* in that span */
};

/* What came in a span, those turned away included. */
struct guard_arrivals {
    uint32_t requests;
    uint64_t tokens; /* of prompts */
};

struct guard_key {
    char name[NAME_BYTES];  /* "" for all and for the default tenant */
    uint64_t serial;        /* another one when another tenant has taken the place; 0: nobody has it */
    int64_t heard_span;     /* of its last sample or arrival */
    int64_t first_token_ns; /* when the last of its requests got its first token */
    struct guard_arrivals arrived[GUARD_SPANS]; /* span i is at i % GUARD_SPANS; the open one is counted there */
    struct guard_series series[GUARD_KINDS];
};

struct guards {
    int64_t start_ns, span_ns;
    int64_t open;                          /* the span that has not ended, counted from 0 */
    struct guard_span spans[GUARD_SPANS];  /* span i is at i % GUARD_SPANS */
    struct guard_span now;                 /* the open one so far, without what the metrics count */
    uint64_t counted[COUNTER_COUNT];       /* what the metrics said when it began */
    uint64_t n_failed_calls, n_slow_calls; /* the same of the policy's calls */
    uint64_t n_drawn, next_serial;
    struct guard_key keys[GUARD_KEYS];
};

struct verdict_counts {
    uint64_t failed, slow;
};

/* A policy is to be watched for window_ns (> 0). */
struct guards *guards_create(int64_t window_ns, int64_t start_ns);
void guards_free(struct guards *g);
/* Ends spans whose time is over. calls: of all policies so far. */
void guards_roll(struct guards *g, const struct world *w, struct verdict_counts calls, int64_t now_ns);
static inline bool guards_is_due(const struct guards *g, int64_t now_ns)
{
    return now_ns - g->start_ns >= (g->open + 1) * g->span_ns;
}
void guards_arrived(struct guards *g, const struct request_spec *s);
/* A step has computed some of its tokens; furthest: how far it had ever been before. */
void guards_progress(struct guards *g, const struct request *r, int furthest);
void guards_first_token(struct guards *g, const struct request *r, int64_t now_ns);
void guards_ended(struct guards *g, const struct request *r);

enum guard_class guards_class(const struct request_spec *s);
int guards_find_tenant(const struct guards *g, const char *name); /* its key; -1: it has none */
/* Span i, of those kept that have ended: open - GUARD_SPANS <= i < open, i >= 0. */
const struct guard_span *guards_span(const struct guards *g, int64_t i);
static inline int64_t guards_span_of(const struct guards *g, int64_t ns)
{
    return (ns - g->start_ns) / g->span_ns;
}
static inline const struct guard_arrivals *guards_arrivals(const struct guards *g, int key, int64_t i)
{
    return &g->keys[key].arrived[i % GUARD_SPANS];
}
/* In words that follow "of": "all requests", "premium requests", "tenant b". */
void guards_key_words(const struct guards *g, int key, char *out, size_t cap);
const char *guards_kind_name(enum guard_kind k);

#endif
