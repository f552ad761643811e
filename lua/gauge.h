/* What a policy's calls cost, by two measures: what the code executes, counted in bytecodes, and how long that takes on
 * this machine. The first judges the code and is the same on any machine; the second only matters where it costs the
 * engine something. Counting halves the interpreter's speed, and reading the CPU clock costs more than a good call, so
 * only one call in some is counted to its end, and a call that was late or executed too much is followed by one that is
 * measured closely. Owned by one machine. Invariant: a call is not charged for time in which another process had the
 * core, nor for what it takes to wait for the engine, where it runs in a process of its own. */
#ifndef LUA_GAUGE_H
#define LUA_GAUGE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/policy.h"

struct gauge_limits {
    int64_t bytecodes; /* a call that executes more is HEAVY; 0: neither this nor time is judged */
    int64_t cpu_ns;    /* a call that takes more CPU time, while calls take too much of all time, is SLOW */
};

struct gauge {
    bool closely;    /* every call is counted to its end: dry runs */
    int n_close;     /* calls yet to be looked at closely */
    int until_count; /* calls until the next one that is counted in any case */
    uint32_t dice;
    int64_t
        purse_ns; /* what calls may take until they have taken more than their share of the time; negative: they have */
    int64_t ended_ns;         /* when the last call ended; 0: there was none */
    uint64_t n_counted, most; /* calls that were counted, and the most bytecodes that one of them executed */
    /* the call under way */
    bool counting;
    int64_t bytecodes, began_ns, cpu_began_ns, cpu_ns; /* CPU: 0: not measured */
    int64_t outside_ns; /* of the CPU time, what went by waiting for the engine: whoever waits adds it */
};

/* Begins a call. The machine adds up g->bytecodes: to the end where g->counting says so, which is returned, else as far
 * as it likes. */
bool gauge_begin(struct gauge *g, const struct gauge_limits *l, int64_t now_ns);
/* CPU time of the call under way, from any beginning. */
int64_t gauge_cpu(const struct gauge *g);
/* Ends it: OK, SLOW or HEAVY. */
enum verdict gauge_end(struct gauge *g, const struct gauge_limits *l, int64_t now_ns);

#endif
