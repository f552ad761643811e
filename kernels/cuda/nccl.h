/* All-reduce by NCCL, in the default mode, among members on different GPUs. Its communicators lie beside those of the
 * rendezvous and are made when first needed, which the measurements at start see to. A member adds its own planes
 * first, then the library adds the members. Owned by the comm; each member's part is used by its rank's thread, and
 * may be aborted by any. Invariant: all members of a group decide alike whether the library is used, and no captured
 * graph contains a call of it. */
#ifndef CUDA_NCCL_H
#define CUDA_NCCL_H

#include "kernels/backend.h"
#include "kernels/cuda/nccl_load.h"

/* NULL: the library is not here. */
struct nccl_functions *nccl_open(void);
void nccl_close(struct nccl_functions *f); /* NULL is fine */
/* The sum of reduce_args, once the members have published in this slot. False: the library cannot be used here, nothing
 * was done, at all members alike; else done, or the device has an error. */
bool nccl_reduce(struct device *d, const struct reduce_args *a, int slot);
/* Ends what is in progress, with undefined results. The next sum makes new communicators. Any thread. */
void nccl_abort(struct comm *c);
void nccl_leave(struct comm *c); /* frees what lies beside the rendezvous; no member may be inside */

#endif
