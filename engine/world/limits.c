#include "engine/world/limits.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/world/ids.h"

/* What flags allow, too, so that a restart can have what a server was set to. */
enum { MOST_SEQS = 4096, MOST_STEP_TOKENS = 1 << 20 };
#define MOST_QUEUED_TOKENS INT64_C(1000000000000)
#define SECOND INT64_C(1000000000)
#define DAY (86400 * SECOND)

static const struct {
    const char *name, *flag;
    int64_t least, most;
    bool is_time;
} kinds[LIMIT_COUNT] = {
    [LIMIT_SEQS] = {"max_num_seqs", "--max-num-seqs", 1, MOST_SEQS, false},
    [LIMIT_STEP_TOKENS] = {"max_num_batched_tokens", "--max-num-batched-tokens", 1, MOST_STEP_TOKENS, false},
    [LIMIT_QUEUED_REQS] = {"max_num_queued_reqs", "--max-num-queued-reqs", 0, MAX_REQUESTS, false},
    [LIMIT_QUEUED_TOKENS] = {"max_num_queued_tokens", "--max-num-queued-tokens", 0, MOST_QUEUED_TOKENS, false},
    [LIMIT_PARK] = {"max_park_seconds", "--max-park-seconds", SECOND / 1000, DAY, true},
    [LIMIT_STARVATION] = {"starvation_seconds", "--starvation-seconds", 0, DAY, true},
};

const char *limit_name(enum limit which)
{
    return kinds[which].name;
}

int64_t limit_of(const struct limits *l, enum limit which)
{
    const int64_t values[LIMIT_COUNT] = {[LIMIT_SEQS] = l->max_num_seqs,
                                         [LIMIT_STEP_TOKENS] = l->max_num_batched_tokens,
                                         [LIMIT_QUEUED_REQS] = l->max_num_queued_reqs,
                                         [LIMIT_QUEUED_TOKENS] = l->max_num_queued_tokens,
                                         [LIMIT_PARK] = l->park_ns,
                                         [LIMIT_STARVATION] = l->starvation_ns};
    return values[which];
}

static void set(struct limits *l, enum limit which, int64_t v)
{
    switch (which) {
    case LIMIT_SEQS:
        l->max_num_seqs = (int)v;
        return;
    case LIMIT_STEP_TOKENS:
        l->max_num_batched_tokens = (int)v;
        return;
    case LIMIT_QUEUED_REQS:
        l->max_num_queued_reqs = (int)v;
        return;
    case LIMIT_QUEUED_TOKENS:
        l->max_num_queued_tokens = v;
        return;
    case LIMIT_PARK:
        l->park_ns = v;
        return;
    case LIMIT_STARVATION:
        l->starvation_ns = v;
        return;
    case LIMIT_COUNT:
        return;
    }
}

/* Working memory, captured graphs and a draft model are made for steps of the start's size: that one is a ceiling. The
 * number of sequences has none but the program's, and what the node was opened with is always allowed. */
void limit_range(const struct limits *built, enum limit which, int64_t *least, int64_t *most)
{
    int64_t of_start = limit_of(built, which);
    *least = kinds[which].least < of_start ? kinds[which].least : of_start;
    *most = kinds[which].most > of_start ? kinds[which].most : of_start;
    if (which == LIMIT_STEP_TOKENS)
        *most = of_start;
}

/* ---- in */

static void put_value(struct buf *out, enum limit which, int64_t v)
{
    if (kinds[which].is_time)
        buf_printf(out, "%.9g", (double)v / 1e9);
    else
        buf_printf(out, "%" PRId64, v);
}

static int out_of_range(enum limit which, int64_t least, int64_t most, struct err *e)
{
    struct buf range = {0};
    put_value(&range, which, least);
    buf_puts(&range, " to ");
    put_value(&range, which, most);
    err_set(e, E_INPUT, "%s: %s from %s", kinds[which].name, kinds[which].is_time ? "seconds" : "a whole number",
            range.data);
    buf_free(&range);
    return E_INPUT;
}

static int read_one(struct limits_order *out, const struct json *j, struct err *e)
{
    int which = 0;
    int64_t v = 0;
    while (which < LIMIT_COUNT && strcmp(json_key(j), kinds[which].name) != 0)
        which++;
    if (which == LIMIT_COUNT)
        return err_set(e, E_INPUT,
                       "there is no limit '%.40s' that changes while the server runs: max_num_seqs, "
                       "max_num_batched_tokens, max_num_queued_reqs, max_num_queued_tokens, max_park_seconds and "
                       "starvation_seconds do",
                       json_key(j));
    bool good = json_type(j) == JSON_NUMBER;
    if (kinds[which].is_time) {
        double s = json_number(j);
        good = good && isfinite(s) && s >= 0 && s <= (double)DAY / 1e9; /* before it becomes a whole number */
        v = good ? llround(s * 1e9) : 0;
    } else {
        good = good && json_i64(j, &v);
    }
    if (!good || v < kinds[which].least || v > kinds[which].most)
        return out_of_range((enum limit)which, kinds[which].least, kinds[which].most, e);
    out->given[which] = true;
    out->values[which] = v;
    return 0;
}

int limits_read(struct limits_order *out, const char *json, size_t n, struct err *e)
{
    struct json *root = json_parse(json, n, &(struct json_limits){.bytes = 4096, .depth = 2, .nodes = 64}, e);
    int rc = root ? 0 : E_INPUT;
    *out = (struct limits_order){0};
    if (root && (json_type(root) != JSON_OBJECT || !json_count(root)))
        rc = err_set(e, E_INPUT, "the body must be an object of limits, like {\"max_num_seqs\": 64}");
    for (const struct json *j = rc ? NULL : json_first(root); j && !rc; j = json_next(j))
        rc = read_one(out, j, e);
    json_free(root);
    return rc;
}

int limits_obey(struct limits *l, const struct limits *built, const struct limits_order *o, struct err *e)
{
    struct limits next = *l;
    for (int i = 0; i < LIMIT_COUNT; i++) {
        int64_t least, most, v = o->values[i];
        if (!o->given[i])
            continue;
        limit_range(built, (enum limit)i, &least, &most);
        if (i == LIMIT_STEP_TOKENS && v > most && v <= MOST_STEP_TOKENS)
            return err_set(e, E_INPUT,
                           "max_num_batched_tokens %" PRId64 ": this server was built for steps of %" PRId64
                           " tokens; restart it with %s %" PRId64 " for that",
                           v, most, kinds[i].flag, v);
        if (v < least || v > most)
            return out_of_range((enum limit)i, least, most, e);
        set(&next, (enum limit)i, v);
    }
    *l = next;
    return 0;
}

/* ---- out */

void limits_put(const struct limits *l, struct buf *json)
{
    for (int i = 0; i < LIMIT_COUNT; i++) {
        buf_printf(json, "%s\"%s\":", i ? "," : "{", kinds[i].name);
        put_value(json, (enum limit)i, limit_of(l, (enum limit)i));
    }
    buf_putc(json, '}');
}

void limits_put_ranges(const struct limits *built, struct buf *json)
{
    for (int i = 0; i < LIMIT_COUNT; i++) {
        int64_t least, most;
        limit_range(built, (enum limit)i, &least, &most);
        buf_printf(json, "%s\"%s\":{\"least\":", i ? "," : "{", kinds[i].name);
        put_value(json, (enum limit)i, least);
        buf_puts(json, ",\"most\":");
        put_value(json, (enum limit)i, most);
        buf_putc(json, '}');
    }
    buf_putc(json, '}');
}

void limits_put_change(const struct limits *from, const struct limits *to, struct buf *words)
{
    const char *comma = "";
    for (int i = 0; i < LIMIT_COUNT; i++) {
        int64_t a = limit_of(from, (enum limit)i), b = limit_of(to, (enum limit)i);
        if (a == b)
            continue;
        buf_printf(words, "%s%s ", comma, kinds[i].name);
        put_value(words, (enum limit)i, a);
        buf_puts(words, " -> ");
        put_value(words, (enum limit)i, b);
        comma = ", ";
    }
}
