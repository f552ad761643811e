/* The encoder's AVX-512 kernels, emulated on whatever x86 machine runs the tests: the same bits as the portable twin,
 * kernel by kernel. Where the CPU has AVX-512, op_encode runs them for real as well. */
#ifdef NO_X86
#include <stdio.h>
int main(void)
{
    puts("not an x86 machine: there are no AVX-512 kernels to test");
    return 0;
}
#else
#include "tests/rig/simde_avx512.h"

#define CPU_INTRINSICS 1
#define encode_kernels_avx512 emulated_avx512
#include "kernels/cpu/encode_avx512.c"
#undef encode_kernels_avx512

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/cpu/encode_pack.h"
#include "tests/rig/bert_build.h"

enum { ROWS = 16, COLS = 1000, OUT = 100, SEQ = 700 };

static float *noise(uint64_t *seed, size_t n, float size)
{
    float *x = mem_new_array(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = build_noise(seed) * size;
    return x;
}

static struct encode_inputs make_inputs(size_t ld)
{
    struct encode_inputs in = {.ldq = ld, .ldd = encode_leaves((int)ld)};
    in.q = mem_new_array(ROWS * in.ldq, sizeof *in.q);
    in.d = mem_new_array(ROWS * in.ldd, sizeof *in.d);
    in.fold = mem_new_array(ROWS * in.ldd, sizeof *in.fold);
    return in;
}

static void free_inputs(struct encode_inputs *in)
{
    mem_free(in->q);
    mem_free(in->d);
    mem_free(in->fold);
}

static const struct encode_kernels *twin(int i)
{
    return i ? emulated_avx512() : encode_kernels_portable();
}

/* Rounding, GELU, and every height of a tile. */
static void linear_twins(void **state)
{
    uint64_t seed = 5;
    float *weights = noise(&seed, (size_t)OUT * COLS, 1), *y[2];
    struct encode_part part = {DT_F32, weights, OUT, NULL};
    struct encode_matrix *w;
    size_t ld = ENCODE_LD(COLS), ldy = ENCODE_LD(OUT);
    (void)state;
    assert_int_equal(encode_matrix_new(&w, &part, 1, COLS, NULL), 0);
    for (int n = 1; n <= ROWS; n++) {
        float *x = noise(&seed, (size_t)n * ld, 3);
        for (int e = 0; e < 2; e++) {
            struct encode_inputs in = make_inputs(ld);
            float end[COLS];
            memcpy(end, x, sizeof end);
            y[e] = mem_new_array((size_t)n * ldy, sizeof *y[e]);
            for (int r = 0; r < n; r++)
                twin(e)->round(x + (size_t)r * ld, (int)ld, &in, r);
            twin(e)->gelu(end, (int)ld - ENCODE_LEAF, &in, n - 1, 1);
            twin(e)->linear(w, &in, n, y[e], ldy);
            free_inputs(&in);
        }
        assert_memory_equal(y[0], y[1], (size_t)n * ldy * sizeof(float));
        mem_free(x);
        mem_free(y[0]);
        mem_free(y[1]);
    }
    encode_matrix_free(w);
    mem_free(weights);
}

static void head_twins(void **state)
{
    static const int dims[] = {5, 32, 65, 160}, lengths[] = {1, 17, 130, SEQ};
    uint64_t seed = 9;
    (void)state;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            int dim = dims[d], n = lengths[l];
            size_t ld = ENCODE_LD(3 * dim);
            float *qkv = noise(&seed, (size_t)n * ld, 2), *o[2];
            for (int e = 0; e < 2; e++) {
                struct encode_head_room room;
                uint8_t *bytes = mem_try_aligned(encode_head_room(&room, NULL, dim), 64);
                assert_non_null(bytes);
                encode_head_room(&room, bytes, dim);
                o[e] = mem_new_array((size_t)n * (size_t)dim, sizeof *o[e]);
                struct encode_head h = {.q = qkv,
                                        .k = qkv + dim,
                                        .v = qkv + 2 * (size_t)dim,
                                        .ld = ld,
                                        .o = o[e],
                                        .ldo = (size_t)dim,
                                        .n_q = n < ENCODE_QUERIES ? n : ENCODE_QUERIES,
                                        .n_keys = n,
                                        .dim = dim,
                                        .room = &room};
                twin(e)->head(&h);
                mem_free(bytes);
            }
            assert_memory_equal(o[0], o[1], (size_t)n * (size_t)dim * sizeof(float));
            mem_free(qkv);
            mem_free(o[0]);
            mem_free(o[1]);
        }
}

static void norm_twins(void **state)
{
    uint64_t seed = 3;
    (void)state;
    for (int n = 1; n < 100; n += 7) {
        size_t ld = ENCODE_LD(n);
        float *a = noise(&seed, ld, 1), *gain = noise(&seed, ld, 1), *bias = noise(&seed, ld, 1), y[2][128] = {{0}};
        struct encode_norm norm = {gain, bias};
        for (size_t i = (size_t)n; i < ld; i++)
            a[i] = gain[i] = bias[i] = 0;
        for (int e = 0; e < 2; e++)
            twin(e)->norm(a, gain, &norm, n, 1e-6f, y[e]);
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        mem_free(a);
        mem_free(gain);
        mem_free(bias);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_twins),
        cmocka_unit_test(head_twins),
        cmocka_unit_test(norm_twins),
    };
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
