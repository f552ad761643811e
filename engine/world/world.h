/* The state of the node: requests, queues, KV, groups, limits, counts. No threads, sockets, devices or time source here: whoever changes it says what
 * time it is. Owned by the engine, engine thread only. Policies see it read-only through view.h; plans change it through plan.h. */
#ifndef WORLD_WORLD_H
#define WORLD_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/world/kv.h"
#include "engine/world/layout.h"
#include "engine/world/metrics.h"
#include "engine/world/request.h"

struct limits {
    int max_num_seqs;               /* running at once */
    int max_num_batched_tokens;     /* of a step */
    int max_model_len;              /* tokens of a sequence */
    int max_num_queued_reqs;        /* waiting; 0 = MAX_REQUESTS */
    int64_t max_num_queued_tokens;  /* prompt tokens waiting; 0 = no limit */
    bool prefix_caching;
    int64_t starvation_ns;          /* a request that waits longer with room for it is a strike against the policy */
};

/* A group of ranks that runs one forward together. */
struct group {
    int id;                         /* 1.. ; names it in plans */
    int n_ranks;
    int ranks[MAX_RANKS];
    struct layout layout;           /* of its last step */
    bool idle;                      /* no step under way */
    int64_t busy_since_ns, last_step_ns; /* last_step_ns: measured duration of its last step */
    int last_step_tokens;
    uint64_t n_steps;
};

enum { QUEUE_JOURNAL = 64 };

/* Ordered by (key, order). The journal names the last changes, so that who keeps a copy need not compare it whole; a new key is a leave and an entry. */
struct req_queue {
    struct request **items;
    int n, cap;
    struct queue_change {
        req_id id;
        bool entered;               /* false: left */
    } journal[QUEUE_JOURNAL];       /* change i is at i % QUEUE_JOURNAL */
    uint64_t n_changes;
};

struct world {
    struct limits limits;
    struct request_table requests;
    struct req_queue waiting, running;
    int64_t waiting_tokens;         /* prompt tokens of the waiting */
    struct kv_pool kv;
    struct group groups[MAX_RANKS];
    int n_groups, n_ranks;
    uint64_t next_order, step;      /* step: scheduling points so far */
    uint64_t n_submitted, n_ended;  /* n_submitted == n_ended + live, always */
    double arrival_rate;            /* requests/s, exponential average over about 10 s */
    int64_t last_arrival_ns;
    struct metrics *metrics;
};

void world_init(struct world *w, const struct limits *l, struct metrics *m);
void world_free(struct world *w);

void queue_insert(struct req_queue *q, struct request *r);     /* keeps the order */
void queue_delete(struct req_queue *q, struct request *r);     /* must be in it */

/* Takes a spec into the waiting queue with this key. E_FULL (queue bound) or E_INPUT (can never fit) with the reason; the spec is then still the caller's. */
int world_submit(struct world *w, struct request_spec *s, int64_t now_ns, struct request **out, struct err *e);
void world_rekey(struct world *w, struct request *r, double key); /* a waiting request moves to its place */
/* Longest cached prefix of a waiting request, in blocks (its own blocks when it still holds some); fills blocks[] up to max when not NULL. */
int world_prefix(const struct world *w, struct request *r, int32_t *blocks, int max);
/* waiting -> running; cached prefix blocks become its own. */
void world_start(struct world *w, struct request *r, int64_t now_ns);
/* Blocks for tokens up to n_tokens of its timeline. false: none left (nothing changed). */
bool world_reserve(struct world *w, struct request *r, int n_tokens);
/* running -> waiting, blocks back (its full blocks stay findable), everything to be recomputed; keep_kv: paused with its blocks. */
void world_preempt(struct world *w, struct request *r, bool keep_kv, int64_t now_ns);
/* KV up to n_computed is there: publishes blocks that became full. */
void world_commit(struct world *w, struct request *r, int n_computed);
/* The one ending: leaves its queue, gives its blocks back, frees the request. */
void world_end(struct world *w, struct request *r, enum ending how);
/* Conservation: blocks, requests, queues. false = a bug; called when idle. */
bool world_check(const struct world *w);
/* Is there anything that could run now? */
bool world_has_work(const struct world *w);
bool world_eligible(const struct world *w, const struct request *r); /* its leader (if any) has computed its prompt or is gone */

#endif
