#include "engine/serve/openai/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/shared.h"
#include "engine/base/utf8.h"
#include "engine/serve/openai/offer.h"

static int bad(struct fault *f, const char *param, const char *what, const struct json *got)
{
    return fault_set(f, 400, "invalid_type", param, "'%s' must be %s, not %s", param, what, json_type_name(got));
}

/* ---- plain fields, by table */

enum field_kind { FIELD_BOOL, FIELD_INT, FIELD_NUMBER };
enum { CHAT = 1 << ROUTE_CHAT, COMPLETIONS = 1 << ROUTE_COMPLETIONS, BOTH = CHAT | COMPLETIONS };

struct field {
    const char *name;
    enum field_kind kind;
    int routes;
    size_t at;
    double min, max;
    bool above_min; /* min itself is out */
};

#define AT(member) offsetof(struct openai_params, member)
static const struct field fields[] = {
    {"stream", FIELD_BOOL, BOTH, AT(stream), 0, 0, false},
    {"include_stop_str_in_output", FIELD_BOOL, BOTH, AT(include_stop), 0, 0, false},
    {"ignore_eos", FIELD_BOOL, BOTH, AT(ignore_eos), 0, 0, false},
    {"skip_special_tokens", FIELD_BOOL, BOTH, AT(skip_special), 0, 0, false},
    {"return_token_ids", FIELD_BOOL, BOTH, AT(return_token_ids), 0, 0, false},
    {"return_tokens_as_token_ids", FIELD_BOOL, BOTH, AT(tokens_as_ids), 0, 0, false},
    {"add_special_tokens", FIELD_BOOL, BOTH, AT(add_special), 0, 0, false},
    {"echo", FIELD_BOOL, BOTH, AT(echo), 0, 0, false},
    {"add_generation_prompt", FIELD_BOOL, CHAT, AT(add_generation_prompt), 0, 0, false},
    {"continue_final_message", FIELD_BOOL, CHAT, AT(continue_final), 0, 0, false},
    {"logprobs", FIELD_BOOL, CHAT, AT(logprobs), 0, 0, false},
    {"include_reasoning", FIELD_BOOL, CHAT, AT(show_thoughts), 0, 0, false},
    {"separate_reasoning", FIELD_BOOL, CHAT, AT(split_thoughts), 0, 0, false},
    {"n", FIELD_INT, BOTH, AT(n), 1, OPENAI_MAX_N, false},
    {"max_tokens", FIELD_INT, BOTH, AT(max_tokens), 0, INT32_MAX, false},
    {"max_completion_tokens", FIELD_INT, CHAT, AT(max_tokens), 0, INT32_MAX, false},
    {"min_tokens", FIELD_INT, BOTH, AT(min_tokens), 0, INT32_MAX, false},
    {"priority", FIELD_INT, BOTH, AT(priority), INT32_MIN, INT32_MAX, false},
    {"truncate_prompt_tokens", FIELD_INT, BOTH, AT(truncate), -1, INT32_MAX, false},
    {"top_logprobs", FIELD_INT, CHAT, AT(n_logprobs), 0, SAMPLING_MAX_LOGPROBS, false},
    {"logprobs", FIELD_INT, COMPLETIONS, AT(n_logprobs), 0, SAMPLING_MAX_LOGPROBS, false},
    {"prompt_logprobs", FIELD_INT, BOTH, AT(n_prompt_logprobs), 0, SAMPLING_MAX_LOGPROBS, false},
    {"top_k", FIELD_INT, BOTH, AT(top_k), -1, INT32_MAX, false},
    {"temperature", FIELD_NUMBER, BOTH, AT(temperature), 0, 100, false},
    {"top_p", FIELD_NUMBER, BOTH, AT(top_p), 0, 1, true},
    {"min_p", FIELD_NUMBER, BOTH, AT(min_p), 0, 1, false},
    {"repetition_penalty", FIELD_NUMBER, BOTH, AT(repetition_penalty), 0, 100, true},
    {"frequency_penalty", FIELD_NUMBER, BOTH, AT(frequency_penalty), -2, 2, false},
    {"presence_penalty", FIELD_NUMBER, BOTH, AT(presence_penalty), -2, 2, false},
};

static int out_of_range(const struct field *d, double v, struct fault *f)
{
    return fault_set(f, 400, "invalid_value", d->name, "'%s' must be %s%g and at most %.10g, not %.10g", d->name,
                     d->above_min ? "greater than " : "at least ", d->min, d->max, v);
}

static int read_field(struct openai_params *p, const struct field *d, const struct json *v, struct fault *f)
{
    char *at = (char *)p + d->at;
    if (d->kind == FIELD_BOOL) {
        if (json_type(v) != JSON_BOOL)
            return bad(f, d->name, "true or false", v);
        *(bool *)at = json_true(v);
        return 0;
    }
    if (json_type(v) != JSON_NUMBER)
        return bad(f, d->name, d->kind == FIELD_INT ? "an integer" : "a number", v);
    double x = json_number(v);
    int64_t i = 0;
    if (d->kind == FIELD_INT && x == floor(x) && !json_i64(v, &i))
        return out_of_range(d, x, f);
    if (d->kind == FIELD_INT && x != floor(x))
        return fault_set(f, 400, "invalid_type", d->name, "'%s' must be an integer, not %.10g", d->name, x);
    if (!(x >= d->min && x <= d->max) || (d->above_min && (float)x == (float)d->min)) /* the sampler works in floats */
        return out_of_range(d, x, f);
    if (d->kind == FIELD_INT)
        *(int *)at = (int)i;
    else
        *(double *)at = x;
    return 0;
}

/* Another row of the same name is this route's. */
static bool has_twin(const struct openai_params *p, const struct field *d)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, d->name) == 0 && fields[i].routes & 1 << p->route)
            return true;
    return false;
}

/* A switch of the other route that stands where it stands anyway asks for nothing. */
static bool is_default(const struct openai_params *p, const struct field *d, const struct json *v)
{
    return d->kind == FIELD_BOOL && json_type(v) == JSON_BOOL &&
           json_true(v) == *(const bool *)((const char *)p + d->at);
}

static int read_fields(struct openai_params *p, const struct json *body, struct fault *f)
{
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const struct json *v = json_find(body, fields[i].name);
        if (!v || json_type(v) == JSON_NULL)
            continue;
        if (fields[i].routes & 1 << p->route)
            TRY(read_field(p, &fields[i], v, f));
        else if (!has_twin(p, &fields[i]) && !is_default(p, &fields[i], v))
            return fault_set(f, 400, "unsupported_parameter", fields[i].name,
                             "'%s' is a field of %s, not of this route", fields[i].name,
                             p->route == ROUTE_CHAT ? "/v1/completions" : "/v1/chat/completions");
    }
    return 0;
}

/* best_of: only as n. */
static int check_best_of(const struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *v = json_find(body, "best_of");
    int64_t k;
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (!json_i64(v, &k) || k != p->n)
        return fault_set(f, 400, "unsupported_parameter", "best_of", "'best_of' is supported only when it equals 'n'");
    return 0;
}

/* ---- fields of their own kind */

static int add_stop(struct openai_params *p, const struct json *v, struct fault *f)
{
    const char *s = json_text(v);
    if (!s)
        return bad(f, "stop", "a string or an array of strings", v);
    size_t n = strlen(s);
    if (n == 0 || n > STOP_MAX_BYTES)
        return fault_set(f, 400, "invalid_value", "stop", "a stop string must have 1 to %d bytes, not %zu",
                         STOP_MAX_BYTES, n);
    if (p->stops.n == STOP_MAX)
        return fault_set(f, 400, "invalid_value", "stop", "at most %d stop strings are accepted", STOP_MAX);
    stops_add(&p->stops, s, n);
    return 0;
}

static int read_stop(struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *v = json_find(body, "stop");
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_ARRAY)
        return add_stop(p, v, f);
    for (const struct json *s = json_first(v); s; s = json_next(s))
        TRY(add_stop(p, s, f));
    return 0;
}

int openai_read_ids(const struct json *list, const char *name, int n_vocab, size_t max, struct tokens *out,
                    struct fault *f)
{
    if (json_type(list) != JSON_ARRAY)
        return bad(f, name, "an array of token ids", list);
    size_t count = json_count(list), i = 0;
    if (count > max)
        return fault_set(f, 400, "invalid_value", name, "'%s' has %zu token ids; at most %zu are accepted", name, count,
                         max);
    out->ids = mem_new_array(count ? count : 1, sizeof *out->ids);
    out->cap = count;
    for (const struct json *v = json_first(list); v; v = json_next(v), i++) {
        int64_t id;
        if (json_type(v) != JSON_NUMBER || !json_i64(v, &id) || id < 0 || id >= n_vocab)
            return fault_set(f, 400, "invalid_value", name, "'%s'[%zu] is not a token id from 0 to %d", name, i,
                             n_vocab - 1);
        out->ids[out->len++] = (int32_t)id;
    }
    return 0;
}

static int read_stop_ids(struct openai_params *p, const struct json *body, int n_vocab, struct fault *f)
{
    const struct json *v = json_find(body, "stop_token_ids");
    struct tokens ids = {0};
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    int rc = openai_read_ids(v, "stop_token_ids", n_vocab, OPENAI_MAX_STOP_IDS, &ids, f);
    for (; p->n_stop_ids < (int)ids.len && !rc; p->n_stop_ids++)
        p->stop_ids[p->n_stop_ids] = ids.ids[p->n_stop_ids];
    tokens_free(&ids);
    return rc;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int read_allowed(struct openai_params *p, const struct json *body, int n_vocab, struct fault *f)
{
    const struct json *v = json_find(body, "allowed_token_ids");
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    struct tokens ids = {0};
    int rc = openai_read_ids(v, "allowed_token_ids", n_vocab, (size_t)n_vocab, &ids, f);
    if (!rc && !ids.len)
        rc = fault_set(f, 400, "invalid_value", "allowed_token_ids",
                       "'allowed_token_ids' is empty: no token could follow");
    if (!rc) {
        qsort(ids.ids, ids.len, sizeof *ids.ids, by_id);
        p->allowed = shared_new(ids.len, sizeof *p->allowed);
        for (size_t i = 0; i < ids.len; i++)
            if (!i || ids.ids[i] != ids.ids[i - 1])
                p->allowed[p->n_allowed++] = ids.ids[i];
    }
    tokens_free(&ids);
    return rc;
}

static int by_token(const void *a, const void *b)
{
    return by_id(&((const struct logit_bias *)a)->token, &((const struct logit_bias *)b)->token);
}

/* "50256" -> 50256; -1: not a token id. */
static int64_t id_of_key(const char *key)
{
    size_t n = strlen(key);
    if (n == 0 || n > 10 || strspn(key, "0123456789") != n)
        return -1;
    return strtoll(key, NULL, 10);
}

static int read_bias(struct openai_params *p, const struct json *body, int n_vocab, struct fault *f)
{
    const struct json *map = json_find(body, "logit_bias");
    if (!map || json_type(map) == JSON_NULL)
        return 0;
    if (json_type(map) != JSON_OBJECT)
        return bad(f, "logit_bias", "an object from token ids to numbers", map);
    size_t n = json_count(map);
    if (n > SAMPLING_MAX_BIAS)
        return fault_set(f, 400, "invalid_value", "logit_bias", "'logit_bias' has %zu entries; at most %d are accepted",
                         n, SAMPLING_MAX_BIAS);
    p->bias = shared_new(n ? n : 1, sizeof *p->bias);
    for (const struct json *v = json_first(map); v; v = json_next(v)) {
        int64_t id = id_of_key(json_key(v));
        if (id < 0 || id >= n_vocab)
            return fault_set(f, 400, "invalid_value", "logit_bias",
                             "'logit_bias' key \"%.40s\" is not a token id from 0 to %d", json_key(v), n_vocab - 1);
        double bias = json_number(v);
        if (json_type(v) != JSON_NUMBER || !(bias >= -100 && bias <= 100))
            return fault_set(f, 400, "invalid_value", "logit_bias",
                             "'logit_bias' values must be numbers from -100 to 100");
        p->bias[p->n_bias++] = (struct logit_bias){(int32_t)id, (float)bias};
    }
    qsort(p->bias, (size_t)p->n_bias, sizeof *p->bias, by_token);
    for (int i = 1; i < p->n_bias; i++)
        if (p->bias[i].token == p->bias[i - 1].token)
            return fault_set(f, 400, "invalid_value", "logit_bias", "'logit_bias' names token %d twice",
                             p->bias[i].token);
    return 0;
}

static int read_seed(struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *v = json_find(body, "seed");
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_NUMBER || !json_i64(v, &p->seed))
        return fault_set(f, 400, "invalid_value", "seed", "'seed' must be an integer of 64 bits");
    p->has_seed = true;
    return 0;
}

static int read_salt(struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *v = json_find(body, "cache_salt");
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    const char *s = json_text(v);
    if (!s || !*s || strlen(s) > OPENAI_MAX_SALT)
        return fault_set(f, 400, "invalid_value", "cache_salt", "'cache_salt' must be a string of 1 to %d bytes",
                         OPENAI_MAX_SALT);
    memcpy(p->salt, s, strlen(s) + 1);
    return 0;
}

static int read_stream_options(struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *o = json_find(body, "stream_options");
    if (!o || json_type(o) == JSON_NULL)
        return 0;
    if (json_type(o) != JSON_OBJECT)
        return bad(f, "stream_options", "an object", o);
    if (!p->stream)
        return fault_set(f, 400, "invalid_value", "stream_options", "'stream_options' goes with \"stream\": true only");
    static const char *const names[] = {"include_usage", "continuous_usage_stats"};
    for (int i = 0; i < 2; i++) {
        const struct json *v = json_find(o, names[i]);
        if (v && json_type(v) != JSON_NULL && json_type(v) != JSON_BOOL)
            return bad(f, "stream_options", "an object of booleans", o);
    }
    p->include_usage = json_true(json_find(o, "include_usage"));
    p->continuous_usage = p->include_usage && json_true(json_find(o, "continuous_usage_stats"));
    return 0;
}

/* ---- early_stop */

static int early_number(const struct json *v, const char *name, int least, int most, int *out, struct fault *f)
{
    int64_t x;
    if (!v || json_type(v) == JSON_NULL)
        return 0;
    if (json_type(v) != JSON_NUMBER || !json_i64(v, &x))
        return fault_set(f, 400, "invalid_type", "early_stop", "'early_stop.%s' must be an integer", name);
    if (x < least || x > most)
        return fault_set(f, 400, "invalid_value", "early_stop", "'early_stop.%s' must be from %d to %d, not %lld", name,
                         least, most, (long long)x);
    *out = (int)x;
    return 0;
}

/* {"interval": tokens between probes, "window": answers that have to agree} */
static int read_early_stop(struct openai_params *p, const struct json *body, struct fault *f)
{
    const struct json *o = json_find(body, "early_stop");
    if (!o || json_type(o) == JSON_NULL)
        return 0;
    if (json_type(o) != JSON_OBJECT)
        return bad(f, "early_stop", "an object like {\"interval\": 256, \"window\": 3}", o);
    for (const struct json *v = json_first(o); v; v = json_next(v))
        if (strcmp(json_key(v), "interval") != 0 && strcmp(json_key(v), "window") != 0)
            return fault_set(f, 400, "unsupported_parameter", "early_stop",
                             "'early_stop' has \"interval\" and \"window\", and no \"%.40s\"", json_key(v));
    p->probe_window = OPENAI_WINDOW;
    TRY(early_number(json_find(o, "interval"), "interval", OPENAI_LEAST_INTERVAL, OPENAI_MOST_INTERVAL, &p->probe_every,
                     f));
    TRY(early_number(json_find(o, "window"), "window", 2, PROBE_WINDOW, &p->probe_window, f));
    if (!p->probe_every)
        return fault_set(f, 400, "invalid_value", "early_stop",
                         "'early_stop' needs an \"interval\": the tokens between two probes");
    if (p->route != ROUTE_CHAT)
        return fault_set(f, 400, "unsupported_parameter", "early_stop",
                         "'early_stop' is a field of /v1/chat/completions, not of this route");
    return 0;
}

/* ---- all together */

static int check_together(struct openai_params *p, const struct json *body, struct fault *f)
{
    bool chat = p->route == ROUTE_CHAT;
    if (p->top_k == -1)
        p->top_k = 0;
    if (chat && p->n_logprobs >= 0 && !p->logprobs)
        return fault_set(f, 400, "invalid_value", "top_logprobs", "'top_logprobs' goes with \"logprobs\": true only");
    if (chat && p->logprobs && p->n_logprobs < 0)
        p->n_logprobs = 0;
    if (!chat)
        p->logprobs = p->n_logprobs >= 0;
    if (chat && p->echo)
        return fault_set(f, 400, "unsupported_parameter", "echo", "'echo' is offered on /v1/completions only");
    if (p->max_tokens == 0 && !(p->echo || p->n_prompt_logprobs >= 0))
        return fault_set(f, 400, "invalid_value", "max_tokens",
                         "'max_tokens' must be at least 1 (0 goes with 'echo' only)");
    if (p->max_tokens >= 0 && p->min_tokens > p->max_tokens)
        return fault_set(f, 400, "invalid_value", "min_tokens",
                         "'min_tokens' is %d, which is more than 'max_tokens', %d", p->min_tokens, p->max_tokens);
    if (p->continue_final && p->add_generation_prompt)
        return fault_set(f, 400, "invalid_value", "continue_final_message",
                         "'continue_final_message' needs \"add_generation_prompt\": false");
    if (p->stream && p->n_prompt_logprobs >= 0)
        return fault_set(f, 400, "invalid_value", "prompt_logprobs",
                         "'prompt_logprobs' is not available with \"stream\": true");
    if (json_find(body, "truncate_prompt_tokens") && p->truncate == 0 &&
        json_type(json_find(body, "truncate_prompt_tokens")) == JSON_NUMBER)
        return fault_set(f, 400, "invalid_value", "truncate_prompt_tokens",
                         "'truncate_prompt_tokens' must be -1 or at least 1");
    if (p->probe_every && p->logprobs)
        return fault_set(f, 400, "invalid_value", "early_stop",
                         "'early_stop' does not go with 'logprobs': the words that close the thinking have none");
    p->show_prompt_logprobs = p->n_prompt_logprobs >= 0;
    if (p->echo && p->logprobs)
        p->n_prompt_logprobs = p->n_prompt_logprobs > p->n_logprobs ? p->n_prompt_logprobs : p->n_logprobs;
    return 0;
}

static bool known(const char *name)
{
    static const char *const others[] = {
        "model",
        "prompt",
        "messages",
        "stop",
        "stop_token_ids",
        "allowed_token_ids",
        "logit_bias",
        "seed",
        "cache_salt",
        "stream_options",
        "response_format",
        "tools",
        "tool_choice",
        "best_of",
        "early_stop",
        "chat_template_kwargs",
        "structured_outputs",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "json_schema",
        "regex",
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcmp(name, fields[i].name) == 0)
            return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0)
            return true;
    return openai_names_field(name);
}

static void note_unknown(const struct json *body)
{
    for (const struct json *v = json_first(body); v; v = json_next(v))
        if (!known(json_key(v)))
            log_debug("openai", "a request has the field '%.60s', which means nothing here", json_key(v));
}

static void read_tools(struct openai_params *p, const struct json *body)
{
    const struct json *parallel = json_find(body, "parallel_tool_calls"), *t = json_first(json_find(body, "tools"));
    p->one_call = json_type(parallel) == JSON_BOOL && !json_true(parallel);
    if (p->route != ROUTE_CHAT || !openai_wants_tools(body))
        return;
    for (; t; t = json_next(t))
        tool_names_add(&p->tools, json_member_text(json_find(t, "function"), "name"));
    tool_names_ready(&p->tools);
}

int openai_params_read(struct openai_params *p, enum openai_route route, const struct json *body, int n_vocab,
                       struct fault *f)
{
    *p = (struct openai_params){.route = route,
                                .skip_special = true,
                                .add_special = route == ROUTE_COMPLETIONS,
                                .add_generation_prompt = true,
                                .show_thoughts = true,
                                .split_thoughts = true,
                                .n = 1,
                                .max_tokens = route == ROUTE_COMPLETIONS ? 16 : -1,
                                .n_logprobs = -1,
                                .n_prompt_logprobs = -1,
                                .temperature = 1,
                                .top_p = 1,
                                .repetition_penalty = 1};
    if (json_type(body) != JSON_OBJECT)
        return fault_set(f, 400, "invalid_type", NULL, "the body must be a JSON object, not %s", json_type_name(body));
    note_unknown(body);
    TRY(openai_refuse_unoffered(body, f));
    TRY(openai_check_labels(body, f));
    TRY(read_fields(p, body, f));
    TRY(openai_check_tools(body, f));
    read_tools(p, body);
    TRY(check_best_of(p, body, f));
    TRY(read_stop(p, body, f));
    TRY(read_stop_ids(p, body, n_vocab, f));
    TRY(read_allowed(p, body, n_vocab, f));
    TRY(read_bias(p, body, n_vocab, f));
    TRY(read_seed(p, body, f));
    TRY(read_salt(p, body, f));
    TRY(read_stream_options(p, body, f));
    TRY(read_early_stop(p, body, f));
    return check_together(p, body, f);
}

void openai_params_free(struct openai_params *p)
{
    tool_names_free(&p->tools);
    stops_free(&p->stops);
    shared_drop(p->bias);
    shared_drop(p->allowed);
    shared_drop(p->grammar);
    p->bias = NULL;
    p->grammar = NULL;
    p->allowed = NULL;
}
