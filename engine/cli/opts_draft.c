/* vLLM's way to ask for draft tokens, a JSON object. What it names is a policy here. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "engine/cli/opts_table.h"
#include "engine/world/draft.h"

static const char *const example = "{\"method\": \"ngram\", \"num_speculative_tokens\": 8}";

/* As a method, or as the model that takes its place. */
static int check_name(const struct json *x, struct err *e)
{
    const char *name = json_text(x);
    if (!name)
        return err_set(e, E_INPUT, "--speculative-config: \"method\" and \"model\" are texts: %s", example);
    if (strcmp(name, "ngram") != 0 && strcmp(name, "[ngram]") != 0)
        return err_set(e, E_UNSUPPORTED,
                       "--speculative-config: \"%.40s\" is not offered; drafts come from the request's own text: %s",
                       name, example);
    return 0;
}

static int check_method(const struct json *j, struct err *e)
{
    const struct json *method = json_find(j, "method"), *model = json_find(j, "model");
    if (!method && !model)
        return err_set(e, E_INPUT, "--speculative-config names no \"method\": %s", example);
    if (method)
        TRY(check_name(method, e));
    return model ? check_name(model, e) : 0;
}

/* Of an n-gram the longest counts that was found, so its bounds change nothing but how much is tried. */
static int check_field(const struct json *field, struct err *e)
{
    static const char *const names[] = {"method", "model", "num_speculative_tokens", "prompt_lookup_max",
                                        "prompt_lookup_min"};
    const char *key = json_key(field);
    int64_t n;
    for (int i = 0; i < 5; i++) {
        if (strcmp(key, names[i]) != 0)
            continue;
        bool whole = json_i64(field, &n) && n >= 1 && n <= MOST_DRAFTS;
        return i < 2 || whole ? 0
                              : err_set(e, E_INPUT, "--speculative-config: %s must be a whole number from 1 to %d", key,
                                        MOST_DRAFTS);
    }
    const char *near = nearest_word(key, names, 5);
    return err_set(e, E_UNSUPPORTED, "--speculative-config: there is no '%.40s' here%s%s%s: %s", key,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", example);
}

static int check_config(const struct opts *o, const struct json *j, struct err *e)
{
    if (json_type(j) != JSON_OBJECT)
        return err_set(e, E_INPUT, "--speculative-config wants a JSON object, not %s: %s", json_type_name(j), example);
    TRY(check_method(j, e));
    for (const struct json *f = json_first(j); f; f = json_next(f))
        TRY(check_field(f, e));
    /* --scheduling-policy says which one, too */
    if ((opts_given(o, "policy") || strcmp(o->policy, "fcfs") != 0) && strcmp(o->policy, "arctic") != 0)
        return err_set(e, E_INPUT,
                       "--speculative-config stands for --policy arctic, and --policy says %.60s: leave one of them "
                       "away; a policy of yours can call act.draft",
                       o->policy);
    return 0;
}

int opts_take_speculative(struct opts *o, struct err *e)
{
    struct err why = {0};
    int64_t most;
    char param[40];
    if (!o->speculative)
        return 0;
    struct json *j = json_parse(o->speculative, strlen(o->speculative), NULL, &why);
    int rc = j ? check_config(o, j, e)
               : err_set(e, E_INPUT, "--speculative-config is no JSON (%.80s): %s", why.text, example);
    if (!rc) {
        o->policy = opts_keep(o, "arctic", 6);
        if (json_i64(json_find(j, "num_speculative_tokens"), &most)) {
            snprintf(param, sizeof param, "most=%d", (int)most);
            opts_list_add(&o->policy_params, opts_keep(o, param, strlen(param)));
        }
    }
    json_free(j);
    return rc;
}
