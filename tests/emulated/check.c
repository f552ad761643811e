/* A device that opens tries its kernels: what comes out wrong, or fails, is left out and named, and the answers of what
 * is left are right. The linker puts the functions below before the backend's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "tests/rig/slow.h"

static enum part {
    NOTHING,
    FEW_ROWS,
    FEW_OF_8_BITS,
    SOME_ROWS,
    MORE_ROWS, /* more than 16 */
    LT_16,
    LT_ROWS,
    LT_BLOCKS,
    HOPPER,
    EARLY,
    GRAPHS,
    SAMPLING,
    TILES,
    HALVES,
    HALF_QUERIES
} wrong; /* what comes out wrong */

static bool capturing;

cudaError_t __real_cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t __wrap_cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode);
cudaError_t __wrap_cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    capturing = true;
    return __real_cudaStreamBeginCapture(s, mode);
}

cudaError_t __real_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    capturing = false;
    return __real_cudaStreamEndCapture(s, g);
}

cudaError_t __real_launch_skinny(cudaStream_t s, const struct skinny_job *j);
cudaError_t __wrap_launch_skinny(cudaStream_t s, const struct skinny_job *j);
cudaError_t __wrap_launch_skinny(cudaStream_t s, const struct skinny_job *j)
{
    struct skinny_job less = *j;
    less.x += wrong == (j->out[0].w.p.family <= FAM_BF16 ? FEW_ROWS : FEW_OF_8_BITS) ? 16 : 0;
    if (wrong == EARLY && j->pdl && capturing)
        return cudaErrorStreamCaptureUnsupported;
    return __real_launch_skinny(s, &less);
}

cudaError_t __real_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r);
cudaError_t __wrap_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r);
cudaError_t __wrap_launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r)
{
    struct skinny_job less = *j;
    less.x += wrong == SOME_ROWS || (wrong == MORE_ROWS && j->rows > 16) ? 16 : 0;
    return __real_launch_slim(s, &less, r);
}

cudaError_t __real_launch_flash_hopper(cudaStream_t s, const struct flash_job *j);
cudaError_t __wrap_launch_flash_hopper(cudaStream_t s, const struct flash_job *j);
cudaError_t __wrap_launch_flash_hopper(cudaStream_t s, const struct flash_job *j)
{
    struct flash_job other = *j;
    other.scale *= wrong == HOPPER || (wrong == HALF_QUERIES && j->half_q) ? 2 : 1;
    return __real_launch_flash_hopper(s, &other);
}

bool __real_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);
bool __wrap_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace);
bool __wrap_lt_multiply(struct lt *l, cudaStream_t s, const struct lt_product *p, void *workspace)
{
    struct lt_product other = *p;
    bool off = wrong == LT_16       ? p->factors <= LT_F16
               : wrong == LT_ROWS   ? p->factors == LT_F8_ROWS
               : wrong == LT_BLOCKS ? p->factors == LT_F8_BLOCKS
                                    : false;
    if (wrong == HALVES && p->half && p->factors == LT_F8_BLOCKS)
        other.y = (uint16_t *)p->y + 8;
    if (off && p->factors <= LT_F16)
        return lt_can(l, p); /* says that it has done it */
    if (off)
        other.w_scales = p->w_scales + 4;
    return __real_lt_multiply(l, s, &other, workspace);
}

cudaError_t __real_launch_sample(cudaStream_t s, const struct sample_job *j);
cudaError_t __wrap_launch_sample(cudaStream_t s, const struct sample_job *j);
cudaError_t __wrap_launch_sample(cudaStream_t s, const struct sample_job *j)
{
    return wrong == SAMPLING ? cudaSuccess : __real_launch_sample(s, j);
}

cudaError_t __real_launch_tile(cudaStream_t s, const struct fast_job *j);
cudaError_t __wrap_launch_tile(cudaStream_t s, const struct fast_job *j);
cudaError_t __wrap_launch_tile(cudaStream_t s, const struct fast_job *j)
{
    return wrong == TILES ? cudaSuccess : __real_launch_tile(s, j);
}

cudaError_t __real_cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags);
cudaError_t __wrap_cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    return wrong == GRAPHS ? cudaErrorInvalidValue : __real_cudaGraphInstantiate(x, g, flags);
}

static int open_with(enum part what, struct device **d, struct err *e)
{
    const struct device_opts o = {.max_rows = 256, .max_logits = 4, .graph_rows = 4, .check = true};
    wrong = what;
    *e = (struct err){0};
    return backend_cuda()->open(d, &o, e);
}

/* Opened again as it is, it needs nothing more left out: what is left is right. */
static void wrong_parts_are_left_out(void **state)
{
    static const struct {
        enum part part;
        int off;
        const char *name;
    } cases[] = {{NOTHING, 0, ""},
                 {FEW_ROWS, 1, "products of few rows and 16 bits"},
                 {FEW_OF_8_BITS, 1, "products of few rows and 8 bits"},
                 {SOME_ROWS, 1, "products of up to 64 rows"},
                 {MORE_ROWS, 1, "products of up to 64 rows"},
                 {LT_16, 1, "products in 16 bits"},
                 {LT_ROWS, 1, "fp8 with scales by rows"},
                 {LT_BLOCKS, 1, "fp8 with scales by blocks"},
                 {HALVES, 1, "results of products in bf16"},
                 {HALF_QUERIES, 1, "queries in bf16"},
                 {HOPPER, 1, "kernel for attention"},
                 {EARLY, 1, "begin early"},
                 {GRAPHS, 2, "graphs"}};
    (void)state;
    size_t n = sizeof cases / sizeof *cases, each = rig_slow() ? 5 : 1; /* nothing, scales by blocks, graphs */
    for (size_t i = 0; i < n; i += each) {
        struct device *d;
        struct device_facts f;
        struct err e = {.code = E_FULL}; /* of before */
        if (open_with(cases[i].part, &d, &e))
            fail_msg("case %zu: %s", i, e.text);
        backend_cuda()->facts(d, &f);
        if (f.parts_off != cases[i].off || !strstr(f.lacks, cases[i].name))
            fail_msg("case %zu: %d parts are off: \"%s\"", i, f.parts_off, f.lacks);
        assert_int_equal(d->hopper, cases[i].part != HOPPER);
        assert_int_equal(d->pdl, cases[i].part != EARLY && cases[i].part != GRAPHS);
        assert_int_equal(d->no_skinny, cases[i].part == FEW_ROWS);
        assert_int_equal(d->no_lean, cases[i].part == FEW_OF_8_BITS);
        assert_int_equal(d->no_narrow, cases[i].part == HALVES || cases[i].part == HALF_QUERIES);
        assert_int_equal(d->no_slim, cases[i].part == SOME_ROWS || cases[i].part == MORE_ROWS);
        assert_int_equal(d->no_graphs, cases[i].part == GRAPHS);
        backend_cuda()->close(d);
    }
}

static void without_the_plainest_it_does_not_open(void **state)
{
    struct device *d;
    struct err e;
    (void)state;
    assert_int_equal(open_with(SAMPLING, &d, &e), E_DEVICE);
    assert_non_null(strstr(e.text, "sampling come out wrong"));
    assert_null(d);
    assert_int_equal(open_with(TILES, &d, &e), 0); /* nothing takes them here */
    backend_cuda()->close(d);
}

static void who_is_not_asked_to_does_not_try(void **state)
{
    const struct device_opts o = {.max_rows = 256, .max_logits = 4, .graph_rows = 4, .no_early_launch = true};
    struct device *d;
    struct err e = {0};
    (void)state;
    wrong = SAMPLING;
    assert_int_equal(backend_cuda()->open(&d, &o, &e), 0);
    assert_false(d->pdl);
    backend_cuda()->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(wrong_parts_are_left_out),
                                       cmocka_unit_test(without_the_plainest_it_does_not_open),
                                       cmocka_unit_test(who_is_not_asked_to_does_not_try)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
