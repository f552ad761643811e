/* Failures of the emulated runtime on demand: the n-th call that the threads of a device make fails, once or from then
 * on, and allocations are counted against releases. The linker puts faults.c before the emulator's calls in the
 * programs that ask for it (FAULT_CALLS in tests/CMakeLists.txt). Set between steps by the test's thread; counted by
 * the ranks' threads. Invariant: calls that free something never fail. */
#ifndef EMULATOR_FAULTS_H
#define EMULATOR_FAULTS_H

#include <stdbool.h>

enum fault_kind {
    FAULT_NONE,
    FAULT_MALLOC, /* memory of the device or pinned memory: an error that passes */
    FAULT_LAUNCH,
    FAULT_COPY, /* copies and memset */
    FAULT_EVENT,
    FAULT_STREAM, /* making one, waiting for one */
    FAULT_GRAPH,  /* capturing, instantiating, launching one */
    FAULT_KINDS
};

/* Call number `at` (the first is 1) of the threads that chose the device last; 0: none fails. Counts from here on. */
void fault_arm(int device, int at, bool for_good);
/* Calls since fault_arm; of what kind the first one was that failed. */
int fault_calls(int device);
enum fault_kind fault_hit(int device);
/* Whether kernels run, or are only launched: what they compute is most of the time, and of no matter in a step that
 * fails. */
void fault_compute(bool yes);
/* Of all devices since the program began: calls of a kind; what was made and is not freed. */
int fault_seen(enum fault_kind kind);
int fault_live(void);

#endif
