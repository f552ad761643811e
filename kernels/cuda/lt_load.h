/* The functions of cuBLASLt that the backend calls, found at run time so that the program starts without the library.
 * Written once at open, read by any thread. Invariant: the table has all functions or there is none. */
#ifndef CUDA_LT_LOAD_H
#define CUDA_LT_LOAD_H

#include <cublasLt.h>
#include <stdbool.h>

#define LT_FUNCTIONS(X)                                                                                                \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmul)

/* Numbers that cublasLt.h names from version 12.9 on; what is loaded may be newer than the header. */
enum {
    LT_F8_VERSION = 120900,
    LT_A_SCALE_MODE = 31,
    LT_B_SCALE_MODE = 32,
    LT_SCALE_OUTER_VEC = 3, /* one for each row of op(A) or column of op(B) */
    LT_SCALE_VEC128 = 4,    /* one for each 128 elements */
    LT_SCALE_BLOCK128 = 5   /* one for each 128 x 128 elements */
};

struct lt_functions {
#define LT_MEMBER(name) __typeof__(&name) name;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
};

/* The library stays loaded for the life of the process. False: it is not here, or lacks one of these. */
bool lt_load(struct lt_functions *f);

#endif
