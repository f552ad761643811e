/* `moonshift plan`: which layouts, how the weights lie and which policy suit a model, a machine and its traffic, and
 * how many devices keep its objectives. All ways to use the node that its memory allows are priced by a closed formula;
 * the best of them for throughput, for the time to the first token and for the time of each further one are simulated,
 * each in a process of its own; the report shows the best five of each, with what lies on a rank and the flags that
 * start it. With objectives and a rate, servers of all or of a part of a node's devices are put behind a router, and
 * the fewest of each size that keep the objectives are searched for. The same flags give the same bytes. Main thread.
 * Invariant: whatever is proposed was simulated on the same requests. */
#ifndef LAB_SEARCH_ADVISE_H
#define LAB_SEARCH_ADVISE_H

#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/strings.h"
#include "kernels/sim/machine.h"

struct advise_ask {
    const struct sim_machine *machine;
    const char *hardware, *model; /* as they were named */
    const char *trace, *shape;    /* one of them: a file or a generator; "in=..,out=..,rate=..|batch=.." */
    const char *hashes;           /* beside a trace; NULL: none */
    uint64_t seed;
    int64_t requests;            /* of the trace; 0: all */
    double seconds;              /* of the trace; 0: all */
    double rate;                 /* requests a second, instead of those of trace or shape; 0: theirs */
    int64_t max_num_seqs, chunk; /* 0: as it suits; chunk: tokens of a step, 0: several are tried */
    int64_t max_model_len;       /* 0: what the traffic needs */
    double memory_share;
    int64_t host_kv;                 /* bytes of the machine for KV; 0: none, so Seesaw is not tried */
    double slo_ttft_ms, slo_tpot_ms; /* of 95 of 100 requests; 0: none */
    int64_t max_devices;             /* of all servers together */
    const char *router;              /* in front of them */
    double price;                    /* of a device for an hour; 0: none */
    int64_t samples;                 /* of each that is shown behind a router; 0: no bands */
    struct strings args;             /* words of `moonshift simulate` that hold for all runs */
    int64_t budget, jobs;            /* simulations of one node, and as many of several; at once, 0: as many as there
                                        are cores */
    const char *json;                /* a file to write; NULL: none */
};

/* E_INPUT: the shape or the trace is wrong; E_UNSUPPORTED: nothing fits into the memory; E_NOTFOUND: nothing keeps the
 * objectives (the nearest was shown); E_GONE: interrupted. */
int advise(const struct advise_ask *ask, struct err *e);

#endif
