/* cuBLASLt on the host as its documentation states it: D = alpha op(A) op(B) + beta C (+ bias down the columns), all matrices column by column. It
 * refuses a product whose shapes do not fit, one that no choice was made for, and any of REFUSED_ROWS rows, since the library may refuse what it
 * likes. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/lt_load.h"
#include "tests/emulator/graph.h"
#include "kernels/dtype.h"

struct lt_twin_product {
    cublasOperation_t turn_a;
    cublasLtEpilogue_t epilogue;
    const float *bias;
};

struct lt_twin_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct lt_twin_preference {
    uint64_t workspace;
};

enum { CHOSEN = 4711, REFUSED_ROWS = 50 };

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType_t scale)
{
    *d = calloc(1, sizeof **d);
    (*d)->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v, size_t bytes)
{
    if (a == CUBLASLT_MATMUL_DESC_TRANSA && bytes == 4)
        memcpy(&d->turn_a, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_EPILOGUE && bytes == 4)
        memcpy(&d->epilogue, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER && bytes == sizeof d->bias)
        memcpy(&d->bias, v, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *m, cudaDataType t, uint64_t rows, uint64_t cols, int64_t ld)
{
    *m = malloc(sizeof **m);
    **m = (struct lt_twin_layout){t, rows, cols, ld};
    return (uint64_t)ld >= rows ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t m)
{
    free(m);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
    *p = calloc(1, sizeof **p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t bytes)
{
    uint32_t align;
    if (a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof p->workspace) {
        memcpy(&p->workspace, v, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    if (bytes != sizeof align)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&align, v, bytes);
    return align >= 4 && (align & (align - 1)) == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

static int fits(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t y)
{
    uint64_t m = d->turn_a ? a->cols : a->rows, k = d->turn_a ? a->rows : a->cols;
    return m == y->rows && k == b->rows && b->cols == y->cols && a->type == b->type && a->type != CUDA_R_32F && y->type == CUDA_R_32F &&
           (d->epilogue == CUBLASLT_EPILOGUE_BIAS) == (d->bias != NULL);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    memset(found, 0, sizeof *found);
    found->algo.data[0] = CHOSEN;
    *n = h && c == y && most > 0 && p->workspace > 0 && b->cols != REFUSED_ROWS && fits(d, a, b, y);
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float half_at(const void *p, cudaDataType_t t, int64_t i)
{
    uint16_t h = ((const uint16_t *)p)[i];
    return t == CUDA_R_16F ? f16_to_f32(h) : bf16_to_f32(h);
}

/* One product, as the stream comes to it: descriptors are gone by then. */
struct product {
    struct lt_twin_layout a, b, y;
    int turn_a;
    const float *bias;
    const void *A, *B;
    float *out, by, keep;
};

static int multiply(const void *args)
{
    const struct product *p = args;
    for (uint64_t col = 0; col < p->y.cols; col++)
        for (uint64_t row = 0; row < p->y.rows; row++) {
            double sum = 0;
            for (uint64_t k = 0; k < p->b.rows; k++) {
                int64_t at = p->turn_a ? (int64_t)k + (int64_t)row * p->a.ld : (int64_t)row + (int64_t)k * p->a.ld;
                sum += (double)half_at(p->A, p->a.type, at) * (double)half_at(p->B, p->b.type, (int64_t)k + (int64_t)col * p->b.ld);
            }
            float *to = &p->out[(int64_t)row + (int64_t)col * p->y.ld];
            *to = p->by * (float)sum + (p->keep != 0 ? p->keep * *to : 0) + (p->bias ? p->bias[row] : 0);
        }
    return 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t y,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t s)
{
    if (!h || !s || !workspace || !bytes || algo->data[0] != CHOSEN || C != D || c != y || !fits(d, a, b, y))
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product p = {*a, *b, *y, d->turn_a, d->bias, A, B, D, *(const float *)alpha, *(const float *)beta};
    return emulator_submit_plain(s, multiply, &p, sizeof p) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

bool lt_load(struct lt_functions *f)
{
#define LT_OWN(name) f->name = name;
    LT_FUNCTIONS(LT_OWN)
#undef LT_OWN
    return true;
}
