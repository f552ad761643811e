/* Work for a stream of the emulator: done at once, or added to a graph while the stream captures one. On the calling
 * thread. With EMULATOR_DELAYS in the environment it is done when somebody waits for it. Invariant: all work is done,
 * or is in a graph, or (delayed) in its stream's queue. */
#ifndef EMULATOR_GRAPH_H
#define EMULATOR_GRAPH_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include <functional>
void emulator_catch_up(); /* all streams, where their work is delayed */
cudaError_t emulator_submit(cudaStream_t s, const std::function<cudaError_t()> &run);
extern "C" {
#endif

/* For C: args are copied; run returns 0 when it went well. */
int emulator_submit_plain(cudaStream_t s, int (*run)(const void *args), const void *args, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
