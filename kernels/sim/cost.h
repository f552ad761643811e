/* The cost model of a simulated machine: one forward of one group, the host's part of it, KV moves, changes of the
 * partition, and what fits into its memory. Pure functions of the two descriptions, any thread. Invariant: a cost
 * depends on its arguments only, never on what ran before, and is the same on every machine: + - * / and square roots
 * on doubles in a fixed order, rounded once to whole nanoseconds. */
#ifndef KERNELS_SIM_COST_H
#define KERNELS_SIM_COST_H

#include <stdint.h>

#include "engine/world/estimate.h"
#include "engine/world/layout.h"
#include "kernels/sim/describe.h"

/* Where a step's time goes, in ns. */
struct step_cost {
    double linear, attention, reduce, exchange, elementwise, head;
    double send;          /* of activations to the next stage */
    double bubble;        /* a pipeline: while the slowest stage has nothing to do. The parts above are that stage's */
    double launch;        /* added by launching kernels one by one, in a step that is too big for a captured graph */
    double wait;          /* pooled weights: for layers on their way */
    double fetch;         /* pooled weights: all fetches, waited for or not */
    int fetched;          /* pooled weights: layers that are fetched */
    double fetched_bytes; /* of each of them, what the share of a rank takes */
    int sent;             /* pooled weights: layers whose rows go to another owner */
    double service;       /* pooled weights: more than the own rows' products take, where rows go to their owners */
    double host;          /* the host's part, which the device waits for unless the two overlap */
    double total;         /* what the step takes */
    double ffn;           /* part of linear */
};

/* w.shares divides tp, and pp is 1 where weights are pooled: the engine refuses other layouts. In stages: of one step
 * that has the pipeline to itself. Its micro-batches follow one another through the stages, and the slowest stage takes
 * one after the other. */
struct step_cost cost_parts(const struct sim_machine *m, struct layout l, struct sim_weights w,
                            const struct step_size *s);
/* What crosses between ranks in such a step, whose parts are c. Rows go as halves of two bytes, and come back so. */
struct ffn_cost cost_ffn(const struct sim_machine *m, const struct step_size *s, const struct step_cost *c);
int64_t cost_step(const struct sim_machine *m, struct layout l, struct sim_weights w, const struct step_size *s);
/* What one stage takes for one micro-batch of such a step (stages.h), without the host's part. While steps follow one
 * another without a gap the slowest stage's is all that counts. */
struct step_cost cost_stage(const struct sim_machine *m, struct layout l, const struct step_size *s, int stage,
                            int micro);
int cost_pool(const struct sim_machine *m, struct layout l, struct sim_weights w, const struct step_size *s,
              struct sim_pool_layer *layers); /* as sim_machine_pool */
/* cost_parts, adding the time of such a step to the sum, and how much of it is priced outside of what was measured.
 * NULL: to none. */
struct step_cost cost_noted(const struct sim_machine *m, struct layout l, struct sim_weights w,
                            const struct step_size *s, struct sim_outside *sum);
/* Copies of cached KV between devices (or, `far` false, within one): `tokens` positions of so many kv heads, counted
 * over layers. */
int64_t cost_move(const struct sim_machine *m, int64_t tokens, int64_t heads, bool far);
/* The same between a device and the machine's memory; every device has a link of its own to that. */
int64_t cost_swap(const struct sim_machine *m, int64_t tokens, int64_t heads);
/* Weights from the machine's memory to a device, over the same link. */
int64_t cost_host_copy(const struct sim_machine *m, double bytes);
/* The time that a change of the partition costs each of its ranks. */
int64_t cost_switch(const struct sim_machine *m);
/* The time from the client's request to the queue, outside the engine. The caller adds it to the time to first token.
 */
int64_t cost_front(const struct sim_machine *m);

/* Kernels by themselves, in ns: rows [m, k] by weights [n, k]; all-reduce of so many bytes among g devices; ... */
double cost_gemm(const struct sim_machine *m, int bits, double rows, double n, double k);
/* n chunks of causal attention that look at `looked_at` cached tokens in all, by their `rows` rows. */
double cost_prefill_attention(const struct sim_machine *m, double n, double rows, double looked_at, int heads,
                              int kv_heads);
double cost_decode_attention(const struct sim_machine *m, double n, double looked_at, int heads, int kv_heads);
double cost_all_reduce(const struct sim_machine *m, int g, double bytes, bool graph);
double cost_all_to_all(const struct sim_machine *m, int g, double bytes);
double cost_all_gather(const struct sim_machine *m, int g, double bytes);

/* Bytes of the weights on each device (embedding and head included; of a pool or of stages, of the device that holds
 * most, and its slots), and of the second copy that serves layouts of up to n devices when the shares are stored by
 * themselves
 * (--shift-weights copy). */
double cost_weight_bytes(const struct sim_model *m, struct sim_weights w);
double cost_layers_bytes(const struct sim_model *m); /* of the matrices of all layers */
double cost_copy_bytes(const struct sim_model *m, int n);
/* A layer of the pool, onto every device at the same time: they share its owner's link. ns */
int64_t cost_layer_copy(const struct sim_machine *m, struct sim_weights w);
double cost_ffn_bytes(const struct sim_model *m, int shares); /* of the FFN matrices of a layer, on each device */

#endif
