/* Products of a warp group (kernels/cuda/hopper.h) over plain matrices that are laid out here, after the tables of the
 * PTX ISA, atom by atom: every swizzle, both orders, distances between atoms that are no neighbours, several steps of k
 * within an atom. Small whole numbers, so every sum is exact. Over the emulator it shows that the twins read
 * descriptors as the ISA says; on a GPU that the ISA was understood. */
#include "engine/base/rng.h"
#include "kernels/dtype.h"
#include "tests/gpu/hopper_case.h"
#include "tests/rig/unified.h"

enum { M = 64, MOST_N = 128, MOST_K = 16 * CASE_STEPS, ROWS_MOST = 128 };

/* Swizzles by the ISA's number: bytes of a row of an atom; after how many rows the next 16 bytes change places. */
static const struct {
    int bytes, every;
} swizzles[] = {{16, 8}, {128, 1}, {64, 2}, {32, 4}};

/* Where an operand lies: `rows` of m or n. lead and stride are bytes between atoms. */
struct layout {
    int swizzle, at, rows, lead, stride;
    bool transposed;
};

/* The byte of element (row, k), for k within one atom or, unswizzled and as it is, 16 bytes at a time. */
static int byte_of(const struct layout *l, int row, int k)
{
    int bytes = swizzles[l->swizzle].bytes, line = l->transposed ? k : row, along = l->transposed ? row : k;
    int atom_line = line / 8, atom_along = along * 2 / bytes, in_line = line % 8, byte = along * 2 % bytes;
    int chunk = byte / 16 ^ (in_line / swizzles[l->swizzle].every & (bytes / 16 - 1));
    int lines = l->transposed && l->swizzle == 0 ? l->lead : l->stride,
        alongs = l->transposed && l->swizzle == 0 ? l->stride : l->lead;
    return l->at + atom_line * lines + atom_along * alongs + in_line * bytes + chunk * 16 + byte % 16;
}

static void place(uint8_t *image, const struct layout *l, const int16_t *m, int n_k, bool f16)
{
    for (int row = 0; row < l->rows; row++)
        for (int k = 0; k < n_k; k++) {
            float v = m[row * MOST_K + k];
            uint16_t h = f16 ? f32_to_f16(v) : f32_to_bf16(v);
            int at = byte_of(l, row, k);
            assert_true(at >= 0 && at + 2 <= CASE_BYTES);
            memcpy(image + at, &h, 2);
        }
}

static uint64_t bits_of(const struct layout *l)
{
    return (uint64_t)(l->lead / 16) << 16 | (uint64_t)(l->stride / 16) << 32 | (uint64_t)l->swizzle << 62;
}

struct matrices {
    int16_t a[M * MOST_K], b[MOST_N * MOST_K]; /* rows of k */
    float d[M * MOST_N];
};

static void fill(struct matrices *m, struct rng *r)
{
    for (int i = 0; i < M * MOST_K; i++)
        m->a[i] = (int16_t)((int)rng_below(r, 17) - 8);
    for (int i = 0; i < MOST_N * MOST_K; i++)
        m->b[i] = (int16_t)((int)rng_below(r, 17) - 8);
    for (int i = 0; i < M * MOST_N; i++)
        m->d[i] = (float)((int)rng_below(r, 101) - 50);
}

/* Fragments as hopper.h describes them. */
static int d_row(int thread, int i)
{
    return thread / 32 * 16 + thread % 32 / 4 + (i % 4 >= 2 ? 8 : 0);
}

static int d_column(int thread, int i)
{
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}

static uint32_t a_pair(const struct matrices *m, int thread, int step, int i, bool f16)
{
    int row = thread / 32 * 16 + thread % 32 / 4 + (i & 1 ? 8 : 0), k = step * 16 + thread % 4 * 2 + (i & 2 ? 8 : 0);
    float x = m->a[row * MOST_K + k], y = m->a[row * MOST_K + k + 1];
    return f16 ? f32_to_f16(x) | (uint32_t)f32_to_f16(y) << 16 : f32_to_bf16(x) | (uint32_t)f32_to_bf16(y) << 16;
}

struct trial {
    struct layout a, b;
    int steps, a_step, b_step; /* bytes from one product's operand to the next's */
    bool f16, in_registers;
};

static void compare(const struct matrices *m, const struct trial *t, const float *d)
{
    int n = t->b.rows;
    for (int thread = 0; thread < 128; thread++)
        for (int i = 0; i < n / 2; i++) {
            int row = d_row(thread, i), column = d_column(thread, i);
            float want = m->d[row * MOST_N + column];
            for (int k = 0; k < 16 * t->steps; k++)
                want += (float)(m->a[row * MOST_K + k] * m->b[column * MOST_K + k]);
            if (d[thread * (n / 2) + i] != want)
                fail_msg("row %d column %d: %g, not %g (swizzle %d, lead %d, stride %d, %d steps)", row, column,
                         (double)d[thread * (n / 2) + i], (double)want, t->b.swizzle, t->b.lead, t->b.stride, t->steps);
        }
}

static void try(const struct trial *t, uint64_t seed)
{
    static struct matrices m;
    struct rng r;
    int n = t->b.rows;
    struct hopper_case c = {.bytes = CASE_BYTES,
                            .steps = t->steps,
                            .a_bits = bits_of(&t->a),
                            .b_bits = bits_of(&t->b),
                            .f16 = t->f16,
                            .wide = n == 128};
    uint8_t *image = unified(CASE_BYTES);
    uint32_t *a = unified(CASE_STEPS * 128 * 4 * sizeof *a);
    c.d = unified((size_t)(128 * n / 2) * sizeof *c.d);
    rng_init(&r, seed);
    fill(&m, &r);
    if (!t->in_registers)
        place(image, &t->a, m.a, 16 * t->steps, t->f16);
    place(image, &t->b, m.b, 16 * t->steps, t->f16);
    for (int i = 0; i < t->steps * 128 * 4; i++)
        a[i] = a_pair(&m, i / 4 % 128, i / 512, i % 4, t->f16);
    for (int i = 0; i < 128 * n / 2; i++)
        c.d[i] = m.d[d_row(i / (n / 2), i % (n / 2)) * MOST_N + d_column(i / (n / 2), i % (n / 2))];
    for (int i = 0; i < CASE_STEPS; i++) {
        c.a_at[i] = t->a.at + i * t->a_step;
        c.b_at[i] = t->b.at + i * t->b_step;
    }
    c.image = (const uint32_t *)(const void *)image;
    c.a = t->in_registers ? a : NULL;
    assert_int_equal(launch_hopper_case(NULL, &c), cudaSuccess);
    unified_wait();
    compare(&m, t, c.d);
    unified_free(image);
    unified_free(a);
    unified_free(c.d);
}

/* Both operands as they are: rows of 16, 32, 64 or 128 bytes of k; a's atoms close, b's apart. */
static void operands_as_they_are(void **state)
{
    (void)state;
    for (int swizzle = 0; swizzle < 4; swizzle++)
        for (int f16 = 0; f16 < 2; f16++) {
            int bytes = swizzles[swizzle].bytes, atom = 8 * bytes, steps = bytes < 32 ? 1 : bytes / 32;
            struct trial t = {.a = {.swizzle = swizzle, .at = 0, .rows = M, .lead = 8 * atom, .stride = atom},
                              .b = {.swizzle = swizzle, .at = 32 << 10, .rows = 128, .lead = atom, .stride = 2 * atom},
                              .steps = steps,
                              .a_step = 32,
                              .b_step = 32,
                              .f16 = f16};
            try(&t, (uint64_t)(100 + swizzle * 2 + f16));
        }
}

/* b transposed: rows of 16 to 128 bytes of columns, one for each k; a in registers. */
static void transposed_operands(void **state)
{
    (void)state;
    for (int swizzle = 0; swizzle < 4; swizzle++)
        for (int kind = 0; kind < 4; kind++) {
            int n = kind & 1 ? 128 : 64, atom = 8 * swizzles[swizzle].bytes, across = n * 2 / swizzles[swizzle].bytes,
                far = 2 * CASE_STEPS * atom;
            struct layout close = {.swizzle = swizzle,
                                   .at = 1024,
                                   .rows = n,
                                   .lead = far,
                                   .stride = atom,
                                   .transposed = true},
                          apart = close;
            apart.lead = atom; /* columns next to each other, k far apart */
            apart.stride = across * atom;
            if (swizzle == 0) {
                close.lead = atom, close.stride = far;
                apart.lead = across * atom, apart.stride = atom;
            }
            struct trial t = {
                .b = kind & 2 ? apart : close, .steps = CASE_STEPS, .f16 = kind & 1, .in_registers = true};
            t.b_step = 2 * (swizzle ? t.b.stride : t.b.lead);
            if (t.b.at + t.b_step * CASE_STEPS <= CASE_BYTES)
                try(&t, (uint64_t)(200 + swizzle * 4 + kind));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(operands_as_they_are), cmocka_unit_test(transposed_operands)};
    bool here = false;
    if (!unified_here() || hopper_case_prepare(&here) || !here) {
        puts("no GPU here with the instructions of compute capability 9.0: nothing was checked");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
