#include "engine/world/forecast.h"

#include <math.h>
#include <string.h>

/* Distinct sizes of groups of MAX_RANKS ranks together: 1 + 2 + ... + 11 is more. */
enum { STEP_SIZES = 8, LEAST_STEP = 64, MOST_KINDS = 11 };

/* Groups of one size: what their steps take. Those that hold a request of the mean length run their share of the
 * answers. */
struct kind {
    int size, n_sizes;
    double room;              /* tokens of KV that one group holds */
    int rows[STEP_SIZES + 1]; /* of a step: answers alone at [0], then larger and larger */
    double ns[STEP_SIZES + 1];
    double n;                   /* groups */
    double rate;                /* requests that come to one group, per ns */
    double prompts;             /* tokens of all of them */
    double answers;             /* that run in one group */
    double after_ns;            /* a step of all its answers, when the prompts are done */
    double sum[STEP_SIZES + 1]; /* of what waits here, by step size */
    double queue[STEP_SIZES + 1];
    int best;
};

/* One group. */
struct lane {
    struct kind *kind;
    double prompts, answers; /* tokens; sequences */
    double done;             /* second round: prompt tokens before the next one */
    double seats;            /* requests that it can run at once */
    double taken;            /* second round: of them */
};

struct load {
    double running, waiting, prompts; /* requests that answer, requests with prompts to compute, their tokens */
    double context, tokens;           /* cached tokens of those that answer; of all when they end */
    int longest;
};

struct forecaster {
    const struct world *w;
    const struct forecast_ask *ask;
    struct load load;
    int ranks, able; /* of all groups; of those that hold a request of the mean length, or of all where none does */
    double rate;     /* of arrivals, per ns */
    struct kind kinds[MOST_KINDS];
    struct lane lanes[MAX_RANKS];
    int n_kinds;
};

static double least(double a, double b)
{
    return a < b ? a : b;
}

/* Tokens that its answer has yet. */
static double answer_of(const struct forecast_ask *ask, const struct request *r)
{
    double left = r->spec->max_tokens - request_output(r), expected = ask->output > 0 ? least(ask->output, left) : left;
    return expected > 1 ? expected : 1;
}

/* What each ns of an answer of so many tokens counts: itself, and what it adds to the time per token. */
static double weight(const struct forecast_ask *ask, double tokens)
{
    return tokens > 1 ? 1 + ask->tpot / (tokens - 1) : 1;
}

static bool counts(const struct forecaster *f, const struct request *r)
{
    return !r->parent && !r->held_until_ns && side_has(f->ask->side, r->canary);
}

static void add_load(struct forecaster *f, const struct req_queue *q)
{
    struct load *l = &f->load;
    for (int i = 0; i < q->n; i++) {
        const struct request *r = q->items[i];
        if (!counts(f, r))
            continue;
        bool answers = r->state == REQ_RUNNING && request_decoding(r);
        l->running += answers;
        l->waiting += !answers;
        l->prompts += answers ? 0 : request_remaining(r);
        l->context += answers ? r->n_computed : 0;
        l->tokens += r->n_tokens + answer_of(f->ask, r);
        l->longest = r->n_tokens > l->longest ? r->n_tokens : l->longest;
    }
}

/* A step of so many answers and prompt tokens, in the layout that takes least. -1: no layout runs. */
static double step_ns(const struct forecaster *f, int size, double answers, double prompt)
{
    const struct load *l = &f->load;
    const struct node_shape *shape = &f->w->shape;
    double context = l->running ? l->context / l->running : 0, before = l->waiting ? l->prompts / l->waiting / 2 : 0;
    struct step_size s = {.rows = (int)(answers + prompt),
                          .looked_at = answers * context + prompt * before,
                          .n_seqs = (int)answers + (prompt > 0),
                          .n_logits = (int)answers + (prompt > 0),
                          .n_chunks = prompt > 1,
                          .chunk_rows = prompt > 1 ? (int)prompt : 0,
                          .chunk_looked_at = prompt * before};
    double best = -1;
    for (int tp = 1; tp <= size; tp++) {
        if (size % tp || shape->refusals[size][tp])
            continue;
        double ns = estimator_ns(&f->w->estimate, (struct layout){size / tp, tp, 1}, s, NULL);
        best = best < 0 || ns < best ? ns : best;
    }
    return best;
}

static double room_of(const struct forecaster *f, int size)
{
    return (double)f->w->kv.n_blocks * f->w->shape.tokens_per_block[size];
}

static double mean_tokens(const struct load *l)
{
    double n = l->running + l->waiting;
    return n > 0 ? l->tokens / n : 1;
}

static bool holds_mean(const struct forecaster *f, int size)
{
    return room_of(f, size) >= mean_tokens(&f->load);
}

/* Of the answers, what one group runs. */
static double share_of(const struct forecaster *f, int size)
{
    return f->able == f->ranks || holds_mean(f, size) ? (double)size / f->able : 0;
}

/* Requests of the mean length that a group of this size can run at once: at least one. */
static double seats_of(const struct forecaster *f, int size)
{
    double own = side_seats(f->w, f->ask->side) * (double)size / f->ranks;
    double held = floor(room_of(f, size) / mean_tokens(&f->load)), seats = least(own, held);
    return seats > 1 ? seats : 1;
}

/* A step of this share of all answers, when the prompts are done. -1: no layout runs. */
static double answers_ns(const struct forecaster *f, int size, double share)
{
    double all = least((f->load.running + f->load.waiting) * share, seats_of(f, size));
    return step_ns(f, size, all > 1 ? all : 1, 0);
}

/* Step sizes from twice the answers on up to the limit, or to all that waits. */
static bool price_kind(struct forecaster *f, struct kind *k)
{
    double share = share_of(f, k->size);
    k->room = room_of(f, k->size);
    k->answers = f->load.running * share;
    int least_rows = (int)k->answers + 2, first = (int)k->answers + LEAST_STEP; /* room for a prompt beside them */
    int most = f->ask->most > least_rows ? f->ask->most : least_rows;
    double useful = k->answers + f->load.prompts + f->ask->prompt;
    k->rows[0] = k->answers > 1 ? (int)k->answers : 1;
    k->ns[0] = step_ns(f, k->size, k->rows[0], 0);
    if (k->ns[0] < 0)
        return false;
    for (int rows = first < most ? first : most; k->n_sizes < STEP_SIZES; rows *= 2) {
        int n = rows < most ? rows : most;
        if (n > k->rows[k->n_sizes]) {
            k->n_sizes++;
            k->rows[k->n_sizes] = n;
            k->ns[k->n_sizes] = step_ns(f, k->size, k->answers, n - k->answers);
        }
        if (n >= most || n >= useful)
            break;
    }
    k->after_ns = answers_ns(f, k->size, share);
    return true;
}

static struct kind *kind_of(struct forecaster *f, int size)
{
    for (int i = 0; i < f->n_kinds; i++)
        if (f->kinds[i].size == size)
            return &f->kinds[i];
    f->kinds[f->n_kinds] = (struct kind){.size = size};
    return price_kind(f, &f->kinds[f->n_kinds]) ? &f->kinds[f->n_kinds++] : NULL;
}

/* What a group of this kind takes for so many prompt tokens, in steps of its i-th size. */
static double prompts_ns(const struct kind *k, int i, double tokens)
{
    double each = k->rows[i] - k->answers;
    if (tokens >= each)
        return tokens / each * k->ns[i];
    while (i > 1 && tokens <= k->rows[i - 1] - k->answers)
        i--;
    double low = k->rows[i - 1] - k->answers, part = (tokens - low) / (k->rows[i] - k->rows[i - 1]);
    return k->ns[i - 1] + (part > 0 ? part : 0) * (k->ns[i] - k->ns[i - 1]);
}

/* Prompt tokens per ns. */
static double speed(const struct kind *k, int i)
{
    return (k->rows[i] - k->answers) / k->ns[i];
}

/* The share of its time that a group of this kind has prompts to compute, of those that come. */
static double busy(const struct forecaster *f, const struct kind *k, int i)
{
    return k->rate * f->ask->prompt / speed(k, i);
}

/* A step of all answers in groups of the size for which it takes least, of those that all ranks can be divided into. */
static double settled_ns(const struct forecaster *f)
{
    double best = 0;
    for (int size = 1; size <= f->ranks; size++) {
        bool may = f->ranks % size == 0 && f->w->shape.tokens_per_block[size] && holds_mean(f, size);
        double ns = may ? answers_ns(f, size, (double)size / f->ranks) : -1;
        if (ns > 0 && (best <= 0 || ns < best))
            best = ns;
    }
    return best;
}

/* Where prompts are there for most of the time, the groups that are there now have no quiet in which to change. */
static void settle(struct forecaster *f)
{
    double ns = settled_ns(f);
    for (int i = 0; i < f->n_kinds; i++) {
        struct kind *k = &f->kinds[i];
        bool stays = !f->ask->moves && busy(f, k, k->n_sizes) >= 0.5;
        if (ns > 0 && !stays)
            k->after_ns = least(k->after_ns, ns);
    }
}

/* Until a group with so many prompt tokens has none, those that come meanwhile counted. */
static double until_ns(const struct forecaster *f, const struct kind *k, int i, double tokens)
{
    double own = tokens > 0 ? prompts_ns(k, i, tokens) : 0, share = busy(f, k, i),
           most = own + share * f->ask->ahead_ns;
    return share < 1 ? least(own / (1 - share), most) : most;
}

/* Until those that come now have their first tokens there are prompts for so long: what their answers take longer
 * beside the prompts of one another, for each of them on average. */
static double crowding_ns(const struct forecaster *f, const struct kind *k, int i, double time)
{
    double wait = k->prompts / k->n / speed(k, i), rest = time > wait ? (time - wait) / 2 : 0;
    double tokens = least(f->ask->output, rest / k->ns[i]), longer = k->ns[i] - k->after_ns;
    return longer > 0 ? tokens * longer * weight(f->ask, f->ask->output) : 0;
}

/* Those that come while the prompts that are here are computed wait for these, and for one another. It is until
 * their first token and until their end, so it counts twice. What they take themselves they take in any partition,
 * later, when it may well be another one: of that only what they take longer in a crowd counts. */
static void add_arrivals(const struct forecaster *f, struct kind *k)
{
    double n = k->rate * f->ask->ahead_ns, ahead = f->ask->ahead_ns, prompt = f->ask->prompt;
    for (int i = 1; n > 0 && i <= k->n_sizes; i++) {
        double v = speed(k, i), come = k->rate * prompt, here = k->prompts / k->n;
        double empty = come < v ? here / (v - come) : ahead;
        double time = least(empty, ahead), left = here + (come - v) * time;
        double queue = (here + left) / 2 * time + left * left / (2 * v) - here * here / (2 * v);
        k->sum[i] += k->n * (2 * queue / prompt + k->rate * time * crowding_ns(f, k, i, time));
    }
}

/* Those that come go to the groups that hold such a prompt (to the roomiest, where none does), to each as much as it
 * computes. */
static void spread_arrivals(struct forecaster *f)
{
    double roomiest = 0, all = 0;
    for (int i = 0; i < f->n_kinds; i++)
        roomiest = f->kinds[i].room > roomiest ? f->kinds[i].room : roomiest;
    double need = least(f->ask->prompt, roomiest);
    for (int i = 0; i < f->n_kinds; i++)
        all += f->kinds[i].room >= need ? f->kinds[i].n * speed(&f->kinds[i], f->kinds[i].n_sizes) : 0;
    for (int i = 0; i < f->n_kinds; i++)
        if (f->kinds[i].room >= need)
            f->kinds[i].rate = f->rate * speed(&f->kinds[i], f->kinds[i].n_sizes) / all;
}

static const char *open_lanes(struct forecaster *f)
{
    double roomiest = 0;
    for (int i = 0; i < f->ask->n; i++) {
        f->ranks += f->ask->sizes[i];
        f->able += holds_mean(f, f->ask->sizes[i]) ? f->ask->sizes[i] : 0;
    }
    f->able = f->able ? f->able : f->ranks;
    for (int i = 0; i < f->ask->n; i++) {
        struct lane *l = &f->lanes[i];
        int size = f->ask->sizes[i];
        l->kind = kind_of(f, size);
        if (!l->kind)
            return "no layout runs on so many ranks";
        l->seats = seats_of(f, size);
        l->answers = l->kind->answers;
        l->kind->n++;
        roomiest = l->kind->room > roomiest ? l->kind->room : roomiest;
    }
    spread_arrivals(f);
    if (f->ask->settles && f->load.waiting > 0)
        settle(f);
    return f->load.longest > roomiest ? "no group holds the longest request" : NULL;
}

/* Of the groups that hold the request (one does, see open_lanes), the one that is done first with its prompt. */
static struct lane *deal(struct forecaster *f, const struct request *r)
{
    struct lane *best = f->lanes;
    double soonest = -1, tokens = request_remaining(r);
    for (int i = 0; i < f->ask->n; i++) {
        struct lane *l = &f->lanes[i];
        const struct kind *k = l->kind;
        double ns = prompts_ns(k, k->n_sizes, l->done + tokens);
        if (k->room >= r->n_tokens && (soonest < 0 || ns < soonest)) {
            best = l;
            soonest = ns;
        }
    }
    best->done += tokens;
    return best;
}

static double past(double ns, double wish_ms)
{
    return wish_ms > 0 && ns > wish_ms * 1e6 ? ns - wish_ms * 1e6 : 0;
}

/* From `at` on so many tokens, `mixed` ns each until the prompts are done. */
static double answer_ns(double at, double tokens, double until, double mixed, double after)
{
    double during = until > at ? (until - at) / mixed : 0;
    return tokens <= during ? tokens * mixed : (until > at ? until - at : 0) + (tokens - during) * after;
}

/* A request whose prompt the lane computes next. */
static void add_prompt(const struct forecaster *f, struct lane *l, const struct request *r)
{
    struct kind *k = l->kind;
    double tokens = answer_of(f->ask, r), age = (double)(f->ask->now_ns - r->spec->arrival_ns);
    l->taken++;
    for (int i = 1; i <= k->n_sizes; i++) {
        double until = until_ns(f, k, i, l->prompts), first = prompts_ns(k, i, l->done);
        double over = l->taken - (l->seats - l->answers), own = prompts_ns(k, i, request_remaining(r));
        double seat = over > 0 ? over / l->seats * (own + tokens * k->after_ns) + own : 0;
        first = first > seat ? first : seat;
        double rest = answer_ns(first, tokens - 1, until, k->ns[i], k->after_ns);
        k->sum[i] += 2 * first + rest * weight(f->ask, request_output(r) + tokens);
        if (!r->first_token_ns)
            k->sum[i] += past(first + age, r->spec->slo_ttft_ms);
        k->sum[i] += tokens > 1 ? past(rest / (tokens - 1), r->spec->slo_tpot_ms) * (tokens - 1) : 0;
        k->queue[i] = first > k->queue[i] ? first : k->queue[i];
    }
}

/* One that answers: it is in no certain group, so in the average one of each kind. */
static void add_answer(struct forecaster *f, const struct request *r)
{
    double tokens = answer_of(f->ask, r);
    for (int j = 0; j < f->n_kinds; j++) {
        struct kind *k = &f->kinds[j];
        double share = share_of(f, k->size) * k->n;
        for (int i = 1; i <= k->n_sizes; i++) {
            double ns = answer_ns(0, tokens, until_ns(f, k, i, k->prompts / k->n), k->ns[i], k->after_ns);
            k->sum[i] += share * (ns * weight(f->ask, request_output(r) + tokens) +
                                  past(ns / tokens, r->spec->slo_tpot_ms) * tokens);
        }
    }
}

/* A switch finds room for the KV of all that run: each goes to the group with the most, and until it has moved it takes
 * room in both. */
static bool has_room(struct forecaster *f)
{
    const struct world *w = f->w;
    int blocks = w->kv.n_blocks;
    double room[MAX_RANKS];
    for (int i = 0; i < w->partition.n_groups; i++) {
        const struct group *g = partition_group(&w->partition, i);
        int n = kv_available(&w->kv, g->place);
        blocks = side_has(f->ask->side, g->canary) && n < blocks ? n : blocks;
    }
    for (int i = 0; i < f->ask->n; i++)
        room[i] = (double)blocks * w->shape.tokens_per_block[f->ask->sizes[i]];
    for (int k = 0; k < w->running.n; k++) {
        int best = 0;
        if (!side_has(f->ask->side, w->running.items[k]->canary))
            continue;
        for (int i = 1; i < f->ask->n; i++)
            best = room[i] > room[best] ? i : best;
        room[best] -= w->running.items[k]->n_tokens + w->shape.tokens_per_block[f->ask->sizes[best]];
        if (room[best] < 0)
            return false;
    }
    return true;
}

/* Those whose prompts are to be computed, those that have begun first. Twice: the first round says how much each group
 * gets. */
static void add_prompts(struct forecaster *f, bool second)
{
    const struct req_queue *queues[] = {&f->w->running, &f->w->waiting};
    for (int i = 0; i < f->ask->n; i++) {
        f->lanes[i].prompts = f->lanes[i].done;
        f->lanes[i].kind->prompts += f->lanes[i].done;
        f->lanes[i].done = 0;
    }
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < queues[q]->n; i++) {
            const struct request *r = queues[q]->items[i];
            if (!counts(f, r) || (r->state == REQ_RUNNING && request_decoding(r)))
                continue;
            struct lane *l = deal(f, r);
            if (second)
                add_prompt(f, l, r);
        }
}

/* The largest size that was looked at holds all that waits: what comes meanwhile may fill the step. */
static int step_tokens(const struct kind *k, int most)
{
    return k->best == k->n_sizes ? most : k->rows[k->best];
}

/* The largest size that is no worse than the best by three hundredths: first tokens come sooner. */
static int best_size(const struct kind *k)
{
    int i = k->n_sizes;
    double sum = k->sum[i];
    for (int j = 1; j < k->n_sizes; j++)
        sum = least(sum, k->sum[j]);
    while (k->sum[i] > 1.03 * sum)
        i--;
    return i;
}

/* Requests per ns, fewer and fewer when none comes: in ten seconds, or in what ten of them take to come. */
static double arrivals_now(const struct world *w, int64_t now_ns)
{
    double gaps = w->arrival_rate > 1 ? w->arrival_rate : 1, x = (double)(now_ns - w->last_arrival_ns) * 1e-10 * gaps;
    return w->arrival_rate * 1e-9 / (1 + x + x * x / 2 + x * x * x / 6);
}

const char *forecast_make(const struct world *w, const struct forecast_ask *ask, struct forecast *out)
{
    struct forecaster f = {.w = w, .ask = ask};
    memset(out, 0, sizeof *out);
    if (ask->prompt > 0 && ask->ahead_ns > 0)
        f.rate = arrivals_now(w, ask->now_ns) * side_share(w, ask->side);
    add_load(&f, &w->running);
    add_load(&f, &w->waiting);
    const char *why = open_lanes(&f);
    if (why)
        return why;
    if (ask->moves && !has_room(&f))
        return "the KV of those that run finds no room";
    add_prompts(&f, false);
    add_prompts(&f, true);
    for (int i = 0; i < w->running.n; i++)
        if (counts(&f, w->running.items[i]) && request_decoding(w->running.items[i]))
            add_answer(&f, w->running.items[i]);
    for (int j = 0; j < f.n_kinds; j++) {
        struct kind *k = &f.kinds[j];
        add_arrivals(&f, k);
        k->best = best_size(k);
        out->sum_ns += k->sum[k->best];
        out->queue_ns = k->queue[k->best] > out->queue_ns ? k->queue[k->best] : out->queue_ns;
    }
    for (int i = 0; i < ask->n; i++)
        out->step_tokens[i] = step_tokens(f.lanes[i].kind, ask->most);
    return NULL;
}
