#include <string.h>

#include "engine/front/opts_table.h"

static int check_params(const struct opts *o, struct err *e)
{
    if (o->block_size % 16)
        return err_set(e, E_INPUT, "--block-size must be a multiple of 16, not %lld", (long long)o->block_size);
    for (int i = 0; i < o->policy_params.n; i++)
        if (!strchr(o->policy_params.items[i], '=') || o->policy_params.items[i][0] == '=')
            return err_set(e, E_INPUT, "--policy-param wants NAME=VALUE, not '%.60s'", o->policy_params.items[i]);
    return 0;
}

static int check_simulation(const struct opts *o, struct err *e)
{
    if (!o->trace || !o->trace[0])
        return err_set(e, E_INPUT, "which traffic? --trace FILE, or a generator like --trace poisson:rate=4,requests=1000");
    if (!o->hf_config)
        return err_set(e, E_INPUT, "which model? --hf-config FILE, the config.json of a model, with --sim-step-us and --sim-row-us for its costs");
    return check_params(o, e);
}

int opts_cross_check(struct opts *o, struct err *e)
{
    if (o->command == CMD_POLICY_CHECK)
        return o->file ? 0 : err_set(e, E_INPUT, "which file? moonshift policy check FILE");
    if (o->command == CMD_SIMULATE)
        return check_simulation(o, e);
    bool dummy = !strcmp(o->load_format, "dummy");
    if (dummy && o->command == CMD_RUN && !o->prompt) { /* there is no model file to name: the one word is the prompt */
        o->prompt = o->model;
        o->model = NULL;
    }
    if (dummy && !o->hf_config)
        return err_set(e, E_INPUT, "--load-format dummy needs --hf-config FILE, the config.json of the model to make up");
    if (!dummy && o->hf_config)
        return err_set(e, E_INPUT, "--hf-config is only read with --load-format dummy");
    if (!dummy && (!o->model || !o->model[0]))
        return err_set(e, E_INPUT, "which model? moonshift %s MODEL.gguf", o->command == CMD_SERVE ? "serve" : "run");
    return check_params(o, e);
}
