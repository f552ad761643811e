/* The kernels of tests/cuda_hopper.c as C++. */
#include "tests/gpu/hopper_case.cu"
