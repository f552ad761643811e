#include "engine/lab/tally.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"

static const int64_t PEAK_NS = INT64_C(10000000000);

static void insertion_sort(int64_t *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int64_t x = v[i];
        size_t k = i;
        for (; k && v[k - 1] > x; k--)
            v[k] = v[k - 1];
        v[k] = x;
    }
}

/* Values >= 0 by their bits from this one down. In place: libc's qsort takes as much memory again, for millions. */
static void sort_bits(int64_t *v, size_t n, int bit)
{
    enum { FEW = 16 };
    for (; n > FEW && bit >= 0; bit--) {
        size_t lo = 0, hi = n;
        while (lo < hi) {
            int64_t x = v[lo];
            if (!(x >> bit & 1)) {
                lo++;
                continue;
            }
            v[lo] = v[--hi];
            v[hi] = x;
        }
        sort_bits(v, lo, bit - 1);
        v += lo;
        n -= lo;
    }
    if (n <= FEW)
        insertion_sort(v, n);
}

const char *tally_name(enum tally_latency l)
{
    static const char *const names[] = {"ttft", "tpot", "queue", "completion"};
    return names[l];
}

static bool is_finished(const struct replay_request *x)
{
    return (x->ending == END_STOP || x->ending == END_LENGTH) && x->first_ns >= 0;
}

static int64_t tpot_of(const struct replay_request *x) /* -1: one token */
{
    int64_t n = x->n_output - 1;
    return n > 0 ? (x->last_ns - x->first_ns + n / 2) / n : -1;
}

static void take(struct tally *t, enum tally_latency l, int64_t ns)
{
    if (ns >= 0)
        t->sorted[l][t->n[l]++] = ns;
}

static void count(struct tally *t, const struct replay_request *x, struct tally_slo slo)
{
    t->n_unfinished += x->ending == END_NONE;
    t->n_refused += x->ending == END_REFUSED;
    t->n_failed += x->ending == END_ERROR || x->ending == END_ABORT;
    if (!is_finished(x))
        return;
    int64_t ttft = x->first_ns - x->arrival_ns, tpot = tpot_of(x);
    t->n_finished++;
    t->n_prompt_tokens += (uint64_t)x->n_prompt;
    t->n_output_tokens += (uint64_t)x->n_output;
    t->n_cached_tokens += (uint64_t)x->n_cached;
    take(t, TALLY_TTFT, ttft);
    take(t, TALLY_TPOT, tpot);
    take(t, TALLY_QUEUE, x->start_ns - x->arrival_ns);
    take(t, TALLY_COMPLETION, x->last_ns - x->arrival_ns);
    bool good = (slo.ttft_ms <= 0 || (double)ttft <= slo.ttft_ms * 1e6) &&
                (slo.tpot_ms <= 0 || (double)tpot <= slo.tpot_ms * 1e6);
    t->n_good += good;
}

void tally_by_arrival(const struct replay *r, struct tally_arrivals *bins)
{
    for (size_t i = 0; i < r->n_requests; i++) {
        const struct replay_request *x = &r->requests[i];
        size_t at = (size_t)(x->arrival_ns / r->bin_ns);
        if (!is_finished(x) || at >= r->n_bins)
            continue;
        struct tally_arrivals *b = &bins[at];
        int64_t tpot = tpot_of(x);
        b->n++;
        b->ttft_ns += (double)(x->first_ns - x->arrival_ns);
        b->n_tpot += tpot >= 0;
        b->tpot_ns += tpot >= 0 ? (double)tpot : 0;
    }
}

/* n tokens evenly over [from, to), into whole bins by way of their differences. */
struct spread {
    double *bins, *rates; /* rates: change of the tokens of a whole bin at its beginning */
    size_t n;
    int64_t bin_ns;
};

static void spread_tokens(struct spread *s, int64_t from, int64_t to, double n)
{
    size_t first = (size_t)(from / s->bin_ns), last = (size_t)(to / s->bin_ns);
    if (last >= s->n)
        last = s->n - 1;
    if (first >= last) {
        s->bins[last] += n;
        return;
    }
    double per_ns = n / (double)(to - from);
    s->bins[first] += per_ns * (double)((int64_t)(first + 1) * s->bin_ns - from);
    s->bins[last] += per_ns * (double)(to - (int64_t)last * s->bin_ns);
    s->rates[first + 1] += per_ns * (double)s->bin_ns;
    s->rates[last] -= per_ns * (double)s->bin_ns;
}

/* As the papers plot it: what clients saw of it, not what the engine ran. */
static void spread_all(struct tally *t, const struct replay *r)
{
    struct spread s = {.n = r->n_bins + 1, .bin_ns = r->bin_ns};
    s.bins = mem_new_array(s.n, sizeof *s.bins);
    s.rates = mem_new_array(s.n, sizeof *s.rates);
    for (size_t i = 0; i < r->n_requests; i++) {
        const struct replay_request *x = &r->requests[i];
        if (!is_finished(x))
            continue;
        spread_tokens(&s, x->arrival_ns, x->first_ns, x->n_prompt);
        spread_tokens(&s, x->first_ns, x->last_ns, x->n_output);
    }
    double rate = 0;
    for (size_t i = 0; i < s.n; i++) {
        rate += s.rates[i];
        s.bins[i] += rate > 0 ? rate : 0; /* what rounding leaves is no throughput */
    }
    mem_free(s.rates);
    t->spread = s.bins;
    t->n_spread = r->n_bins;
}

static double spread_bin(const struct tally *t, const struct replay *r, size_t i)
{
    (void)r;
    return t->spread[i];
}

static double output_bin(const struct tally *t, const struct replay *r, size_t i)
{
    (void)t;
    return (double)r->bins[i].n_output_tokens;
}

typedef double (*bin_fn)(const struct tally *t, const struct replay *r, size_t i);

static double peak_of(const struct tally *t, const struct replay *r, bin_fn bin)
{
    size_t wide = (size_t)(PEAK_NS / r->bin_ns), n = wide < 1 ? 1 : wide < t->n_spread ? wide : t->n_spread;
    double most = 0;
    for (size_t i = 0; i + n <= t->n_spread; i++) {
        double sum = 0;
        for (size_t k = 0; k < n; k++)
            sum += bin(t, r, i + k);
        most = sum > most ? sum : most;
    }
    return n ? most / ((double)n * (double)r->bin_ns * 1e-9) : 0;
}

void tally_make(struct tally *t, const struct replay *r, struct tally_slo slo)
{
    int64_t end = 0;
    memset(t, 0, sizeof *t);
    for (int l = 0; l < TALLY_COUNT; l++)
        t->sorted[l] = mem_new_array(r->n_requests + 1, sizeof **t->sorted);
    t->n_requests = r->n_requests;
    for (size_t i = 0; i < r->n_requests; i++) {
        count(t, &r->requests[i], slo);
        end = r->requests[i].end_ns > end ? r->requests[i].end_ns : end;
    }
    for (int l = 0; l < TALLY_COUNT; l++)
        sort_bits(t->sorted[l], t->n[l], 62);
    t->seconds = (double)(r->n_live ? r->end_ns : end) * 1e-9;
    double s = t->seconds > 0 ? t->seconds : 1;
    t->throughput = (double)(t->n_prompt_tokens + t->n_output_tokens) / s;
    t->output_throughput = (double)t->n_output_tokens / s;
    t->requests_per_s = (double)t->n_finished / s;
    t->goodput = (double)t->n_good / s;
    spread_all(t, r);
    t->peak_throughput = peak_of(t, r, spread_bin);
    t->peak_output = peak_of(t, r, output_bin);
}

typedef bool (*part_fn)(const struct replay_request *x, int which);

static void make_part(struct tally *t, const struct replay *r, struct tally_slo slo, part_fn is_in, int which)
{
    struct replay part = *r;
    part.requests = mem_new_array(r->n_requests + 1, sizeof *part.requests);
    part.n_requests = 0;
    for (size_t i = 0; i < r->n_requests; i++)
        if (is_in(&r->requests[i], which))
            part.requests[part.n_requests++] = r->requests[i];
    tally_make(t, &part, slo);
    mem_free(part.requests);
}

static bool is_of_class(const struct replay_request *x, int priority)
{
    return x->priority == priority;
}

static bool is_of_tenant(const struct replay_request *x, int tenant)
{
    return x->tenant == (uint32_t)tenant;
}

void tally_make_class(struct tally *t, const struct replay *r, struct tally_slo slo, int priority)
{
    make_part(t, r, slo, is_of_class, priority);
}

void tally_make_tenant(struct tally *t, const struct replay *r, struct tally_slo slo, int tenant)
{
    make_part(t, r, slo, is_of_tenant, tenant);
}

void tally_free(struct tally *t)
{
    for (int l = 0; l < TALLY_COUNT; l++)
        mem_free(t->sorted[l]);
    mem_free(t->spread);
    memset(t, 0, sizeof *t);
}

int64_t tally_percentile(const struct tally *t, enum tally_latency l, double percent)
{
    if (!t->n[l])
        return -1;
    size_t rank = (size_t)ceil(percent * (double)t->n[l] / 100);
    return t->sorted[l][rank < 1 ? 0 : rank > t->n[l] ? t->n[l] - 1 : rank - 1];
}

int64_t tally_mean(const struct tally *t, enum tally_latency l)
{
    double sum = 0;
    for (size_t i = 0; i < t->n[l]; i++)
        sum += (double)t->sorted[l][i];
    return t->n[l] ? (int64_t)(sum / (double)t->n[l]) : -1;
}
