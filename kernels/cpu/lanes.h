/* Which thread takes which item of a call whose items lie in memory one behind the other. Each thread has a
 * lane of them, one after the other, so that what it asks for ahead behind the end of an item is what it reads next;
 * who is done with his own goes on with what others have left. The pool counts the items (pool.h), so nobody asks once
 * too often. Lives as long as the call; any thread may take. Invariant: every item is taken once, whoever comes when.
 */
#ifndef CPU_LANES_H
#define CPU_LANES_H

#include <stdatomic.h>

enum { MOST_LANES = 64 };

struct lanes {
    int n, n_items;
    struct lane {
        _Alignas(64) _Atomic int taken; /* counts on when all of them are */
    } lane[MOST_LANES];
};

/* As many lanes as threads; beyond MOST_LANES several threads share one. */
void lanes_begin(struct lanes *l, int n_threads, int n_items);
/* One of 0 .. n_items-1. At most n_items calls. */
int lanes_take(struct lanes *l, int thread);

#endif
