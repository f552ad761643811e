/* Where the ranks of a collective meet, on every machine: a barrier, and the buffers that each member publishes to
 * the others. Members are threads of one process and may outnumber the cores: a waiting member polls briefly and then
 * sleeps. Opened by the engine's communicator pool, used by the members' rank threads. Only
 * addresses are published; moving the bytes is the backend's job. Invariant: an abort ends every wait. */
#ifndef KERNELS_RENDEZVOUS_H
#define KERNELS_RENDEZVOUS_H

#include "kernels/backend.h"

/* What a member publishes for one collective. */
struct published {
    struct act buffers[EXCHANGE_BUFFERS];
    enum comm_algorithm algorithm;
    void *ready; /* for the backend: when the buffers may be read; NULL: now */
};

int rendezvous_open(struct comm **out, int n, struct err *e);
void rendezvous_close(struct comm *c); /* NULL is fine */
void rendezvous_abort(struct comm *c); /* any thread; NULL is fine */
void rendezvous_reset(struct comm *c); /* only while no member is inside */
int rendezvous_size(const struct comm *c);

/* Publishes p and waits for all members; then rendezvous_published(c, m, *slot) is what member m has published. Slots
 * alternate between 0 and 1. What a member has published in a slot stays there until it enters for the second time
 * after that. False: the comm is aborted. */
bool rendezvous_enter(struct comm *c, int me, const struct published *p, int *slot);
const struct published *rendezvous_published(const struct comm *c, int member, int slot);
/* The slot that rendezvous_enter will give the member. */
int rendezvous_next_slot(const struct comm *c, int me);
/* A further barrier within a collective. False: the comm is aborted. */
bool rendezvous_barrier(struct comm *c);
/* Members one at a time, for what must not be done by two threads at once: waits for the turn; passes it. A member that
 * has the turn passes it before it enters or meets the others, and after a failure, too. */
void rendezvous_take_turn(struct comm *c);
void rendezvous_pass_turn(struct comm *c);
/* A pointer that the backend keeps with a member and slot, or (MEMBER_OWN) with a member alone; NULL at first. */
enum { MEMBER_OWN = 2 };
void **rendezvous_own(struct comm *c, int member, int slot);

#endif
