/* vLLM's way to ask for draft tokens, a JSON object. What it names is a policy here. */
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/nearest.h"
#include "engine/cli/draft_files.h"
#include "engine/cli/opts_table.h"
#include "engine/world/draft.h"

static const char *const example = "{\"method\": \"suffix\", \"num_speculative_tokens\": 16}";

/* vLLM's name of a way to draft, and the source that it is here. */
static const char *source_of(const char *name)
{
    static const char *const names[][2] = {{"ngram", "lookup"},  {"[ngram]", "lookup"},
                                           {"suffix", "suffix"}, {"mlp_speculator", "heads"},
                                           {"arctic", "heads"},  {"draft_model", "model"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i][0]) == 0)
            return names[i][1];
    return NULL;
}

/* What is asked for. */
struct way {
    const char *source; /* of arctic */
    const char *kind;   /* of --draft-model: "heads" or "model"; NULL: it has none */
};

/* As a method, or as the model that takes its place; alone: without a method, what a model's files are counts. */
static int check_name(const struct json *x, bool alone, struct way *w, struct err *e)
{
    const char *name = json_text(x);
    if (!name)
        return err_set(e, E_INPUT, "--speculative-config: \"method\" and \"model\" are texts: %s", example);
    w->source = source_of(name);
    if (!w->source && alone && draft_files_generate(name))
        w->source = "model";
    if (!w->source)
        return err_set(e, E_UNSUPPORTED,
                       "--speculative-config: \"%.40s\" is not offered; drafts come from text, by the methods ngram "
                       "and suffix, from the heads of a \"model\", by mlp_speculator and arctic, or from a small "
                       "\"model\", by draft_model: %s",
                       name, example);
    return 0;
}

/* Heads, and a small model, are --draft-model. */
static int check_model(const struct opts *o, const struct json *j, struct way *w, struct err *e)
{
    const char *model = json_text(json_find(j, "model"));
    const struct json *suffix = json_find(j, "enable_suffix_decoding");
    w->kind = w->source;
    if (!model || !model[0])
        return err_set(e, E_INPUT, "--speculative-config: this method needs %s as \"model\"",
                       strcmp(w->kind, "heads") == 0 ? "the folder of its heads"
                                                     : "a GGUF file or a Hugging Face folder");
    if (o->draft_model && strcmp(o->draft_model, model) != 0)
        return err_set(e, E_INPUT, "--speculative-config and --draft-model name two models: leave one of them away");
    if (suffix && json_type(suffix) != JSON_BOOL)
        return err_set(e, E_INPUT, "--speculative-config: enable_suffix_decoding is true or false");
    if (json_true(suffix) && !o->draft_bytes)
        return err_set(e, E_INPUT, "--speculative-config: enable_suffix_decoding needs --draft-memory");
    if (json_true(suffix))
        w->source = "best";
    return 0;
}

static int check_method(const struct opts *o, const struct json *j, struct way *w, struct err *e)
{
    const struct json *method = json_find(j, "method"), *model = json_find(j, "model");
    struct way other;
    if (!method && !model)
        return err_set(e, E_INPUT, "--speculative-config names no \"method\": %s", example);
    TRY(check_name(method ? method : model, !method, w, e));
    if (strcmp(w->source, "heads") == 0 || strcmp(w->source, "model") == 0)
        return check_model(o, j, w, e);
    if (json_find(j, "enable_suffix_decoding"))
        return err_set(e, E_UNSUPPORTED,
                       "--speculative-config: enable_suffix_decoding goes with the methods arctic and draft_model");
    return method && model ? check_name(model, false, &other, e) : 0;
}

/* What vLLM's suffix decoding lets one set, and who decides it here. */
static int check_suffix_field(const char *key, struct err *e)
{
    static const char *const theirs[][2] = {
        {"suffix_decoding_max_cached_requests", "--draft-memory bounds what is kept, in bytes"},
        {"suffix_decoding_max_tree_depth", "trees are 64 tokens deep"},
        {"suffix_decoding_max_spec_factor", "the policy decides how much is drafted"},
        {"suffix_decoding_min_token_prob", "the policy decides how much is drafted"},
        {"disable_by_batch_size", "the policy decides how much is drafted"},
    };
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (strcmp(key, theirs[i][0]) == 0)
            return err_set(e, E_UNSUPPORTED, "--speculative-config: leave %s away: %s", key, theirs[i][1]);
    return 0;
}

/* Of an n-gram the longest counts that was found, so its bounds change nothing but how much is tried. */
static int check_field(const struct json *field, struct err *e)
{
    static const char *const names[] = {"method",
                                        "model",
                                        "num_speculative_tokens",
                                        "prompt_lookup_max",
                                        "prompt_lookup_min",
                                        "enable_suffix_decoding"};
    const char *key = json_key(field);
    int64_t n;
    for (int i = 0; i < 6; i++) {
        if (strcmp(key, names[i]) != 0)
            continue;
        if (i == 5)
            return 0;
        bool whole = json_i64(field, &n) && n >= 1 && n <= MOST_DRAFTS;
        return i < 2 || whole ? 0
                              : err_set(e, E_INPUT, "--speculative-config: %s must be a whole number from 1 to %d", key,
                                        MOST_DRAFTS);
    }
    TRY(check_suffix_field(key, e));
    const char *near = nearest_word(key, names, 6);
    return err_set(e, E_UNSUPPORTED, "--speculative-config: there is no '%.40s' here%s%s%s: %s", key,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "", example);
}

static int check_config(const struct opts *o, const struct json *j, struct way *w, struct err *e)
{
    if (json_type(j) != JSON_OBJECT)
        return err_set(e, E_INPUT, "--speculative-config wants a JSON object, not %s: %s", json_type_name(j), example);
    TRY(check_method(o, j, w, e));
    for (const struct json *f = json_first(j); f; f = json_next(f))
        TRY(check_field(f, e));
    /* --scheduling-policy says which one, too */
    if ((opts_given(o, "policy") || strcmp(o->policy, "fcfs") != 0) && strcmp(o->policy, "arctic") != 0)
        return err_set(e, E_INPUT,
                       "--speculative-config stands for --policy arctic, and --policy says %.60s: leave one of them "
                       "away; a policy of yours can call act.draft",
                       o->policy);
    if (strcmp(w->source, "suffix") == 0 && !o->draft_bytes)
        return err_set(e, E_INPUT, "--speculative-config: the method suffix needs --draft-memory");
    return 0;
}

static void add_param(struct opts *o, const char *text)
{
    opts_list_add(&o->policy_params, opts_keep(o, text, strlen(text)));
}

int opts_take_speculative(struct opts *o, struct err *e)
{
    struct err why = {0};
    struct way w = {0};
    int64_t most;
    char param[40];
    if (!o->speculative)
        return 0;
    struct json *j = json_parse(o->speculative, strlen(o->speculative), NULL, &why);
    int rc = j ? check_config(o, j, &w, e)
               : err_set(e, E_INPUT, "--speculative-config is no JSON (%.80s): %s", why.text, example);
    if (!rc) {
        o->policy = opts_keep(o, "arctic", 6);
        snprintf(param, sizeof param, "source=%s", w.source);
        add_param(o, param);
        bool counted = json_i64(json_find(j, "num_speculative_tokens"), &most);
        o->draft_kind = w.kind ? opts_keep(o, w.kind, strlen(w.kind)) : NULL;
        if (w.kind) {
            o->draft_model = opts_keep(o, json_text(json_find(j, "model")), strlen(json_text(json_find(j, "model"))));
            o->draft_tokens = counted ? (int)most : 0;
        } else if (counted) {
            snprintf(param, sizeof param, "most=%d", (int)most);
            add_param(o, param);
        }
    }
    json_free(j);
    return rc;
}
