/* `moonshift simulate --request-log`: a CSV with a line for each request. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/lab/simulate.h"

static const char *ending_word(enum ending e)
{
    static const char *const words[] = {"unfinished", "stop", "length", "abort", "error", "refused"};
    return words[e];
}

static void put_time(FILE *f, int64_t ns) /* nothing: it did not come to that */
{
    if (ns < 0)
        fprintf(f, ",");
    else
        fprintf(f, ",%lld.%09lld", (long long)(ns / 1000000000), (long long)(ns % 1000000000));
}

int simulate_request_log(const struct simulate_report *r, const char *path, struct err *e)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return err_set(e, E_SYS, "cannot write %.200s: %s", path, strerror(errno));
    fprintf(f, "run,row,arrival_s,start_s,first_s,last_s,input_tokens,output_tokens,cached_tokens,preemptions,priority,"
               "ending,node\n");
    for (int i = 0; i < r->n_runs; i++)
        for (size_t k = 0; k < r->runs[i].replay.n_requests; k++) {
            const struct replay_request *x = &r->runs[i].replay.requests[k];
            fprintf(f, "%d,%zu", i, k);
            put_time(f, x->arrival_ns);
            put_time(f, x->start_ns);
            put_time(f, x->first_ns);
            put_time(f, x->last_ns);
            fprintf(f, ",%d,%d,%d,%u,%d,%s,%u\n", x->n_prompt, x->n_output, x->n_cached, x->n_preempted, x->priority,
                    ending_word(x->ending), x->node);
        }
    bool bad = ferror(f) != 0;
    if (fclose(f) || bad)
        return err_set(e, E_SYS, "cannot write %.200s: %s", path, strerror(errno));
    return 0;
}
