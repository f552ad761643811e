/* Any bytes as an order for limits: what is accepted is such as a node could have, is obeyed as a whole or not at all,
 * and what it leaves can be ordered again. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/world/limits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct limits built = {.max_num_seqs = 128, .max_num_batched_tokens = 2048, .park_ns = 10000000000};
    struct limits l = built, again = built;
    struct limits_order o;
    struct err e = {0};
    char *exact = mem_new(size ? size : 1); /* no NUL after it, so that reading past the end is seen */
    memcpy(exact, data, size);
    int rc = limits_read(&o, exact, size, &e);
    mem_free(exact);
    if (rc) {
        ASSERT(rc == E_INPUT && e.text[0]);
        return 0;
    }
    rc = limits_obey(&l, &built, &o, &e);
    for (int i = 0; i < LIMIT_COUNT; i++) {
        int64_t least, most, is = limit_of(&l, (enum limit)i);
        limit_range(&built, (enum limit)i, &least, &most);
        ASSERT(is >= least && is <= most);
        ASSERT(is == (rc || !o.given[i] ? limit_of(&built, (enum limit)i) : o.values[i]));
    }
    ASSERT(!rc || (rc == E_INPUT && e.text[0]));
    struct buf json = {0};
    limits_put(&l, &json);
    ASSERT(!limits_read(&o, json.data, json.len, &e) && !limits_obey(&again, &built, &o, &e));
    buf_free(&json);
    return 0;
}
