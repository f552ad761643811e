#include "kernels/cuda/lt.h"

#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cuda/lt_load.h"

enum { WORKSPACE = 32 << 20, CHOICES = 2048 };

/* What the library chose for a shape. */
struct choice {
    struct lt_key key;
    enum { CHOICE_NONE, CHOICE_REFUSED, CHOICE_MADE } state;
    cublasLtMatmulAlgo_t algo;
};

struct lt {
    struct lt_functions f;
    cublasLtHandle_t handle;
    struct choice *choices;     /* [CHOICES] by hash; a newcomer takes the place of who is there */
};

/* What one call describes itself with. */
struct call {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
};

static int32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
    return low == 0 || low > 256 ? 256 : (int32_t)low;
}

struct lt_key lt_key_of(const struct lt_product *p)
{
    return (struct lt_key){p->outs, p->cols, p->rows, p->ldw, p->ldx, p->ldy, p->f16 | p->accumulate << 1 | (p->bias != NULL) << 2,
                           alignment(p->w), alignment(p->x), alignment(p->y)};
}

uint32_t lt_hash(const struct lt_key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

struct lt *lt_open(void)
{
    struct lt *l = mem_new(sizeof *l);
    if (!lt_load(&l->f) || l->f.cublasLtCreate(&l->handle) != CUBLAS_STATUS_SUCCESS) {
        mem_free(l);
        return NULL;
    }
    l->choices = mem_new_array(CHOICES, sizeof *l->choices);
    return l;
}

void lt_close(struct lt *l)
{
    if (!l)
        return;
    l->f.cublasLtDestroy(l->handle);
    mem_free(l->choices);
    mem_free(l);
}

size_t lt_workspace(void)
{
    return WORKSPACE;
}

static bool ok(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS;
}

/* The library's matrices are column by column: row-major w[outs][cols] is a cols x outs matrix, to be transposed; x and y are as they should be. */
static bool describe(const struct lt *l, const struct lt_product *p, struct call *c)
{
    cudaDataType_t half = p->f16 ? CUDA_R_16F : CUDA_R_16BF;
    cublasOperation_t turn = CUBLAS_OP_T;
    cublasLtEpilogue_t with_bias = CUBLASLT_EPILOGUE_BIAS;
    if (!ok(l->f.cublasLtMatmulDescCreate(&c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
        !ok(l->f.cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_TRANSA, &turn, sizeof turn)))
        return false;
    if (p->bias && (!ok(l->f.cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &with_bias, sizeof with_bias)) ||
                    !ok(l->f.cublasLtMatmulDescSetAttribute(c->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias))))
        return false;
    return ok(l->f.cublasLtMatrixLayoutCreate(&c->w, half, (uint64_t)p->cols, (uint64_t)p->outs, p->ldw)) &&
           ok(l->f.cublasLtMatrixLayoutCreate(&c->x, half, (uint64_t)p->cols, (uint64_t)p->rows, p->ldx)) &&
           ok(l->f.cublasLtMatrixLayoutCreate(&c->y, CUDA_R_32F, (uint64_t)p->outs, (uint64_t)p->rows, p->ldy));
}

static void forget(const struct lt *l, struct call *c)
{
    if (c->preference)
        l->f.cublasLtMatmulPreferenceDestroy(c->preference);
    if (c->y)
        l->f.cublasLtMatrixLayoutDestroy(c->y);
    if (c->x)
        l->f.cublasLtMatrixLayoutDestroy(c->x);
    if (c->w)
        l->f.cublasLtMatrixLayoutDestroy(c->w);
    if (c->product)
        l->f.cublasLtMatmulDescDestroy(c->product);
}

static bool prefer(const struct lt *l, struct call *c, cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t bytes)
{
    return ok(l->f.cublasLtMatmulPreferenceSetAttribute(c->preference, what, value, bytes));
}

static bool choose(const struct lt *l, struct call *c, const struct lt_key *k, cublasLtMatmulAlgo_t *algo)
{
    uint64_t most = WORKSPACE;
    uint32_t w = (uint32_t)k->align_w, x = (uint32_t)k->align_x, y = (uint32_t)k->align_y;
    cublasLtMatmulHeuristicResult_t found;
    int n = 0;
    if (!ok(l->f.cublasLtMatmulPreferenceCreate(&c->preference)) || !prefer(l, c, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most, sizeof most) ||
        !prefer(l, c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &w, sizeof w) || !prefer(l, c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &x, sizeof x) ||
        !prefer(l, c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &y, sizeof y) || !prefer(l, c, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &y, sizeof y))
        return false;
    if (!ok(l->f.cublasLtMatmulAlgoGetHeuristic(l->handle, c->product, c->w, c->x, c->y, c->y, c->preference, 1, &found, &n)) || n < 1 ||
        !ok(found.state))
        return false;
    *algo = found.algo;
    return true;
}

static struct choice *find_choice(struct lt *l, const struct lt_key *k)
{
    struct choice *c = &l->choices[lt_hash(k) % CHOICES];
    if (c->state != CHOICE_NONE && memcmp(&c->key, k, sizeof *k) != 0)
        c->state = CHOICE_NONE;
    c->key = *k;
    return c;
}

bool lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace)
{
    struct lt_key key = lt_key_of(p);
    struct choice *choice = find_choice(l, &key);
    struct call c = {0};
    float one = 1, beta = p->accumulate ? 1.0f : 0.0f;
    bool done = choice->state != CHOICE_REFUSED && describe(l, p, &c);
    if (done && choice->state == CHOICE_NONE) {
        done = choose(l, &c, &key, &choice->algo);
        choice->state = done ? CHOICE_MADE : CHOICE_REFUSED;
    }
    done = done && ok(l->f.cublasLtMatmul(l->handle, c.product, &one, p->w, c.w, p->x, c.x, &beta, p->y, c.y, p->y, c.y, &choice->algo, workspace,
                                          WORKSPACE, s));
    forget(l, &c);
    return done;
}
