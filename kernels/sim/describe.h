/* What the two files of a machine say, as numbers. The inside of struct sim_machine, shared by machine.c (which reads
 * the files) and cost.c (which computes with them). Plain values, immutable once read. Invariant: every field can be
 * set by a file. */
#ifndef KERNELS_SIM_DESCRIBE_H
#define KERNELS_SIM_DESCRIBE_H

#include "engine/base/buf.h"
#include "kernels/sim/machine.h"
#include "kernels/sim/outside.h"
#include "kernels/sim/residual.h"
#include "kernels/sim/table.h"

enum { SIM_GROUPS = 3 }; /* collectives are described for groups of 2, 4 and 8 */

/* Times in ns, rates in bytes or operations per second, shares of a peak between 0 and 1. Their origins are in the
 * file. */
struct sim_hardware {
    double devices, memory_bytes, memory_rate, reserve_bytes;
    double bf16_peak, bf16_share, fp8_peak, fp8_share, gemm_memory_share, gemm_fixed;
    double elementwise_share, elementwise_fixed, prefill_share, kv_read_share, attention_fixed;
    double reduce_alpha, reduce_rate[SIM_GROUPS];                        /* large all-reduces: bus bandwidth */
    double small_bytes, small_alpha[SIM_GROUPS], small_rate[SIM_GROUPS]; /* all-reduces up to so many bytes */
    double exchange_alpha, exchange_rate;                                /* all-to-all and all-gather, per device */
    double link_rate, link_share, switch_fixed;                          /* moves of KV; a change of the partition */
    double host_link_rate; /* of each device to the machine's memory, one way */
    double host_step, host_ranks, host_sequence, host_prefill_row, host_overlaps;
    double front, sampler, graph_rows, eager_layer, eager_exchange, head_on_base;
};

struct sim_model {
    int n_layers;
    int kv_layers; /* SwiftKV: layers from this one on take rows that give logits only, but for k and v; 0: none */
    int hidden, n_heads, n_kv_heads, head_dim, intermediate, vocab;
    bool tied, qk_norm;
    int linear_bits, head_bits, kv_bits;
};

struct sim_machine {
    struct sim_hardware hardware;
    struct sim_model model;
    double link_scale;               /* how many times as much all-reduces get through */
    struct sim_tables tables;        /* measured kernels; empty: the formulas alone */
    struct sim_residuals *residuals; /* owned; NULL: the description has none */
    bool drawn;                      /* kernels take what a draw of the residuals says */
    uint64_t seed;                   /* of that draw */
    struct sim_outside
        *outside; /* where prices outside of the tables are noted; NULL: nowhere. Set only in a copy, for one call */
    char *config_path;
    char name[64];
    char twin[64]; /* "": none */
};

/* Parse and check one file's bytes, as sim_machine_open does. `name` is for the messages. */
int sim_hardware_read(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e);
int sim_model_read(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e);

#endif
