/* Draft tokens: a guess of what a request says next, whose rows go through a step together with its newest token. The
 * step samples behind every one of them, with the randomness of that position in its sequence, and the tokens count as
 * far as the guesses were right: so the text is the one that it would have been without drafts, greedy or seeded
 * (Leviathan et al. 2023, with a deterministic guess; Arctic Inference's suffix decoding verifies the same way). A
 * guess is a chain, or a tree (SpecInfer, arXiv 2305.09781): each token names the one that it stands behind, and the
 * step goes on along the branch that it says itself. What is guessed is the business of sources, of which a server has
 * a few; who drafts how much by which is the policy's (plan_draft). Engine thread only. Invariant: a source sees a
 * request begin and end once each, and what it keeps for it in between is its own. */
#ifndef WORLD_DRAFT_H
#define WORLD_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

struct request;
struct world;

enum { MOST_DRAFTS = 64 /* of a request in a step */, MOST_SOURCES = 4 };

struct draft_guess {
    int n, match; /* tokens; on how many of its timeline, up to the newest, the guess rests */
    float score;  /* how many of them the source expects to be right */
    int source;   /* its place among the sources */
    bool tree;    /* else parents do not count, and each token stands behind the one before it */
    int32_t tokens[MOST_DRAFTS];
    int8_t parents[MOST_DRAFTS]; /* an earlier one, or -1: the newest token. No two behind one are the same token */
};

/* What the ranks of a step have guessed for a request whose item asked for it (models/forward/heads.h,
 * engine/exec/drafter.h). */
enum { MOST_HEADS = 16 /* tokens of such a guess */, MOST_ASKS = 64 /* requests of a step that may ask */ };
struct draft_made {
    int n;        /* tokens; 0: no idea */
    int right;    /* draft tokens of the step that were right, by which it goes on */
    int n_cached; /* with a cache: tokens of the timeline that lie there now, and behind them all of these but the last
                   */
    int32_t tokens[MOST_HEADS];
    float shares[MOST_HEADS]; /* the chance of each one when those before it are right */
};

/* What a draft model has computed of a request's timeline, in memory that all ranks reach, and room for what the step
 * adds to it. */
struct draft_cache {
    const int32_t *blocks; /* the source's, as they are until the step has been taken in */
    int n_cached;          /* tokens of the timeline, from the first one on */
    int n_ahead;           /* tokens that were guessed behind those then, and lie there, too */
    int32_t ahead[MOST_HEADS];
};

/* What of those that have ended goes first, where there is no room for all that they said. */
enum draft_evict {
    EVICT_OLDEST,
    EVICT_UNUSED,  /* who has been guessed from least lately */
    EVICT_LARGEST, /* the oldest of the tenant that has the most tokens */
    EVICT_RULES
};

struct draft_source {
    const char *name;
    /* Up to `most` tokens behind the request's newest one: n, match, score and tokens of *g. *note: what this source
     * keeps for this request, NULL before it has anything. n is 0: no idea. */
    void (*guess)(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g);
    /* The same as a tree: the first n of its tokens are a tree, too, for every n. NULL: it has chains only. */
    void (*guess_tree)(void *ctx, const struct request *r, void **note, int most, struct draft_guess *g);
    void (*begin)(void *ctx, const struct request *r, void **note); /* it has come; NULL: does not matter */
    void (*said)(void *ctx, const struct request *r, void *note);   /* its timeline is longer; NULL: does not matter */
    void (*end)(void *ctx, const struct request *r, void *note);    /* it ends; note may be NULL */
    void (*evict)(void *ctx, enum draft_evict rule);                /* from now on; NULL: it keeps nothing */
    /* Of a source whose guesses steps make: what a step has made, once its tokens are in the timeline. Only those
     * requests are guessed for whose guess a plan has asked for in that step. NULL: it guesses by itself. */
    void (*made)(void *ctx, const struct request *r, void **note, const struct draft_made *m);
    /* Of one whose guesses need a cache: a step begins that adds up to n_new tokens to the timeline and guesses. What
     * is lent for that is taken back by `made`, or, where the step fails or the request ends in it, as it was. False:
     * there is no room, and nothing is guessed. NULL: it needs none. */
    bool (*lend)(void *ctx, const struct request *r, void **note, int n_new, struct draft_cache *c);
    int most;     /* with a cache: tokens of a guess, 1 to MOST_HEADS; 0: as many as there can be */
    bool timed;   /* guesses take time of their own, behind the step's, which is measured (world.draft_estimate) */
    bool by_name; /* asked only by a policy that names it, unless it is the first */
    void *ctx;
};

/* What a policy asks for. */
struct draft_wish {
    int most, source; /* source: its place, or -1: of all that need no name, the one with the highest score */
    bool tree;        /* where the source has trees; else its chain */
    int next;         /* tokens that the step shall guess for the next one, where a source's guesses are steps': 0: as
                         `most`, unless it has been called before; -1: none */
};

struct draft_sources {
    struct draft_source items[MOST_SOURCES];
    int n;
};

/* Who is told of each guess, before the policy hears of it. */
struct draft_listener {
    void (*guessed)(void *ctx, const struct request *r, int most, const struct draft_guess *g); /* NULL: nobody */
    void *ctx;
};

/* What takes out of a guess what may not come, before anybody hears of it. */
struct draft_filter {
    void (*cut)(void *ctx, struct request *r, struct draft_guess *g); /* NULL: anything may */
    void *ctx;
};

/* What draft tokens of one source came to. */
enum { DRAFT_DEPTHS = 16 /* that are told apart; what lies deeper counts in the sums only */ };
struct draft_counts {
    int64_t drafted, accepted; /* that steps have verified; of them, those that were right */
    int64_t rejected;          /* times that one was wrong, and what followed it did not count */
    /* By depth, the first token of a guess at 0: times that all before it were right and it was judged; was right. */
    uint32_t judged_at[DRAFT_DEPTHS], right_at[DRAFT_DEPTHS];
};

/* Prompt lookup alone: what stood behind the request's last tokens before (lookup.h). */
const struct draft_sources *draft_lookup(void);
void draft_lookup_source(struct draft_source *to); /* the same, as one of several */

bool draft_keeps(const struct draft_sources *s);      /* does any source keep what was said? */
bool draft_takes_time(const struct draft_sources *s); /* does any take time that is measured? */
void draft_set_evict(const struct draft_sources *s, enum draft_evict rule);
int draft_source_named(const struct draft_sources *s, const char *name); /* its place; -1: none */
void draft_begin(const struct draft_sources *s, struct request *r);      /* s: NULL is fine */
/* A step has given it tokens, and it goes on. What its next guess rests on is made ready here, so that it is not the
 * policy's call that waits for it. */
void draft_said(const struct draft_sources *s, const struct request *r);
void draft_end(const struct draft_sources *s, struct request *r);
/* Its step will guess for it by source `source`, and add up to n_new tokens: what it needs for that. */
bool draft_lend(const struct draft_sources *s, int source, struct request *r, int n_new, struct draft_cache *c);
/* Its step has guessed for it, and its tokens are in the timeline. */
void draft_take_made(const struct draft_sources *s, struct request *r, const struct draft_made *m);
/* A step has verified n draft tokens, of which `right` were; wrong: what stood behind these was not. */
void draft_count(struct request *r, int source, int n, int right, bool wrong);
struct draft_counts draft_total(const struct request *r); /* of all sources */

/* Draft tokens as they go through a step; parents NULL: a chain. */
struct drafts {
    int n;
    const int32_t *tokens;
    const int8_t *parents;
};
/* Which of them stands behind `at` (-1: the newest token) and is this token; -1: none. */
int drafts_next(const struct drafts *d, int at, int32_t token);
bool drafts_go_on(const struct drafts *d, int at); /* does any stand behind it? */
int drafts_parent(const struct drafts *d, int at); /* the one that it stands behind, or -1 */
int drafts_depth(const struct drafts *d, int at);  /* tokens from the newest one to it; of -1 0 */

#endif
