#include "tests/bench/gpu/probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cuda/lt_load.h"

enum { WORKSPACE = 32 << 20, PROPOSALS = 8, MOST_COPIES = 64, CALLS = 20, FEW_CALLS = 2 };
static const size_t past_caches = (size_t)320 << 20; /* several times the L2 of any GPU this runs on */

struct probe_lt {
    struct lt_functions f;
    cublasLtHandle_t handle;
};

void probe_check(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

void probe_open(struct probe *p, bool dry)
{
    *p = (struct probe){.dry = dry};
    probe_check(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), "making a stream");
    probe_check(cudaEventCreate(&p->begun), "making an event");
    probe_check(cudaEventCreate(&p->ended), "making an event");
    p->lt = mem_new(sizeof *p->lt);
    if (lt_load(&p->lt->f) && p->lt->f.cublasLtCreate(&p->lt->handle) == CUBLAS_STATUS_SUCCESS)
        return;
    mem_free(p->lt);
    p->lt = NULL;
}

void probe_close(struct probe *p)
{
    if (p->lt)
        p->lt->f.cublasLtDestroy(p->lt->handle);
    mem_free(p->lt);
    cudaEventDestroy(p->begun);
    cudaEventDestroy(p->ended);
    cudaStreamDestroy(p->stream);
}

static void *take(size_t bytes)
{
    void *p = NULL;
    probe_check(cudaMalloc(&p, bytes), "memory for a probe");
    return p;
}

static void begin(struct probe *p)
{
    probe_check(cudaEventRecord(p->begun, p->stream), "timing");
}

static double seconds_since(struct probe *p)
{
    float ms = 0;
    probe_check(cudaEventRecord(p->ended, p->stream), "timing");
    probe_check(cudaEventSynchronize(p->ended), "timing");
    probe_check(cudaEventElapsedTime(&ms, p->begun, p->ended), "timing");
    return (double)ms * 1e-3;
}

/* ---- memory */

static size_t probe_bytes(const struct probe *p)
{
    return p->dry ? 1 << 20 : (size_t)2 << 30;
}

enum transfer { COPY, READ, LINK };

static double rate_of(struct probe *p, enum transfer how)
{
    size_t bytes = how == LINK && !p->dry ? (size_t)256 << 20 : probe_bytes(p);
    char *to = take(bytes + 16), *from = how == COPY ? take(bytes) : NULL, *pinned = NULL;
    double took[PROBE_ROUNDS];
    if (how == LINK)
        probe_check(cudaMallocHost((void **)&pinned, bytes), "pinned memory for a probe");
    for (int i = -1; i < PROBE_ROUNDS; i++) { /* the first warms up */
        begin(p);
        if (how == READ)
            probe_check(launch_read(p->stream, to, bytes / 16, (uint32_t *)(to + bytes)), "reading");
        else
            probe_check(cudaMemcpyAsync(to, how == COPY ? from : pinned, bytes,
                                        how == COPY ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice, p->stream),
                        "copying");
        double t = seconds_since(p);
        if (i >= 0)
            took[i] = t;
    }
    cudaFree(to);
    cudaFree(from);
    cudaFreeHost(pinned);
    return (how == COPY ? 2 : 1) * (double)bytes / median(took, PROBE_ROUNDS) * 1e-9;
}

double probe_copy(struct probe *p)
{
    return rate_of(p, COPY);
}

double probe_read(struct probe *p)
{
    return rate_of(p, READ);
}

double probe_pinned(struct probe *p)
{
    return rate_of(p, LINK);
}

/* ---- products */

struct product {
    struct probe_product what;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    int n_found, n_copies;
    char *weights, *inputs, *outputs, *workspace, *scales;
    size_t weight_bytes;
};

static bool ok(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS;
}

static bool set(const struct lt_functions *f, const struct product *t, int what, const void *value, size_t bytes)
{
    return ok(f->cublasLtMatmulDescSetAttribute(t->desc, (cublasLtMatmulDescAttributes_t)what, value, bytes));
}

static size_t element_bytes(const struct product *t)
{
    return t->what.factors == PROBE_BF16 ? 2 : 1;
}

/* Both factors' scales are the same noise; whatever their form, there are no more of them than this. */
static size_t scale_bytes(const struct product *t)
{
    size_t longest = (size_t)(t->what.outs > t->what.rows ? t->what.outs : t->what.rows);
    return longest * (size_t)(t->what.cols / 128 + 4) * sizeof(float);
}

static bool describe_scales(const struct lt_functions *f, const struct product *t)
{
    bool rows = t->what.factors == PROBE_F8_ROWS;
    int32_t w = rows ? LT_SCALE_OUTER_VEC : LT_SCALE_BLOCK128, x = rows ? LT_SCALE_OUTER_VEC : LT_SCALE_VEC128;
    return t->what.factors == PROBE_BF16 ||
           (set(f, t, LT_A_SCALE_MODE, &w, sizeof w) && set(f, t, LT_B_SCALE_MODE, &x, sizeof x) &&
            set(f, t, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &t->scales, sizeof t->scales) &&
            set(f, t, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &t->scales, sizeof t->scales));
}

/* The library's matrices are column by column: row-major w[outs][cols] is a cols x outs matrix, to be transposed. */
static bool describe(const struct lt_functions *f, struct product *t)
{
    const struct probe_product *w = &t->what;
    cudaDataType_t type = w->factors == PROBE_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    cublasOperation_t transpose = CUBLAS_OP_T;
    uint64_t most = WORKSPACE;
    return ok(f->cublasLtMatmulDescCreate(&t->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
           set(f, t, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose) && describe_scales(f, t) &&
           ok(f->cublasLtMatrixLayoutCreate(&t->w, type, (uint64_t)w->cols, (uint64_t)w->outs, w->cols)) &&
           ok(f->cublasLtMatrixLayoutCreate(&t->x, type, (uint64_t)w->cols, (uint64_t)w->rows, w->cols)) &&
           ok(f->cublasLtMatrixLayoutCreate(&t->y, CUDA_R_32F, (uint64_t)w->outs, (uint64_t)w->rows, w->outs)) &&
           ok(f->cublasLtMatmulPreferenceCreate(&t->preference)) &&
           ok(f->cublasLtMatmulPreferenceSetAttribute(t->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                                      sizeof most));
}

static void forget(const struct lt_functions *f, struct product *t)
{
    if (t->preference)
        f->cublasLtMatmulPreferenceDestroy(t->preference);
    if (t->y)
        f->cublasLtMatrixLayoutDestroy(t->y);
    if (t->x)
        f->cublasLtMatrixLayoutDestroy(t->x);
    if (t->w)
        f->cublasLtMatrixLayoutDestroy(t->w);
    if (t->desc)
        f->cublasLtMatmulDescDestroy(t->desc);
    cudaFree(t->weights);
    cudaFree(t->inputs);
    cudaFree(t->outputs);
    cudaFree(t->workspace);
    cudaFree(t->scales);
}

static void *noise(struct probe *p, size_t bytes, uint32_t seed)
{
    void *to = take(bytes + 16);
    probe_check(launch_noise(p->stream, to, (bytes + 15) / 16, seed), "noise");
    return to;
}

static void *factor(struct probe *p, const struct product *t, size_t bytes, uint32_t seed)
{
    if (t->what.factors == PROBE_BF16)
        return noise(p, bytes, seed);
    void *to = take(bytes + 16);
    probe_check(launch_codes(p->stream, to, (bytes + 15) / 16, seed), "noise");
    return to;
}

static bool prepare(struct probe *p, struct product *t)
{
    const struct probe_product *w = &t->what;
    size_t each = ((size_t)w->outs * (size_t)w->cols * element_bytes(t) + 255) / 256 * 256,
           copies = p->dry ? 2 : past_caches / each + 1;
    t->n_copies = (int)(copies < MOST_COPIES ? copies : MOST_COPIES);
    t->weight_bytes = each;
    t->weights = factor(p, t, each * (size_t)t->n_copies, 1);
    t->inputs = factor(p, t, (size_t)w->rows * (size_t)w->cols * element_bytes(t), 2);
    t->scales = noise(p, scale_bytes(t), 3);
    t->outputs = take((size_t)w->rows * (size_t)w->outs * 4);
    t->workspace = take(WORKSPACE);
    return describe(&p->lt->f, t) &&
           ok(p->lt->f.cublasLtMatmulAlgoGetHeuristic(p->lt->handle, t->desc, t->w, t->x, t->y, t->y, t->preference,
                                                      PROPOSALS, t->found, &t->n_found));
}

/* Seconds of a product by one proposal; 0: it cannot. */
static double time_proposal(struct probe *p, struct product *t, const cublasLtMatmulAlgo_t *algo)
{
    float one = 1, zero = 0;
    double took[PROBE_ROUNDS];
    double flops = 2.0 * t->what.rows * t->what.outs * t->what.cols;
    int calls = p->dry ? 1 : flops > 5e10 ? FEW_CALLS : CALLS; /* a round takes some milliseconds at most */
    for (int i = -1; i < PROBE_ROUNDS; i++) {
        begin(p);
        for (int k = 0; k < calls; k++) {
            const char *w = t->weights + (size_t)(((i + 1) * calls + k) % t->n_copies) * t->weight_bytes;
            if (!ok(p->lt->f.cublasLtMatmul(p->lt->handle, t->desc, &one, w, t->w, t->inputs, t->x, &zero, t->outputs,
                                            t->y, t->outputs, t->y, algo, t->workspace, WORKSPACE, p->stream)))
                return 0;
        }
        double s = seconds_since(p) / calls;
        if (i >= 0)
            took[i] = s;
    }
    return median(took, PROBE_ROUNDS);
}

double probe_product(struct probe *p, const struct probe_product *what)
{
    struct product t = {.what = *what};
    double best = 0;
    if (!p->lt)
        return 0;
    if (prepare(p, &t))
        for (int i = 0; i < t.n_found; i++) {
            double s = ok(t.found[i].state) ? time_proposal(p, &t, &t.found[i].algo) : 0;
            best = s > 0 && (best == 0 || s < best) ? s : best;
        }
    probe_check(cudaStreamSynchronize(p->stream), "a product");
    forget(&p->lt->f, &t);
    return best;
}

double probe_rate(struct probe *p, enum probe_factors of)
{
    int side = p->dry ? 64 : 8192;
    double s = probe_product(p, &(struct probe_product){side, side, side, of});
    return s > 0 ? 2.0 * side * side * side / s * 1e-12 : 0;
}
