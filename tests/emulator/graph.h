/* Work for a stream of the emulator: done at once, or added to a graph while the stream captures one. On the calling
 * thread. With EMULATOR_DELAYS in the environment it is done when somebody waits for it. A kernel that may begin early
 * (programmatic dependent launch) begins, where work is delayed or in a graph, before the kernel before it: one of its
 * CTAs, as far as griddepcontrol_wait. Invariant: all work is done, or is in a graph, or (delayed) in its stream's
 * queue. */
#ifndef EMULATOR_GRAPH_H
#define EMULATOR_GRAPH_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include <functional>
struct emulator_work {
    std::function<cudaError_t()> run;
    bool kernel, early;
    std::function<void()> begin; /* early: some of it */
};
void emulator_catch_up(); /* all streams, where their work is delayed */
bool emulator_delays();
unsigned emulator_random(unsigned below);
cudaError_t emulator_submit(cudaStream_t s, const emulator_work &work);
cudaError_t emulator_submit(cudaStream_t s, const std::function<cudaError_t()> &run);
/* The thread's last error becomes rc, unless that is none; returns rc. */
cudaError_t emulator_note(cudaError_t rc);
/* What every call of a device returns that has died; executing: one of its kernels is about to run. */
cudaError_t emulator_dead(int device, bool executing);
int emulator_device(); /* that this thread has chosen */
[[noreturn]] void emulator_die(const char *format, ...) __attribute__((format(printf, 1, 2)));
extern "C" {
#endif

/* For C: args are copied; run returns 0 when it went well. */
int emulator_submit_plain(cudaStream_t s, int (*run)(const void *args), const void *args, size_t bytes);
/* The n-th kernel of this device that runs from now on never ends well: the device has died, and every call says so.
 * 0: it lives. */
void emulator_break(int device, int n);
/* The last error of this thread, which stays. */
cudaError_t emulator_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
