#include "kernels/cpu/probe.h"

#include <stddef.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

enum { PIECE = 1 << 20 }; /* bytes that one item reads */

struct probe {
    struct pool *pool;
    const char *isa;
    uint8_t *memory;
    int mib;
    struct clock clock;
};

typedef uint64_t wide __attribute__((vector_size(32), aligned(32)));
enum { AHEAD = 8192 / sizeof(wide) };

static void read_item(void *ctx, int item, int thread)
{
    const struct probe *p = ctx;
    const wide *from = (const wide *)(p->memory + (size_t)item * PIECE);
    wide sums[4] = {{0}};
    (void)thread;
    for (size_t i = 0; i < PIECE / sizeof *from; i += 4) {
        __builtin_prefetch(from + i + AHEAD); /* one core asks for more at once than it does by itself */
        __builtin_prefetch(from + i + AHEAD + 2);
        for (size_t k = 0; k < 4; k++)
            sums[k] ^= from[i + k];
    }
    sums[0] ^= sums[1] ^ sums[2] ^ sums[3];
    __asm__ volatile("" : : "r"(sums[0][0] ^ sums[0][1] ^ sums[0][2] ^ sums[0][3])); /* it is wanted */
}

struct loop_call {
    probe_loop *loop;
    double each;
};

static void loop_item(void *ctx, int item, int thread)
{
    struct loop_call *c = ctx;
    double n = c->loop();
    (void)thread;
    if (item == 0)
        c->each = n;
}

static probe_loop *loop_of(const struct probe *p, enum probe_kind what)
{
    if (strcmp(p->isa, "amx") == 0)
        return probe_amx(what) ? probe_amx(what) : probe_avx512(what);
    if (strcmp(p->isa, "avx512") == 0)
        return probe_avx512(what);
    return strcmp(p->isa, "avx2") == 0 ? probe_avx2(what) : NULL;
}

int probe_open(struct probe **out, struct pool *pool, const char *isa, int mib, struct err *e)
{
    struct probe *p = mem_new(sizeof *p);
    *p = (struct probe){.pool = pool, .isa = isa, .mib = mib};
    clock_init_real(&p->clock);
    p->memory = mem_try_aligned((size_t)mib * PIECE, 4096);
    *out = p->memory ? p : NULL;
    if (!p->memory) {
        mem_free(p);
        return err_set(e, E_FULL, "no memory for a probe of %d MiB", mib);
    }
    memset(p->memory, 1, (size_t)mib * PIECE); /* pages of zeros may all be one */
    return 0;
}

void probe_close(struct probe *p)
{
    if (p)
        mem_free(p->memory);
    mem_free(p);
}

double probe_run(struct probe *p, enum probe_kind what)
{
    int n = pool_threads(p->pool);
    struct loop_call c = {.loop = what == PROBE_READ ? NULL : loop_of(p, what)};
    if (what == PROBE_READ) {
        pool_run(p->pool, p->mib, read_item, p);
        return (double)p->mib * PIECE;
    }
    if (!c.loop)
        return 0;
    pool_run(p->pool, n, loop_item, &c);
    return c.each * n;
}

double probe_rate(struct probe *p, enum probe_kind what)
{
    double best = 0;
    for (int i = 0; i < 3; i++) {
        int64_t begun = clock_now(&p->clock);
        double done = probe_run(p, what);
        int64_t ns = clock_now(&p->clock) - begun;
        double rate = ns > 0 ? done * 1e9 / (double)ns : 0;
        best = rate > best ? rate : best;
    }
    return best;
}
