/* Where the ranks of a collective meet: a barrier, what each member shows the others, mailboxes for pairs. Members are threads of one process and may
 * outnumber the cores: who waits polls briefly and then sleeps. Opened by the engine's communicator pool, used by the members' rank threads.
 * Never true: a wait that an abort does not end. */
#ifndef CPU_COMM_H
#define CPU_COMM_H

#include <stdatomic.h>

#include "kernels/cpu/device.h"

/* What a member lays open for one collective. */
struct shown {
    struct act buffers[EXCHANGE_BUFFERS];
    enum comm_algorithm algorithm;
};

/* Two sets, taken in turn: who enters the next collective does not write over what slow members of this one still read. */
struct comm_member {
    _Alignas(64) struct shown shown[2];
    unsigned n_entered;
};

/* Says what it shows and waits for all members; then shown_by(c, m, *turn) is member m's. False: the comm is aborted. */
bool comm_enter(struct comm *c, int me, const struct shown *s, int *turn);
const struct shown *shown_by(const struct comm *c, int member, int turn);
/* Another wait for all, within a collective. */
bool comm_meet(struct comm *c);
int comm_size(const struct comm *c);

int cpu_comm_open(struct comm **out, int n, struct err *e);
void cpu_comm_close(struct comm *c);
void cpu_comm_abort(struct comm *c);
void cpu_comm_reset(struct comm *c);
void cpu_send(struct device *d, struct comm *c, int me, int to, struct act x, int rows);
void cpu_receive(struct device *d, struct comm *c, int me, int from, struct act y, int rows);
/* collective.c */
void cpu_exchange(struct device *d, const struct exchange_args *a);
void cpu_reduce(struct device *d, const struct reduce_args *a);

#endif
