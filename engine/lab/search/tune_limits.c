#include "engine/lab/search/tune_limits.h"

#include <math.h>
#include <stddef.h>

/* most is factor times the field at this offset. */
static const struct row {
    const char *why;
    size_t at;
    double factor;
    bool hard;
} rows[N_UNITS] = {
    [UNIT_MS] = {"the run's time", offsetof(struct tune_limits, seconds), 1000, false},
    [UNIT_S] = {"the run's time", offsetof(struct tune_limits, seconds), 1, false},
    [UNIT_TOKENS] = {"all tokens of the trace", offsetof(struct tune_limits, tokens), 1, false},
    [UNIT_TOKENS_REQUEST] = {"--max-model-len", offsetof(struct tune_limits, request_tokens), 1, true},
    [UNIT_TOKENS_STEP] = {"--max-num-batched-tokens", offsetof(struct tune_limits, step_tokens), 1, true},
    [UNIT_REQUESTS] = {"the trace's requests", offsetof(struct tune_limits, requests), 1, false},
    [UNIT_REQUESTS_STEP] = {"--max-num-seqs", offsetof(struct tune_limits, step_requests), 1, true},
    [UNIT_BLOCKS] = {"the KV blocks of all ranks", offsetof(struct tune_limits, blocks), 1, false},
    [UNIT_RANKS] = {"the ranks there are", offsetof(struct tune_limits, ranks), 1, true},
    [UNIT_GROUPS] = {"the ranks there are", offsetof(struct tune_limits, ranks), 1, true},
    [UNIT_STAGES] = {"the ranks there are", offsetof(struct tune_limits, ranks), 1, true},
};

void tune_limits_read(struct tune_limits *l, const struct json *result, double trace_requests, double trace_tokens)
{
    const struct json *limits = json_find(result, "limits");
    *l = (struct tune_limits){.step_tokens = json_member_number(limits, "max_num_batched_tokens"),
                              .step_requests = json_member_number(limits, "max_num_seqs"),
                              .request_tokens = json_member_number(limits, "max_model_len"),
                              .ranks = json_member_number(result, "ranks"),
                              .requests = trace_requests,
                              .tokens = trace_tokens,
                              .seconds = json_member_number(json_first(json_find(result, "runs")), "seconds")};
    l->blocks = l->ranks * json_member_number(result, "kv_blocks");
}

bool tune_unit_is_limited(enum unit u)
{
    return rows[u].why != NULL;
}

bool tune_limit_of(const struct tune_limits *l, enum unit u, struct tune_limit *out)
{
    const struct row *r = &rows[u];
    double v = r->why ? *(const double *)((const char *)l + r->at) * r->factor : 0;
    *out = (struct tune_limit){.most = v, .hard = r->hard, .why = r->why};
    return v > 0 && isfinite(v);
}
