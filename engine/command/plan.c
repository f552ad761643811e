/* `moonshift plan`: the machine, the model and the traffic, for which ways to use the node are tried. */
#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/command/app.h"
#include "engine/lab/search/advise.h"

int command_plan(struct app *a, struct err *e)
{
    static const char *const mine[] = {"json",    "config", "trace", "requests", "max-num-batched-tokens",
                                       "policy",  "jobs",   "rate",  "nodes",    "router",
                                       "samples", NULL};
    const struct opts *o = &a->opts;
    char hardware[PATH_MAX], model[PATH_MAX];
    TRY(places_description(o->hardware, "models/hardware", hardware, e));
    TRY(places_description(o->model, "models/catalog", model, e));
    TRY(sim_machine_open(&a->machine, hardware, model, e));
    struct advise_ask ask = {.machine = a->machine,
                             .hardware = o->hardware,
                             .model = o->model,
                             .trace = o->trace,
                             .shape = o->shape,
                             .hashes = o->trace_hashes,
                             .seed = o->seed,
                             .requests = o->requests,
                             .seconds = o->seconds,
                             .rate = o->rate,
                             .max_num_seqs = opts_given(o, "max-num-seqs") ? o->max_num_seqs : 0,
                             .chunk = opts_given(o, "max-num-batched-tokens") ? o->max_num_batched_tokens : 0,
                             .max_model_len = o->max_model_len,
                             .memory_share = o->memory_share,
                             .host_kv = o->host_kv,
                             .slo_ttft_ms = o->slo_ttft_ms,
                             .slo_tpot_ms = o->slo_tpot_ms,
                             .max_devices = o->max_devices,
                             .router = o->router,
                             .price = o->price,
                             .samples = o->samples,
                             .budget = o->budget,
                             .jobs = o->jobs,
                             .json = o->json};
    opts_args(o, CMD_SIMULATE, mine, &ask.args);
    int rc = advise(&ask, e);
    for (int i = 0; i < ask.args.n; i++)
        mem_free(ask.args.items[i]);
    mem_free(ask.args.items);
    return rc;
}
