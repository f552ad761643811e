/* What tests ask of the host twin of NCCL. Between steps, any thread. Invariant: only sums that were asked for are
 * counted. */
#ifndef EMULATOR_NCCL_TWIN_H
#define EMULATOR_NCCL_TWIN_H

#ifdef __cplusplus
extern "C" {
#endif

long nccl_twin_sums(void);      /* calls of its all-reduce, one for each member */
long nccl_twin_live(void);      /* communicators that are not freed, one for each member */
void nccl_twin_absent(int yes); /* devices opened from now on find no library */

#ifdef __cplusplus
}
#endif

#endif
