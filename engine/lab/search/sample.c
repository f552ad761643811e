#include "engine/lab/search/sample.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/search/jobs.h"

enum { AT_ONCE = 64, WORD = 24 }; /* as many results are in memory */

static int run_some(struct bands *b, const struct sample_ask *ask, const struct job_signals *signals, int from,
                    struct err *e)
{
    int n = ask->n_samples - from < AT_ONCE ? ask->n_samples - from : AT_ONCE, rc;
    struct job items[AT_ONCE] = {0};
    char words[AT_ONCE][WORD];
    for (int i = 0; i < n; i++) {
        struct job *x = &items[i];
        x->args = mem_new_array((size_t)ask->args.n + 2, sizeof *x->args);
        memcpy(x->args, ask->args.items, (size_t)ask->args.n * sizeof *x->args);
        snprintf(words[i], WORD, "--sample=%d", from + i + 1);
        x->args[ask->args.n] = words[i];
        x->args[ask->args.n + 1] = (char *)"--jobs=1"; /* samples have the cores, not their policies */
        x->n_args = ask->args.n + 2;
    }
    struct jobs j = {.signals = signals,
                     .items = items,
                     .n = n,
                     .parallel = ask->jobs,
                     .what = "samples",
                     .n_before = from,
                     .n_all = ask->n_samples};
    rc = jobs_run(&j, e);
    for (int i = 0; i < n && !rc; i++)
        rc = items[i].failure ? err_set(e, E_INPUT, "sample %d: %.300s", from + i + 1, items[i].failure)
                              : bands_take(b, from + i, items[i].result, e);
    jobs_clear(&j);
    for (int i = 0; i < n; i++)
        mem_free(items[i].args);
    return rc;
}

int sample_run(struct bands *b, const struct sample_ask *ask, struct err *e)
{
    struct job_signals signals;
    bands_open(b, ask->n_samples, ask->n_policies);
    TRY(job_signals_open(&signals, e));
    int rc = 0;
    for (int i = 0; i < ask->n_samples && !rc; i += AT_ONCE)
        rc = run_some(b, ask, &signals, i, e);
    job_signals_close(&signals);
    return rc;
}
