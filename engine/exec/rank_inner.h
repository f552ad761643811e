/* The inside of a rank, shared by rank.c (opening, the inbox, what is done between steps) and rank_step.c (steps).
 * Invariant: what a posted task points to stays until the rank has counted it down. */
#ifndef EXEC_RANK_INNER_H
#define EXEC_RANK_INNER_H

#include "engine/exec/rank.h"
#include "engine/exec/transfer.h"

/* What lies in the inbox. */
struct task {
    enum { TASK_END, TASK_STEP, TASK_MOVE, TASK_PREPARE, TASK_REPLICA, TASK_RESHARD, TASK_JOB } kind;
    int share;
    void *what;
};

struct rank {
    struct rank_setup setup;
    struct device *device;
    struct device_facts facts;
    struct weights *weights;
    struct transfer *transfer;    /* NULL: it has none */
    struct ffn_seat *seat;        /* in the FFN pool; NULL: all weights lie here */
    struct drafter_seat *drafter; /* NULL: there is no draft model */
    struct forward forward;
    struct heads_weights *head_weights; /* its own, or those of the rank it shares with; NULL: there are none */
    struct kv_memory kv;
    struct heads heads;
    struct queue *inbox;     /* of struct task */
    struct queue *jobs_done; /* of struct rank_job * */
    struct rank_job opening;
    const struct step
        *on_device;   /* the step done last, if the device has what it sampled: the next can be fed with it there */
    struct task held; /* taken from the inbox and not begun */
    bool holds;
    struct thread *thread;
    uint64_t n_steps;
    int poisoned; /* a device error: every later step fails with it */
    struct err err;
};

/* rank.c */
void rank_sleep_ns(int64_t ns);

/* rank_step.c */
void rank_do_step(struct rank *r, struct step *s, int share);
void rank_do_prepare(struct rank *r, struct prepare_task *t, int share);
void rank_poison(struct rank *r, int rc, const struct err *err); /* every later step fails with it */

#endif
