#include "engine/serve/openai/offer.h"

#include <string.h>

static const char sampler[] = "this sampler has temperature, top_p, top_k, min_p and the three penalties";

static const struct offer_refusal refused[] = {
    {"suffix", "text insertion is not offered; put the suffix into the prompt", 0},
    {"use_beam_search", "beam search is not offered; use n with a temperature", 0},
    {"length_penalty", "beam search is not offered", 1},
    {"bad_words", "use logit_bias with -100 for the tokens", 0},
    {"functions", "functions were replaced by tools", 0},
    {"function_call", "functions were replaced by tools", 0},
    {"audio", "this server answers with text only", 0},
    {"prompt_embeds", "prompts are text or token ids here", 0},
    {"lora", "LoRA adapters are not offered; merge one into the model", 0},
    {"lora_path", "LoRA adapters are not offered; merge one into the model", 0},
    {"lora_request", "LoRA adapters are not offered; merge one into the model", 0},
    {"chat_template", "the template is the server's (--chat-template); chat_template_kwargs fill it", 0},
    {"extra_body", "it is an argument of the Python client; put its members into the body itself", 0},
    {"n_predict", "it is called max_tokens here", -1},
    {"num_predict", "it is called max_tokens here", -1},
    {"typical_p", sampler, 1},
    {"typ_p", sampler, 1},
    {"mirostat", sampler, 0},
    {"mirostat_mode", sampler, 0},
    {"tfs_z", sampler, 1},
    {"top_a", sampler, 0},
    {"top_n_sigma", sampler, -1},
    {"epsilon_cutoff", sampler, 0},
    {"eta_cutoff", sampler, 0},
    {"dry_multiplier", sampler, 0},
    {"xtc_probability", sampler, 0},
    {"dynatemp_range", sampler, 0},
    {"smoothing_factor", sampler, 0},
    {"repeat_penalty", "it is called repetition_penalty here", 1},
    {"no_repeat_ngram_size", sampler, 0},
    {"logits_processors", "use logit_bias or allowed_token_ids", 0},
    {NULL, NULL, 0},
};

static const struct {
    const char *name;
    enum json_type type;
    const char *what;
} labels[] = {
    {"user", JSON_STRING, "a string"},
    {"request_id", JSON_STRING, "a string"},
    {"session_id", JSON_STRING, "a string"},
    {"service_tier", JSON_STRING, "a string"},
    {"reasoning_effort", JSON_STRING, "a string"},
    {"metadata", JSON_OBJECT, "an object"},
    {"vllm_xargs", JSON_OBJECT, "an object"},
    {"documents", JSON_ARRAY, "an array"},
    {"parallel_tool_calls", JSON_BOOL, "true or false"},
    {"store", JSON_BOOL, "true or false"},
    {"spaces_between_special_tokens", JSON_BOOL, "true or false"},
};

static bool says_nothing(const struct json *v, double off)
{
    switch (json_type(v)) {
    case JSON_NULL:
        return true;
    case JSON_BOOL:
        return !json_true(v);
    case JSON_NUMBER:
        return json_number(v) == off;
    case JSON_STRING:
        return !*json_text(v);
    case JSON_ARRAY:
    case JSON_OBJECT:
        return !json_first(v);
    }
    return false;
}

int openai_refuse(const struct offer_refusal *list, const struct json *body, struct fault *f)
{
    for (; list->name; list++) {
        const struct json *v = json_find(body, list->name);
        if (v && !says_nothing(v, list->off))
            return fault_set(f, 400, "unsupported_parameter", list->name, "'%s' is not supported: %s", list->name,
                             list->hint);
    }
    return 0;
}

int openai_refuse_unoffered(const struct json *body, struct fault *f)
{
    return openai_refuse(refused, body, f);
}

int openai_check_labels(const struct json *body, struct fault *f)
{
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        const struct json *v = json_find(body, labels[i].name);
        if (v && json_type(v) != JSON_NULL && json_type(v) != labels[i].type)
            return fault_set(f, 400, "invalid_type", labels[i].name, "'%s' must be %s, not %s", labels[i].name,
                             labels[i].what, json_type_name(v));
    }
    return 0;
}

bool openai_names_field(const char *name)
{
    for (size_t i = 0; refused[i].name; i++)
        if (strcmp(name, refused[i].name) == 0)
            return true;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++)
        if (strcmp(name, labels[i].name) == 0)
            return true;
    return false;
}

/* ---- tools */

static int check_choice(const struct json *choice, struct fault *f)
{
    const char *word = json_text(choice), *name = json_text(json_find(json_find(choice, "function"), "name"));
    if (json_type(choice) == JSON_NULL || (json_type(choice) == JSON_OBJECT && name))
        return 0;
    if (word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0 || strcmp(word, "required") == 0))
        return 0;
    return fault_set(f, 400, "invalid_value", "tool_choice",
                     "'tool_choice' must be \"none\", \"auto\", \"required\" or {\"type\": \"function\", \"function\": "
                     "{\"name\": ...}}");
}

int openai_check_tools(const struct json *body, struct fault *f)
{
    const struct json *tools = json_find(body, "tools");
    size_t i = 0;
    if (json_type(tools) != JSON_NULL && json_type(tools) != JSON_ARRAY)
        return fault_set(f, 400, "invalid_type", "tools", "'tools' must be an array, not %s", json_type_name(tools));
    int rc = check_choice(json_find(body, "tool_choice"), f);
    for (const struct json *t = json_first(tools); t && !rc; t = json_next(t), i++) {
        const char *type = json_text(json_find(t, "type")),
                   *name = json_text(json_find(json_find(t, "function"), "name"));
        if (!type || strcmp(type, "function") != 0 || !name || !*name)
            rc = fault_set(f, 400, "invalid_type", "tools",
                           "'tools'[%zu] must be {\"type\": \"function\", \"function\": {\"name\": ...}}", i);
    }
    return rc;
}

bool openai_wants_tools(const struct json *body)
{
    const char *choice = json_text(json_find(body, "tool_choice"));
    return json_first(json_find(body, "tools")) && !(choice && strcmp(choice, "none") == 0);
}
