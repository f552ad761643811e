/* A step: one forward of one group, as data. Built by the engine from a forwarded batch of a plan, posted to all ranks
 * of the group at once, absorbed by the engine when the last of them is done, freed; one that another follows is freed
 * when that one has been absorbed (prev, next). It owns an arena. Ownership moves with the message that carries it;
 * between post and done it is the ranks'. While the step runs, its batch points into requests (sampling settings,
 * timelines for penalties). That is safe because a busy request is neither changed nor freed before the step is
 * absorbed: what is appended to the timeline of one that takes part in two steps is not read by the second, which has
 * no penalties. Invariant: a step has one owner at a time. */
#ifndef EXEC_STEP_H
#define EXEC_STEP_H

#include <stdatomic.h>

#include "engine/exec/comm.h"
#include "engine/exec/drafter.h"
#include "engine/world/ffn_timeline.h"
#include "engine/world/plan.h"
#include "kernels/backend.h"
#include "models/forward/heads.h"

struct step_item {
    req_id id;
    int n_tokens;          /* computed by this step */
    struct drafts drafts;  /* rows behind those, each of which samples as well; in the step's arena. Of a guided request
                              those that are judged: rows of others may stand behind them (exec/guided.h) */
    int source;            /* whose they are */
    int ask;               /* its number among the step's asks: what it is guessed for the next step; -1: nothing */
    int first_result;      /* in results: first n_given prompt logprobs, then one sampled token when samples is set,
                              and one behind each draft token */
    int n_given, given_at; /* given_at: timeline index of the token that the first of them scores */
    bool samples;
};

/* What one rank of the group gets and gives. */
struct step_part {
    int32_t *ids;        /* of a step that follows another: its own, filled in by the rank; else NULL */
    struct batch batch;  /* the same for all but its block lists; results are shared: each row is written by one rank */
    struct batch *micro; /* of a pipelined group: the batch, cut into n_micro */
    struct step_time time;
    /* What pooled FFN weights cost it: how long products waited for weights that were not there yet, how long its
     * fetches took, what they brought; what went to other owners and came back. */
    int64_t ffn_wait_ns, ffn_fetch_ns;
    uint64_t ffn_bytes, cas_bytes;
    int cas_rows;   /* summed over layers */
    int rc;         /* E_PEER: another member failed, or a rank whose FFN layers it needed; this rank is well */
    int lost_owner; /* the number of that rank, plus 1; 0: it was a member */
    struct drafter_time drafting;  /* its guesses; no part of `time` */
    struct ffn_timeline *timeline; /* to be filled in, of pooled FFN layers; NULL: nobody asks */
    struct err err;
};

struct step {
    struct arena arena;
    int group; /* id */
    struct layout layout;
    int n_ranks;
    int ranks[MAX_RANKS]; /* by share */
    int tokens_per_block; /* of a piece (stage_pieces) */
    int n_micro;          /* batches that go through the stages one behind another; 1: the group is not pipelined */
    const struct comm_set *comms;  /* NULL: a group of one */
    enum comm_algorithm algorithm; /* of its all-reduces, the same for all ranks: a policy may choose another one before
                                      they have begun */
    struct step_part *parts;       /* [n_ranks] by share */
    atomic_int left;               /* members yet to end */
    bool trees;                    /* some of its drafts are trees: what is right of them is put in its place by all
                                      members, once it has been sampled (step_packs) */
    atomic_int sampling;           /* members of the last stage yet to sample */
    struct step_item *items;
    int n_items, n_rows;
    struct step_size size;
    struct ffn_modes ffn; /* where weights are pooled */
    struct sample_result *results;
    struct heads_asks asks; /* of draft heads, or, where there is a draft model instead, of that; n 0: none */
    struct drafter_asks drafting;
    /* Steps posted one behind the other: */
    struct step *prev; /* whose results are this step's tokens; it stays until this one is absorbed. NULL: the tokens
                          are known */
    struct step *next; /* the engine's: the step posted behind this one */
    int ahead;         /* how many more may follow */
    int64_t posted_ns, done_ns; /* engine clock */
};

/* Where a batch runs. */
struct step_context {
    const struct world *world;
    const struct group *group;
    const struct comm_set *comms;
    bool no_blocks; /* nothing is computed: nobody asks where KV lies */
};

struct step *step_build(const struct plan_batch *b, const struct step_context *at);
/* Could s be followed: do all its sequences decode one token and go on after it whatever that token is, and does
 * nothing that they sample with depend on it? */
bool step_can_be_followed(const struct step *s, const struct step_context *at);
/* The step behind s, which can be followed and whose requests have room for its token and this step's; not posted yet.
 */
struct step *step_follow(struct step *s, const struct step_context *at);
/* Once all parts of s->prev have ended: this part's tokens, from its results. E_PEER: it failed. */
int step_take_tokens(struct step *s, int share, struct err *e);
/* Which of the item's drafts were right, in order: path[0..n); returns n. Once results are known. */
int step_path(const struct step *s, const struct step_item *it, int8_t path[MOST_DRAFTS]);
/* Where one of the item's draft tokens that were right is cached, and where it belongs, for those that are not there
 * yet: from[0..n) and to[0..n), positions of the sequence. */
int step_packs(const struct step *s, int item, int32_t from[MOST_DRAFTS], int32_t to[MOST_DRAFTS]);
/* What was guessed for an item that asked. */
const struct draft_made *step_made(const struct step *s, const struct step_item *it);
const struct drafter_time *step_drafting(const struct step *s); /* of the part that took longest */
bool step_samples(const struct step *s, int share);             /* is the member one of the last stage? */
/* Once nobody is sampling: have all done so? */
bool step_has_sampled(const struct step *s);
void step_watch(struct step *s, int n_layers); /* before it is posted: its parts get timelines */
int64_t step_ns(const struct step *s);         /* of its slowest part */
/* Times of the part that had the most of it, all else of all parts together. */
void step_part_take_ffn(struct step_part *p, const struct ffn_cost *c);
struct ffn_cost step_ffn(const struct step *s);
/* The first part that failed by itself, else one that needed a rank that has failed, else any that failed, else NULL.
 * rank: which one failed; it need not be a member. */
const struct step_part *step_failure(const struct step *s, int *rank);
void step_free(struct step *s); /* NULL is fine */

#endif
