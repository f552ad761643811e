/* The functions of cuBLASLt that the backend calls, found at run time so that the program starts where there is no such library. Written once at open, any thread reads.
 * Never true: a table of which only some functions were found. */
#ifndef CUDA_LT_LOAD_H
#define CUDA_LT_LOAD_H

#include <cublasLt.h>
#include <stdbool.h>

#define LT_FUNCTIONS(X)                                                                                      \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmul)

struct lt_functions {
#define LT_MEMBER(name) __typeof__(&name) name;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
};

/* The library stays loaded for the life of the process. False: it is not here, or lacks one of these. */
bool lt_load(struct lt_functions *f);

#endif
