#include "engine/embed/embedder.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

enum { DEPTH = 2, SLICES = 8 }; /* batches on a replica at once; slices that fill a batch */

struct replica {
    const struct embed_ops *ops;
    void *machine;
    struct queue *inbox, *back; /* of struct slip; one without a batch ends the thread */
    struct thread *thread;
    int i;
    /* the owner's */
    struct embed_batch *free[DEPTH]; /* batches that nobody uses */
    int n_free, strikes;
    int64_t tokens; /* on it */
    bool dead;
};

struct slip {
    struct embed_batch *batch;
    int replica, rc;
    char why[200];
};

struct embedder {
    struct embed_setup setup;
    struct embed_line line;
    struct replica *replicas;
    int n_alive;
    struct queue *back;
    struct list jobs; /* accepted and not done */
    struct embed_counts counts;
    int inputs_flying;
    struct embed_rule rule;
    int last; /* round robin: who took the last batch */
    bool stopping;
};

/* ---- the encoder as a machine */

static int open_encoder(void **replica, void *ctx, int n_threads, int max_tokens, struct err *e)
{
    struct encoder_replica *r = NULL;
    int rc = encoder_replica_new(&r, ctx, n_threads, max_tokens, e);
    *replica = r;
    return rc;
}

static int run_encoder(void *replica, const struct encoder_seq *seqs, int n, struct err *e)
{
    return encoder_replica_run(replica, seqs, n, e);
}

static void close_encoder(void *replica)
{
    encoder_replica_free(replica);
}

const struct embed_ops embed_encoder_ops = {open_encoder, run_encoder, close_encoder};

/* ---- a replica's thread */

static void run_replica(void *arg)
{
    struct replica *r = arg;
    struct slip s;
    for (;;) {
        if (!queue_take(r->inbox, &s)) {
            queue_wait(r->inbox, -1);
            continue;
        }
        if (!s.batch)
            return;
        struct err e = {0};
        s.rc = r->ops->run(r->machine, s.batch->seqs, s.batch->n, &e);
        snprintf(s.why, sizeof s.why, "%.199s", e.text);
        queue_post(r->back, &s);
    }
}

/* Of a batch. */
static int most_tokens(const struct embed_setup *u)
{
    return u->longest > u->batch_tokens ? u->longest : u->batch_tokens;
}

static int start_replica(struct embedder *m, struct replica *r, struct err *e)
{
    const struct embed_setup *u = &m->setup;
    TRY(u->ops->open(&r->machine, u->ctx, u->n_threads, most_tokens(u), e));
    r->ops = u->ops;
    r->back = m->back;
    r->i = (int)(r - m->replicas);
    r->inbox = queue_create(sizeof(struct slip), DEPTH + 1, false);
    for (; r->n_free < DEPTH; r->n_free++)
        r->free[r->n_free] = mem_new(sizeof *r->free[0]);
    char name[16];
    snprintf(name, sizeof name, "embed-%d", r->i);
    return thread_start(&r->thread, name, run_replica, r, e);
}

int embedder_create(struct embedder **out, const struct embed_setup *s, struct err *e)
{
    ASSERT(s->n_replicas >= 1 && s->n_replicas <= EMBED_MAX_REPLICAS && s->batch_tokens >= 1);
    struct embedder *m = mem_new(sizeof *m);
    m->setup = *s;
    embed_line_init(&m->line);
    list_init(&m->jobs);
    m->replicas = mem_new_array((size_t)s->n_replicas, sizeof *m->replicas);
    m->back = queue_create(sizeof(struct slip), 0, true);
    int rc = m->back ? 0 : err_set(e, E_SYS, "no queue for the embedder");
    for (; m->n_alive < s->n_replicas && !rc; m->n_alive++)
        rc = start_replica(m, &m->replicas[m->n_alive], e);
    *out = rc ? NULL : m;
    if (rc)
        embedder_destroy(m);
    return rc;
}

/* ---- endings */

/* Whoever asks sees what waits and runs. */
static void publish(const struct embedder *m)
{
    struct embed_facts f = {.n_replicas = m->setup.n_replicas, .n_alive = m->n_alive};
    if (!m->setup.link)
        return;
    f.waiting_texts = m->line.inputs;
    f.waiting_tokens = m->line.tokens;
    for (int i = 0; i < f.n_replicas; i++)
        f.running_tokens[i] = m->replicas[i].dead ? -1 : m->replicas[i].tokens;
    embed_link_put(m->setup.link, &f);
}

static void finish(struct embedder *m, struct embed_job *j)
{
    list_remove(&j->all);
    embed_line_forget(j);
    if (!j->rc) {
        m->counts.jobs++;
        m->counts.inputs += (uint64_t)j->n;
        m->counts.tokens += (uint64_t)j->n_tokens;
    }
    j->done(j);
}

/* What of it is in batches comes back before it is done. */
static void end_early(struct embedder *m, struct embed_job *j, int rc, const char *why)
{
    embed_line_drop(&m->line, j);
    if (!j->cancelled) {
        j->cancelled = true;
        j->rc = rc;
        snprintf(j->why, sizeof j->why, "%s", why);
    }
    if (!j->n_flying)
        finish(m, j);
}

static struct embed_job *first_living(const struct embedder *m)
{
    LIST_EACH(at, &m->jobs)
    {
        struct embed_job *j = LIST_ENTRY(at, struct embed_job, all);
        if (!j->cancelled)
            return j;
    }
    return NULL;
}

/* From the first again each time: a done() may end others. */
static void end_all(struct embedder *m, int rc, const char *why)
{
    struct embed_job *j;
    while ((j = first_living(m)))
        end_early(m, j, rc, why);
}

void embedder_fail_all(struct embedder *m, const char *why)
{
    end_all(m, E_GONE, why);
}

void embedder_cancel(struct embedder *m, struct embed_job *j)
{
    if (!j->cancelled)
        end_early(m, j, E_GONE, "cancelled");
    publish(m);
}

/* ---- batches out */

/* Is a better choice than b, of two that have room? */
static bool better(const struct embedder *m, const struct replica *a, const struct replica *b)
{
    int n = m->setup.n_replicas;
    if (!b || m->rule.way != EMBED_ROUND_ROBIN)
        return !b || a->tokens < b->tokens;
    return (a->i - m->last - 1 + n) % n < (b->i - m->last - 1 + n) % n;
}

/* Of those that live, numbered by their order, of [from, to). NULL: none has room. */
static struct replica *choose(struct embedder *m, int from, int to)
{
    struct replica *found = NULL;
    for (int i = 0, k = 0; i < m->setup.n_replicas && k < to; i++) {
        struct replica *r = &m->replicas[i];
        if (r->dead)
            continue;
        if (k++ >= from && r->n_free && better(m, r, found))
            found = r;
    }
    return found;
}

static bool send_batch(struct embedder *m, int from, int to, enum embed_lengths lengths)
{
    const struct embed_setup *u = &m->setup;
    struct replica *r = choose(m, from, to);
    if (!r)
        return false;
    struct embed_batch *b = r->free[r->n_free - 1];
    struct embed_take t = {.max_tokens = u->batch_tokens,
                           .slice = u->batch_tokens / SLICES,
                           .lengths = lengths,
                           .short_tokens = m->rule.short_tokens};
    embed_line_take(&m->line, &t, b);
    if (!b->n)
        return false;
    m->last = r->i;
    r->n_free--;
    r->tokens += b->tokens;
    m->inputs_flying += b->n;
    m->counts.batches++;
    m->counts.batch_tokens += (uint64_t)b->tokens;
    struct slip s = {.batch = b, .replica = r->i};
    ASSERT(queue_post(r->inbox, &s) == 0);
    return true;
}

/* Those that are not kept for short texts take long ones first. */
static void send_batches(struct embedder *m)
{
    int allowed = embed_rule_allowed(m->rule, m->n_alive), kept = embed_rule_kept(m->rule, m->n_alive);
    bool sent = !m->stopping;
    while (sent && m->line.jobs)
        sent = (kept && (send_batch(m, 0, kept, EMBED_SHORT) || send_batch(m, kept, allowed, EMBED_LONG))) ||
               send_batch(m, kept, allowed, EMBED_ANY);
    publish(m);
}

void embedder_route(struct embedder *m, struct embed_rule rule)
{
    m->rule = rule;
    send_batches(m);
}

struct embed_rule embedder_rule(const struct embedder *m)
{
    return m->rule;
}

int embedder_post(struct embedder *m, struct embed_job *j, struct err *e)
{
    const struct embed_setup *u = &m->setup;
    const struct embed_line *l = &m->line;
    if (m->stopping || !m->n_alive)
        return err_set(e, E_DEVICE, m->stopping ? "the server is stopping" : "every replica of the encoder has failed");
    if (l->inputs && ((u->max_tokens && l->tokens + j->n_tokens > u->max_tokens) ||
                      (u->max_inputs && l->inputs + j->n > u->max_inputs)))
        return err_set(e, E_FULL, "%d texts with %lld tokens wait already; try again later", l->inputs,
                       (long long)l->tokens);
    j->rc = j->tries = 0;
    j->cancelled = j->alone = false;
    for (int i = 0; i < j->n; i++)
        ASSERT(j->seqs[i].n >= 1 && j->seqs[i].n <= most_tokens(u));
    list_push_back(&m->jobs, &j->all);
    embed_line_add(&m->line, j);
    send_batches(m);
    return 0;
}

/* ---- batches back */

static void take_good(struct embedder *m, const struct embed_batch *b)
{
    for (int i = 0; i < b->n; i++) {
        struct embed_job *j = b->pieces[i].job;
        if (--j->n_flying == 0 && (j->cancelled || j->next == j->end))
            finish(m, j);
    }
}

static bool is_first_of_its_job(const struct embed_batch *b, int i)
{
    for (int k = 0; k < i; k++)
        if (b->pieces[k].job == b->pieces[i].job)
            return false;
    return true;
}

/* Its requests are tried again, each alone, but not for ever. Twice through the batch: a job may be freed by its last
 * piece. */
static void take_failed(struct embedder *m, const struct embed_batch *b, const char *why)
{
    for (int i = 0; i < b->n; i++)
        if (is_first_of_its_job(b, i)) {
            b->pieces[i].job->alone = true;
            b->pieces[i].job->tries++;
        }
    for (int i = 0; i < b->n; i++) {
        struct embed_job *j = b->pieces[i].job;
        if (!j->cancelled && j->tries < EMBED_TRIES && m->n_alive) {
            embed_line_return(&m->line, &b->pieces[i]);
            continue;
        }
        j->n_flying--;
        if (!j->cancelled)
            end_early(m, j, E_DEVICE, why);
        else if (!j->n_flying)
            finish(m, j);
    }
}

static void strike(struct embedder *m, struct replica *r, const char *why)
{
    m->counts.failed_batches++;
    log_error("embed", "replica %d: a batch failed: %s", r->i, why);
    if (r->dead || ++r->strikes < EMBED_STRIKES)
        return;
    r->dead = true;
    m->n_alive--;
    log_error("embed", "replica %d failed %d times in a row and is left out; %d are left", r->i, r->strikes,
              m->n_alive);
}

static void take_back(struct embedder *m, struct slip *s)
{
    struct replica *r = &m->replicas[s->replica];
    m->inputs_flying -= s->batch->n;
    r->tokens -= s->batch->tokens;
    r->free[r->n_free++] = s->batch;
    if (!s->rc) {
        r->strikes = 0;
        take_good(m, s->batch);
        return;
    }
    strike(m, r, s->why);
    take_failed(m, s->batch, s->why);
    if (!m->n_alive)
        end_all(m, E_DEVICE, s->why);
}

void embedder_collect(struct embedder *m)
{
    struct slip s;
    queue_fd_clear(m->back);
    while (queue_take(m->back, &s)) {
        take_back(m, &s);
        send_batches(m);
    }
    publish(m);
}

int embedder_fd(const struct embedder *m)
{
    return queue_fd(m->back);
}

bool embedder_is_down(const struct embedder *m)
{
    return !m->n_alive;
}

void embedder_count(const struct embedder *m, struct embed_counts *out)
{
    *out = m->counts;
    out->tokens_waiting = m->line.tokens;
    out->inputs_waiting = m->line.inputs;
    out->jobs_waiting = m->line.jobs;
    out->inputs_flying = m->inputs_flying;
    out->replicas = m->setup.n_replicas;
    out->replicas_alive = m->n_alive;
    out->replicas_allowed = embed_rule_allowed(m->rule, m->n_alive);
    for (int i = 0; i < m->setup.n_replicas; i++)
        out->tokens_flying += m->replicas[i].tokens;
}

void embedder_destroy(struct embedder *m)
{
    if (!m)
        return;
    struct slip end = {0};
    m->stopping = true;
    end_all(m, E_GONE, "the server is stopping");
    for (int i = 0; i < m->setup.n_replicas; i++) {
        struct replica *r = &m->replicas[i];
        if (r->thread)
            queue_post(r->inbox, &end);
        thread_join(r->thread);
    }
    if (m->back)
        embedder_collect(m);
    ASSERT(list_empty(&m->jobs));
    for (int i = 0; i < m->setup.n_replicas; i++) {
        struct replica *r = &m->replicas[i];
        for (int k = 0; k < r->n_free; k++)
            mem_free(r->free[k]);
        queue_destroy(r->inbox);
        if (r->machine)
            m->setup.ops->close(r->machine);
    }
    queue_destroy(m->back);
    mem_free(m->replicas);
    mem_free(m);
}
