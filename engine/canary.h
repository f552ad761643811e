/* A canary: a policy that decides for some groups of the node while the live policy goes on with the others, so that
 * both can be seen at work on the same traffic at the same time. Both decide for real. Each sees only its own groups
 * and requests, and its verbs reach only those (engine/world/side.h); the canary's step is called at the same
 * scheduling points as the live policy's, right behind it and on the same plan, and of its call only its own part goes
 * when it does not stand. It is judged as the live policy is (live.h), but where that would be withdrawn, it ends.
 * While it runs the partition stays as it is. Whatever ends it, its requests are the live policy's from then on, which
 * gives them new keys, and its groups are open. Owned by the engine, engine thread only. Invariants: a canary never has
 * all groups; one that has ended has left nothing behind but its book. */
#ifndef ENGINE_CANARY_H
#define ENGINE_CANARY_H

#include "engine/canary_order.h"
#include "engine/canary_results.h"
#include "engine/live.h"

enum { CANARY_WHY = 240 };

/* What is known of a canary, from its begin on; of the last one until another begins. */
struct canary_book {
    char name[NAME_BYTES], sha256[65], beside[NAME_BYTES]; /* name "": there was none yet */
    int groups[MAX_RANKS], n_groups;
    double share;                         /* of the ranks */
    int64_t began_ns, until_ns, ended_ns; /* ended 0: it runs */
    char why_ended[CANARY_WHY];
    uint64_t first_order; /* requests from this one on have come since */
    struct canary_results results;
};

struct canary {
    struct live live;                     /* its policy, as long as it runs; then its counts */
    bool on, told;                        /* told: who follows the engine knows that it has ended */
    uint64_t epoch, n_groups, dead_ranks; /* of the partition that it has begun on */
    struct canary_book book;
};

void canary_free(struct canary *c);
static inline bool canary_runs(const struct canary *c)
{
    return c->on;
}
/* o->policy moves, also on failure. E_INPUT: it cannot be, on these groups or now, or (in its own words) not on such a
 * node; E_POLICY: its start failed. Then everything is as it was, and requests have new keys. */
int canary_begin(struct canary *c, struct canary_order *o, struct live *live, struct world *w, int64_t now_ns,
                 struct err *e);
/* It decides no more; why: for people. Nothing happens when none runs. */
void canary_end(struct canary *c, struct live *live, struct world *w, int64_t now_ns, const char *why);
/* In each turn, before anything is decided: it ends where its time is up, its calls fail, the live policy is about to
 * go, or the partition changes or has to. True: so it did. */
bool canary_tend(struct canary *c, struct live *live, struct world *w, int64_t now_ns);
int64_t canary_next_ns(const struct canary *c); /* when its time is up; INT64_MAX: none runs */
/* Its part of a plan that the live policy has made; the plan is one whole afterwards. */
void canary_step(struct canary *c, struct plan *p);
/* Who decides for this request. */
struct live *canary_of(struct canary *c, struct live *live, const struct request *r);
/* A request has come, or has ended, on either side. */
void canary_note_came(struct canary *c, const struct request *r);
void canary_note_end(struct canary *c, const struct request *r, enum ending how);

/* ---- canary_report.c */
void canary_put(const struct canary *c, int64_t now_ns, struct buf *json); /* the object of GET /admin/canary */
/* That it has ended, as the JSON of EV_POLICY; false: it has not, or somebody was told. */
bool canary_take_end(struct canary *c, struct buf *json);
void canary_metrics(const struct canary *c, struct buf *out);

#endif
