/* A plan under way: what advise.c (the search), advise_list.c (which ways there are), advise_load.c (what traffic it
 * is), advise_price.c (the closed formula), advise_fleet.c (how many servers) and their reports share. Included by
 * these only. */
#ifndef LAB_SEARCH_ADVISE_INNER_H
#define LAB_SEARCH_ADVISE_INNER_H

#include "engine/base/buf.h"
#include "engine/base/json.h"
#include "engine/lab/search/advise.h"
#include "engine/lab/search/jobs.h"

enum advise_goal { GOAL_THROUGHPUT, GOAL_TTFT, GOAL_TPOT, GOAL_COUNT };
enum { ADVISE_SEQS = 1024, ADVISE_SMALL = 512, ADVISE_LARGE = 8192 }; /* sequences; tokens of a step */

/* The traffic, as far as the formula looks at it. */
struct advise_load {
    char *spec;           /* for --trace */
    struct buf words;     /* what it is */
    int64_t n_simulated;  /* requests, the first of the trace */
    bool cut;             /* there were more */
    double input, output; /* tokens, the mean */
    int longest;          /* of one request */
    double rate;          /* requests a second; 0: all are there at once */
};

enum advise_policy { POLICY_STATIC, POLICY_SHIFT, POLICY_FLYING, POLICY_SIDP, POLICY_SEESAW };

/* One way to use the node. */
struct candidate {
    enum advise_policy policy;
    struct layout layout; /* of each group; of shift: its base; of flying: of the narrow ones; of seesaw: for prompts */
    struct layout second; /* of seesaw: for tokens */
    int groups;
    bool sharded;             /* a rank holds its share of the weights */
    int slots;                /* of the pool, 0: not pooled */
    double shard;             /* bytes of such a share, at most */
    int chunk;                /* tokens of a step */
    double weights, kv;       /* bytes of a rank */
    double tokens;            /* of KV, of a group */
    double price[GOAL_COUNT]; /* by the formula: requests a second; seconds; seconds */
    /* once simulated */
    bool known;
    double value[GOAL_COUNT]; /* tokens a second; ms of 95 of 100; the same */
    double mean[GOAL_COUNT], finished, output, requests_per_s, goodput, outside;
    char *failure;
};

enum { ADVISE_SIZES = 16 }; /* of a server, at most */

/* Servers of one kind behind a router. */
struct fleet {
    const struct advise *server;              /* of one size: its ranks, its ways */
    struct candidate way;                     /* how a server is used; its results are those of `keeps` of them */
    int keeps;                                /* the fewest that are known to keep the objectives; 0: none so far */
    int fails;                                /* the most that are known not to */
    int trying;                               /* 0: nothing more is tried */
    int most;                                 /* servers */
    int n_samples, n_kept;                    /* with bands: samples; of them, those in which the objectives are kept */
    double low[GOAL_COUNT], high[GOAL_COUNT]; /* 90% of them */
};

struct fleets {
    struct advise *servers[ADVISE_SIZES]; /* of each size, whose ways are listed and priced */
    int n_servers;
    struct fleet *items;
    int n, n_simulated;
    struct advise_load load; /* longer than that of one node */
};

struct advise {
    const struct advise_ask *ask;
    struct sim_facts facts;
    int n_ranks;
    struct advise_load load;
    struct candidate *items;
    int n, n_refused; /* refused: for want of memory */
    int n_simulated;
    double most_finished;
    struct fleets *fleets; /* NULL: not asked for */
};

/* advise_load.c */
/* times: of what one simulation may cost */
int advise_read_load(struct advise_load *l, const struct advise_ask *ask, double times, struct err *e);
void advise_load_free(struct advise_load *l);
/* advise_list.c */
void advise_list(struct advise *a);
void advise_policy_words(const struct candidate *c, struct buf *out); /* static:dp=2,tp=4,budget=8192 */
/* What starts it, but for the model: "--policy ... --max-num-seqs ...". */
void advise_flags(const struct advise *a, const struct candidate *c, struct strings *out);
/* advise_price.c. E_UNSUPPORTED: it does not fit. */
int advise_price(const struct advise *a, struct candidate *c);
/* advise.c: are both objectives kept, or only the one that the goal does not stand for? */
bool advise_keeps(const struct advise *a, const struct candidate *c, enum advise_goal g);
bool advise_same_use(const struct candidate *x, const struct candidate *y); /* but for the size of a step */
/* A simulation of it; its words are the job's until advise_end_job. `more` of them are added, and stay the caller's. */
void advise_make_job(const struct advise *a, const struct candidate *c, const struct strings *more, struct job *x);
void advise_end_job(struct job *x);
/* What it came to. */
void advise_take_result(struct candidate *c, struct job *x);
/* The best first; how many. */
int advise_best(const struct advise *a, enum advise_goal g, int most, int *out);
/* advise_fleet.c. Nothing is found: no error. */
int advise_size(struct advise *a, const struct job_signals *signals, struct err *e);
void advise_fleets_free(struct fleets *f); /* NULL is fine */
/* The best of each size of a server, the fewest devices first; how many. */
int advise_best_fleets(const struct fleets *f, int out[ADVISE_SIZES]);
/* advise_report.c */
void advise_put_way(const struct advise *a, const struct candidate *c, struct buf *out); /* lines: memory, flags */
void advise_put_layout(const struct advise *a, const struct candidate *c, struct buf *out);
void advise_json_candidate(const struct advise *a, const struct candidate *c, struct buf *out);
/* advise_fleet_report.c */
/* What a million tokens cost on so many devices that do tokens_per_s together. */
double advise_price_of_million(const struct advise *a, int n_devices, double tokens_per_s);
void advise_put_fleets(const struct advise *a, struct buf *out);
void advise_json_fleets(const struct advise *a, struct buf *out);
/* advise_report.c */
int advise_report(const struct advise *a, struct err *e);

#endif
