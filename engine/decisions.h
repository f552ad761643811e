/* The decision log: for each decision of the last while what was decided, on what facts, by whom, and how long its
 * steps took in the end. A ring of bytes that is allocated once: nothing is allocated in the path of a step, and the
 * oldest decisions make room for the newest. Requests are named by tag; names are looked up when somebody asks
 * (story.h). Nothing of any text is in it. Owned by the engine, engine thread only. Invariant: a record is whole, or
 * gone. */
#ifndef ENGINE_DECISIONS_H
#define ENGINE_DECISIONS_H

#include "engine/live.h"
#include "engine/story.h"

enum { DECISIONS_POLICIES = 8, DECISIONS_ASKED_MOST = 200, DECISIONS_WORDS = 48 };

/* A decision, followed by its groups, chunks and verbs. */
struct decision {
    uint32_t size;                        /* of the whole record */
    uint16_t n_groups, n_chunks, n_verbs; /* as many as there was room for */
    uint8_t verdict;                      /* of the policy's call */
    bool native;                          /* the native policy decided it, by right or in the policy's stead */
    uint64_t step, generation;            /* generation: of the live policy */
    int64_t now_ns, call_ns, wake_ns;     /* when; how long the policy was asked; when it wants to be woken, 0: not */
    int32_t waiting, running, held, parked, pending; /* before it: requests, and orders that wait */
    int32_t seats, blocks_free, blocks;              /* free seats; KV blocks of all ranks, free or only cached */
    int32_t came, refused;                           /* requests since the decision before */
};

struct decision_group {
    int32_t id, rows, decodes, drafts, starts;
    int16_t sp, tp, pp, steps;         /* steps: that have ended; more than one: they followed unasked */
    int64_t predicted_ns, measured_ns; /* of those */
};

/* Rows of a request that are no decode. */
struct decision_chunk {
    uint64_t tag;
    int32_t tokens;
    int16_t group; /* index of it in the record */
    bool starts;
};

struct decision_verb {
    uint64_t tag, ranks;
    int64_t until_ns; /* of a hold; 0: it is let go */
    int32_t group, code;
    uint8_t kind; /* enum plan_verb_kind */
    char words[DECISIONS_WORDS];
};

struct decisions {
    char *ring;
    size_t cap;                 /* 0: nothing is logged */
    uint64_t oldest, next;      /* bytes ever written before the oldest record, and before the next one */
    uint64_t n;                 /* records ever */
    uint64_t n_came, n_refused; /* as the counters stood */
    uint64_t at[MAX_RANKS];     /* by place in order of groups: the record of the group's last step, + 1; 0: none */
    int groups[MAX_RANKS];
    struct {
        uint64_t generation;
        char name[NAME_BYTES];
    } policies[DECISIONS_POLICIES]; /* of generation g at g % DECISIONS_POLICIES */
};

void decisions_init(struct decisions *d, size_t bytes); /* too few for a record: none */
void decisions_free(struct decisions *d);
/* A plan was made in so many ns, and is not carried out yet. */
void decisions_note(struct decisions *d, const struct plan *p, const struct live *l, int64_t call_ns);
/* A step of this group has ended. */
void decisions_measured(struct decisions *d, int group, int64_t predicted_ns, int64_t ns);

/* The record at this place, which is one of a record, or of the rest of the ring behind the last one before its end:
 * that is skipped. */
struct decision *decisions_at(const struct decisions *d, uint64_t *at);

struct decisions_ask {
    uint64_t from; /* the first step; 0: the last n */
    int n;
};
/* {"decisions": [...]}, the oldest first; times from `began_ns` on. */
void decisions_put(const struct decisions *d, const struct decisions_ask *ask, const struct stories *s,
                   const struct world *w, int64_t began_ns, struct buf *out);

#endif
