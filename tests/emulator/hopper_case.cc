/* The kernels of tests/cuda/hopper.c as C++. */
#include "tests/gpu/hopper_case.cu"
