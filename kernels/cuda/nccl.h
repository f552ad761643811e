/* All-reduces by NCCL, in the default mode, among members on different GPUs: its communicators lie beside the meeting's
 * and are made when such a sum first comes, which start-up's measuring sees to. Own planes are added first, then the
 * library adds the members. Owned by the comm; a member's part is used by its rank's thread, aborted by any. Never
 * true: two members that decide differently whether the library is used; a graph with a call of it inside. */
#ifndef CUDA_NCCL_H
#define CUDA_NCCL_H

#include "kernels/backend.h"
#include "kernels/cuda/nccl_load.h"

/* NULL: the library is not here. */
struct nccl_functions *nccl_open(void);
void nccl_close(struct nccl_functions *f); /* NULL is fine */
/* The sum of reduce_args, after the members have met in this turn. False: the library cannot be used here, nothing was
 * done, at all members alike; else done, or the device has an error. */
bool nccl_reduce(struct device *d, const struct reduce_args *a, int turn);
/* What is under way ends, nothing can be trusted; the next sum makes communicators anew. Any thread. */
void nccl_abort(struct comm *c);
void nccl_leave(struct comm *c); /* frees what lies beside the meeting; no member is inside */

#endif
