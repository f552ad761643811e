/* What crosses between ranks whose FFN weights are pooled: who reads from which owner at this moment, and, where a
 * bound is set, how long bytes take: what leaves an owner and what reaches a reader are two token buckets of so many
 * bytes a second, so several readers of one owner share its link. Owned by the pool; any thread. Invariant: a bound
 * never makes bytes wait when both ends have been quiet. */
#ifndef EXEC_FFN_LINK_H
#define EXEC_FFN_LINK_H

#include <stddef.h>
#include <stdint.h>

struct ffn_link;

/* gbps: bytes * 1e-9 a second; 0: no bound. */
struct ffn_link *ffn_link_new(double gbps);
void ffn_link_free(struct ffn_link *l); /* NULL is fine */
/* Returns when so many bytes may have crossed. */
void ffn_link_cross(struct ffn_link *l, int owner, int reader, size_t bytes);
/* Around each copy, which is made while the bytes cross; end returns when they have, and takes what begin returned. */
int64_t ffn_link_begin(struct ffn_link *l, int owner, int reader, size_t bytes);
void ffn_link_end(struct ffn_link *l, int owner, int64_t begun);
uint64_t ffn_link_read(const struct ffn_link *l);    /* owners that somebody reads at this moment */
int ffn_link_most_readers(const struct ffn_link *l); /* of one owner at the same time, so far */

#endif
