/* cuBLASLt on the host as its documentation states it: D = alpha op(A) op(B) + beta C (+ bias down the columns), all
 * matrices column by column. It refuses a product whose shapes do not fit, one that no choice was made for, and any of
 * REFUSED_ROWS rows, since the library may refuse what it likes.
 *
 * fp8 ("Narrow precision data types usage", "cublasLtMatmul()"): A is transposed, B is not; pointers, leading
 * dimensions and the dimensions along them are multiples of 16 bytes; scales of vectors go with scales of vectors, of
 * 128 x 128 elements with those of 128; the latter begin at multiples of 16 bytes and want rows and columns of D in
 * multiples of 4; all these on compute capability 9.0 alone, from version 12.9 on. A bias of f32 does not exist where D
 * is f32. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"
#include "tests/emulator/graph.h"
#include "tests/emulator/lt_twin.h"

struct lt_twin_product {
    cublasOperation_t transpose_a;
    cublasLtEpilogue_t epilogue;
    const float *bias;
    const float *scale_a, *scale_b;
    int32_t mode_a, mode_b;
};

struct lt_twin_layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct lt_twin_preference {
    uint64_t workspace;
};

enum { CHOSEN = 4711, PROPOSALS = 3, REFUSED_ROWS = 82, MOST_TYPES = 32 };
/* Scales by rows: an H100 was seen to refuse 9216 columns of up to 256 rows, and to take 3072. */
enum { FEW_ROWS = 256, MOST_COLS_OF_FEW_ROWS = 3072 };

static atomic_int version = LT_TWIN_VERSION, products[MOST_TYPES], latest;

void lt_twin_be(int v)
{
    atomic_store(&version, v);
}

int lt_twin_products(cudaDataType_t type)
{
    return atomic_load(&products[type]);
}

int lt_twin_proposal(void)
{
    return atomic_load(&latest);
}

size_t cublasLtGetVersion(void)
{
    return (size_t)atomic_load(&version);
}

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

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void *v,
                                              size_t bytes)
{
    bool modes = atomic_load(&version) >= LT_F8_VERSION;
    if (a == CUBLASLT_MATMUL_DESC_TRANSA && bytes == 4)
        memcpy(&d->transpose_a, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_EPILOGUE && bytes == 4)
        memcpy(&d->epilogue, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_BIAS_POINTER && bytes == sizeof d->bias)
        memcpy(&d->bias, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER && bytes == sizeof d->scale_a)
        memcpy(&d->scale_a, v, bytes);
    else if (a == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER && bytes == sizeof d->scale_b)
        memcpy(&d->scale_b, v, bytes);
    else if ((int)a == LT_A_SCALE_MODE && modes && bytes == sizeof d->mode_a)
        memcpy(&d->mode_a, v, bytes);
    else if ((int)a == LT_B_SCALE_MODE && modes && bytes == sizeof d->mode_b)
        memcpy(&d->mode_b, v, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *m, cudaDataType t, uint64_t rows, uint64_t cols,
                                          int64_t ld)
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

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a, const void *v, size_t bytes)
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

static bool of_sixteen(const void *p)
{
    return p && (uintptr_t)p % 16 == 0;
}

static uint64_t result_bytes(cublasLtMatrixLayout_t y)
{
    return y->type == CUDA_R_32F ? 4 : 2;
}

/* What of two fp8 factors is refused. */
static bool fits_f8(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                    cublasLtMatrixLayout_t y)
{
    bool vectors = d->mode_a == LT_SCALE_OUTER_VEC && d->mode_b == LT_SCALE_OUTER_VEC;
    bool blocks = (d->mode_a == LT_SCALE_BLOCK128 || d->mode_a == LT_SCALE_VEC128) &&
                  (d->mode_b == LT_SCALE_BLOCK128 || d->mode_b == LT_SCALE_VEC128) &&
                  !(d->mode_a == LT_SCALE_BLOCK128 && d->mode_b == LT_SCALE_BLOCK128);
    struct cudaDeviceProp p;
    cudaGetDeviceProperties(&p, 0);
    if (d->transpose_a != CUBLAS_OP_T || d->epilogue != CUBLASLT_EPILOGUE_DEFAULT || p.major != 9 || p.minor != 0 ||
        !(vectors || blocks))
        return false;
    if (a->rows % 16 || a->cols % 16 || a->ld % 16 || b->ld % 16 || y->ld * result_bytes(y) % 16 || !d->scale_a ||
        !d->scale_b)
        return false;
    if (vectors)
        return b->rows <= MOST_COLS_OF_FEW_ROWS || y->cols > FEW_ROWS;
    return y->rows % 4 == 0 && y->cols % 4 == 0 && of_sixteen(d->scale_a) && of_sixteen(d->scale_b);
}

static bool fits(cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t y)
{
    uint64_t m = d->transpose_a ? a->cols : a->rows, k = d->transpose_a ? a->rows : a->cols;
    if (m != y->rows || k != b->rows || b->cols != y->cols || a->type != b->type || a->type == CUDA_R_32F ||
        (y->type != CUDA_R_32F && (y->type != CUDA_R_16BF || d->bias)) ||
        (d->epilogue == CUBLASLT_EPILOGUE_BIAS) != (d->bias != NULL))
        return false;
    if (a->type == CUDA_R_8F_E4M3)
        return fits_f8(d, a, b, y);
    return !d->mode_a && !d->mode_b && !d->scale_a && !d->scale_b;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *n)
{
    bool good = h && c == y && most > 0 && p->workspace > 0 && b->cols != REFUSED_ROWS && fits(d, a, b, y);
    *n = !good ? 0 : most < PROPOSALS ? most : PROPOSALS;
    memset(found, 0, (size_t)most * sizeof *found);
    for (int i = 0; i < *n; i++)
        found[i].algo.data[0] = (uint64_t)(CHOSEN + i);
    return *n ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static float element_at(const void *p, cudaDataType_t t, int64_t i)
{
    if (t == CUDA_R_8F_E4M3)
        return f8_to_f32(((const uint8_t *)p)[i]);
    uint16_t h = ((const uint16_t *)p)[i];
    return t == CUDA_R_16F ? f16_to_f32(h) : bf16_to_f32(h);
}

/* One product, as the stream comes to it: descriptors are gone by then. */
struct product {
    struct lt_twin_layout a, b, y;
    struct lt_twin_product how;
    const void *A, *B;
    void *out;
    float by, keep;
};

/* The scale of 128 elements: those of vector i of n from 128 * group on. */
static double scale_at(const float *scales, int mode, int64_t i, int64_t n, int64_t group, int64_t groups)
{
    if (mode == LT_SCALE_OUTER_VEC)
        return (double)scales[i];
    if (mode == LT_SCALE_VEC128)
        return (double)scales[group * n + i];
    return mode ? (double)scales[i / 128 * ((groups + 3) / 4 * 4) + group] : 1;
}

static float sum_at(const struct product *p, int64_t row, int64_t col)
{
    double sum = 0;
    int64_t depth = (int64_t)p->b.rows, groups = (depth + 127) / 128;
    for (int64_t first = 0; first < depth; first += 128) {
        double part = 0;
        for (int64_t k = first; k < depth && k < first + 128; k++) {
            int64_t at = p->how.transpose_a ? k + row * p->a.ld : row + k * p->a.ld;
            part += (double)element_at(p->A, p->a.type, at) * (double)element_at(p->B, p->b.type, k + col * p->b.ld);
        }
        sum += part * scale_at(p->how.scale_a, p->how.mode_a, row, (int64_t)p->y.rows, first / 128, groups) *
               scale_at(p->how.scale_b, p->how.mode_b, col, (int64_t)p->y.cols, first / 128, groups);
    }
    return (float)sum;
}

static int multiply(const void *args)
{
    const struct product *p = args;
    for (int64_t col = 0; col < (int64_t)p->y.cols; col++)
        for (int64_t row = 0; row < (int64_t)p->y.rows; row++) {
            int64_t at = row + col * p->y.ld;
            bool half = p->y.type == CUDA_R_16BF;
            float was = p->keep == 0 ? 0 : half ? bf16_to_f32(((uint16_t *)p->out)[at]) : ((float *)p->out)[at];
            float v = p->by * sum_at(p, row, col) + p->keep * was + (p->how.bias ? p->how.bias[row] : 0);
            if (half)
                ((uint16_t *)p->out)[at] = f32_to_bf16(v);
            else
                ((float *)p->out)[at] = v;
        }
    return 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void *alpha, const void *A,
                              cublasLtMatrixLayout_t a, const void *B, cublasLtMatrixLayout_t b, const void *beta,
                              const void *C, cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t y,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t s)
{
    if (a->type == CUDA_R_8F_E4M3 && !(of_sixteen(A) && of_sixteen(B) && of_sixteen(D)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (emulator_last_error()) /* it looks at what its own launches left there */
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!h || !s || !workspace || !bytes || algo->data[0] < CHOSEN || algo->data[0] >= CHOSEN + PROPOSALS || C != D ||
        c != y || !fits(d, a, b, y))
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product p = {*a, *b, *y, *d, A, B, D, *(const float *)alpha, *(const float *)beta};
    atomic_fetch_add(&products[a->type], 1);
    atomic_store(&latest, (int)(algo->data[0] - CHOSEN));
    return emulator_submit_plain(s, multiply, &p, sizeof p) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

bool lt_load(struct lt_functions *f)
{
#define LT_OWN(name) f->name = name;
    LT_FUNCTIONS(LT_OWN)
#undef LT_OWN
    return atomic_load(&version) != 0;
}
