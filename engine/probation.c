#include "engine/base/json.h"
#include "engine/probation.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *probation_outcome_name(enum probation_outcome o)
{
    static const char *const names[] = {"committed", "rolled_back", "withdrawn", "recalled", "replaced"};
    return names[o];
}

static double failed_share(const struct probation *p)
{
    return p->n_decided ? (double)p->n_failed / (double)p->n_decided : 0;
}

void probation_end(struct probation *p, enum probation_outcome how, const struct policy *policy, const char *reason,
                   int64_t now_ns)
{
    if (!p->on)
        return;
    p->on = false;
    p->n_ended[how]++;
    p->last = (struct probation_end){
        .ever = true, .outcome = how, .generation = policy->generation, .ns = now_ns, .took_ns = now_ns - p->since_ns};
    snprintf(p->last.name, sizeof p->last.name, "%s", policy->name);
    snprintf(p->last.sha256, sizeof p->last.sha256, "%s", policy->sha256);
    snprintf(p->last.reason, sizeof p->last.reason, "%s", reason);
    p->last.predicted = p->predicted;
    p->last.seen = p->seen;
    p->last.failed = failed_share(p);
    if (p->predicted.is_made)
        p->n_came_out[p->seen.how]++;
}

/* Requests that come while a burst from before the swap is in the queue wait for its sake. After a window whatever
 * waits is the new policy's own. */
static void settle(struct probation *p, int64_t now_ns)
{
    bool usual = guards_span(p->guards, p->guards->open - 1)->n_waiting <= 2 * p->usual_waiting + 1;
    if (!p->settled_ns && (usual || now_ns - p->since_ns >= p->window_ns))
        p->settled_ns = now_ns;
}

static void forget_seen(struct probation *p)
{
    p->seen = (struct prediction_seen){0};
    p->n_failed = p->n_decided = 0;
}

void probation_begin(struct probation *p, const struct world *w, const struct prediction *predicted, int64_t now_ns)
{
    struct guards *g = p->guards;
    if (!g)
        return;
    p->on = true;
    p->since_ns = now_ns;
    p->window_ns = g->span_ns * GUARD_WINDOW;
    p->first_span = p->judged = g->open + 1; /* the open one belongs to both */
    p->settled_ns = 0;
    p->n_first_tokens = 0;
    p->steps_before = w->metrics->counters[C_STEPS];
    p->dead_ranks = w->partition.dead_ranks;
    p->limits_set = w->n_limits_set;
    memset(p->oldest_ns, 0, sizeof p->oldest_ns);
    memset(p->n_overtook, 0, sizeof p->n_overtook);
    memset(p->reports, 0, sizeof p->reports);
    p->predicted = predicted ? *predicted : (struct prediction){0};
    forget_seen(p);
    p->look_again = 0;
    p->summed = false;
    probation_sum_flows(p);
    probation_sum_spans(p);
    if (g->open)
        settle(p, now_ns);
}

void probation_tend(struct probation *p)
{
    if (p->on && !p->summed)
        probation_sum_up(p);
    p->summed = true;
}

int64_t probation_next_ns(const struct probation *p)
{
    return p->on ? p->guards->start_ns + (p->judged + 1) * p->guards->span_ns : INT64_MAX;
}

static bool has_traffic(const struct probation *p, const struct world *w)
{
    return p->n_first_tokens >= PROBATION_LEAST_REQUESTS &&
           w->metrics->counters[C_STEPS] - p->steps_before >= PROBATION_LEAST_STEPS;
}

static const struct guard_report *first_in(const struct probation *p, enum guard_state state)
{
    for (int i = 0; i < GUARD_COUNT; i++)
        if (p->reports[i].state == state)
            return &p->reports[i];
    return NULL;
}

/* It is kept: what that rests on. */
static void say_why_kept(const struct probation *p, const struct world *w, int64_t now_ns, char *out, size_t cap)
{
    char words[PREDICTION_WORDS];
    double s = (double)(now_ns - p->since_ns) * 1e-9;
    const struct guard_report *waits = first_in(p, GUARD_WAITS);
    if (!has_traffic(p, w))
        snprintf(out, cap, "kept after %.3g s: not enough traffic to judge (%" PRIu64 " requests)", s,
                 p->n_first_tokens);
    else if (waits)
        snprintf(out, cap, "kept after %.3g s, undecided: %.300s", s, waits->words);
    else if (p->reports[GUARD_FIRST_TOKENS].state == GUARD_UNKNOWN)
        snprintf(out, cap,
                 "kept after %.3g s: %" PRIu64 " requests, and not enough before the swap to compare their times with",
                 s, p->n_first_tokens);
    else
        snprintf(out, cap, "kept after %.3g s: %" PRIu64 " requests, and no guard has tripped", s, p->n_first_tokens);
    prediction_words(&p->predicted, &p->seen, words);
    size_t n = strlen(out);
    if (*words)
        snprintf(out + n, cap - n, "; %s", words);
}

/* What was before is no measure any more. */
static enum probation_outcome keep_undecided(struct probation *p, const char *since, int64_t now_ns, char *reason)
{
    snprintf(reason, PROBATION_REASON_BYTES, "kept after %.3g s, undecided: %s since, so what was before is no measure",
             (double)(now_ns - p->since_ns) * 1e-9, since);
    forget_seen(p);
    return PROBATION_COMMITTED;
}

/* It would be kept: does its order have it go back, as it misses what was predicted? While the load may be why, that
 * is looked at once more a window later. */
static enum probation_outcome hold_to_prediction(struct probation *p, bool may_wait, char *reason)
{
    char words[PREDICTION_WORDS];
    if (p->seen.how == CAME_UNDECIDED && may_wait)
        p->look_again = p->judged + GUARD_WINDOW;
    if (p->seen.how == CAME_UNDECIDED && may_wait)
        return PROBATION_GOES_ON;
    if (p->seen.how != CAME_WORSE)
        return PROBATION_COMMITTED;
    prediction_words(&p->predicted, &p->seen, words);
    snprintf(reason, PROBATION_REASON_BYTES, "held to its prediction, it is %s", words);
    return PROBATION_ROLLED_BACK;
}

enum probation_outcome probation_judge(struct probation *p, const struct world *w, int64_t now_ns, bool *judged,
                                       char reason[PROBATION_REASON_BYTES])
{
    *judged = p->on && p->guards->open > p->judged;
    if (!*judged)
        return PROBATION_GOES_ON;
    probation_tend(p);
    p->judged = p->guards->open;
    if (w->partition.dead_ranks != p->dead_ranks) /* less is served now, whoever decides */
        return keep_undecided(p, "a rank has failed", now_ns, reason);
    if (w->n_limits_set != p->limits_set)
        return keep_undecided(p, "an operator has changed the limits", now_ns, reason);
    settle(p, now_ns);
    enum guard tripped = probation_look(p, w, now_ns);
    probation_look_back(p);
    bool enough = has_traffic(p, w);
    if (tripped != GUARD_COUNT) {
        snprintf(reason, PROBATION_REASON_BYTES, "%.390s", p->reports[tripped].words);
        return PROBATION_ROLLED_BACK;
    }
    int64_t spans = p->judged - p->first_span, most = (int64_t)GUARD_WINDOW * PROBATION_MOST_WINDOWS;
    bool undecided = !enough || first_in(p, GUARD_WAITS) || !p->settled_ns || now_ns - p->settled_ns < p->window_ns;
    if (spans < GUARD_WINDOW || ((undecided || p->judged < p->look_again) && spans < most))
        return PROBATION_GOES_ON;
    say_why_kept(p, w, now_ns, reason, PROBATION_REASON_BYTES);
    return p->predicted.is_strict ? hold_to_prediction(p, spans < most, reason) : PROBATION_COMMITTED;
}

/* ---- what is shown */

static void put_last(const struct probation_end *l, int64_t now_ns, struct buf *json)
{
    if (!l->ever) {
        buf_puts(json, ",\"last_probation\":null");
        return;
    }
    buf_printf(json, ",\"last_probation\":{\"outcome\":\"%s\"", probation_outcome_name(l->outcome));
    json_put_member(json, "name", l->name);
    json_put_member(json, "sha256", l->sha256);
    json_put_member(json, "reason", l->reason);
    buf_printf(json, ",\"generation\":%" PRIu64 ",\"ago_s\":%.3f,\"took_s\":%.3f,\"prediction\":", l->generation,
               (double)(now_ns - l->ns) * 1e-9, (double)l->took_ns * 1e-9);
    prediction_put(&l->predicted, &l->seen, l->failed, json);
    buf_putc(json, '}');
}

void probation_state(const struct probation *p, int64_t now_ns, struct buf *json)
{
    static const char *const states[] = {"calm", "unknown", "waits", "tripped"};
    buf_printf(json, ",\"probation\":{\"state\":\"%s\"", p->on ? "on" : p->guards ? "off" : "disabled");
    if (p->on) {
        int64_t spans = p->judged - p->first_span;
        buf_printf(json, ",\"since_s\":%.3f,\"window_s\":%.3f,\"requests\":%" PRIu64 ",\"guards\":[",
                   (double)(now_ns - p->since_ns) * 1e-9, (double)p->window_ns * 1e-9, p->n_first_tokens);
        for (int i = 0; i < GUARD_COUNT; i++) {
            const struct guard_report *r = &p->reports[i];
            buf_printf(json, "%s{\"name\":\"%s\",\"state\":\"%s\",\"sees\":", i ? "," : "", guard_name((enum guard)i),
                       states[spans > 0 ? r->state : GUARD_UNKNOWN]);
            buf_put_json(json, r->words, strlen(r->words));
            buf_putc(json, '}');
        }
        buf_puts(json, "],\"prediction\":");
        prediction_put(&p->predicted, &p->seen, failed_share(p), json);
    }
    buf_putc(json, '}');
    put_last(&p->last, now_ns, json);
}

void probation_metrics(const struct probation *p, struct buf *out)
{
    buf_puts(out, "# HELP policy_probations_total Probations of policies after a swap, by how they ended.\n"
                  "# TYPE policy_probations_total counter\n");
    for (int i = 0; i < PROBATION_OUTCOMES; i++)
        buf_printf(out, "policy_probations_total{result=\"%s\"} %" PRIu64 "\n",
                   probation_outcome_name((enum probation_outcome)i), p->n_ended[i]);
    buf_puts(out, "# HELP policy_predictions_total Probations of policies of which a simulation had predicted what the "
                  "swap would bring, by how that came out.\n# TYPE policy_predictions_total counter\n");
    for (int i = 0; i < CAME_COUNT; i++)
        buf_printf(out, "policy_predictions_total{result=\"%s\"} %" PRIu64 "\n", came_out_name((enum came_out)i),
                   p->n_came_out[i]);
    buf_printf(out,
               "# HELP policy_probation 1 while the live policy is on probation.\n# TYPE policy_probation gauge\n"
               "policy_probation %d\n",
               p->on);
}
