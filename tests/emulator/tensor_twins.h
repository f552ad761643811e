/* Host twins of kernels/cuda/tensor.h: mma from the operands of all lanes of the warp, and cp.async whose bytes arrive
 * no sooner than they are waited for. Included by tensor.h alone. Invariant: a kernel sees copied bytes only after a
 * wait. */
#ifndef EMULATOR_TENSOR_TWINS_H
#define EMULATOR_TENSOR_TWINS_H

#include <deque>
#include <utility>
#include <vector>

/* The device traps where a wide access is not aligned. */
static inline void emulator_aligned(const void *p, size_t bytes, const char *what)
{
    if ((uintptr_t)p % bytes)
        emulator_die("%s is not aligned to %zu bytes", what, bytes);
}

/* Of what a lane has: the 16-bit element `high` of its word i. */
static inline uint16_t emulated_half(const emulator_words &w, int i, int high)
{
    return (uint16_t)(w.v[i / 2] >> (32 * (i % 2) + 16 * high));
}

/* What is left of a sum of multiples of 2^-53 at most, as a float: the rest is cut off. */
static inline float emulated_cut(double sum)
{
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    bits &= ~((1ull << 29) - 1);
    memcpy(&sum, &bits, sizeof sum);
    return (float)sum;
}

/* c and the products of n elements, as tensor cores add them: all are cut, toward zero, below `bits` bits behind the
 * largest one's first, and so is the sum behind 24 (measured by Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior
 * of NVIDIA tensor cores", 2021, and by others since: 24 bits for compute capability 8.0 with eight products at a time,
 * 25 for 9.0 with sixteen). */
static inline float emulated_sum(float c, const float *a, const float *b, int n, int bits)
{
    float most = fabsf(c);
    double product[16];
    bool finite = c == c;
    for (int k = 0; k < n; k++) {
        product[k] = (double)a[k] * (double)b[k];
        finite = finite && fabs(product[k]) < (double)INFINITY;
        most = fmaxf(most, (float)fabs(product[k]));
    }
    if (!finite || !(most < INFINITY)) {
        for (int k = 0; k < n; k++)
            c += a[k] * b[k];
        return c;
    }
    int exponent = 0;
    frexpf(most, &exponent);
    double scale = ldexp(1, bits + 1 - exponent);
    int64_t sum = (int64_t)((double)c * scale);
    for (int k = 0; k < n; k++)
        sum += (int64_t)(product[k] * scale);
    return emulated_cut((double)sum / scale);
}

/* c += a b for 16x8x16; value(bits) is one 16-bit element as a float. */
template <typename V> static inline void emulate_mma(float c[4], const uint32_t a[4], const uint32_t b[2], V value)
{
    int g = emulator_lane() / 4, t = emulator_lane() % 4;
    emulator_words mine;
    memcpy(mine.v, a, 16);
    memcpy(&mine.v[2], b, 8);
    const emulator_words *all = emulator_gather(mine);
    float rows[2][16], columns[2][16];
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 16; k++) {
            rows[i][k] = value(emulated_half(all[4 * g + k % 8 / 2], i + k / 8 * 2, k % 2));
            columns[i][k] = value(emulated_half(all[4 * (2 * t + i) + k % 8 / 2], 4 + k / 8, k % 2));
        }
    enum { AT_ONCE = 8, BITS = 24 };
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k += AT_ONCE)
            c[i] = emulated_sum(c[i], rows[i / 2] + k, columns[i % 2] + k, AT_ONCE, BITS);
}

static inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma(c, a, b, bf16_bits);
}

static inline void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma(c, a, b, f16_bits);
}

/* c += a b for 16x8x(16 halves) of signed bytes. */
static inline void emulate_mma_s8(int c[4], const uint32_t *a, const uint32_t *b, int halves)
{
    int g = emulator_lane() / 4, t = emulator_lane() % 4;
    emulator_words mine = {};
    memcpy(mine.v, a, 8 * (size_t)halves);
    memcpy(&mine.v[2], b, 4 * (size_t)halves);
    const emulator_words *all = emulator_gather(mine);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16 * halves; k++) {
            int8_t x[4][4], y[2][4];
            memcpy(x, all[4 * g + k % 16 / 4].v, sizeof x);
            memcpy(y, &all[4 * (2 * t + i % 2) + k % 16 / 4].v[2], sizeof y);
            c[i] += x[i / 2 + k / 16 * 2][k % 4] * y[k / 16][k % 4];
        }
}

static inline void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
    emulate_mma_s8(c, a, b, 2);
}

static inline void mma_s8_half(int c[4], const uint32_t a[2], uint32_t b)
{
    emulate_mma_s8(c, a, &b, 1);
}

static inline uint32_t pack_bf16(float low, float high)
{
    return to_bf16_bits(low) | (uint32_t)to_bf16_bits(high) << 16;
}

static inline uint32_t pack_f16(float low, float high)
{
    return to_f16_bits(low) | (uint32_t)to_f16_bits(high) << 16;
}

static inline uint32_t sub_bf16x2(uint32_t a, uint32_t b)
{
    return pack_bf16(bf16_bits((uint16_t)a) - bf16_bits((uint16_t)b),
                     bf16_bits((uint16_t)(a >> 16)) - bf16_bits((uint16_t)(b >> 16)));
}

static inline uint32_t mul_f16x2(uint32_t a, uint32_t b)
{
    return pack_f16(f16_bits((uint16_t)a) * f16_bits((uint16_t)b),
                    f16_bits((uint16_t)(a >> 16)) * f16_bits((uint16_t)(b >> 16)));
}

static inline uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    return pack_bf16(bf16_bits((uint16_t)a) * bf16_bits((uint16_t)b),
                     bf16_bits((uint16_t)(a >> 16)) * bf16_bits((uint16_t)(b >> 16)));
}

static inline uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t pick)
{
    uint64_t all = a | (uint64_t)b << 32;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(all >> 8 * (pick >> 4 * i & 7) & 255u) << 8 * i;
    return out;
}

static inline float exp2_fast(float x)
{
    return x < -126.0f ? 0.0f : exp2f(x);
}

/* Words of two elements each from the rows that the lanes have the addresses of: place(i, k) is the lane and the place
 * in its row of element k of word i. Nobody goes on before all have read. */
template <typename F> static inline void emulated_matrices(uint32_t d[4], const void *row, F place)
{
    const emulator_words *all = emulator_gather({{(uint64_t)(uintptr_t)row}});
    emulator_aligned(row, 16, "a row of ldmatrix");
    emulator_must_be(EMULATED_SHARED, row, "a row of ldmatrix");
    for (int i = 0; i < 4; i++) {
        uint16_t half[2];
        for (int k = 0; k < 2; k++) {
            auto [lane, at] = place(i, k);
            half[k] = ((const uint16_t *)(uintptr_t)all[lane].v[0])[at];
        }
        d[i] = half[0] | (uint32_t)half[1] << 16;
    }
    __syncwarp();
}

static inline void ldmatrix(uint32_t d[4], const void *row)
{
    int lane = emulator_lane();
    emulated_matrices(d, row, [lane](int i, int k) { return std::pair<int, int>(8 * i + lane / 4, lane % 4 * 2 + k); });
}

static inline void ldmatrix_trans(uint32_t d[4], const void *row)
{
    int lane = emulator_lane();
    emulated_matrices(d, row, [lane](int i, int k) { return std::pair<int, int>(8 * i + lane % 4 * 2 + k, lane / 4); });
}

struct emulated_copy {
    void *to;
    uint4 value;
};
struct emulated_copies {
    std::vector<emulated_copy> open;
    std::deque<std::vector<emulated_copy>> closed;
};

/* Of the running thread. What a CTA before did not wait for is forgotten when the thread's first copy of a CTA comes.
 */
static inline emulated_copies &emulated_copies_now()
{
    static thread_local std::vector<emulated_copies> all(1024);
    return all[threadIdx.x];
}

static inline void cp_async(void *to, const void *from, bool there)
{
    uint4 v = {};
    emulator_aligned(to, sizeof v, "a copy to shared memory");
    emulator_aligned(from, sizeof v, "a copy from memory");
    emulator_must_be(EMULATED_SHARED, to, "where cp.async writes");
    emulator_must_be(EMULATED_GLOBAL, from, "what cp.async reads");
    if (there)
        memcpy(&v, from, sizeof v);
    memset(to, 0xff, sizeof v); /* until it has arrived */
    emulated_copies_now().open.push_back({to, v});
}

static inline void cp_async_commit(void)
{
    emulated_copies &c = emulated_copies_now();
    c.closed.push_back(std::move(c.open));
    c.open.clear();
}

template <int N> static inline void cp_async_wait(void)
{
    emulated_copies &c = emulated_copies_now();
    while (c.closed.size() > N) {
        for (const emulated_copy &k : c.closed.front())
            memcpy(k.to, &k.value, sizeof k.value);
        c.closed.pop_front();
    }
}

template <typename T> static inline T load_stream(const T *p)
{
    emulator_aligned(p, sizeof(T), "a load");
    emulator_must_be(EMULATED_GLOBAL, p, "what load_stream reads");
    return *p;
}

static inline void griddepcontrol_wait(void)
{
    emulator_grid_wait();
}
static inline void griddepcontrol_launch_dependents(void) {}

#endif
