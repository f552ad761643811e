/* Names for things across threads and time: a handle is a slot and a generation, so a stale one is noticed, never
 * followed. Also the hard limits of the process. */
#ifndef WORLD_IDS_H
#define WORLD_IDS_H

#include <stdint.h>

typedef uint64_t req_id; /* generation << 32 | slot; 0 = none */

enum {
    MAX_REQUESTS = 65536, /* waiting and running together */
    MAX_RANKS = 64,
    NAME_BYTES = 64,   /* request names, tenants, policy names, NUL included */
    REASON_BYTES = 80, /* a policy's words for what it does */
};

/* A set of ranks is a mask, rank r its bit r. The n ranks from `first` on. */
static inline uint64_t rank_range(int first, int n)
{
    return (n == MAX_RANKS ? ~0ull : (1ull << n) - 1) << first;
}

#endif
