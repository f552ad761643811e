#include "engine/lab/search/advise.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/lab/search/advise_inner.h"

enum { RANKED = 8 };

/* Whoever gives nearly as much is as good: then waiting counts. */
static const double AS_GOOD = 0.01;

/* ---- who is simulated */

static bool costs_less(const struct candidate *a, const struct candidate *b, int goal)
{
    return goal == GOAL_THROUGHPUT ? a->price[goal] > b->price[goal] : a->price[goal] < b->price[goal];
}

bool advise_same_use(const struct candidate *x, const struct candidate *y)
{
    return x->policy == y->policy && layout_equal(x->layout, y->layout) && layout_equal(x->second, y->second) &&
           x->sharded == y->sharded && x->slots == y->slots;
}

static bool is_open(const struct advise *a, int i, const int *chosen, int n)
{
    if (a->items[i].known || a->items[i].failure)
        return false;
    for (int k = 0; k < n; k++)
        if (chosen[k] == i)
            return false;
    return true;
}

/* Of those not chosen so far, the best by the formula; -1: none. chunk: of steps of so many tokens; 0: any. */
static int next_by_formula(const struct advise *a, int goal, int chunk, const int *chosen, int n)
{
    int best = -1;
    for (int i = 0; i < a->n; i++)
        if ((!chunk || a->items[i].chunk == chunk) && is_open(a, i, chosen, n) &&
            (best < 0 || costs_less(&a->items[i], &a->items[best], goal)))
            best = i;
    return best;
}

/* The best by the formula for each goal in turn: uses of the node, with large steps or, for the time of each further
 * token, with small ones; or anything. */
static int choose_by_formula(const struct advise *a, bool anything, int most, int *chosen)
{
    int n = 0, missed = 0;
    for (int turn = 0; n < most && missed < GOAL_COUNT; turn++) {
        int goal = turn % GOAL_COUNT, asked = (int)a->ask->chunk;
        int chunk = anything ? 0 : asked ? asked : goal == GOAL_TPOT ? ADVISE_SMALL : ADVISE_LARGE;
        int best = next_by_formula(a, goal, chunk, chosen, n);
        missed = best < 0 ? missed + 1 : 0;
        if (best >= 0)
            chosen[n++] = best;
    }
    return n;
}

/* The other sizes of a step, of those uses that came out best. */
static int choose_sizes(const struct advise *a, int most, int *chosen)
{
    int best[GOAL_COUNT][RANKED], n_best[GOAL_COUNT], n = 0;
    for (int g = 0; g < GOAL_COUNT; g++)
        n_best[g] = advise_best(a, (enum advise_goal)g, RANKED, best[g]);
    for (int place = 0; place < RANKED; place++)
        for (int g = 0; g < GOAL_COUNT; g++)
            for (int i = 0; i < a->n && place < n_best[g] && n < most; i++)
                if (is_open(a, i, chosen, n) && advise_same_use(&a->items[i], &a->items[best[g][place]]))
                    chosen[n++] = i;
    return n;
}

/* ---- simulations */

static void add(struct strings *out, const char *word)
{
    out->items = mem_resize(out->items, (size_t)out->n + 1, sizeof *out->items);
    out->items[out->n++] = mem_strdup(word);
}

void advise_make_job(const struct advise *a, const struct candidate *c, const struct strings *more, struct job *x)
{
    struct strings words = {0};
    char n[32];
    snprintf(n, sizeof n, "%lld", (long long)a->load.n_simulated);
    for (int i = 0; i < a->ask->args.n; i++)
        add(&words, a->ask->args.items[i]);
    add(&words, "--trace");
    add(&words, a->load.spec);
    add(&words, "--requests");
    add(&words, n);
    if (a->ask->rate > 0 && !a->ask->shape) {
        snprintf(n, sizeof n, "%.17g", a->ask->rate);
        add(&words, "--rate");
        add(&words, n);
    }
    advise_flags(a, c, &words);
    for (int i = 0; more && i < more->n; i++)
        add(&words, more->items[i]);
    *x = (struct job){.args = words.items, .n_args = words.n};
}

static double member(const struct json *o, const char *key, const char *inner)
{
    const struct json *v = json_find(o, key);
    return json_number(inner ? json_find(v, inner) : v);
}

void advise_take_result(struct candidate *c, struct job *x)
{
    const struct json *run = json_first(json_find(x->result, "runs"));
    c->failure = x->failure;
    x->failure = NULL;
    if (!run)
        return;
    c->known = json_member_number(json_find(run, "policy"), "withdrawn") <= 0;
    if (!c->known && !c->failure)
        c->failure = mem_strdup("its policy was withdrawn");
    c->value[GOAL_THROUGHPUT] = member(run, "throughput", NULL);
    c->value[GOAL_TTFT] = member(run, "ttft_ms", "p95");
    c->value[GOAL_TPOT] = member(run, "tpot_ms", "p95");
    c->mean[GOAL_TTFT] = member(run, "ttft_ms", "mean");
    c->mean[GOAL_TPOT] = member(run, "tpot_ms", "mean");
    c->finished = member(run, "finished", NULL);
    c->output = member(run, "output_throughput", NULL);
    c->requests_per_s = member(run, "requests_per_s", NULL);
    c->goodput = member(run, "goodput", NULL);
    c->outside = member(run, "outside", "share");
}

void advise_end_job(struct job *x)
{
    for (int i = 0; i < x->n_args; i++)
        mem_free(x->args[i]);
    mem_free(x->args);
}

static int simulate_chosen(struct advise *a, const struct job_signals *signals, const int *chosen, int n, struct err *e)
{
    struct job *items = mem_new_array((size_t)n + 1, sizeof *items);
    for (int i = 0; i < n; i++)
        advise_make_job(a, &a->items[chosen[i]], NULL, &items[i]);
    struct jobs j = {.signals = signals, .items = items, .n = n, .parallel = (int)a->ask->jobs, .what = "simulations"};
    int rc = jobs_run(&j, e);
    for (int i = 0; i < n; i++) {
        struct candidate *c = &a->items[chosen[i]];
        advise_take_result(c, &items[i]);
        advise_end_job(&items[i]);
        a->most_finished = c->known && c->finished > a->most_finished ? c->finished : a->most_finished;
    }
    a->n_simulated += n;
    jobs_clear(&j);
    mem_free(items);
    return rc;
}

/* ---- who is best */

static double over(double v, double most)
{
    return most > 0 && v > most ? v / most - 1 : 0;
}

/* How far past the objectives that hold for this goal: it stands for its own. */
static double excess(const struct advise *a, const struct candidate *c, enum advise_goal g)
{
    double ttft = g == GOAL_TTFT ? 0 : over(c->value[GOAL_TTFT], a->ask->slo_ttft_ms);
    return ttft + (g == GOAL_TPOT ? 0 : over(c->value[GOAL_TPOT], a->ask->slo_tpot_ms));
}

bool advise_keeps(const struct advise *a, const struct candidate *c, enum advise_goal g)
{
    return excess(a, c, g) <= 0;
}

static bool beats(const struct advise *a, const struct candidate *x, const struct candidate *y, enum advise_goal g)
{
    double ex = excess(a, x, g), ey = excess(a, y, g);
    if (ex != ey)
        return ex < ey;
    if (x->value[g] != y->value[g])
        return g == GOAL_THROUGHPUT ? x->value[g] > y->value[g] : x->value[g] < y->value[g];
    int second = g == GOAL_TTFT ? GOAL_TPOT : GOAL_TTFT;
    return x->value[second] < y->value[second];
}

static bool is_like(const struct candidate *x, const struct candidate *y)
{
    return !memcmp(x->value, y->value, sizeof x->value) || advise_same_use(x, y);
}

/* With a run that lost no request more than others; not the same use, nor the same outcome, as one that is listed. */
static bool is_eligible(const struct advise *a, const struct candidate *c, const int *listed, int n)
{
    if (!c->known || c->finished < a->most_finished)
        return false;
    for (int i = 0; i < n; i++)
        if (is_like(c, &a->items[listed[i]]))
            return false;
    return true;
}

int advise_best(const struct advise *a, enum advise_goal g, int most, int *out)
{
    int n = 0;
    while (n < most) {
        int best = -1;
        for (int i = 0; i < a->n; i++)
            if (is_eligible(a, &a->items[i], out, n) && (best < 0 || beats(a, &a->items[i], &a->items[best], g)))
                best = i;
        if (best < 0)
            break;
        const struct candidate *top = &a->items[best];
        for (int i = 0; i < a->n && g == GOAL_THROUGHPUT; i++) {
            const struct candidate *c = &a->items[i];
            if (is_eligible(a, c, out, n) && excess(a, c, g) <= excess(a, top, g) &&
                c->value[g] >= (1 - AS_GOOD) * top->value[g] && c->value[GOAL_TTFT] < a->items[best].value[GOAL_TTFT])
                best = i;
        }
        out[n++] = best;
    }
    return n;
}

/* ---- all of it */

/* Two thirds of the simulations compare uses of the node, the rest sizes of a step. What is left then goes to whatever
 * has not been tried. */
static int simulate_best(struct advise *a, const struct job_signals *signals, struct err *e)
{
    int *chosen = mem_new_array((size_t)a->n + 1, sizeof *chosen), budget = (int)a->ask->budget, rc = 0;
    int n = choose_by_formula(a, false, budget - budget / 3, chosen);
    rc = simulate_chosen(a, signals, chosen, n, e);
    for (n = rc ? 0 : choose_sizes(a, budget - a->n_simulated, chosen); n > 0 && !rc;
         n = rc ? 0 : choose_by_formula(a, true, budget - a->n_simulated, chosen))
        rc = simulate_chosen(a, signals, chosen, n, e);
    mem_free(chosen);
    return rc;
}

static int search(struct advise *a, struct err *e)
{
    struct job_signals signals;
    TRY(advise_read_load(&a->load, a->ask, 1, e));
    advise_list(a);
    if (a->n == 0)
        return err_set(e, E_UNSUPPORTED,
                       "no layout of %s leaves room for a request of %d tokens on %s beside its weights; take a "
                       "machine with more memory, fewer bits, or a smaller --max-model-len",
                       a->ask->model, a->load.longest, a->ask->hardware);
    TRY(job_signals_open(&signals, e));
    int rc = simulate_best(a, &signals, e);
    bool sized = a->load.rate > 0 && (a->ask->slo_ttft_ms > 0 || a->ask->slo_tpot_ms > 0);
    if (!rc && sized)
        rc = advise_size(a, &signals, e);
    job_signals_close(&signals);
    return rc ? rc : advise_report(a, e);
}

int advise(const struct advise_ask *ask, struct err *e)
{
    struct advise a = {.ask = ask, .n_ranks = sim_machine_ranks(ask->machine)};
    sim_machine_facts(ask->machine, &a.facts);
    int rc = search(&a, e);
    for (int i = 0; i < a.n; i++)
        mem_free(a.items[i].failure);
    mem_free(a.items);
    advise_fleets_free(a.fleets);
    advise_load_free(&a.load);
    return rc;
}
