#include "kernels/cuda/lt_load.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if CUBLAS_VERSION >= 120900
_Static_assert(LT_A_SCALE_MODE == (int)CUBLASLT_MATMUL_DESC_A_SCALE_MODE &&
                   LT_B_SCALE_MODE == (int)CUBLASLT_MATMUL_DESC_B_SCALE_MODE &&
                   LT_SCALE_OUTER_VEC == (int)CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
                   LT_SCALE_VEC128 == (int)CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
                   LT_SCALE_BLOCK128 == (int)CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
               "the numbers are the header's");
#endif

/* The version whose header this was built with, then what the other version that has these functions calls itself, then
 * the name without one: where the loader looks, beside the program, and where NVIDIA's installer puts it, which is on
 * no loader's path. */
static void *open_library(void)
{
#define LT_TEXT(x) #x
#define LT_NAME(major) "libcublasLt.so." LT_TEXT(major)
    static const char *const places[] = {"", "$ORIGIN/", "$ORIGIN/../lib/", "/usr/local/cuda/lib64/"};
    static const char *const names[] = {LT_NAME(CUBLAS_VER_MAJOR), LT_NAME(13), LT_NAME(12), "libcublasLt.so"};
#undef LT_NAME
#undef LT_TEXT
    void *lib = NULL;
    char path[96];
    for (size_t n = 0; n < sizeof names / sizeof *names && !lib; n++)
        for (size_t p = 0; p < sizeof places / sizeof *places && !lib; p++) {
            snprintf(path, sizeof path, "%s%s", places[p], names[n]);
            lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    return lib;
}

static bool find(void *lib, const char *name, void *to)
{
    void *p = dlsym(lib, name);
    memcpy(to, &p, sizeof p);
    return p != NULL;
}

bool lt_load(struct lt_functions *f)
{
    void *lib = open_library();
    bool all = lib != NULL;
#define LT_FIND(name) all = all && find(lib, #name, &f->name);
    LT_FUNCTIONS(LT_FIND)
#undef LT_FIND
    return all;
}
