#include "lua/overtime.h"

enum {
    TIMES = 3,       /* what it was given, over again: its own watchdog stops it after twice of that (vm.c) */
    MOST_TURNS = 500 /* more are its own affair */
};
static const int64_t PIECE_NS = 1000000; /* from one look to the next counts as no more than twice a usual wait */
static const int64_t TURN_NS = 100000;   /* CPU time that a turn may take on both sides of a verb, caches cold */

void overtime_turn(struct overtime *o)
{
    o->n_turns += o->runs && o->n_turns < MOST_TURNS;
}

bool overtime_is_over(struct overtime *o, int64_t cpu_ns, int64_t most_ns)
{
    int64_t used = o->runs ? cpu_ns - o->last_cpu_ns : 0;
    o->runs = true;
    o->last_cpu_ns = cpu_ns;
    if (used > 0) /* the clock of a process that has ended shows nothing */
        o->used_ns += used < PIECE_NS ? used : PIECE_NS;
    return o->used_ns > TIMES * most_ns + o->n_turns * TURN_NS;
}
