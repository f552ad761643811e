/* A policy that decides beside the live one and changes nothing: at each decision it is asked about the same world,
 * what it would do is compared with what is done, and its plan is dropped. So a policy can be tried on real traffic for
 * as long as one likes before it goes live. What it cannot show is where its own decisions would have led: the next
 * decision is about the world as the live policy has made it, with the queue in the live policy's order. It runs on the
 * engine's thread, since only there the world stands still, and in a share of its time: decisions for which there is
 * no time are passed over, and counted. Owned by the engine, engine thread only. Invariant: the world, the live policy
 * and a recording are the same with and without it. */
#ifndef ENGINE_SHADOW_H
#define ENGINE_SHADOW_H

#include "engine/base/hash.h"
#include "engine/retired.h"

enum {
    SHADOW_STRIKES = 3,      /* calls that do not stand, of which the last one ends it */
    SHADOW_DIFFERENCES = 16, /* kept, the newest */
    SHADOW_WORDS = 200,
    SHADOW_WHY = 240
};

/* What IN_SHADOW carries. */
struct shadow_order {
    struct policy policy; /* moves */
    int64_t for_ns;       /* it ends by itself after that */
};

/* Something that a plan may have: in how many decisions' plans both have it, or one of them alone. */
struct shadow_count {
    uint64_t both, live, shadow;
};

/* Batches of a group. */
struct shadow_batches {
    uint64_t equal;        /* the same rows of the same requests in the same layout */
    uint64_t requests;     /* the same layout, other rows or requests */
    uint64_t layout;       /* another layout */
    uint64_t live, shadow; /* only one of them runs one */
};

struct shadow_difference {
    uint64_t step;
    int64_t at_ns;
    char live[SHADOW_WORDS], shadow[SHADOW_WORDS]; /* what each has that the other has not */
};

struct shadow_key {
    req_id id;
    double key;
};

/* All that is known about it; stays when it has ended, until another one begins. */
struct shadow_book {
    char name[NAME_BYTES], sha256[65];    /* "": there was none */
    char beside[NAME_BYTES];              /* the live policy when it began */
    struct sha256 params;                 /* of its own, as text */
    int64_t began_ns, until_ns, ended_ns; /* ended: 0: it runs */
    char why_ended[SHADOW_WHY], last_error[SHADOW_WHY];
    uint64_t n_asked, n_passed_over, n_equal; /* decisions; asked: it was, and its call stood */
    uint64_t n_failed;                        /* calls that did not stand */
    uint64_t verdicts[VERDICT_COUNT];         /* of all its calls */
    int64_t spent_ns, calls_ns;               /* on it; of that, in calls for decisions */
    struct shadow_batches batches;
    struct shadow_count verbs[PLAN_VERB_KINDS];
    struct shadow_count starts;            /* requests that a plan starts */
    struct shadow_count tokens;            /* rows; both: not counted */
    uint64_t n_admitted, n_admitted_alike; /* arrivals; alike: let in, refused or held by both */
    struct shadow_count refused, held;     /* at their arrival */
    uint64_t n_other_first; /* decisions before which another request would have been first in the queue */
    struct shadow_difference differences[SHADOW_DIFFERENCES]; /* a ring: number i is at i % SHADOW_DIFFERENCES */
    uint64_t n_differences;
};

struct shadow {
    struct policy policy; /* ops NULL: none runs */
    struct plan plan;     /* what it would do; never carried out */
    const struct clock *clock;
    struct retired *retired; /* as in struct live */
    double share;            /* of the time, that it may take */
    bool asked;              /* about the decision that is being taken, and its call stood */
    bool told;               /* whoever follows it knows that it has ended */
    struct shadow_key *keys; /* by slot of the request: the key that it gave */
    int n_keys;
    struct shadow_book book;
};

void shadow_init(struct shadow *s, struct world *w, const struct clock *clock, double share);
void shadow_free(struct shadow *s);

/* p begins (ctx moves in every case): its start is called, then its admit for every request that there is. One that
 * runs already ends. E_POLICY, E_INPUT: it does not start; then none runs. */
int shadow_begin(struct shadow *s, struct shadow_order *o, const struct node_facts *node, const struct policy *live,
                 int64_t now_ns, struct err *e);
void shadow_end(struct shadow *s, int64_t now_ns, const char *why); /* nothing when none runs */
/* Once a turn: it ends when its time is up, or when it is the live policy now. */
void shadow_tend(struct shadow *s, const struct policy *live, int64_t now_ns);
static inline bool shadow_runs(const struct shadow *s)
{
    return s->policy.ops != NULL;
}
static inline int64_t shadow_next_ns(const struct shadow *s) /* when shadow_tend has something to do */
{
    return shadow_runs(s) ? s->book.until_ns : INT64_MAX;
}

/* Each of these does nothing when none runs. */
/* A request has come; live: what became of it. */
void shadow_admit(struct shadow *s, const struct request *r, const struct view *v, const struct admission *live);
void shadow_finish(struct shadow *s, const struct request *r, enum ending how, const struct view *v);
/* Before the live policy is asked about the same view. */
void shadow_ask(struct shadow *s, const struct view *v);
/* After it: this is what is done, and was not carried out yet. */
void shadow_compare(struct shadow *s, const struct plan *live);
void shadow_idle(struct shadow *s);
/* p is about to take the place of live: what it was like beside that one, with these params, within the last hour. */
void shadow_foretell(const struct shadow *s, const struct policy *live, int64_t now_ns, struct policy *p);

/* ---- shadow_compare.c */

/* Counts what two plans for one moment have in common and what not; true: they are the same, but for log lines, draft
 * tokens and wakes. d gets the differences in words. */
bool shadow_count_plans(struct shadow_book *b, const struct plan *live, struct plan *shadow,
                        struct shadow_difference *d);

/* ---- shadow_report.c */

void shadow_put(const struct shadow *s, int64_t now_ns, struct buf *json); /* the object of GET /admin/shadow */
/* A few of its numbers, for whoever watches; "null" when there was none. */
void shadow_put_pulse(const struct shadow *s, int64_t now_ns, struct buf *json);
/* It has ended and nobody was told: the JSON of EV_POLICY. False: there is nothing to tell. */
bool shadow_take_end(struct shadow *s, struct buf *json);
void shadow_metrics(const struct shadow *s, struct buf *out);

#endif
