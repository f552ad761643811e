/* What a probation compares with what was predicted: the spans before the swap, summed up at the swap, and the last
 * window of those since, from when no burst from before is left. */
#include "engine/probation.h"

static struct span_sums sums_of(const struct guard_span *s)
{
    return (struct span_sums){.ttft_s = s->ttft_s,
                              .tpot_s = s->tpot_s,
                              .tokens = (double)(s->prompt_tokens + s->output_tokens),
                              .n_ttft = s->n_first_tokens,
                              .n_tpot = s->n_tpot};
}

static int sum_spans(const struct guards *g, int64_t from, int64_t to, struct span_sums out[GUARD_WINDOW])
{
    int n = 0;
    for (int64_t i = from; i < to; i++)
        out[n++] = sums_of(guards_span(g, i));
    return n;
}

static int64_t last_window(const struct guards *g, int64_t from)
{
    int64_t first = g->open - GUARD_WINDOW;
    return first > from ? first : from;
}

void probation_sum_spans(struct probation *p)
{
    p->n_before = sum_spans(p->guards, last_window(p->guards, 0), p->guards->open, p->sums_before);
}

void probation_look_back(struct probation *p)
{
    const struct guards *g = p->guards;
    struct span_sums since[GUARD_WINDOW];
    int64_t settled = p->settled_ns ? guards_span_of(g, p->settled_ns) : g->open;
    int64_t from = last_window(g, settled > p->first_span ? settled : p->first_span);
    struct what_came came = {.before = p->sums_before,
                             .n_before = p->n_before,
                             .since = since,
                             .n_since = sum_spans(g, from, g->open, since),
                             .load = p->load};
    prediction_compare(&p->predicted, &came, &p->seen);
    p->n_failed = p->n_decided = 0;
    for (int64_t i = last_window(g, p->first_span); i < g->open; i++) {
        p->n_failed += guards_span(g, i)->n_failed_calls;
        p->n_decided += guards_span(g, i)->n_steps;
    }
}
