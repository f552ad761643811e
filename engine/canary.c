#include "engine/canary.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/live_inner.h"

void canary_free(struct canary *c)
{
    live_free(&c->live);
}

/* ---- beginning */

/* The ranks of the groups that are asked for; 0 with the reason in e. */
static uint64_t find_ranks(const struct canary_order *o, const struct partition *t, struct err *e)
{
    uint64_t ranks = 0;
    for (int i = 0; i < o->n_groups; i++) {
        const struct group *g = partition_find(t, o->groups[i]);
        if (!g || ranks & g->mask) {
            err_set(e, E_INPUT, g ? "the group %d is named twice" : "there is no group %d (GET /admin/state has them)",
                    o->groups[i]);
            return 0;
        }
        ranks |= g->mask;
    }
    if (!ranks)
        err_set(e, E_INPUT, "a canary needs groups to decide for");
    else if (o->n_groups == t->n_groups)
        err_set(e, E_INPUT, "the live policy keeps a group at least: this node has %d", t->n_groups);
    else
        return ranks;
    return 0;
}

static int refuse_now(const struct canary *c, const struct live *live, const struct world *w, struct err *e)
{
    if (c->on)
        return err_set(e, E_INPUT, "%s (%.12s) is the canary already, and there can be one: end it first", c->book.name,
                       c->book.sha256);
    if (live->probation.on)
        return err_set(e, E_INPUT,
                       "%s is on probation, which looks at all requests of the server: a canary can begin when it has "
                       "ended",
                       live->active.name);
    if (w->partition.n_pending)
        return err_set(e, E_INPUT, "an order for the partition waits: a canary can begin when it has been carried out");
    if (w->limits.max_num_seqs < 2)
        return err_set(e, E_INPUT, "max_num_seqs is 1, and each side needs a seat");
    return 0;
}

static void open_book(struct canary *c, const struct canary_order *o, const struct live *live, const struct world *w,
                      int64_t now_ns)
{
    struct canary_book *b = &c->book;
    memset(b, 0, sizeof *b);
    b->began_ns = now_ns;
    b->until_ns = now_ns + o->for_ns;
    b->first_order = w->next_order;
    b->n_groups = o->n_groups;
    memcpy(b->groups, o->groups, sizeof b->groups);
    snprintf(b->name, sizeof b->name, "%s", o->policy.name);
    snprintf(b->sha256, sizeof b->sha256, "%s", o->policy.sha256);
    snprintf(b->beside, sizeof b->beside, "%s", live->active.name);
}

static void take_policy(struct canary *c, struct canary_order *o, struct live *live)
{
    live_init(&c->live, &live->node, live->quiet);
    c->live.canary = true;
    c->live.witness = live->witness;
    c->live.retired = live->retired;
    c->live.active = o->policy;
    c->live.active.generation = ++live->next_generation;
    memset(&o->policy, 0, sizeof o->policy);
}

static void note_partition(struct canary *c, const struct partition *t)
{
    c->epoch = t->epoch;
    c->n_groups = (uint64_t)t->n_groups;
    c->dead_ranks = t->dead_ranks;
}

/* All is the live policy's again. */
static void join(struct canary *c, struct live *live, struct world *w, int64_t now_ns)
{
    c->on = false;
    side_join(w, now_ns);
    retired_give(c->live.retired, &c->live.active);
    c->live.active = c->live.native;
    live_rekey(live, w, now_ns);
}

int canary_begin(struct canary *c, struct canary_order *o, struct live *live, struct world *w, int64_t now_ns,
                 struct err *e)
{
    int rc = refuse_now(c, live, w, e);
    uint64_t ranks = rc ? 0 : find_ranks(o, &w->partition, e);
    if (!ranks) {
        retired_give(live->retired, &o->policy);
        return E_INPUT;
    }
    open_book(c, o, live, w, now_ns);
    take_policy(c, o, live);
    note_partition(c, &w->partition);
    c->on = c->told = true;
    side_split(w, ranks, now_ns);
    c->book.share = side_share(w, SIDE_CANARY);
    rc = live_call_start(&c->live, &c->live.active, w, now_ns, e);
    if (rc == E_GONE)
        rc = err_set(e, E_POLICY, "start: its process has crashed");
    if (rc) {
        join(c, live, w, now_ns);
        c->book.ended_ns = now_ns;
        snprintf(c->book.why_ended, sizeof c->book.why_ended, "%.200s", e->text);
        return rc;
    }
    live_rekey(&c->live, w, now_ns);
    if (!live->quiet)
        log_info("policy", "%s (%.12s) is the canary on %d of %d groups, beside %s", c->book.name, c->book.sha256,
                 c->book.n_groups, w->partition.n_groups, c->book.beside);
    return 0;
}

/* ---- its end */

void canary_end(struct canary *c, struct live *live, struct world *w, int64_t now_ns, const char *why)
{
    if (!c->on)
        return;
    join(c, live, w, now_ns);
    c->told = false;
    c->book.ended_ns = now_ns;
    snprintf(c->book.why_ended, sizeof c->book.why_ended, "%s", why);
}

/* NULL: it goes on. */
static const char *why_over(const struct canary *c, const struct live *live, const struct world *w, int64_t now_ns)
{
    const struct partition *t = &w->partition;
    if (live->fallen)
        return "the live policy is withdrawn";
    if (live->rest.policy.ops && now_ns >= live->rest.until_ns)
        return "a policy that has rested takes the live one's place";
    if (c->epoch != t->epoch || c->n_groups != (uint64_t)t->n_groups || c->dead_ranks != t->dead_ranks || t->n_pending)
        return "the partition has changed";
    if (!side_fits_head(w, SIDE_LIVE) || !side_fits_head(w, SIDE_CANARY))
        return "a request fits no group of its side, so the partition has to change";
    return now_ns >= c->book.until_ns ? "its time is up" : NULL;
}

bool canary_tend(struct canary *c, struct live *live, struct world *w, int64_t now_ns)
{
    char why[CANARY_WHY];
    if (!c->on)
        return false;
    const char *over = why_over(c, live, w, now_ns);
    if (c->live.crashed)
        over = "its process has crashed";
    if (c->live.fallen) {
        snprintf(why, sizeof why, "%.80s; last: %.140s", c->live.why_fallen, c->live.last_error);
        over = why;
    }
    if (over)
        canary_end(c, live, w, now_ns, over);
    return over;
}

int64_t canary_next_ns(const struct canary *c)
{
    return c->on ? c->book.until_ns : INT64_MAX;
}

/* ---- deciding */

void canary_step(struct canary *c, struct plan *p)
{
    struct view v;
    if (!c->on)
        return;
    view_init_of(&v, p->world, SIDE_CANARY, p->now_ns);
    live_step(&c->live, &v, p);
    plan_end_canary(p);
}

struct live *canary_of(struct canary *c, struct live *live, const struct request *r)
{
    return r->canary ? &c->live : live;
}

/* ---- what came of it */

static struct side_results *results_of(struct canary *c, const struct request *r)
{
    if (!c->on || r->parent || r->order < c->book.first_order)
        return NULL;
    return r->canary ? &c->book.results.canary : &c->book.results.live;
}

void canary_note_came(struct canary *c, const struct request *r)
{
    struct side_results *s = results_of(c, r);
    if (s)
        s->n_came++;
}

void canary_note_end(struct canary *c, const struct request *r, enum ending how)
{
    struct side_results *s = results_of(c, r);
    const struct request_spec *q = r->spec;
    int output = request_output(r);
    if (!s)
        return;
    s->n_ended++;
    s->n_done += how == END_STOP || how == END_LENGTH;
    s->n_aborted += how == END_ABORT;
    s->n_errors += how == END_ERROR;
    s->n_refused += how == END_REFUSED;
    s->output_tokens += (uint64_t)output;
    s->n_preempted += (uint64_t)r->n_preempted;
    if (r->first_scheduled_ns)
        results_add(&s->times[RESULT_QUEUE], (double)(r->first_scheduled_ns - q->arrival_ns) * 1e-9);
    if (r->first_token_ns)
        results_add(&s->times[RESULT_TTFT], (double)(r->first_token_ns - q->arrival_ns) * 1e-9);
    if (output > 1)
        results_add(&s->times[RESULT_TPOT], (double)(r->last_token_ns - r->first_token_ns) * 1e-9 / (output - 1));
}
