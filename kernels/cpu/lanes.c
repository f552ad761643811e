#include "kernels/cpu/lanes.h"

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/check.h"

void lanes_begin(struct lanes *l, int n_threads, int n_items)
{
    l->n = n_threads < MOST_LANES ? n_threads : MOST_LANES;
    l->n_items = n_items;
    for (int i = 0; i < l->n; i++)
        atomic_store_explicit(&l->lane[i].taken, 0, memory_order_relaxed);
}

static int first_of(const struct lanes *l, int lane)
{
    return (int)((int64_t)l->n_items * lane / l->n);
}

int lanes_take(struct lanes *l, int thread)
{
    int own = thread % l->n;
    for (int k = 0; k < l->n; k++) {
        int lane = own + k < l->n ? own + k : own + k - l->n;
        int item = first_of(l, lane) + atomic_fetch_add_explicit(&l->lane[lane].taken, 1, memory_order_relaxed);
        if (item < first_of(l, lane + 1))
            return item;
    }
    ASSERT(false); /* a lane that is empty stays so: with fewer calls than items one of them was not */
    return 0;
}
