/* A request: one sequence that a client asked for (n > 1 becomes n requests that share a leader), its state and its one
 * ending. The table owns requests; outside the engine only handles and the front's own tag exist. Engine thread only,
 * except struct request_spec, which a front builds and hands over whole. Invariant: a request ends once. */
#ifndef WORLD_REQUEST_H
#define WORLD_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/list.h"
#include "engine/base/map.h"
#include "engine/world/draft.h"
#include "engine/world/ids.h"
#include "engine/world/kv.h"
#include "engine/world/probe.h"
#include "engine/world/guided.h"
#include "engine/world/sampling.h"

#define HOLD_MAX_NS INT64_C(3600000000000) /* how long a policy can hold a request back, from its first hold on */

enum ending {
    END_NONE,
    END_STOP,    /* a stop id, or the front found a stop string */
    END_LENGTH,  /* max_tokens or the model's length */
    END_ABORT,   /* the client left, or the server stops */
    END_ERROR,   /* a device or the engine failed */
    END_REFUSED, /* never admitted: capacity, or the policy said no */
};

/* Lines of batches come behind all others, unless a policy has another order: their keys are seconds, and this is
 * added.
 */
#define OFFLINE_BEHIND_S 1e9
#define PROBE_TAG (1ull << 62) /* of the engine's own requests; those of fronts have it clear */

/* What a front hands in: heap, freed with request_spec_free, moved to the engine by IN_SUBMIT. */
struct request_spec {
    uint64_t tag; /* the front's own name for it, given back in every event; unique, not 0 */
    uint64_t
        leader; /* tag of the first of n > 1 siblings (0: none): this one waits until the leader's prompt is computed */
    int n_siblings;                  /* n of the client's request: sequences of this prompt; 0 counts as 1 */
    int choice;                      /* of the client's answer, from 0 on */
    char name[NAME_BYTES];           /* the client's request id, for logs */
    char tenant[NAME_BYTES];         /* "" = the default tenant; trusted: it comes from the key */
    char salt[NAME_BYTES + 1088];    /* prefix-cache salt: tenant and cache_salt */
    int priority;                    /* lower is sooner; 0 by default */
    int64_t arrival_ns;              /* engine clock, at the first byte understood, before tokenising */
    double slo_ttft_ms, slo_tpot_ms; /* hints for policies; 0: none */
    int32_t *prompt;                 /* the request takes it, as the beginning of its timeline */
    int n_prompt;                    /* >= 1 */
    int max_tokens;                  /* >= 0; 0 only with prompt logprobs (echo) */
    bool offline;                    /* nobody waits for its answer: a line of a batch */
    bool open_ended;                 /* the client gave no max_tokens: it is all that there is room for */
    int probe_every, probe_window; /* early stop: tokens between probes, and answers that have to agree; 0: not asked */
    int min_tokens;
    int32_t *stop_ids; /* end ids of the model (unless ignore_eos) and the client's */
    int n_stop_ids;
    struct sampling sampling;  /* its arrays are held by the spec */
    struct grammar *grammar;   /* what the answer has to be (models/guide/grammar.h), held by the spec; NULL: anything
                                */
    struct kv_key *given_keys; /* prefix keys of its first units when the text is not the real one (replays of
                                  recordings); owned; NULL: made from the text */
    int n_given_keys;
};

struct request_spec *request_spec_new(void);    /* zeroed, where policies see it */
void request_spec_free(struct request_spec *s); /* NULL is fine */

/* Of the raw logits. */
struct token_logprobs {
    float logprob;
    int rank; /* 1 = the most likely */
    int n_top;
    int32_t top_ids[SAMPLING_MAX_LOGPROBS];
    float top_logprobs[SAMPLING_MAX_LOGPROBS];
};

struct prompt_logprobs {
    int n; /* = n_prompt; entry 0 has no logprob */
    struct token_logprobs items[];
};

/* What a request found of its prefix in a place: still so while no key has left the place's index, and all there is
 * while none has entered it. */
struct prefix_seen {
    int n_blocks;
    int n_tokens;               /* of the request, then */
    uint64_t n_entered, n_left; /* of the place, then */
};

enum req_state { REQ_FREE, REQ_WAITING, REQ_RUNNING };

struct story;

struct request {
    req_id id;
    enum req_state state;
    struct request_spec *spec;
    struct tenant *tenant; /* the counts that it is part of */
    /* the timeline: prompt, then output */
    int32_t *tokens;
    int n_tokens, cap_tokens;
    int n_computed;     /* tokens whose KV lies in blocks */
    int n_prefix;       /* of them, found in the prefix cache when last admitted */
    int n_prefix_first; /* the same at its first admission: what usage reports */
    int32_t *blocks;
    int n_blocks, cap_blocks;
    int place;            /* of its blocks; means nothing while n_blocks is 0 */
    int group;            /* id of the group it runs in; 0: waiting */
    bool canary;          /* a canary decides for it (side.h) */
    int n_moving;         /* copies of its KV under way */
    bool sought;          /* on the disk: what was there is, or was, on its way to host memory */
    uint64_t moving_from; /* the ranks that those copies read */
    bool lost;            /* busy, and one of these ranks has failed: what the step computes does not count */
    int n_published;      /* full blocks already offered to the prefix cache */
    struct kv_key *keys;  /* prefix keys of its units of KV_UNIT tokens, made when first asked for */
    int n_keys, cap_keys;
    struct prefix_seen *seen; /* by place: what was found of it in the cache when it was last looked for */
    int n_seen;
    /* the queue */
    double key;     /* sort key: smaller is sooner; admit chooses it, arrival by default */
    uint64_t order; /* of submission: breaks ties */
    bool busy;      /* in the step now running */
    bool finishing; /* ends as soon as it is not busy: cancelled, or its last token is there */
    enum ending finish_as;
    bool parked;           /* waiting with its KV kept (preempt hard) */
    int64_t parked_ns;     /* since when ranks keep its KV while it waits: preempted, or back from host memory */
    bool left_behind;      /* parked, and by a policy that has gone: begins again once no group has its placement */
    int64_t held_until_ns; /* the policy holds it back until then; 0: it does not */
    int64_t held_first_ns; /* since when, counted from the first hold of its life; 0: never held */
    char held_why[REASON_BYTES];     /* the policy's words */
    int8_t held_for;                 /* where the world counts them, while it is held */
    uint64_t starved_by;             /* the policy (its generation) that let it starve; 0: none did */
    uint64_t plan_serial;            /* the plan that touches it, for that plan's own use */
    int plan_item;                   /* the same: where in its batch it is */
    void *draft_notes[MOST_SOURCES]; /* what sources of draft tokens keep for it: theirs */
    struct draft_counts drafts[MOST_SOURCES];
    struct guided guided;      /* with a grammar */
    bool at_a_loss;            /* nobody knows what may follow: it ends when its step has been absorbed */
    req_id parent;             /* it is a probe of that request; 0: it is not */
    struct probe_said *said;   /* of a probe: what it has said */
    struct probe_book *probes; /* of one that asked for an early stop; else NULL */
    uint64_t switched_by;      /* serial of the switch event that waits for its next token; 0: none */
    /* the record */
    int n_furthest;      /* the most tokens that it ever had computed */
    int64_t progress_ns; /* when it got further than ever before; or came, or was let go */
    int64_t waiting_since_ns, first_scheduled_ns, last_scheduled_ns, first_token_ns, last_token_ns;
    int n_preempted, n_recomputed;
    int n_moves;                       /* of its KV to another placement, since it got further */
    int n_stops;                       /* so often has it had to give way, since then */
    struct prompt_logprobs *prompt_lp; /* filled as the prompt is computed; handed out once */
    bool prompt_lp_sent;
    int n_untold;                     /* of its newest tokens the front has not been told yet */
    struct token_logprobs *untold_lp; /* [n_untold] theirs, when they were asked for */
    int cap_untold;
    bool ends_with_stop; /* its newest token is a stop id */
    struct story *story; /* where its time went (engine/story.h): the engine's; NULL: nobody keeps it */
};

static inline int request_output(const struct request *r)
{
    return r->n_tokens - r->spec->n_prompt;
}
static inline int request_remaining(const struct request *r) /* tokens yet to compute; 1 = an ordinary decode */
{
    return r->n_tokens - r->n_computed;
}
static inline bool request_decoding(const struct request *r)
{
    return request_remaining(r) == 1 && r->n_computed > 0;
}
static inline int64_t request_compare(const struct request *a, const struct request *b) /* < 0: a is sooner */
{
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->order < b->order ? -1 : a->order > b->order;
}

struct request_table {
    struct request **slots;
    uint32_t *generations;
    uint32_t *free_slots;
    int n_slots, n_free, n_live;
    struct map by_tag; /* spec tag -> id */
};

void request_table_init(struct request_table *t);
void request_table_free(struct request_table *t);
struct request *request_add(struct request_table *t,
                            struct request_spec *s); /* NULL: MAX_REQUESTS reached; takes s otherwise */
struct request *request_find(const struct request_table *t, req_id id); /* NULL: gone */
struct request *request_find_tag(const struct request_table *t, uint64_t tag);
void request_remove(struct request_table *t, struct request *r); /* blocks must be gone */
/* Why it cannot be held until then, or NULL. */
const char *hold_refusal(const struct request *r, int64_t until_ns, int64_t now_ns);
void request_append(struct request *r, int32_t token);
void request_give_key(struct request *r,
                      struct kv_key key); /* of its next unit, in the place of one made from its text */

#endif
