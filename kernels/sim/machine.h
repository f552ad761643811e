/* A machine to simulate: what one hardware file (models/hardware) and one model file (models/catalog) say, checked and
 * in the units of the cost model. Both files are untrusted: a malformed one is refused with its line or field, and so
 * is an unknown field. Opened and closed by the composition root, immutable in between, any thread. The engine borrows
 * it (device_opts.sim_machine) until the engine is destroyed. Invariant: the numbers that describe a machine come from
 * files, none from the code. */
#ifndef KERNELS_SIM_MACHINE_H
#define KERNELS_SIM_MACHINE_H

#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/world/estimate.h"
#include "engine/world/ffn.h"
#include "engine/world/headmap.h"
#include "engine/world/layout.h"

struct sim_machine;
struct sim_outside;

/* How the weights lie: each device holds one of so many shares of them (device_opts.sim_weight_tp; 0 counts as 1), of
 * one stage's layers where they are cut by stage too and, where they are pooled, FFN matrices of its own layers only.
 */
struct sim_weights {
    int shares;
    const struct ffn_setup *pool; /* NULL: not pooled */
    int stages;                   /* 0 counts as 1 */
};

struct sim_step {
    struct layout layout;
    struct sim_weights weights;
    struct step_size size;
};

/* E_INPUT, E_UNSUPPORTED: the text names the file and the line or the field. On success *out is the caller's, to be
 * closed. */
int sim_machine_open(struct sim_machine **out, const char *hardware_path, const char *model_path, struct err *e);
void sim_machine_close(struct sim_machine *m); /* NULL is fine */
/* All-reduces get so many times the bandwidth of their description or table, and wait as long for one another as there.
 * Before the machine is used. */
void sim_machine_scale_links(struct sim_machine *m, double times);

/* From now on kernels take what a draw of their residuals says, the same for a seed. Before the machine is used.
 * Without residuals in the description nothing changes. */
void sim_machine_draw(struct sim_machine *m, uint64_t seed);
/* The name of another description of this machine; NULL: there is none. E_INPUT: it is one of another machine. */
const char *sim_machine_twin(const struct sim_machine *m);
int sim_machine_check_twin(const struct sim_machine *m, const struct sim_machine *twin, struct err *e);
/* "kernels by the residuals of h200x8", or which band there cannot be. */
void sim_machine_doubts(const struct sim_machine *m, struct buf *out);

/* The path of the model file, which is also a config.json that model_open_dummy reads. Lives as long as the machine. */
const char *sim_machine_config(const struct sim_machine *m);
/* How many devices the node has. */
int sim_machine_ranks(const struct sim_machine *m);
/* What a planner has to know of memory, in bytes of each device. */
struct sim_facts {
    int n_layers;
    struct heads heads;
    double memory, reserve;
    double layers; /* bytes of the matrices of all layers */
};
void sim_machine_facts(const struct sim_machine *m, struct sim_facts *out);
double sim_machine_weight_bytes(const struct sim_machine *m, struct sim_weights w);
/* Of one cached token: of a device's share of the heads, in its stage's layers. */
double sim_machine_token_bytes(const struct sim_machine *m, struct layout l);
/* Pooled weights: what becomes of one layer in a step, in ns from the step's beginning. */
struct sim_pool_layer {
    enum ffn_mode mode;
    double begin, ready, ffn, end; /* of the layer; its FFN could begin, begins; the end of both */
    double fetch_begin, fetch_end; /* FFN_WAS; of the first layers before the step, where slots were free */
};
/* All layers of the model; how many, or 0 where such a step has none that are pooled. */
int sim_machine_pool(const struct sim_machine *m, const struct sim_step *step,
                     struct sim_pool_layer layers[FFN_MAX_LAYERS]);
int sim_machine_layers(const struct sim_machine *m); /* of the model */
/* One part of what a step takes, in ns: linear, attention, reduce, exchange, elementwise, head, launch, wait, service,
 * send, bubble, host, or the total; and ffn, which is part of linear. E_NOTFOUND lists them; E_INPUT: the layout does
 * not fit the machine. */
int sim_machine_step(const struct sim_machine *m, const struct sim_step *step, const char *part, double *ns,
                     struct err *e);
/* An account of what was priced outside of the measured tables. New ones are empty; the caller frees it. A device of
 * the machine fills it (device_opts.sim_outside). */
struct sim_outside *sim_outside_new(void);
void sim_outside_free(struct sim_outside *o); /* NULL is fine */
/* From this share on a figure is marked where people read it. */
#define SIM_OUTSIDE_MARK 0.001
/* The share of the step time, 0 to 1. NULL: 0. */
double sim_outside_share(const struct sim_outside *o);
/* "all_reduce 12.3% (devices up to 16, measured 2 to 8); ..." */
void sim_outside_words(const struct sim_outside *o, struct buf *out);
/* {"share":0.123,"tables":[{"table":"all_reduce","share":..,"axis":"devices","measured":[2,8],"low":null,"high":16}]}
 */
void sim_outside_json(const struct sim_outside *o, struct buf *out);
/* The time that a request takes before it reaches the engine: HTTP and tokenizer. */
int64_t sim_machine_front_ns(const struct sim_machine *m);

#endif
