/* A rank: one worker that owns one device, its weights and its KV memory, and runs steps in the order they were posted. Threaded, it has a thread
 * and an inbox; otherwise rank_post runs the step at once (virtual time) and its cost is in step->time. Created and closed by the engine; after rank_start only the rank's
 * thread touches the device. Never true: two steps of one rank at once. */
#ifndef EXEC_RANK_H
#define EXEC_RANK_H

#include "engine/exec/step.h"
#include "engine/exec/weights.h"

struct rank;

struct rank_setup {
    const struct backend_ops *ops;
    struct device_opts device;
    struct model *model;        /* borrowed while opening; its config until close */
    enum dtype kv_dtype;
    int block_size;
    bool threaded, quiet;
    void (*done)(void *ctx, struct step *s); /* threaded: called on the rank's thread, takes the step */
    void *ctx;
};

/* Opens the device, loads the weights, allocates the forward's scratch. */
int rank_open(struct rank **out, const struct rank_setup *s, struct err *e);
const struct device_facts *rank_facts(const struct rank *r);
size_t rank_weight_bytes(const struct rank *r);
size_t rank_scratch_bytes(const struct rank *r);
size_t rank_kv_block_bytes(const struct rank *r); /* over all layers */
/* Allocates n_blocks of KV and (threaded) starts the thread. */
int rank_start(struct rank *r, int n_blocks, struct err *e);
void rank_post(struct rank *r, struct step *s);
void rank_close(struct rank *r); /* runs what was posted, then stops; NULL is fine */

#endif
