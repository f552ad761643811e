#include "engine/shadow.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

static const uint64_t FIRST_SERIAL = 1ull << 62; /* no plan of the live policy comes as far, and none that starts */
static const int64_t BURST_NS = 2000000;         /* that it may take beyond its share */

void shadow_init(struct shadow *s, struct world *w, const struct clock *clock, double share)
{
    memset(s, 0, sizeof *s);
    s->clock = clock;
    s->share = share;
    s->told = true;
    plan_init(&s->plan, w);
    s->plan.serial = FIRST_SERIAL;
    s->plan.apart = true;
}

static void drop_policy(struct shadow *s)
{
    retired_give(s->retired, &s->policy);
    mem_free(s->keys);
    s->keys = NULL;
    s->n_keys = 0;
    s->asked = false;
}

void shadow_free(struct shadow *s)
{
    drop_policy(s);
    plan_free(&s->plan);
}

void shadow_end(struct shadow *s, int64_t now_ns, const char *why)
{
    if (!shadow_runs(s))
        return;
    drop_policy(s);
    s->book.ended_ns = now_ns;
    snprintf(s->book.why_ended, sizeof s->book.why_ended, "%s", why);
    s->told = false;
}

/* Counts a call; false: what it said does not count. The last strike ends it with the call: see `tend`. */
static bool judge(struct shadow *s, enum policy_hook hook, enum verdict v, const struct err *e)
{
    struct shadow_book *b = &s->book;
    b->verdicts[v]++;
    if (verdict_stands(v))
        return true;
    b->n_failed++;
    snprintf(b->last_error, sizeof b->last_error, "%s: %s: %.180s", policy_hook_name(hook), verdict_name(v), e->text);
    return false;
}

static void end_of_strikes(struct shadow *s, enum verdict v, int64_t now_ns)
{
    char why[SHADOW_WHY];
    if (!verdict_torn(v) && s->book.n_failed < SHADOW_STRIKES)
        return;
    snprintf(why, sizeof why, "%.20s: %.200s", verdict_torn(v) ? "a call was cut off" : "its calls fail",
             s->book.last_error);
    shadow_end(s, now_ns, why);
}

/* ---- arrivals and endings */

static struct shadow_key *key_of(struct shadow *s, req_id id)
{
    int slot = (int)(uint32_t)id;
    if (slot >= s->n_keys) {
        int n = s->n_keys ? s->n_keys : 64;
        while (n <= slot)
            n *= 2;
        s->keys = mem_resize(s->keys, (size_t)n, sizeof *s->keys);
        memset(s->keys + s->n_keys, 0, (size_t)(n - s->n_keys) * sizeof *s->keys);
        s->n_keys = n;
    }
    return &s->keys[slot];
}

/* What it says about a request. */
static enum verdict admit(struct shadow *s, const struct request *r, const struct view *v, struct admission *a)
{
    struct err e = {0};
    const struct admission usual = {.key = (double)r->spec->arrival_ns * 1e-9, .retry_after_s = -1};
    *a = usual;
    enum verdict verdict = s->policy.ops->admit ? s->policy.ops->admit(s->policy.ctx, r, v, a, &e) : VERDICT_OK;
    if (s->policy.ops->admit && !judge(s, HOOK_ADMIT, verdict, &e))
        *a = usual;
    *key_of(s, r->id) = (struct shadow_key){r->id, a->key};
    return verdict;
}

static void count_one(struct shadow_count *c, bool live, bool shadow)
{
    c->both += live && shadow;
    c->live += live && !shadow;
    c->shadow += shadow && !live;
}

void shadow_admit(struct shadow *s, const struct request *r, const struct view *v, const struct admission *live)
{
    struct admission mine;
    if (!shadow_runs(s))
        return;
    int64_t from = clock_now(s->clock);
    enum verdict verdict = admit(s, r, v, &mine);
    bool held = live->hold_until_ns && !live->refused, holds = mine.hold_until_ns && !mine.refused;
    s->book.n_admitted++;
    s->book.n_admitted_alike += live->refused == mine.refused && held == holds;
    count_one(&s->book.refused, live->refused, mine.refused);
    count_one(&s->book.held, held, holds);
    s->book.spent_ns += clock_now(s->clock) - from;
    end_of_strikes(s, verdict, v->now_ns);
}

void shadow_finish(struct shadow *s, const struct request *r, enum ending how, const struct view *v)
{
    struct err e = {0};
    if (!shadow_runs(s) || !s->policy.ops->finish)
        return;
    int64_t from = clock_now(s->clock);
    enum verdict verdict = s->policy.ops->finish(s->policy.ctx, r, how, v, &e);
    judge(s, HOOK_FINISH, verdict, &e);
    s->book.spent_ns += clock_now(s->clock) - from;
    end_of_strikes(s, verdict, v->now_ns);
}

/* ---- decisions */

/* Whom it would have first: by its keys, of those that wait and are not held. */
static const struct request *first_in_queue(const struct shadow *s, const struct world *w)
{
    const struct request *first = NULL;
    double key = 0;
    for (int i = 0; i < w->waiting.n; i++) {
        const struct request *r = w->waiting.items[i];
        int slot = (int)(uint32_t)r->id;
        if (r->parent || r->canary || r->held_until_ns || slot >= s->n_keys || s->keys[slot].id != r->id)
            continue;
        double k = s->keys[slot].key;
        if (!first || k < key || (k == key && r->order < first->order)) {
            first = r;
            key = k;
        }
    }
    return first;
}

static bool has_time(const struct shadow *s, int64_t now_ns)
{
    return (double)s->book.spent_ns <= s->share * (double)(now_ns - s->book.began_ns) + (double)BURST_NS;
}

void shadow_ask(struct shadow *s, const struct view *v)
{
    struct err e = {0};
    s->asked = false;
    if (!shadow_runs(s))
        return;
    int64_t from = clock_now(s->clock);
    if (!has_time(s, from)) {
        s->book.n_passed_over++;
        return;
    }
    plan_begin(&s->plan, v->now_ns);
    enum verdict verdict = s->policy.ops->step(s->policy.ctx, v, &s->plan, &e);
    int64_t took_ns = clock_now(s->clock) - from;
    s->book.spent_ns += took_ns;
    s->book.calls_ns += took_ns;
    s->asked = judge(s, HOOK_STEP, verdict, &e);
    s->book.n_asked += s->asked;
    end_of_strikes(s, verdict, v->now_ns);
}

void shadow_compare(struct shadow *s, const struct plan *live)
{
    struct shadow_book *b = &s->book;
    if (!s->asked)
        return;
    int64_t from = clock_now(s->clock);
    struct shadow_difference *d = &b->differences[b->n_differences % SHADOW_DIFFERENCES];
    const struct request *first = first_in_queue(s, live->world), *head = world_head_of(live->world, live->side);
    b->n_other_first += first && head && first != head;
    s->asked = false;
    if (shadow_count_plans(b, live, &s->plan, d)) {
        b->n_equal++;
    } else {
        d->step = live->world->step;
        d->at_ns = live->now_ns;
        b->n_differences++;
    }
    b->spent_ns += clock_now(s->clock) - from;
}

void shadow_idle(struct shadow *s)
{
    if (shadow_runs(s) && s->policy.ops->idle)
        s->policy.ops->idle(s->policy.ctx);
}

/* ---- beginning and ending */

static void admit_all(struct shadow *s, const struct world *w, int64_t now_ns)
{
    const struct req_queue *queues[] = {&w->waiting, &w->running};
    struct view v;
    struct admission ignored;
    view_init(&v, w, now_ns);
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < queues[q]->n && shadow_runs(s); i++)
            if (!queues[q]->items[i]->parent && !queues[q]->items[i]->canary)
                end_of_strikes(s, admit(s, queues[q]->items[i], &v, &ignored), now_ns);
}

static struct sha256 params_of(const struct policy *p)
{
    struct buf text = {0};
    if (p->ops->params_get)
        p->ops->params_get(p->ctx, &text);
    struct sha256 sum = hash_sha256(text.data ? text.data : "", text.len);
    buf_free(&text);
    return sum;
}

void shadow_foretell(const struct shadow *s, const struct policy *live, int64_t now_ns, struct policy *p)
{
    static const int64_t LATEST_NS = 3600000000000;
    const struct shadow_book *b = &s->book;
    int64_t end = b->ended_ns ? b->ended_ns : now_ns;
    if (!b->n_asked || now_ns - end > LATEST_NS || strcmp(b->sha256, p->sha256) != 0 ||
        strcmp(b->beside, live->name) != 0)
        return;
    struct sha256 params = params_of(p);
    if (!hash_equal(&params, &b->params))
        return;
    p->predicted.shadow.n_asked = b->n_asked;
    p->predicted.shadow.n_equal = b->n_equal;
    p->predicted.shadow.n_failed = b->n_failed;
}

int shadow_begin(struct shadow *s, struct shadow_order *o, const struct node_facts *node, const struct policy *live,
                 int64_t now_ns, struct err *e)
{
    struct view v;
    enum verdict verdict = VERDICT_OK;
    drop_policy(s);
    s->policy = o->policy;
    s->told = true;
    s->book = (struct shadow_book){.began_ns = now_ns, .until_ns = now_ns + o->for_ns};
    snprintf(s->book.name, sizeof s->book.name, "%s", s->policy.name);
    snprintf(s->book.sha256, sizeof s->book.sha256, "%s", s->policy.sha256);
    snprintf(s->book.beside, sizeof s->book.beside, "%s", live->name);
    s->book.params = params_of(&s->policy);
    view_init(&v, s->plan.world, now_ns);
    plan_begin(&s->plan, now_ns);
    if (s->policy.ops->start)
        verdict = s->policy.ops->start(s->policy.ctx, node, &v, &s->plan, e);
    s->book.verdicts[verdict] += s->policy.ops->start != NULL;
    if (!verdict_stands(verdict)) {
        int rc = e->code == E_INPUT ? E_INPUT : err_prefix(e, E_POLICY, "start: %s", verdict_name(verdict));
        s->book.ended_ns = now_ns;
        snprintf(s->book.why_ended, sizeof s->book.why_ended, "%.200s", e->text);
        drop_policy(s);
        return rc;
    }
    admit_all(s, s->plan.world, now_ns);
    return 0;
}

void shadow_tend(struct shadow *s, const struct policy *live, int64_t now_ns)
{
    if (!shadow_runs(s))
        return;
    if (strcmp(live->sha256, s->policy.sha256) == 0)
        shadow_end(s, now_ns, "it is the live policy now");
    else if (now_ns >= s->book.until_ns)
        shadow_end(s, now_ns, "its time is up");
}
