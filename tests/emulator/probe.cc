/* The kernels of the benches' probes as C++, for a dry run. */
#include "tests/bench/gpu/probe.cu"
