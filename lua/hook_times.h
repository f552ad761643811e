/* What the calls of a policy take, as metrics. Owned by the policy's host, one thread. */
#ifndef LUA_HOOK_TIMES_H
#define LUA_HOOK_TIMES_H

#include "engine/policy.h"

enum { TIME_BUCKETS = 13 };

struct duration {
    uint64_t buckets[TIME_BUCKETS + 1], count;
    int64_t sum_ns;
};

struct hook_times {
    int has; /* bit h: the policy has this hook */
    struct duration hooks[HOOK_COUNT], collector;
    size_t heap_bytes, heap_limit;
};

void duration_add(struct duration *d, int64_t ns);
/* labels like policy="fair",version="ab12". */
void hook_times_put(const struct hook_times *t, const char *labels, struct buf *out);

#endif
