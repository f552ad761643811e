/* What each rank holds, to the byte: its weights, the slots and the row memory of the FFN pool, working memory; and
 * what is left for its KV cache. Ranks of one device share its memory and its one copy of the weights, unless they have
 * memory of their own: --rank-memory, pooled weights, or a described machine, whose devices each have their own. Used
 * by the node while it opens. Engine thread. Invariant: what the ranks of one memory hold and are given for KV is never
 * more than that memory. */
#ifndef ENGINE_HOLDINGS_H
#define ENGINE_HOLDINGS_H

#include "engine/node.h"

/* Do the ranks have memory of their own, by what was asked for? */
bool holdings_are_private(const struct engine_setup *s);
/* Bytes left for the KV cache of the rank that has least. E_FULL: a rank cannot hold even the rest; says what would
 * help.
 */
int holdings_for_kv(const struct node *n, const struct engine_setup *s, size_t *bytes, struct err *e);
/* All weights of the model, as a rank would hold them by itself; where they are pooled, what the rank holds. */
size_t holdings_weights(const struct node *n, int rank);
/* What its memory has beyond what it holds and its KV cache. */
size_t holdings_spare(const struct node *n, const struct engine_setup *s, int rank);
/* Pooled weights: the FFN bytes of the largest layer, and what the pool frees on the rank where it frees least, less
 * its slots. */
void holdings_of_pool(const struct node *n, size_t *layer, size_t *freed);
/* KV blocks that take as much memory as a copy of one pooled FFN layer; 0: there is none. */
int holdings_replica_blocks(const struct node *n, const struct engine_setup *s);
/* A line for each rank, and how many tokens more that is than with all weights on every rank. After rank_start. */
void holdings_print(const struct node *n, const struct engine_setup *s);

#endif
