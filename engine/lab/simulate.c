#include "engine/lab/simulate.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/lab/plot.h"

struct simulation {
    struct simulate_report report;
    struct clock clock; /* the real one: for progress only */
    int interrupts;     /* signalfd of SIGINT and SIGTERM; -1: none */
    bool screen;        /* stderr is a terminal */
    int64_t begun_ns, shown_ns;
    const char *label; /* of the present run */
    struct simulate_run *run;
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

static bool poll_run(void *ctx, const struct replay *r, int64_t now_ns, int64_t n_live)
{
    struct simulation *m = ctx;
    int64_t now = clock_now(&m->clock);
    if (m->screen && now - m->shown_ns > 200000000) {
        double real = (double)(now - m->begun_ns) * 1e-9, virtual = (double)now_ns * 1e-9;
        fprintf(stderr, "\r%s: %.0f s simulated in %.1f s, %zu requests, %lld of them live\033[K", m->label, virtual,
                real, r->n_requests, (long long)n_live);
        m->shown_ns = now;
    }
    return interrupted(m);
}

static void account(void *ctx, struct layout l, const struct step_size *size)
{
    const struct simulation *m = ctx;
    const struct simulate_setup *s = m->report.setup;
    struct sim_step step = {
        l, {.shares = s->ask->weight_tp, .pool = s->engine->device.pool, .stages = s->ask->weight_pp}, *size};
    sim_machine_account(s->described, &step, m->run->outside);
    if (size->n_chunks || !s->engine->ffn)
        return;
    if (size->rows > m->run->decodes[0].size.rows)
        m->run->decodes[0] = step;
    m->run->decodes[1] = step;
}

static void say_done(struct simulation *m, const struct simulate_run *run)
{
    double real = (double)(clock_now(&m->clock) - m->begun_ns) * 1e-9, virtual = (double)run->replay.end_ns * 1e-9;
    clear_progress(m);
    fprintf(stderr, "%s: %.1f s simulated in %.2f s (%.0f simulated seconds a second)%s\n", run->label, virtual, real,
            real > 0 ? virtual / real : 0, run->replay.stopped ? ", stopped" : "");
}

/* ---- a run */

static int open_policy(const struct simulate_setup *s, const char *asked, struct policy *out, struct err *e)
{
    return s->open_policy(s->ctx, asked, &s->ask->params, out, e);
}

static int open_arrivals(const struct simulate_ask *o, struct arrivals **out, struct err *e)
{
    struct arrivals_setup a = {.spec = o->trace,
                               .hashes = o->hashes,
                               .seed = o->seed,
                               .max_requests = (uint64_t)o->requests,
                               .max_seconds = o->seconds};
    return arrivals_open(out, &a, e);
}

/* ---- on a recording's own machine */

/* The policy that went live during the recording: by its name, or any that was named; the bytes must be those. */
static int find_policy(void *ctx, const char *name, const char *sha256, const char *params, struct policy *out,
                       struct err *e)
{
    const struct simulation *m = ctx;
    const struct simulate_setup *s = m->report.setup;
    const struct strings *named = &s->ask->policies, none = {0};
    for (int i = -1; i < named->n; i++) {
        char *text = mem_strdup(i < 0 ? name : named->items[i]);
        text[strcspn(text, ":")] = 0;
        struct policy p = {0};
        int rc = s->open_policy(s->ctx, text, &none, &p, NULL);
        mem_free(text);
        if (rc)
            continue;
        if (!strcmp(p.sha256, sha256)) {
            *out = p;
            return p.ops->params_set ? p.ops->params_set(p.ctx, params, strlen(params), e) : 0;
        }
        if (p.ops->destroy)
            p.ops->destroy(p.ctx);
    }
    return err_set(e, E_NOTFOUND,
                   "from here on the policy %.40s (%.12s) is live, and there is no such file here with these bytes: "
                   "put it where --policy-dir or --policy finds it",
                   name, sha256);
}

/* Compared with the recording where the policy is the live one, else with modelled step times. */
static int run_recorded(struct simulation *m, const char *asked, struct simulate_run *run, struct replay_setup *r,
                        struct err *e)
{
    const struct simulate_setup *s = m->report.setup;
    const struct recorded_machine *rec = s->recorded;
    struct engine_setup engine = rec->modelled_setup;
    struct policy p = r->engine->policy;
    int rc = recorded_choose(rec, &p, s->ask->params.n || strchr(asked, '='), &run->recorded, e);
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
        TRY(replay_run(&run->replay, r, e));
        double busy = 0, n = 0;
        for (int i = 0; i < run->replay.n_layouts; i++) {
            busy += (double)run->replay.layouts[i].busy_ns;
            n += (double)run->replay.layouts[i].n_steps;
        }
        run->recorded.mean_step_ns = n > 0 ? busy / n : 0;
        return 0;
    }
    struct reenact_setup again = {.replay = r, .find_policy = find_policy, .ctx = m};
    rc = recording_open(&again.recording, rec->path, e);
    if (rc && p.ops->destroy)
        p.ops->destroy(p.ctx);
    if (!rc)
        rc = reenact_run(&run->recorded.exact, &run->replay, &again, e);
    recording_close(again.recording);
    return rc;
}

static int run_policy(struct simulation *m, const char *asked, struct simulate_run *run, struct err *e)
{
    const struct simulate_setup *s = m->report.setup;
    struct engine_setup engine = *s->engine;
    struct arrivals *arrivals = NULL;
    TRY(open_arrivals(s->ask, &arrivals, e));
    int rc = open_policy(s, asked, &engine.policy, e);
    if (!rc) {
        struct replay_setup r = {.engine = &engine,
                                 .arrivals = arrivals,
                                 .seed = s->ask->seed,
                                 .vocab = model_config(engine.model)->vocab,
                                 .front_ns = s->front_ns,
                                 .forwarded = s->described ? account : NULL,
                                 .poll = poll_run,
                                 .ctx = m};
        m->run = run;
        run->outside = s->described ? sim_outside_new() : NULL;
        memcpy(run->sha256, engine.policy.sha256, sizeof run->sha256);
        m->begun_ns = clock_now(&m->clock);
        rc = s->recorded ? run_recorded(m, asked, run, &r, e) : replay_run(&run->replay, &r, e);
    }
    clear_progress(m);
    arrivals_close(arrivals);
    return rc;
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
        TRY(open_policy(s, s->ask->policies.items[i], &p, e));
        int rc = try_policy(s, &p, e);
        if (rc)
            return err_prefix(e, rc, "--policy %.60s", s->ask->policies.items[i]);
    }
    return 0;
}

static int run_all(struct simulation *m, struct err *e)
{
    struct simulate_report *r = &m->report;
    const struct simulate_ask *o = r->setup->ask;
    if (o->policies.n > 1)
        TRY(try_policies(r->setup, e));
    r->runs = mem_new_array((size_t)o->policies.n, sizeof *r->runs);
    for (int i = 0; i < o->policies.n; i++) {
        struct simulate_run *run = &r->runs[i];
        m->label = run->label = label_of(o->policies.items[i]);
        r->n_runs++;
        TRY(run_policy(m, o->policies.items[i], run, e));
        tally_make(&run->tally, &run->replay, (struct tally_slo){o->slo_ttft_ms, o->slo_tpot_ms});
        say_done(m, run);
        if (run->replay.stopped)
            break;
    }
    return 0;
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
    sigset_t before;
    clock_init_real(&m.clock);
    watch_signals(&m, &before);
    int rc = describe_trace(s->ask, &trace, e);
    m.report.trace = trace.data;
    if (!rc)
        rc = run_all(&m, e);
    if (!rc)
        rc = write_results(&m, e);
    if (!rc && m.report.runs[m.report.n_runs - 1].replay.stopped)
        rc = err_set(e, E_GONE, "interrupted; what is shown is as far as it came");
    for (int i = 0; i < m.report.n_runs; i++) {
        const struct recorded_result *x = &m.report.runs[i].recorded;
        if (!rc && x->compared && !x->exact.equal)
            rc = err_set(e, E_POLICY, "%.60s did not decide as the recording says it did", m.report.runs[i].label);
        reenact_free(&m.report.runs[i].recorded.exact);
        replay_free(&m.report.runs[i].replay);
        tally_free(&m.report.runs[i].tally);
        sim_outside_free(m.report.runs[i].outside);
        mem_free((char *)m.report.runs[i].label);
    }
    mem_free(m.report.runs);
    buf_free(&trace);
    if (m.interrupts >= 0)
        close(m.interrupts);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return rc;
}
