/* Made-up worlds to try a policy on before it goes live: real queues, real KV accounting, real partitions, no engine. A
 * rehearsal is one such world and the plan that is made in it. Used by the loader's dry runs, by the policy's own tests
 * and by `policy check`. Owned by its maker, one thread. Invariant: a live engine notices nothing of a rehearsal. */
#ifndef LUA_REHEARSE_H
#define LUA_REHEARSE_H

#include "engine/base/rng.h"
#include "lua/script.h"

struct rehearsal {
    struct draft_sources drafts;
    struct thinking thinking;
    struct embed_link embed;
    struct metrics *metrics;
    struct world world;
    struct plan plan;
    struct ffn_setup ffn;
    int64_t now_ns;
    uint64_t next_tag;
};

enum { MAX_MADE_RANKS = 16, MAX_MADE_GROUPS = 16 };

struct rehearsal_size {
    int kv_blocks, tokens_per_block, max_num_seqs, max_num_batched_tokens;
    int n_ranks;                      /* 0: 1 */
    uint64_t groups[MAX_MADE_GROUPS]; /* rank sets; none: one group of all ranks */
    uint64_t no_group;                /* ranks that are in no group: left out of the one group of all */
    int n_pooled;                     /* so many FFN layers are pooled, layer l on rank l mod n_ranks; 0: none */
    bool drafter;                     /* there is a draft model, which is asked and says nothing */
    int n_host;                       /* blocks of host memory for KV, counted as those of a rank; 0: there is none */
    int n_embed;                      /* replicas of an encoder; 0: 3; -1: none is served */
};

/* One request to be; zeroed fields get small defaults. */
struct made_request {
    const char *name, *tenant;
    int priority, n_prompt, max_tokens, n_output;
    double arrival_s, slo_ttft_ms;
    bool running;                  /* its prompt and n_output tokens are computed, if there is KV for them */
    bool offline;                  /* a line of a batch */
    bool open_ended;               /* the client gave no max_tokens */
    int probe_every, probe_window; /* it asked for an early stop; 0: it did not */
    bool parked;                   /* and then it was preempted with its KV kept */
    bool in_host;                  /* in host memory, where there is room */
    int group;                     /* where it runs: the n-th group, from 1; 0: the one with the fewest requests */
};

/* The groups were bound 10 s ago. Sets that there may not be are left out. tokens_per_block: a multiple of 16. */
void rehearsal_init(struct rehearsal *r, struct rehearsal_size size, double now_s);
void rehearsal_free(struct rehearsal *r);
/* NULL: it does not fit this world. */
struct request *rehearsal_add(struct rehearsal *r, const struct made_request *m);
struct view rehearsal_view(const struct rehearsal *r);
/* A probe of a request that asked for an early stop has said this, behind the opening brace. */
void rehearsal_answer(struct rehearsal *r, struct request *q, const char *said);
/* Carries out the plan and the step it asks for: prompts advance, tokens appear; `end_every` > 0: one in so
 * many of the requests that then decode ends, which `finished` is told first. */
typedef void (*rehearsal_ended)(void *ctx, struct request *r, const struct view *v);
void rehearsal_advance(struct rehearsal *r, int end_every, rehearsal_ended ended, void *ctx);
/* What the plan decided, as text: equal plans give equal texts. */
void rehearsal_transcribe(const struct rehearsal *r, struct buf *out);
struct node_facts rehearsal_node(const struct rehearsal *r);
/* An order is given, and carried out where it can be at once. */
void rehearsal_order(struct rehearsal *r, const struct switch_order *o);
/* The KV of a running request goes to host memory. False: there is no room. */
bool rehearsal_swap_out(struct rehearsal *r, struct request *q);
/* This rank has failed. */
void rehearsal_lose(struct rehearsal *r, int rank);

/* A mixed crowd: n requests, half of them running, of four tenants, from a fixed seed. */
void rehearsal_crowd(struct rehearsal *r, int n, uint64_t seed);

/* The loader's dry runs, rehearse_scenes.c: the script decides several worlds, from empty to overfull, over several
 * steps; what it decided is appended to out. E_POLICY with the cause and the world's name when a call does not
 * stand. First those of one rank; then, with several = true, those of 2, 4 and 8 ranks in many partitions.
 * *n_unfit counts the worlds that its params do not fit: there it was not tried. */
int rehearse(struct script *s, bool several, struct buf *out, int *n_unfit, struct err *e);

#endif
