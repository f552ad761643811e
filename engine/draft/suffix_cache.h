/* What requests have said, by tenant, as suffix trees (suffix_tree.h) of one bound in bytes: tenants share the memory
 * and never a token. When it is full, sequences go whole, by a rule that may change at any time. Adding and taking out
 * are cut into slices of bounded work, so that a lock around each is short. Owned by one thread at a time. Invariant:
 * between slices the bytes in use are at most the bound, or there is nothing left to take out. */
#ifndef DRAFT_SUFFIX_CACHE_H
#define DRAFT_SUFFIX_CACHE_H

#include "engine/draft/suffix_tree.h"
#include "engine/world/draft.h"

struct suffix_cache;

struct suffix_cache *suffix_cache_new(size_t bytes);
void suffix_cache_free(struct suffix_cache *c); /* NULL is fine */
void suffix_cache_set_rule(struct suffix_cache *c, enum draft_evict rule);
void suffix_cache_empty(struct suffix_cache *c); /* all of it goes, in the next slices */

/* Begins to add tokens[0..n) of this tenant, which stay the caller's until it is done; one at a time. */
void suffix_cache_add(struct suffix_cache *c, const char *tenant, const int32_t *tokens, int n);
/* The next slice, tens of microseconds: adds, or makes room. False: nothing is left to do. */
bool suffix_cache_work(struct suffix_cache *c);

/* As suffix_tree_guess, of this tenant's; it counts as a use. */
int suffix_cache_guess(struct suffix_cache *c, const char *tenant, const int32_t *context, int n_context,
                       struct suffix_want want, struct suffix_guess *guess);

struct suffix_cache_stats {
    struct suffix_stats tree;
    int n_sequences, n_tenants;
    int64_t n_evicted; /* sequences */
};
struct suffix_cache_stats suffix_cache_stats(const struct suffix_cache *c);
/* Each sequence, the oldest first, as long as visit returns true. */
void suffix_cache_each(const struct suffix_cache *c,
                       bool (*visit)(void *ctx, const char *tenant, const int32_t *tokens, int n), void *ctx);

#endif
