#include "kernels/cuda/trial.h"

#include "engine/base/mem.h"
#include "kernels/cuda/device.h"

enum { MOST_TRIALS = 4096 }; /* of a step; those of the layers behind are not timed */

struct trial {
    struct tuning_key key;
    int way;
    cudaEvent_t begun, ended; /* kept from step to step; NULL: not yet */
};

struct trials {
    struct trial all[MOST_TRIALS];
    int n;
};

static bool has_events(struct device *d, struct trial *t)
{
    return (t->begun || gpu_ok(d, cudaEventCreate(&t->begun), "making an event")) &&
           (t->ended || gpu_ok(d, cudaEventCreate(&t->ended), "making an event"));
}

bool trial_begin(struct device *d, const struct tuning_key *k, int way)
{
    if (!d->trials)
        d->trials = mem_new(sizeof *d->trials);
    if (d->trials->n == MOST_TRIALS || gpu_failed(d))
        return false;
    struct trial *t = &d->trials->all[d->trials->n];
    if (!has_events(d, t) || !gpu_ok(d, cudaEventRecord(t->begun, d->stream), "timing a product"))
        return false;
    d->after_kernel = false;
    t->key = *k;
    t->way = way;
    return true;
}

void trial_end(struct device *d)
{
    struct trial *t = &d->trials->all[d->trials->n];
    if (gpu_failed(d) || !gpu_ok(d, cudaEventRecord(t->ended, d->stream), "timing a product"))
        return;
    d->after_kernel = false;
    d->trials->n++;
}

void trials_collect(struct device *d, bool failed)
{
    int n = d->trials ? d->trials->n : 0;
    for (int i = 0; i < n && !failed; i++) {
        const struct trial *t = &d->trials->all[i];
        float ms;
        if (!gpu_ok(d, cudaEventElapsedTime(&ms, t->begun, t->ended), "timing a product"))
            break;
        tuning_add(d->opts.tuning, &t->key, t->way, ms * 1000);
    }
    if (n)
        d->trials->n = 0;
}

void trials_close(struct device *d)
{
    for (int i = 0; d->trials && i < MOST_TRIALS && d->trials->all[i].begun; i++) {
        cudaEventDestroy(d->trials->all[i].begun);
        if (d->trials->all[i].ended)
            cudaEventDestroy(d->trials->all[i].ended);
    }
    mem_free(d->trials);
    d->trials = NULL;
}
