/* The state of the node: requests, queues, KV, groups, limits, counts. No threads, sockets, devices or time source
 * here: whoever changes it says what time it is. Owned by the engine, engine thread only. Policies see it read-only
 * through view.h; plans change it through plan.h. */
#ifndef WORLD_WORLD_H
#define WORLD_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/world/embed.h"
#include "engine/world/estimate.h"
#include "engine/world/kv.h"
#include "engine/world/limits.h"
#include "engine/world/metrics.h"
#include "engine/world/partition.h"
#include "engine/world/replica.h"
#include "engine/world/request.h"
#include "engine/world/residency.h"
#include "engine/world/side.h"
#include "engine/world/tenants.h"

enum { QUEUE_JOURNAL = 64, HOLD_REASONS = 16 };

/* Why requests are, and were, held, by the policies' words: a bounded table; the last place has all that found none. */
struct holds {
    struct hold_reason {
        char why[REASON_BYTES];
        int now;        /* requests that are held for it */
        uint64_t times; /* that a hold for it began, since the start */
    } items[HOLD_REASONS + 1];
    int n;
};

/* Ordered by (key, order). The journal names the last changes, so that the holder of a copy need not compare all of it;
 * another key is a leave and an entry. */
struct req_queue {
    struct request **items;
    int n, cap;
    struct queue_change {
        req_id id;
        bool entered;         /* false: left */
    } journal[QUEUE_JOURNAL]; /* change i is at i % QUEUE_JOURNAL */
    uint64_t n_changes;
};

/* Cached tokens of a request on their way from one placement to another. The blocks at both ends are held until it has
 * ended, whatever becomes of the request: else a copy that still waits in a rank's inbox would write into blocks that
 * another one, beside the steps, has written for somebody else meanwhile. */
struct kv_copy {
    req_id id;
    uint64_t event; /* serial of the switch that caused it; 0: none */
    int from_place, to_place;
    int32_t *from, *to; /* block numbers */
    int n_from, n_to;
    int first_token, n_tokens; /* tokens [first_token, n_tokens) */
    int n_landed;              /* to or from the disk: blocks that were moved and are whole, the first ones */
    bool out;                  /* to a lower tier: `to` is found by others when it has ended */
    bool beside;               /* no step waits for it, or is behind it in a rank's inbox */
    struct kv_key *keys;       /* [n_to] of cached blocks, which nobody has (tiers.c); else NULL */
    uint64_t n_resets;         /* of the pool when it was made: what was forgotten since is not to be found again */
};

/* What copying and computing cost, as measured by the engine: to choose between a migration and a recompute. */
struct world_cost {
    double prefill_ns_per_token, move_ns_per_token, move_ns_fixed;
    double swap_ns_per_token; /* between a rank and host memory, one way */
    int64_t last_copy_ns;     /* when the last copy ended: those behind it were waiting until then */
    double disk_ns_per_token; /* from the disk to host memory */
    double load_ns_per_byte;  /* of weights, into each of several ranks at the same time */
};

/* What fetching pooled FFN weights costs a step that fetches all that its ranks do not own, as measured: averages over
 * about ten of them. */
struct ffn_measured {
    double fetch_ns, wait_ns; /* all its fetches; what its products waited for them */
    uint64_t n_steps;         /* 0: none was measured yet */
};
void ffn_measure(struct ffn_measured *m, double fetch_ns, double wait_ns); /* one more such step */

struct world {
    struct limits limits;
    uint64_t n_limits_set; /* how often they have changed since the start */
    struct node_shape shape;
    const struct ffn_setup *ffn; /* how FFN weights are pooled; NULL: every rank has them. The engine's */
    struct ffn_modes ffn_usual;  /* of groups to come */
    struct ffn_measured ffn_measured;
    struct replicas replicas; /* pooled FFN layers that lie on every rank for a while */
    struct residency residency;
    struct request_table requests;
    struct req_queue waiting, running;
    int64_t waiting_tokens; /* prompt tokens of the waiting, without probes */
    struct tenants tenants;
    struct world_sides sides;        /* what a canary has of all that */
    int64_t progress_ns[2];          /* when a request last got further than ever; [1]: of the canary's */
    int n_held;                      /* of the waiting, those that the policy holds back */
    struct holds holds;              /* their reasons */
    int n_parked;                    /* of the waiting, those whose KV is kept */
    const struct thinking *thinking; /* how it ends; NULL: nothing is probed. The engine's */
    uint64_t n_probes_made;
    int n_probes_waiting, n_probes_running; /* in the queues, and not counted by tenants */
    struct kv_pool kv;
    struct partition partition;
    struct kv_copy **copies; /* made and not yet taken by the engine */
    int n_copies, cap_copies;
    int n_copying;             /* made and not ended, of sequences */
    int n_leaving[MAX_RANKS];  /* by rank: copies of sequences under way from it to host memory: its blocks come back */
    int n_saving;              /* blocks of host memory that copies of cached blocks are under way to, from ranks */
    int n_fetching, n_writing; /* the same from the disk; blocks of host memory under way to it */
    bool disk_is_read_only;    /* it failed to take some */
    const struct draft_sources *drafts; /* NULL: nothing is drafted */
    struct guides *guides;              /* models/guide/guide.h; NULL: no request has a grammar */
    bool draft_trees;                   /* the devices verify trees, too */
    struct draft_filter draft_filter;
    struct draft_listener draft_listener;
    enum draft_evict evict;         /* of what they keep, as the policy says */
    const struct embed_link *embed; /* of an encoder that is served beside; NULL: none is. The engine's */
    struct embed_rule embed_rule;   /* of its replicas, as the policy says */
    struct world_cost cost;
    struct estimator estimate;
    struct estimator draft_estimate; /* of the forwards of a draft model, in the layout {1, 1, 1} */
    uint64_t next_order, step;       /* step: scheduling points so far */
    uint64_t n_submitted, n_ended;   /* n_submitted == n_ended + live, always */
    double arrival_rate;             /* requests/s, exponential average over about 10 s */
    int64_t last_arrival_ns;
    struct metrics *metrics;
};

/* A node of shape->n_ranks ranks with n_blocks KV blocks each, all ranks free. */
void world_init(struct world *w, const struct limits *l, const struct node_shape *shape, int n_blocks,
                struct metrics *m);
void world_free(struct world *w);
void world_evict_drafts(struct world *w, enum draft_evict rule);
void queue_insert(struct req_queue *q, struct request *r);         /* keeps the order */
void queue_delete(struct req_queue *q, struct request *r);         /* must be in it */
bool queue_check(const struct req_queue *q, enum req_state state); /* in order, and all are in this state? */

/* Takes a spec into the waiting queue with this key. E_FULL (queue bound) or E_INPUT (can never fit) with the reason;
 * the spec is then still the caller's. */
int world_submit(struct world *w, struct request_spec *s, int64_t now_ns, struct request **out, struct err *e);
/* Takes a probe of r into the waiting queue, right behind r. There must be a place for it in the table. */
struct request *world_add_probe(struct world *w, struct request_spec *s, struct request *r, int64_t now_ns);
/* Could it be taken in now? E_INPUT: it can never fit; E_DEVICE: not on the ranks that are left; E_FULL. */
int world_may_take(const struct world *w, const struct request_spec *s, struct err *e);
void world_rekey(struct world *w, struct request *r, double key); /* a waiting request moves to its place */
/* Longest cached prefix of a waiting request in a place, in blocks of that place; 0 when it still holds some of its
 * own. */
int world_prefix(const struct world *w, struct request *r, int place);
/* May it begin with cached blocks? Not when it has some of its own, or wants logprobs of its prompt. */
bool world_may_share(const struct world *w, const struct request *r);
/* The prefix keys of its n_tokens / KV_UNIT whole units, made where they are not yet; valid until the request changes.
 */
const struct kv_key *world_keys(const struct world *w, struct request *r);
/* The place other than `but` with the longest cached prefix, and its length in blocks; -1: none is longer than the
 * min_tokens that `but` has of it, of which a place may lack the whole blocks. */
int world_prefix_elsewhere(const struct world *w, struct request *r, int but, int min_tokens, int *n_blocks);
/* waiting -> running in this group; cached prefix blocks of its place become its own. */
void world_start(struct world *w, struct request *r, struct group *g, int64_t now_ns);
/* One more copy for the engine to take, of n_from blocks that are yet to be named and held. */
struct kv_copy *world_add_copy(struct world *w, int from_place, int n_from);
/* A started request takes n_blocks cached blocks of another place as its beginning, less the whole ones of what it has:
 * they are held now; world_aim_copy, once the request has its own blocks, makes the move. */
struct kv_copy *world_hold_prefix(struct world *w, struct request *r, int place, int n_blocks);
/* Blocks for tokens up to n_tokens of its timeline. false: none left (nothing changed). */
bool world_reserve(struct world *w, struct request *r, int n_tokens);
/* The destination of a held prefix: the request's own blocks. */
void world_aim_copy(struct world *w, struct kv_copy *m, struct request *r);
/* Its KV moves to that group's place and it runs there (or waits there, parked, when it was parked). false: no room,
 * nothing changed. */
bool world_migrate(struct world *w, struct request *r, struct group *g, uint64_t event);
/* Host memory. A request whose KV lies there is parked and holds no block of a rank; it starts in any group that has
 * room. */
static inline bool world_in_host(const struct world *w, const struct request *r)
{
    return r->parked && r->place == w->kv.host_place;
}
/* Its KV goes there, and it waits. False: there is no tier, or no room in it (nothing changed). It is running or
 * parked, in no step and in no copy, and has KV. */
bool world_swap_out(struct world *w, struct request *r, uint64_t event, int64_t now_ns);
/* One that lies there is about to start in the group: its blocks are the copy's now, and those to come are the
 * group's. Aim the copy when they are reserved. */
struct kv_copy *world_swap_in(struct world *w, struct request *r, const struct group *g);
/* tiers.c: cached blocks that ranks may soon evict are copied to host memory, as many at once as `most` tokens take;
 * there they are found when the ranks have evicted them. With a disk all of them go there and from there to it. */
void world_save_cached(struct world *w, int most);
/* Where there is a disk: what the next waiting requests would find there is on its way to host memory, and they wait
 * for it. */
void world_fetch(struct world *w);
void world_saved(struct world *w, struct kv_copy *m); /* one of those copies has ended; frees no m */
/* The same, where there was room when the plan was made (no move when the group has its placement). */
void world_regroup(struct world *w, struct request *r, struct group *g);
/* The bytes are there: the source's blocks go back. Frees m. */
void world_copy_done(struct world *w, struct kv_copy *m, int64_t now_ns);
/* running -> waiting, blocks back (its full blocks stay findable), everything to be recomputed; keep_kv: parked with
 * its blocks. */
void world_preempt(struct world *w, struct request *r, bool keep_kv, int64_t now_ns);
/* A waiting request is held back: it is not started before then, and does not count as work that could run. until_ns 0
 * lets it go. */
void world_hold(struct world *w, struct request *r, int64_t until_ns, const char *why, int64_t now_ns);
void world_forget_hold(struct world *w, struct request *r); /* one that ends while it is held */
/* Lets those go whose time is up (all: everybody). Returns how many; *next_ns: when the next one's is (INT64_MAX: none
 * is held). */
int world_let_go(struct world *w, int64_t now_ns, bool all, int64_t *next_ns);
/* The first waiting request that is not held, and no probe; of a side. NULL: none. */
struct request *world_head(const struct world *w);
struct request *world_head_of(const struct world *w, enum side s);
/* Does its KV lie, parked, where there is no group? Then it waits until it is moved, or its time to be parked is up. */
bool world_strands(const struct world *w, const struct request *r);
/* The policy that has parked them goes. Those whose placement no group has, now or later, begin again (world_unpark):
 * no policy may bring them back there, and until then they would hold blocks that others wait for. Their full blocks
 * stay findable as a prefix, so where the next policy does come back in time little is computed twice. */
void world_leave_behind(struct world *w);
/* Parked requests past the age bound give their KV back and go to the front of the queue; those that are left behind
 * and stranded give it back and keep their place. Returns how many; *next_ns:
 * when the next is due (INT64_MAX: none). */
int world_unpark(struct world *w, int64_t now_ns, int64_t *next_ns);
/* What it has computed may be more than ever before. */
void world_note_progress(struct world *w, struct request *r, int64_t now_ns);
/* KV up to n_computed is there: publishes blocks that became full. */
void world_commit(struct world *w, struct request *r, int n_computed);
/* The one ending: leaves its queue, gives its blocks back, frees the request. */
void world_end(struct world *w, struct request *r, enum ending how);
/* Tokens that the widest possible group of living ranks can cache: what a single request may need at most. */
int64_t world_capacity(const struct world *w);
/* Tokens that the roomiest group of a side can cache, as groups are now. */
int64_t world_group_capacity(const struct world *w, enum side s);
/* Do the living ranks suffice for it: for all that it asked for as long as it has no output, afterwards for what it has
 * so far (it may well end by itself)? */
bool world_suffices(const struct world *w, const struct request *r);
/* Conservation: blocks, requests, queues. false = a bug. All of it takes as long as there are KV blocks, up to
 * half a microsecond for each: for tests, and when a simulation has ended. A server, when it is idle and when its state
 * is asked for, takes kv_check_part of the blocks. */
bool world_check(const struct world *w);
bool world_check_part(const struct world *w, struct kv_cursor *at);
/* Is there anything that could run now? */
bool world_has_work(const struct world *w);
bool world_eligible(
    const struct world *w,
    const struct request *r); /* it is not held, and its leader (if any) has computed its prompt or is gone */

#endif
