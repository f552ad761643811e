#include "kernels/cuda/lt.h"

#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "kernels/cuda/lt_load.h"

enum { WORKSPACE = 32 << 20, CHOICES = 2048, F8_CAPABILITY = 90 };

/* The library's description of a product. */
struct call {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
};

/* The algorithms that the library proposed for a shape, with its description. Only the addresses of bias and scales are
 * set anew for each product. */
struct choice {
    struct lt_key key;
    enum { CHOICE_NONE, CHOICE_REFUSED, CHOICE_MADE } state;
    struct call call;
    cublasLtMatmulAlgo_t algos[LT_PROPOSALS];
    int n_algos;
};

struct lt {
    struct lt_functions f;
    cublasLtHandle_t handle;
    bool f8;
    int refused; /* shapes */
    bool forbidden[LT_F8_BLOCKS + 1];
    struct choice *choices; /* [CHOICES] by hash; a new one replaces what is there */
};

static int32_t alignment(const void *p)
{
    uintptr_t low = (uintptr_t)p & (~(uintptr_t)p + 1);
    return low == 0 || low > 256 ? 256 : (int32_t)low;
}

struct lt_key lt_key_of(const struct lt_product *p)
{
    return (struct lt_key){p->outs,
                           p->cols,
                           p->rows,
                           p->ldw,
                           p->ldx,
                           p->ldy,
                           (int)p->factors | p->accumulate << 2 | (p->bias != NULL) << 3 | p->half << 4,
                           alignment(p->w),
                           alignment(p->x),
                           alignment(p->y)};
}

uint32_t lt_hash(const struct lt_key *k)
{
    const unsigned char *p = (const unsigned char *)k;
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof *k; i++)
        h = (h ^ p[i]) * 16777619u;
    return h ^ h >> 15;
}

struct lt *lt_open(int capability)
{
    struct lt *l = mem_new(sizeof *l);
    if (!lt_load(&l->f) || l->f.cublasLtCreate(&l->handle) != CUBLAS_STATUS_SUCCESS) {
        mem_free(l);
        return NULL;
    }
    l->f8 = capability == F8_CAPABILITY && l->f.cublasLtGetVersion() >= LT_F8_VERSION;
    l->choices = mem_new_array(CHOICES, sizeof *l->choices);
    return l;
}

int lt_version(const struct lt *l)
{
    return (int)l->f.cublasLtGetVersion();
}

bool lt_multiplies_f8(const struct lt *l)
{
    return l && l->f8;
}

size_t lt_workspace(void)
{
    return WORKSPACE;
}

static bool ok(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS;
}

static bool is_f8(const struct lt_product *p)
{
    return p->factors == LT_F8_ROWS || p->factors == LT_F8_BLOCKS;
}

static bool set(const struct lt *l, const struct call *c, int what, const void *value, size_t bytes)
{
    return ok(l->f.cublasLtMatmulDescSetAttribute(c->product, (cublasLtMatmulDescAttributes_t)what, value, bytes));
}

static bool set_pointers(const struct lt *l, const struct lt_product *p, const struct call *c)
{
    if (is_f8(p))
        return set(l, c, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w_scales, sizeof p->w_scales) &&
               set(l, c, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->x_scales, sizeof p->x_scales);
    return !p->bias || set(l, c, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
}

/* The epilogue: bias and scales. */
static bool describe_ends(const struct lt *l, const struct lt_product *p, const struct call *c)
{
    cublasLtEpilogue_t with_bias = CUBLASLT_EPILOGUE_BIAS;
    int32_t w = p->factors == LT_F8_ROWS ? LT_SCALE_OUTER_VEC : LT_SCALE_BLOCK128,
            x = p->factors == LT_F8_ROWS ? LT_SCALE_OUTER_VEC : LT_SCALE_VEC128;
    if (is_f8(p) && (p->bias || !set(l, c, LT_A_SCALE_MODE, &w, sizeof w) || !set(l, c, LT_B_SCALE_MODE, &x, sizeof x)))
        return false;
    return (!p->bias || set(l, c, CUBLASLT_MATMUL_DESC_EPILOGUE, &with_bias, sizeof with_bias)) &&
           set_pointers(l, p, c);
}

/* The library's matrices are column by column: row-major w[outs][cols] is a cols x outs matrix, to be transposed; x and
 * y are as they should be. */
static bool describe(const struct lt *l, const struct lt_product *p, struct call *c)
{
    cudaDataType_t type = is_f8(p)               ? CUDA_R_8F_E4M3
                          : p->factors == LT_F16 ? CUDA_R_16F
                                                 : CUDA_R_16BF,
                   result = p->half ? CUDA_R_16BF : CUDA_R_32F;
    cublasOperation_t transpose = CUBLAS_OP_T;
    if (!ok(l->f.cublasLtMatmulDescCreate(&c->product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) ||
        !set(l, c, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) || !describe_ends(l, p, c))
        return false;
    return ok(l->f.cublasLtMatrixLayoutCreate(&c->w, type, (uint64_t)p->cols, (uint64_t)p->outs, p->ldw)) &&
           ok(l->f.cublasLtMatrixLayoutCreate(&c->x, type, (uint64_t)p->cols, (uint64_t)p->rows, p->ldx)) &&
           ok(l->f.cublasLtMatrixLayoutCreate(&c->y, result, (uint64_t)p->outs, (uint64_t)p->rows, p->ldy));
}

static void forget(const struct lt *l, struct call *c)
{
    if (c->y)
        l->f.cublasLtMatrixLayoutDestroy(c->y);
    if (c->x)
        l->f.cublasLtMatrixLayoutDestroy(c->x);
    if (c->w)
        l->f.cublasLtMatrixLayoutDestroy(c->w);
    if (c->product)
        l->f.cublasLtMatmulDescDestroy(c->product);
    memset(c, 0, sizeof *c);
}

void lt_close(struct lt *l)
{
    if (!l)
        return;
    for (int i = 0; i < CHOICES; i++)
        forget(l, &l->choices[i].call);
    l->f.cublasLtDestroy(l->handle);
    mem_free(l->choices);
    mem_free(l);
}

/* ---- choosing */

static bool set_alignments(const struct lt *l, cublasLtMatmulPreference_t to, const struct lt_key *k)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        uint32_t bytes;
    } all[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)k->align_w},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)k->align_x},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)k->align_y},
               {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)k->align_y}};
    uint64_t workspace = WORKSPACE;
    bool good = ok(l->f.cublasLtMatmulPreferenceSetAttribute(to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                             sizeof workspace));
    for (size_t i = 0; i < sizeof all / sizeof *all && good; i++)
        good = ok(l->f.cublasLtMatmulPreferenceSetAttribute(to, all[i].what, &all[i].bytes, sizeof all[i].bytes));
    return good;
}

static bool ask(const struct lt *l, struct choice *c)
{
    cublasLtMatmulHeuristicResult_t found[LT_PROPOSALS];
    cublasLtMatmulPreference_t how = NULL;
    int n = 0;
    bool good = ok(l->f.cublasLtMatmulPreferenceCreate(&how)) && set_alignments(l, how, &c->key) &&
                ok(l->f.cublasLtMatmulAlgoGetHeuristic(l->handle, c->call.product, c->call.w, c->call.x, c->call.y,
                                                       c->call.y, how, LT_PROPOSALS, found, &n));
    c->n_algos = 0;
    for (int i = 0; i < n && good; i++)
        if (ok(found[i].state))
            c->algos[c->n_algos++] = found[i].algo;
    if (how)
        l->f.cublasLtMatmulPreferenceDestroy(how);
    return c->n_algos > 0;
}

/* The first is worth a line to whoever wonders about the speed; after it they are for who looks closely. */
static void say_refused(struct lt *l, const struct lt_product *p)
{
    static const char *const names[] = {"bf16", "f16", "fp8 with scales by rows", "fp8 with scales by blocks"};
    log_line(l->refused++ ? LOG_DEBUG : LOG_WARN, "cuda",
             "cuBLASLt has nothing for a product of %d rows, %d columns and %d outputs in %s", p->rows, p->cols,
             p->outs, names[p->factors]);
}

/* Once for each shape. */
static struct choice *choose(struct lt *l, const struct lt_product *p)
{
    struct lt_key k = lt_key_of(p);
    struct choice *c = &l->choices[lt_hash(&k) % CHOICES];
    if (c->state != CHOICE_NONE && memcmp(&c->key, &k, sizeof k) == 0)
        return c;
    forget(l, &c->call);
    c->key = k;
    c->state = describe(l, p, &c->call) && ask(l, c) ? CHOICE_MADE : CHOICE_REFUSED;
    if (c->state == CHOICE_REFUSED)
        say_refused(l, p);
    return c;
}

void lt_forbid(struct lt *l, enum lt_factors factors)
{
    l->forbidden[factors] = true;
}

bool lt_can(struct lt *l, const struct lt_product *p)
{
    return !l->forbidden[p->factors] && choose(l, p)->state == CHOICE_MADE;
}

bool lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace)
{
    if (l->forbidden[p->factors])
        return false;
    const struct choice *c = choose(l, p);
    float one = 1, beta = p->accumulate ? 1.0f : 0.0f;
    int i = p->proposal < c->n_algos ? p->proposal : c->n_algos - 1;
    if (c->state != CHOICE_MADE || !set_pointers(l, p, &c->call))
        return false;
    return ok(l->f.cublasLtMatmul(l->handle, c->call.product, &one, p->w, c->call.w, p->x, c->call.x, &beta, p->y,
                                  c->call.y, p->y, c->call.y, &c->algos[i], workspace, WORKSPACE, s));
}
