#include "kernels/rendezvous.h"

#include <limits.h>
#include <stdatomic.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "kernels/futex.h"

/* How often to poll before sleeping. Where members outnumber the cores, a polling member keeps the one that it waits
 * for from running. A member never yields: a core given to another process comes back milliseconds later, while a
 * sleeper that is woken runs at once. */
enum { POLLS = 1000, CROWDED_POLLS = 50 };

/* Two slots, used alternately: a member that enters the next collective does not overwrite what slower members of this
 * one still read. */
struct comm_member {
    _Alignas(64) struct published published[2];
    void *own[3]; /* by slot, and MEMBER_OWN */
    unsigned n_entered;
};

struct comm {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t phase; /* of the barrier; changes when all have arrived, and by an abort */
    _Atomic uint32_t aborted, sleepers;
    _Atomic uint32_t taken; /* a member has the turn */
    int n, polls;
    struct comm_member *members;
};

int rendezvous_open(struct comm **out, int n, struct err *e)
{
    ASSERT(n >= 1);
    struct comm *c = mem_try_aligned(sizeof *c, 64);
    *out = NULL;
    if (!c)
        return err_set(e, E_FULL, "no memory for a communicator of %d ranks", n);
    c->n = n;
    c->polls = n > thread_cores() ? CROWDED_POLLS : POLLS;
    c->members = mem_try_aligned((size_t)n * sizeof *c->members, 64);
    if (!c->members) {
        rendezvous_close(c);
        return err_set(e, E_FULL, "no memory for a communicator of %d ranks", n);
    }
    *out = c;
    return 0;
}

void rendezvous_close(struct comm *c)
{
    if (!c)
        return;
    mem_free(c->members);
    mem_free(c);
}

int rendezvous_size(const struct comm *c)
{
    return c->n;
}

const struct published *rendezvous_published(const struct comm *c, int member, int slot)
{
    return &c->members[member].published[slot];
}

/* Returns when *word is not `seen` any more. */
static void wait_while(struct comm *c, _Atomic uint32_t *word, uint32_t seen)
{
    for (int i = 0; i < c->polls; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen)
            return;
        relax();
    }
    atomic_fetch_add(&c->sleepers, 1);
    while (atomic_load(word) == seen)
        futex_wait(word, seen);
    atomic_fetch_sub(&c->sleepers, 1);
}

static void wake(struct comm *c, _Atomic uint32_t *word)
{
    if (atomic_load(&c->sleepers))
        futex_wake(word, INT_MAX);
}

/* An abort sets the flag before it changes the phase. So a member that read the new phase here sees the flag, and one
 * that read the old phase does not wait. */
bool rendezvous_barrier(struct comm *c)
{
    uint32_t phase = atomic_load(&c->phase);
    if (atomic_load(&c->aborted))
        return false;
    if (atomic_fetch_add(&c->arrived, 1) == (uint32_t)c->n - 1) {
        atomic_store(&c->arrived, 0);
        atomic_fetch_add(&c->phase, 1);
        wake(c, &c->phase);
    } else {
        wait_while(c, &c->phase, phase);
    }
    return !atomic_load(&c->aborted);
}

bool rendezvous_enter(struct comm *c, int me, const struct published *s, int *slot)
{
    ASSERT(me >= 0 && me < c->n);
    struct comm_member *m = &c->members[me];
    *slot = (int)(m->n_entered++ & 1);
    m->published[*slot] = *s;
    return rendezvous_barrier(c);
}

/* Whoever passes the turn wakes one who waits for it, or nobody; turns are taken where time does not matter. */
void rendezvous_take_turn(struct comm *c)
{
    while (atomic_exchange(&c->taken, 1))
        futex_wait(&c->taken, 1);
}

void rendezvous_pass_turn(struct comm *c)
{
    atomic_store(&c->taken, 0);
    futex_wake(&c->taken, 1);
}

void rendezvous_abort(struct comm *c)
{
    if (!c)
        return;
    atomic_store(&c->aborted, 1);
    atomic_fetch_add(&c->phase, 1);
    futex_wake(&c->phase, INT_MAX);
}

void rendezvous_reset(struct comm *c)
{
    atomic_store(&c->arrived, 0);
    for (int i = 0; i < c->n; i++)
        c->members[i].n_entered = 0;
    atomic_store(&c->aborted, 0);
}

int rendezvous_next_slot(const struct comm *c, int me)
{
    return (int)(c->members[me].n_entered & 1);
}

void **rendezvous_own(struct comm *c, int member, int slot)
{
    return &c->members[member].own[slot];
}
