/* The collectives of the CPU backend, over kernels/rendezvous.h. On the members' rank threads. Invariant: an abort
 * ends every wait. */
#ifndef CPU_COLLECTIVE_H
#define CPU_COLLECTIVE_H

#include "kernels/cpu/device.h"
#include "kernels/rendezvous.h"

void cpu_exchange(struct device *d, const struct exchange_args *a);
void cpu_reduce(struct device *d, const struct reduce_args *a);

#endif
