/* The collectives of the CPU backend, over kernels/rendezvous.h. On the members' rank threads. Invariant: an abort
 * ends every wait. */
#ifndef CPU_COMM_H
#define CPU_COMM_H

#include "kernels/cpu/device.h"
#include "kernels/rendezvous.h"

void cpu_send(struct device *d, struct comm *c, int me, int to, struct act x, int rows);
void cpu_receive(struct device *d, struct comm *c, int me, int from, struct act y, int rows);
/* collective.c */
void cpu_exchange(struct device *d, const struct exchange_args *a);
void cpu_reduce(struct device *d, const struct reduce_args *a);

#endif
