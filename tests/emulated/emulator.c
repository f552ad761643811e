/* What the emulator is for: mistakes that a GPU punishes show over it, too. Each of these kernels and sequences of
 * calls is right but for one slip. Work is delayed here (EMULATOR_DELAYS). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/thread.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"
#include "tests/emulator/dying.h"
#include "tests/emulator/graph.h"
#include "tests/emulator/wrong.h"

enum { ROUNDS = 60 };

struct bench {
    cudaStream_t s, other;
    cudaEvent_t e;
    float *in, *out, *pinned;
    unsigned *arrived;
};

static void open_bench(struct bench *b)
{
    assert_int_equal(cudaStreamCreateWithFlags(&b->s, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&b->other, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaEventCreate(&b->e), 0);
    assert_int_equal(cudaMalloc((void **)&b->in, 4096), 0);
    assert_int_equal(cudaMalloc((void **)&b->out, 4096), 0);
    assert_int_equal(cudaMalloc((void **)&b->arrived, 4096), 0);
    assert_int_equal(cudaMallocHost((void **)&b->pinned, 4096), 0);
    memset(b->pinned, 0, 4096);
}

static void close_bench(struct bench *b)
{
    cudaFree(b->in), cudaFree(b->out), cudaFree(b->arrived);
    cudaFreeHost(b->pinned);
    cudaEventDestroy(b->e);
    cudaStreamDestroy(b->s);
    cudaStreamDestroy(b->other);
}

/* Two kernels after memsets, as a graph or delayed, and what they make. */
static void run_slip(struct bench *b, enum slip what, bool recorded)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    if (recorded)
        assert_int_equal(cudaStreamBeginCapture(b->s, cudaStreamCaptureModeRelaxed), 0);
    assert_int_equal(cudaMemsetAsync(b->in, 0xff, 4096, b->s), 0);
    assert_int_equal(cudaMemsetAsync(b->out, 0xff, 4096, b->s), 0);
    assert_int_equal(cudaMemsetAsync(b->arrived, 0, 4096, b->s), 0);
    assert_int_equal(slip(what, b->s, b->in, b->out, b->arrived), 0);
    if (recorded) {
        assert_int_equal(cudaStreamEndCapture(b->s, &g), 0);
        assert_int_equal(cudaGraphInstantiate(&x, g, 0), 0);
        assert_int_equal(cudaGraphLaunch(x, b->s), 0);
    }
    assert_int_equal(cudaStreamSynchronize(b->s), 0);
    if (recorded) {
        cudaGraphExecDestroy(x);
        cudaGraphDestroy(g);
    }
}

static bool is_right(const float *out)
{
    for (int i = 0; i < SLIP_CTAS; i++)
        if (out[i] != 1)
            return false;
    return out[SLIP_CTAS] == (float)SLIP_CTAS;
}

/* In how many rounds something was wrong. */
static int wrong_rounds(enum slip what, bool recorded)
{
    struct bench b;
    int wrong = 0;
    open_bench(&b);
    for (int i = 0; i < ROUNDS; i++) {
        run_slip(&b, what, recorded);
        wrong += !is_right(b.out);
    }
    close_bench(&b);
    return wrong;
}

static void mistakes_show_in_results(void **state)
{
    (void)state;
    for (int recorded = 0; recorded < 2; recorded++) {
        assert_int_equal(wrong_rounds(NO_SLIP, recorded), 0);
        assert_true(wrong_rounds(READS_EARLY, recorded) > ROUNDS / 8);
        assert_true(wrong_rounds(LAST_IS_LAST, recorded) > ROUNDS / 2);
        assert_int_equal(wrong_rounds(READS_UNWRITTEN, recorded), ROUNDS);
    }
}

static void one_slip(void *arg)
{
    for (int i = 0; i < ROUNDS; i++)
        wrong_rounds(*(enum slip *)arg, false);
}

/* The copy is on its way, and its source becomes that of the next. */
static void overwrite_pinned(void *arg)
{
    struct bench b;
    (void)arg;
    open_bench(&b);
    for (int i = 0; i < ROUNDS; i++) {
        b.pinned[0] = (float)i;
        cudaMemcpyAsync(b.in, b.pinned, 64, cudaMemcpyHostToDevice, b.s);
    }
    cudaStreamSynchronize(b.s);
}

struct adder {
    struct bench *b;
    cudaStream_t s;
};

static void add_nodes(void *arg)
{
    const struct adder *a = arg;
    for (int i = 0; i < 2000; i++)
        cudaMemsetAsync(a->b->in, 0, 64, a->s);
}

static void two_threads_capture(void *arg)
{
    struct bench b;
    struct thread *t[2];
    (void)arg;
    open_bench(&b);
    cudaStreamBeginCapture(b.s, cudaStreamCaptureModeRelaxed);
    cudaEventRecord(b.e, b.s);
    cudaStreamWaitEvent(b.other, b.e, 0);
    struct adder adders[2] = {{&b, b.s}, {&b, b.other}};
    for (int i = 0; i < 2; i++)
        thread_start(&t[i], "adds", add_nodes, &adders[i], NULL);
    for (int i = 0; i < 2; i++)
        thread_join(t[i]);
}

static void mistakes_end_the_program(void **state)
{
    static const enum slip slips[] = {NEVER_WAITS,      MISALIGNED_COPY, MISALIGNED_FROM, MISALIGNED_MATRIX,
                                      GLOBAL_OF_SHARED, COPY_TO_LOCAL,   TOO_MUCH_STATIC, TOO_MUCH_ALLOWED};
    (void)state;
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        enum slip what = slips[i];
        dies(one_slip, &what, (int)what);
    }
    dies(overwrite_pinned, NULL, -1);
    dies(two_threads_capture, NULL, -2);
}

static void launches_are_refused(void **state)
{
    struct bench b;
    (void)state;
    open_bench(&b);
    cudaGetLastError();
    assert_int_equal(slip(TOO_MUCH_DYNAMIC, b.s, b.in, b.out, b.arrived), cudaErrorInvalidValue);
    assert_int_equal(slip(TOO_MUCH_DYNAMIC_ALL, b.s, b.in, b.out, b.arrived), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue); /* stays until it is taken */
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    close_bench(&b);
}

/* What comes back is not there before it has been waited for. */
static void results_come_late(void **state)
{
    struct bench b;
    int early = 0;
    (void)state;
    open_bench(&b);
    for (int i = 0; i < ROUNDS; i++) {
        assert_int_equal(cudaMemsetAsync(b.in, 0, 64, b.s), 0);
        assert_int_equal(cudaStreamSynchronize(b.s), 0);
        assert_int_equal(cudaMemcpyAsync(b.pinned, b.in, 64, cudaMemcpyDeviceToHost, b.s), 0);
        early += b.pinned[0] == 0;
        assert_int_equal(cudaStreamSynchronize(b.s), 0);
        assert_true(b.pinned[0] == 0);
    }
    assert_true(early < ROUNDS / 4);
    close_bench(&b);
}

static cudaError_t end_of_capture(cudaStream_t s)
{
    cudaGraph_t g = NULL;
    cudaError_t rc = cudaStreamEndCapture(s, &g);
    if (g)
        cudaGraphDestroy(g);
    return rc;
}

static void captures_are_spoilt(void **state)
{
    struct bench b;
    (void)state;
    open_bench(&b);
    for (int how = 0; how < 5; how++) {
        assert_int_equal(cudaStreamBeginCapture(b.s, cudaStreamCaptureModeRelaxed), 0);
        assert_int_equal(cudaMemsetAsync(b.in, 0, 64, b.s), 0);
        assert_int_equal(cudaEventRecord(b.e, b.s), 0);
        if (how == 1)
            assert_int_not_equal(cudaStreamSynchronize(b.s), 0);
        if (how == 2)
            assert_int_not_equal(cudaEventSynchronize(b.e), 0);
        if (how == 3)
            assert_int_not_equal(cudaEventQuery(b.e), 0);
        if (how == 4)
            assert_int_equal(cudaStreamWaitEvent(b.other, b.e, 0), 0);
        if (how == 4)
            assert_int_equal(cudaMemsetAsync(b.out, 0, 64, b.other), 0); /* never joined */
        assert_int_equal(end_of_capture(b.s), how == 0   ? cudaSuccess
                                              : how == 4 ? cudaErrorStreamCaptureUnjoined
                                                         : cudaErrorStreamCaptureInvalidated);
    }
    close_bench(&b);
}

/* Early launches may follow a kernel of the same stream alone. */
static void early_edges(void **state)
{
    struct bench b;
    (void)state;
    open_bench(&b);
    for (int how = 0; how < 3; how++) {
        assert_int_equal(cudaStreamBeginCapture(b.s, cudaStreamCaptureModeRelaxed), 0);
        assert_int_equal(slip(NO_SLIP, b.s, b.in, b.out, b.arrived), 0); /* its second kernel follows its first */
        if (how == 1)
            assert_int_equal(cudaMemsetAsync(b.in, 0, 64, b.s), 0);
        if (how == 2) {
            assert_int_equal(cudaEventRecord(b.e, b.s), 0);
            assert_int_equal(cudaStreamWaitEvent(b.other, b.e, 0), 0);
        }
        struct skinny_job j = {.rows = 1,
                               .n_out = 1,
                               .places = 1,
                               .shared = 227 << 10,
                               .pdl = true,
                               .out = {{.w = {.p = {.family = FAM_BF16}, .rows = 16}}}};
        cudaError_t rc = launch_skinny(how == 2 ? b.other : b.s, &j);
        assert_int_equal(rc, how ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        end_of_capture(b.s);
    }
    close_bench(&b);
}

/* A kernel that dies says so later, whatever is asked then, and for good; another device goes on. */
static void death_is_late_and_final(void **state)
{
    struct bench b, other;
    (void)state;
    assert_int_equal(cudaSetDevice(1), 0);
    open_bench(&other);
    assert_int_equal(cudaSetDevice(0), 0);
    open_bench(&b);
    emulator_break(0, 2);
    assert_int_equal(slip(NO_SLIP, b.s, b.in, b.out, b.arrived), 0);
    assert_int_equal(cudaStreamSynchronize(b.s), cudaErrorLaunchFailure);
    void *p;
    assert_int_equal(slip(NO_SLIP, b.s, b.in, b.out, b.arrived), cudaErrorLaunchFailure);
    assert_int_equal(cudaEventRecord(b.e, b.s), cudaErrorLaunchFailure);
    assert_int_equal(cudaMalloc(&p, 64), cudaErrorLaunchFailure);
    cudaGetLastError();
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure); /* taking it does not help */
    assert_int_equal(cudaSetDevice(1), 0);
    run_slip(&other, NO_SLIP, false);
    close_bench(&other);
    emulator_break(0, 0);
    assert_int_equal(cudaSetDevice(0), 0);
    close_bench(&b);
}

/* What is too small beside the sum is cut off, not rounded, and not kept for later. */
static void tensor_cores_cut(void **state)
{
    (void)state;
    assert_true(one_and_eight_small() == 1.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_show_in_results), cmocka_unit_test(mistakes_end_the_program),
        cmocka_unit_test(launches_are_refused),     cmocka_unit_test(results_come_late),
        cmocka_unit_test(captures_are_spoilt),      cmocka_unit_test(early_edges),
        cmocka_unit_test(death_is_late_and_final),  cmocka_unit_test(tensor_cores_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
