#include "engine/lab/simulate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/cores.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/lab/plot.h"
#include "engine/lab/recorded_policies.h"

enum { MAX_PARALLEL = 64, SHOW_MS = 200 };

/* A policy's run: of one thread from when it is begun until it is done. */
struct single {
    struct simulation *m;
    struct simulate_run *run;
    const char *asked;
    struct policy *policies; /* of each node, until an engine takes it */
    int rc;
    struct err err;
    int64_t begun_ns, took_ns;
    bool said;
    _Atomic bool done;
    _Atomic int64_t now_ns; /* virtual */
};

struct simulation {
    struct simulate_report report;
    struct clock clock; /* the real one: for progress only */
    int interrupts;     /* signalfd of SIGINT and SIGTERM; -1: none */
    bool screen;        /* stderr is a terminal */
    int64_t begun_ns, shown_ns;
    struct single *singles;
    bool beside;       /* they run beside one another, and this thread watches */
    _Atomic bool stop; /* no more is begun, and what runs ends */
    _Atomic int next;  /* to begin; whoever takes a number begins it */
    int bell;          /* eventfd: one is done */
};

/* ---- progress */

static bool interrupted(struct simulation *m)
{
    struct signalfd_siginfo info;
    return m->interrupts >= 0 && read(m->interrupts, &info, sizeof info) == sizeof info;
}

static void clear_progress(struct simulation *m)
{
    if (m->screen && m->shown_ns)
        fprintf(stderr, "\r\033[K");
    m->shown_ns = 0;
}

static void show_run(struct single *x, const struct replay *r, int64_t now_ns, int64_t n_live)
{
    struct simulation *m = x->m;
    int64_t now = clock_now(&m->clock);
    if (!m->screen || now - m->shown_ns <= SHOW_MS * INT64_C(1000000))
        return;
    double real = (double)(now - x->begun_ns) * 1e-9, virtual = (double)now_ns * 1e-9;
    fprintf(stderr, "\r%s: %.0f s simulated in %.1f s, %zu requests, %lld of them live\033[K", x->run->label, virtual,
            real, r->n_requests, (long long)n_live);
    m->shown_ns = now;
}

static bool poll_run(void *ctx, const struct replay *r, int64_t now_ns, int64_t n_live)
{
    struct single *x = ctx;
    if (x->m->beside) {
        atomic_store(&x->now_ns, now_ns);
        return atomic_load(&x->m->stop);
    }
    show_run(x, r, now_ns, n_live);
    return interrupted(x->m);
}

static void note_decodes(void *ctx, struct layout l, const struct step_size *size)
{
    const struct single *x = ctx;
    const struct simulate_setup *s = x->m->report.setup;
    struct sim_step step = {
        l, {.shares = s->ask->weight_tp, .pool = s->engine->device.pool, .stages = s->ask->weight_pp}, *size};
    if (size->n_chunks)
        return;
    if (size->rows > x->run->decodes[0].size.rows)
        x->run->decodes[0] = step;
    x->run->decodes[1] = step;
}

static void say_done(struct simulation *m, struct single *x)
{
    const struct simulate_run *run = x->run;
    double real = (double)x->took_ns * 1e-9, virtual = (double)run->replay.end_ns * 1e-9;
    if (x->said || x->rc)
        return;
    x->said = true;
    clear_progress(m);
    fprintf(stderr, "%s: %.1f s simulated in %.2f s (%.0f simulated seconds a second)%s\n", run->label, virtual, real,
            real > 0 ? virtual / real : 0, run->replay.stopped ? ", stopped" : "");
}

/* ---- a run */

static int open_policy(const struct simulate_setup *s, const char *asked, bool again, struct policy *out, struct err *e)
{
    return s->open_policy(s->ctx, asked, &s->ask->params, again, out, e);
}

/* One for each node. */
static int open_policies(struct single *x, struct err *e)
{
    const struct simulate_setup *s = x->m->report.setup;
    for (int i = 0; i < s->ask->nodes; i++)
        TRY(open_policy(s, x->asked, i > 0 || s->ask->policies.n > 1, &x->policies[i], e)); /* try_policies() */
    return 0;
}

static int open_arrivals(const struct simulate_ask *o, struct arrivals **out, struct err *e)
{
    struct arrivals_setup a = {.spec = o->trace,
                               .hashes = o->hashes,
                               .seed = o->seed,
                               .from_s = o->from_s,
                               .rate = o->rate,
                               .max_requests = (uint64_t)o->requests,
                               .max_seconds = o->seconds};
    return arrivals_open(out, &a, e);
}

/* ---- on a recording's own machine */

static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    const struct simulate_setup *s = ((const struct single *)ctx)->m->report.setup;
    struct recorded_policies where = {
        .open = s->open_policy, .ctx = s->ctx, .when = "from here on", .named = &s->ask->policies};
    return recorded_policies_find(&where, name, sha256, params, out, e);
}

/* Compared with the recording where the policy is the live one, else with modelled step times. */
static int run_recorded(struct single *x, struct replay_setup *r, struct err *e)
{
    const struct simulate_setup *s = x->m->report.setup;
    struct simulate_run *run = x->run;
    const struct recorded_machine *rec = s->recorded;
    struct engine_setup engine = rec->modelled_setup;
    struct policy p = r->engine->policy;
    int rc = recorded_choose(rec, &p, s->ask->params.n || strchr(x->asked, '='), &run->recorded, e);
    if (rc) {
        if (p.ops->destroy)
            p.ops->destroy(p.ctx);
        return rc;
    }
    if (run->recorded.compared)
        engine = rec->exact_setup;
    engine.policy = p;
    r->engine = &engine;
    if (!run->recorded.compared) {
        struct engine_play play;
        recorded_what_if(rec, &run->recorded, &play, s->ask->seed, s->ask->from_s);
        engine.play = &play;
        r->recorded_front = true;
        TRY(replay_run(&run->replay, r, e));
        return recorded_check_guesses(rec, &run->recorded, e);
    }
    struct reenact_setup again = {.replay = r, .find_policy = find_policy, .ctx = x};
    rc = recording_open(&again.recording, rec->path, e);
    if (rc && p.ops->destroy)
        p.ops->destroy(p.ctx);
    if (!rc)
        rc = reenact_run(&run->recorded.exact, &run->replay, &again, e);
    recording_close(again.recording);
    return rc;
}

/* The engine takes the policy in every case. */
static int replay_policy(struct single *x, struct arrivals *arrivals, struct err *e)
{
    const struct simulate_setup *s = x->m->report.setup;
    struct simulate_run *run = x->run;
    struct engine_setup engine = *s->engine;
    struct replay_setup r = {.engine = &engine,
                             .arrivals = arrivals,
                             .seed = s->ask->seed,
                             .vocab = model_config(engine.model)->vocab,
                             .front_ns = s->front_ns,
                             .n_nodes = (int)s->ask->nodes,
                             .router = s->ask->router,
                             .others = x->policies + 1,
                             .forwarded = s->described && s->engine->ffn ? note_decodes : NULL,
                             .poll = poll_run,
                             .ctx = x};
    engine.policy = x->policies[0];
    engine.device.sim_outside = run->outside = s->described ? sim_outside_new() : NULL;
    memcpy(run->sha256, engine.policy.sha256, sizeof run->sha256);
    int rc = s->recorded ? run_recorded(x, &r, e) : replay_run(&run->replay, &r, e);
    memset(x->policies, 0, (size_t)s->ask->nodes * sizeof *x->policies); /* the engines took them */
    return rc;
}

/* Once its policy is open, by any thread. */
static void run_single(struct single *x)
{
    const struct simulate_ask *o = x->m->report.setup->ask;
    struct arrivals *arrivals = NULL;
    x->begun_ns = clock_now(&x->m->clock);
    x->rc = open_arrivals(o, &arrivals, &x->err);
    if (!x->rc)
        x->rc = replay_policy(x, arrivals, &x->err);
    arrivals_close(arrivals);
    if (!x->rc)
        tally_make(&x->run->tally, &x->run->replay, (struct tally_slo){o->slo_ttft_ms, o->slo_tpot_ms});
    x->took_ns = clock_now(&x->m->clock) - x->begun_ns;
}

/* "policies/shift.lua:threshold=256" is shown as "shift:threshold=256". */
static char *label_of(const char *asked)
{
    size_t n = strcspn(asked, ":"), from = n;
    while (from && asked[from - 1] != '/')
        from--;
    size_t len = n - from > 4 && !strncmp(asked + n - 4, ".lua", 4) ? n - from - 4 : n - from;
    struct buf b = {0};
    buf_put(&b, asked + from, len);
    buf_puts(&b, asked + n);
    return buf_take(&b);
}

/* Takes the policy. A recording's node is opened only with what was recorded. */
static int try_policy(const struct simulate_setup *s, struct policy *p, struct err *e)
{
    struct engine_setup setup = *s->engine;
    struct engine *engine = NULL;
    struct clock clock;
    if (s->recorded) {
        if (p->ops->destroy)
            p->ops->destroy(p->ctx);
        return 0;
    }
    clock_init_virtual(&clock, 1);
    setup.clock = &clock;
    setup.threaded = false;
    setup.policy = *p;
    int rc = engine_create(&engine, &setup, e);
    if (!rc)
        engine_destroy(engine);
    return rc;
}

/* A policy that cannot be loaded, or does not fit the node, is better found before another one has run for minutes. */
static int try_policies(const struct simulate_setup *s, struct err *e)
{
    for (int i = 0; i < s->ask->policies.n; i++) {
        struct policy p = {0};
        TRY(open_policy(s, s->ask->policies.items[i], false, &p, e));
        int rc = try_policy(s, &p, e);
        if (rc)
            return err_prefix(e, rc, "--policy %.60s", s->ask->policies.items[i]);
    }
    return 0;
}

/* ---- one after the other */

static int run_in_turn(struct simulation *m, struct err *e)
{
    struct simulate_report *r = &m->report;
    for (int i = 0; i < r->setup->ask->policies.n; i++) {
        struct single *x = &m->singles[i];
        r->n_runs++;
        TRY(open_policies(x, e));
        run_single(x);
        clear_progress(m);
        if (x->rc)
            return err_set(e, x->rc, "%s", x->err.text);
        say_done(m, x);
        if (x->run->replay.stopped)
            break;
    }
    return 0;
}

/* ---- beside one another */

static void work(void *arg)
{
    struct simulation *m = arg;
    uint64_t one = 1;
    while (!atomic_load(&m->stop)) {
        int i = atomic_fetch_add(&m->next, 1);
        if (i >= m->report.setup->ask->policies.n)
            return;
        run_single(&m->singles[i]);
        if (m->singles[i].rc)
            atomic_store(&m->stop, true);
        atomic_store(&m->singles[i].done, true);
        ssize_t told = write(m->bell, &one, sizeof one);
        (void)told; /* a bell that is full has rung */
    }
}

static void show_all(struct simulation *m, int n_done)
{
    int64_t now = clock_now(&m->clock), least = INT64_MAX;
    int n = m->report.setup->ask->policies.n, begun = atomic_load(&m->next);
    if (!m->screen || now - m->shown_ns <= SHOW_MS * INT64_C(1000000))
        return;
    for (int i = 0; i < n && i < begun; i++) {
        int64_t at = atomic_load(&m->singles[i].now_ns);
        least = !atomic_load(&m->singles[i].done) && at < least ? at : least;
    }
    fprintf(stderr, "\r%d of %d policies; the others have come to %.0f s, in %.1f s\033[K", n_done, n,
            least == INT64_MAX ? 0 : (double)least * 1e-9, (double)(now - m->begun_ns) * 1e-9);
    m->shown_ns = now;
}

/* Until all that was begun is done. Ctrl-C ends it. */
static void watch(struct simulation *m)
{
    int n = m->report.setup->ask->policies.n;
    for (;;) {
        int n_done = 0, begun;
        bool stop = atomic_load(&m->stop);
        begun = atomic_load(&m->next) < n ? atomic_load(&m->next) : n;
        for (int i = 0; i < begun; i++)
            if (atomic_load(&m->singles[i].done)) {
                say_done(m, &m->singles[i]);
                n_done++;
            }
        if (n_done == (stop ? begun : n))
            return;
        show_all(m, n_done);
        struct pollfd p[] = {{.fd = m->bell, .events = POLLIN}, {.fd = m->interrupts, .events = POLLIN}};
        poll(p, 2, SHOW_MS);
        uint64_t rung;
        if (p[0].revents & POLLIN && read(m->bell, &rung, sizeof rung) < 0)
            return;
        if (interrupted(m))
            atomic_store(&m->stop, true);
    }
}

/* All policies are open before the first thread starts: opening one is this thread's. */
static int run_beside(struct simulation *m, int n_workers, struct err *e)
{
    struct simulate_report *r = &m->report;
    struct thread *workers[MAX_PARALLEL];
    int n = r->setup->ask->policies.n, n_started = 0, rc = 0;
    m->beside = true;
    m->begun_ns = clock_now(&m->clock);
    for (int i = 0; i < n; i++)
        TRY(open_policies(&m->singles[i], e));
    m->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (m->bell < 0)
        return err_set(e, E_SYS, "eventfd: %s", strerror(errno));
    for (; n_started < n_workers && !rc; n_started += !rc)
        rc = thread_start(&workers[n_started], "simulate", work, m, e);
    if (rc)
        atomic_store(&m->stop, true);
    else
        watch(m);
    for (int i = 0; i < n_started; i++)
        thread_join(workers[i]);
    clear_progress(m);
    close(m->bell);
    r->n_runs = atomic_load(&m->next) < n ? atomic_load(&m->next) : n;
    if (!rc && !r->n_runs)
        rc = err_set(e, E_GONE, "interrupted");
    for (int i = 0; i < r->n_runs && !rc; i++) {
        say_done(m, &m->singles[i]);
        if (m->singles[i].rc)
            rc = err_set(e, m->singles[i].rc, "%s", m->singles[i].err.text);
    }
    return rc;
}

/* Recordings are replayed one after the other: they open policies on their way. */
static int run_all(struct simulation *m, struct err *e)
{
    struct simulate_report *r = &m->report;
    const struct simulate_ask *o = r->setup->ask;
    int n = o->policies.n, most = o->jobs ? (int)o->jobs : cores_usable();
    most = most < n ? most : n;
    if (n > 1)
        TRY(try_policies(r->setup, e));
    r->runs = mem_new_array((size_t)n, sizeof *r->runs);
    m->singles = mem_new_array((size_t)n, sizeof *m->singles);
    for (int i = 0; i < n; i++) {
        m->singles[i].m = m;
        m->singles[i].run = &r->runs[i];
        m->singles[i].asked = o->policies.items[i];
        m->singles[i].policies = mem_new_array((size_t)o->nodes, sizeof(struct policy));
        r->runs[i].label = label_of(o->policies.items[i]);
    }
    return most > 1 && !r->setup->recorded ? run_beside(m, most < MAX_PARALLEL ? most : MAX_PARALLEL, e)
                                           : run_in_turn(m, e);
}

/* ---- results */

static int write_results(struct simulation *m, struct err *e)
{
    const struct simulate_ask *o = m->report.setup->ask;
    struct buf text = {0};
    int rc = 0;
    simulate_table(&m->report, &text);
    fputs(text.data, stdout);
    buf_clear(&text);
    if (o->json) {
        simulate_json(&m->report, &text);
        rc = file_replace(o->json, text.data, text.len, e);
    }
    buf_free(&text);
    if (!rc && o->request_log)
        rc = simulate_request_log(&m->report, o->request_log, e);
    if (!rc && o->plots)
        rc = plot_report(&m->report, o->plots, e);
    return rc;
}

/* What is replayed, in words: the trace, and how much of it. */
static int describe_trace(const struct simulate_ask *o, struct buf *out, struct err *e)
{
    struct arrivals *a = NULL;
    TRY(open_arrivals(o, &a, e));
    int rc = arrivals_describe(a, out, e);
    arrivals_close(a);
    if (o->from_s > 0)
        buf_printf(out, ", from %g s on", o->from_s);
    if (o->rate > 0)
        buf_printf(out, ", %g requests/s", o->rate);
    if (o->requests)
        buf_printf(out, ", its first %lld requests", (long long)o->requests);
    if (o->seconds > 0)
        buf_printf(out, ", its first %g s", o->seconds);
    return rc;
}

static void watch_signals(struct simulation *m, sigset_t *before)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, before);
    m->interrupts = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

int simulate(const struct simulate_setup *s, struct err *e)
{
    struct simulation m = {.report = {.setup = s}, .screen = isatty(STDERR_FILENO)};
    struct buf trace = {0};
    struct bands bands = {0};
    sigset_t before;
    clock_init_real(&m.clock);
    watch_signals(&m, &before);
    int rc = describe_trace(s->ask, &trace, e), sampled = 0;
    m.report.trace = trace.data;
    if (!rc)
        rc = run_all(&m, e);
    if (!rc && s->sample && !m.report.runs[m.report.n_runs - 1].replay.stopped) {
        sampled = s->sample(s->ctx, &bands, e);
        m.report.bands = sampled ? NULL : &bands;
        rc = sampled == E_GONE ? 0 : sampled; /* the plain run is there all the same */
    }
    if (!rc)
        rc = write_results(&m, e);
    rc = rc ? rc : sampled;
    for (int i = 0; i < s->ask->policies.n && !rc; i++)
        if (i >= m.report.n_runs || m.report.runs[i].replay.stopped)
            rc = err_set(e, E_GONE, "interrupted; what is shown is as far as it came");
    for (int i = 0; m.report.runs && i < s->ask->policies.n; i++) {
        const struct recorded_result *x = &m.report.runs[i].recorded;
        for (int k = 0; k < s->ask->nodes; k++) {
            struct policy *left = &m.singles[i].policies[k];
            if (left->ops && left->ops->destroy)
                left->ops->destroy(left->ctx);
        }
        mem_free(m.singles[i].policies);
        if (!rc && x->compared && !x->exact.equal)
            rc = err_set(e, E_POLICY, "%.60s did not decide as the recording says it did", m.report.runs[i].label);
        reenact_free(&m.report.runs[i].recorded.exact);
        replay_free(&m.report.runs[i].replay);
        tally_free(&m.report.runs[i].tally);
        sim_outside_free(m.report.runs[i].outside);
        mem_free((char *)m.report.runs[i].label);
    }
    mem_free(m.report.runs);
    bands_free(&bands);
    mem_free(m.singles);
    buf_free(&trace);
    if (m.interrupts >= 0)
        close(m.interrupts);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}
