/* lines_bench [ROUNDS]: what two cores pay for sharing memory, by lines of 64 bytes: how long one waits for what the
 * other has written; what writing a line takes that the other has read since, and one that only the writer uses; what
 * reading one takes that the other has written. A virtual machine may move its cores between rounds: each round is a
 * line of output. Why products have bands of rows (kernels/cpu/linear.c). */
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { LINE = 64, LINES = 4096, TURNS = 20000, TIMES = 50 };

enum task { WAITS, READS, WRITES, RESTS, ENDS };

struct pair {
    _Alignas(LINE) _Atomic uint32_t turn; /* odd: the other's */
    _Alignas(LINE) _Atomic int task;
    _Alignas(LINE) uint64_t sum;
    uint64_t *lines;
};

/* One word of each line: whole lines move. */
static void read_lines(struct pair *p)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < LINES; i++)
        sum += p->lines[i * LINE / sizeof sum];
    p->sum += sum;
}

static void write_lines(struct pair *p)
{
    for (size_t i = 0; i < LINES * LINE / sizeof *p->lines; i++)
        p->lines[i] = i;
    __asm__ volatile("" ::: "memory");
}

static void other(void *arg)
{
    struct pair *p = arg;
    thread_pin_self(1);
    for (;;) {
        uint32_t turn;
        while ((turn = atomic_load_explicit(&p->turn, memory_order_acquire)) % 2 == 0)
            ;
        int task = atomic_load_explicit(&p->task, memory_order_relaxed);
        if (task == ENDS)
            return;
        if (task == READS)
            read_lines(p);
        else if (task == WRITES)
            write_lines(p);
        atomic_store_explicit(&p->turn, turn + 1, memory_order_release);
    }
}

static void ask(struct pair *p, enum task task)
{
    uint32_t turn = atomic_load_explicit(&p->turn, memory_order_relaxed);
    atomic_store_explicit(&p->task, (int)task, memory_order_relaxed);
    atomic_store_explicit(&p->turn, turn + 1, memory_order_release);
    while (task != ENDS && atomic_load_explicit(&p->turn, memory_order_acquire) == turn + 1)
        ;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ns a line of what this core does, after what the other has done: the median. */
static double lines_ns(struct pair *p, const struct clock *c, enum task others, void (*own)(struct pair *))
{
    double took[TIMES];
    for (int i = 0; i < TIMES; i++) {
        ask(p, others);
        int64_t from = clock_now(c);
        own(p);
        took[i] = (double)(clock_now(c) - from) / LINES;
    }
    qsort(took, TIMES, sizeof *took, ascending);
    return took[TIMES / 2];
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct clock c;
    struct thread *t;
    struct pair *p = mem_try_aligned(sizeof *p, LINE);
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    clock_init_real(&c);
    if (thread_cores() < 2 || !p || !(p->lines = mem_try_aligned((size_t)LINES * LINE, LINE)) ||
        thread_start(&t, "other", other, p, &e)) {
        fprintf(stderr, "lines_bench: two cores and a thread are needed %s\n", e.text);
        return 1;
    }
    thread_pin_self(0);
    printf("ns: one way | a line: written alone, written after the other read it, read after the other wrote it\n");
    for (int r = 0; r < rounds; r++) {
        int64_t from = clock_now(&c);
        for (int i = 0; i < TURNS; i++)
            ask(p, WAITS);
        double way = (double)(clock_now(&c) - from) / TURNS / 2;
        write_lines(p);
        double alone = lines_ns(p, &c, RESTS, write_lines), write = lines_ns(p, &c, READS, write_lines);
        printf("%6.1f | %6.2f %6.2f %6.2f\n", way, alone, write, lines_ns(p, &c, WRITES, read_lines));
    }
    ask(p, ENDS);
    thread_join(t);
    mem_free(p->lines);
    mem_free(p);
    return 0;
}
