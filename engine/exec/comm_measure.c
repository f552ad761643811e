#include "engine/exec/comm_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/world/ids.h"

enum { ROUNDS = 5, COLS = 256 };
static const size_t sizes[COMM_SIZES] = {4 << 10, 32 << 10, 256 << 10, 1 << 20},
                    library_sizes[COMM_SIZES] = {256 << 10, 1 << 20, 4 << 20, 16 << 20};

struct bench {
    const struct backend_ops *ops;
    struct comm *comm;
    int n;
    struct reduce_order order;
    struct comm_measure *out;
    bool library;
};

struct member {
    struct bench *bench;
    struct device *device;
    int index;
    struct thread *thread;
};

static void wait_all(const struct member *m)
{
    m->bench->ops->exchange(m->device, &(struct exchange_args){.comm = m->bench->comm, .me = m->index});
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Median of ROUNDS, each begun together. */
static int64_t time_reduce(const struct member *m, const struct clock *clock, struct act *bufs, int rows,
                           enum comm_algorithm how)
{
    int64_t took[ROUNDS];
    struct reduce_args a = {.comm = m->bench->comm,
                            .me = m->index,
                            .algorithm = how,
                            .planes = bufs[0],
                            .order = &m->bench->order,
                            .rows = rows,
                            .y = bufs[1],
                            .part = bufs[2]};
    for (int i = 0; i < ROUNDS; i++) {
        wait_all(m);
        int64_t t = clock_now(clock);
        m->bench->ops->reduce(m->device, &a);
        took[i] = clock_now(clock) - t;
    }
    qsort(took, ROUNDS, sizeof *took, compare);
    return took[ROUNDS / 2] > 0 ? took[ROUNDS / 2] : 1;
}

static int rows_of(size_t bytes)
{
    return (int)(bytes / sizeof(float) / COLS);
}

/* The least size from which the library was always faster than two shots. The first call of it makes what it needs. */
static size_t library_from(const struct member *m, const struct clock *clock, struct act *bufs)
{
    size_t from = COMM_NEVER;
    bool always = true;
    time_reduce(m, clock, bufs, 1, COMM_LIBRARY);
    for (int i = COMM_SIZES - 1; i >= 0; i--) { /* all of them, whatever this member sees: the others do the same */
        int64_t two = time_reduce(m, clock, bufs, rows_of(library_sizes[i]), COMM_TWOSHOT);
        int64_t library = time_reduce(m, clock, bufs, rows_of(library_sizes[i]), COMM_LIBRARY);
        always = always && library < two;
        from = always ? library_sizes[i] : from;
    }
    return from;
}

static int64_t time_barrier(const struct member *m, const struct clock *clock)
{
    int64_t t = clock_now(clock);
    for (int i = 0; i < 4 * ROUNDS; i++)
        wait_all(m);
    return (clock_now(clock) - t) / (4 * ROUNDS);
}

static void body(void *arg)
{
    struct member *m = arg;
    struct bench *b = m->bench;
    struct act bufs[3];
    struct clock clock;
    bool all = true;
    clock_init_real(&clock);
    for (int i = 0; i < 3; i++) {
        bufs[i] =
            (struct act){b->ops->alloc(m->device, b->library ? library_sizes[COMM_SIZES - 1] : sizes[COMM_SIZES - 1]),
                         COLS, COLS, false};
        all = all && bufs[i].data;
    }
    if (!all)
        b->ops->comm_abort(b->comm); /* the others do not wait; what was measured stays 0 */
    int64_t meet = all ? time_barrier(m, &clock) : 0;
    for (int i = 0; i < COMM_SIZES && all; i++) {
        int rows = rows_of(sizes[i]);
        int64_t one = time_reduce(m, &clock, bufs, rows, COMM_ONESHOT),
                two = time_reduce(m, &clock, bufs, rows, COMM_TWOSHOT);
        if (m->index > 0)
            continue;
        b->out->bytes[i] = sizes[i];
        b->out->oneshot_ns[i] = one;
        b->out->twoshot_ns[i] = two;
        b->out->meet_ns = meet;
    }
    size_t from = all && b->library ? library_from(m, &clock, bufs) : 0;
    if (m->index == 0)
        b->out->library_bytes = from;
    wait_all(m); /* no member reads this one's memory any more */
    for (int i = 0; i < 3; i++)
        if (bufs[i].data)
            b->ops->release(m->device, bufs[i].data);
}

/* Every member has one plane; the tree is that of n leaves. */
static void plain_order(struct reduce_order *o, int n, uint8_t lists[3][MAX_RANKS])
{
    memset(lists, 0, 3 * MAX_RANKS);
    for (int m = 0; m < n; m++) {
        lists[0][m] = (uint8_t)m;
        lists[2][m] = (uint8_t)(m + 1 == n ? __builtin_popcount((unsigned)m) : __builtin_ctz((unsigned)(m + 1)));
    }
    *o = (struct reduce_order){n, lists[0], lists[1], lists[2]};
}

int comm_measure_set(struct comm_measure *out, const struct backend_ops *ops, struct comm *c,
                     struct device *const *devices, int n, struct err *e)
{
    uint8_t lists[3][MAX_RANKS];
    struct bench b = {.ops = ops,
                      .comm = c,
                      .n = n,
                      .out = out,
                      .library = ops->reduces_by_library && ops->reduces_by_library(devices, n)};
    struct member members[MAX_RANKS];
    int rc = 0, started = 0;
    ASSERT(n >= 2 && n <= MAX_RANKS);
    plain_order(&b.order, n, lists);
    for (; started < n && !rc; started++) {
        members[started] = (struct member){&b, devices[started], started, NULL};
        rc = thread_start(&members[started].thread, "comm", body, &members[started], e);
    }
    if (rc) {
        started--;
        ops->comm_abort(c);
    }
    for (int i = 0; i < started; i++)
        thread_join(members[i].thread);
    ops->comm_reset(c);
    return rc;
}

/* ---- what it says */

size_t comm_twoshot_from(const struct comm_measure *m)
{
    size_t from = SIZE_MAX;
    if (!m->oneshot_ns[0])
        return 32 << 10;
    for (int i = COMM_SIZES - 1; i >= 0 && m->twoshot_ns[i] < m->oneshot_ns[i]; i--)
        from = m->bytes[i];
    return from;
}

static const char *size_text(char text[24], size_t bytes)
{
    snprintf(text, 24, "%zu %s", bytes >> 20 ? bytes >> 20 : bytes >> 10, bytes >> 20 ? "MiB" : "KiB");
    return text;
}

static double least_us(const struct comm_measure *m, int i)
{
    return (double)(m->twoshot_ns[i] < m->oneshot_ns[i] ? m->twoshot_ns[i] : m->oneshot_ns[i]) / 1e3;
}

void comm_measure_say(const struct comm_measure *m, char out[COMM_SAID])
{
    enum { LAST = COMM_SIZES - 1 };
    char text[24], two[64] = ", one shot always", library[64] = "";
    size_t from = comm_twoshot_from(m);
    if (from <= m->bytes[LAST])
        snprintf(two, sizeof two, ", two shots from %s on", size_text(text, from));
    if (m->library_bytes == COMM_NEVER)
        snprintf(library, sizeof library, ", never by the library");
    else if (m->library_bytes)
        snprintf(library, sizeof library, ", by the library from %s on", size_text(text, m->library_bytes));
    int used = snprintf(out, COMM_SAID, "%s in %.1f us, ", size_text(text, m->bytes[0]), least_us(m, 0));
    snprintf(out + used, (size_t)(COMM_SAID - used), "%s in %.1f us (%.1f GB/s)%s%s", size_text(text, m->bytes[LAST]),
             least_us(m, LAST), (double)m->bytes[LAST] / least_us(m, LAST) / 1e3, two, library);
}
