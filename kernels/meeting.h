/* Where the ranks of a collective meet, whatever the machine: a barrier, what each member shows the others, mailboxes
 * for pairs. Members are threads of one process and may outnumber the cores: who waits polls briefly and then sleeps.
 * Opened by the engine's communicator pool, used by the members' rank threads. What is shown is addresses; moving bytes
 * is the machine's business. Never true: a wait that an abort does not end. */
#ifndef KERNELS_MEETING_H
#define KERNELS_MEETING_H

#include "kernels/backend.h"

/* What a member lays open for one collective. */
struct shown {
    struct act buffers[EXCHANGE_BUFFERS];
    enum comm_algorithm algorithm;
    void *ready; /* the machine's: when the buffers may be read; NULL: now */
};

/* Rows on their way from one member to another. */
struct mail {
    struct act x;
    int rows;
    void *ready; /* as shown.ready; once taken: when the receiver has read them */
};

int meeting_open(struct comm **out, int n, struct err *e);
void meeting_close(struct comm *c); /* NULL is fine */
void meeting_abort(struct comm *c); /* any thread; NULL is fine */
void meeting_reset(struct comm *c); /* only while no member is inside */
int meeting_size(const struct comm *c);

/* Says what it shows and waits for all members; then meeting_shown(c, m, *turn) is member m's. Turns are 0 and 1
 * alternately: what was shown in one stays until the member enters for the second time after it. False: the comm is
 * aborted. */
bool meeting_enter(struct comm *c, int me, const struct shown *s, int *turn);
const struct shown *meeting_shown(const struct comm *c, int member, int turn);
/* The turn that meeting_enter will give the member. */
int meeting_next_turn(const struct comm *c, int me);
/* Another wait for all, within a collective. */
bool meeting_wait(struct comm *c);
/* A place for what the machine keeps with a member and turn, or (MEMBER_OWN) with a member alone; NULL at first. */
enum { MEMBER_OWN = 2 };
void **meeting_own(struct comm *c, int member, int turn);

/* Pairs. put waits until the mail is taken and gets the receiver's `ready`; find waits for mail, which stays until
 * take. False: aborted. */
bool meeting_put(struct comm *c, int me, int to, struct mail *m);
bool meeting_find(struct comm *c, int me, int from, struct mail *m);
bool meeting_take(struct comm *c, int me, int from, void *ready);

#endif
