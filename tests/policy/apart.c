/* Policies in processes of their own: they decide what they decide on the engine's thread, a process that is killed
 * costs one step, and what a process may do and say is bounded. */
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/thread.h"
#include "engine/live.h"
#include "lua/apart.h"
#include "lua/confine.h"
#include "lua/exchange.h"
#include "lua/rehearse.h"
#include "lua/talk.h"
#include "tests/rig/policy_rig.h"

enum { STEPS = 12 };

/* ---- the same decisions */

static void load(struct policy *p, const char *path, const struct lua_opts *o)
{
    struct buf source = {0};
    struct err e = {0};
    const char *slash = strrchr(path, '/');
    if (file_read(&source, path, LUA_SOURCE_BYTES, &e) ||
        lua_policy_load(p, slash + 1, source.data, source.len, o, NULL, &e))
        fail_msg("%s: %s", path, e.text);
    buf_free(&source);
}

static void transcribe(struct rehearsal *r, enum verdict v, const struct err *e, struct buf *out)
{
    buf_printf(out, "%s %s\n", verdict_name(v), verdict_stands(v) ? "" : e->text);
    if (verdict_stands(v))
        rehearsal_transcribe(r, out);
}

/* Both are asked the same of the same world; the plan of the second is carried out. */
static void one_step(struct rehearsal *r, const struct policy *both, const char *path, int i)
{
    struct buf said[2] = {{0}, {0}};
    for (int k = 0; k < 2; k++) {
        struct err e = {0};
        struct view v = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        enum verdict verdict = both[k].ops->step(both[k].ctx, &v, &r->plan, &e);
        transcribe(r, verdict, &e, &said[k]);
        struct request *last = r->world.waiting.n ? r->world.waiting.items[r->world.waiting.n - 1] : NULL;
        struct admission a = {.key = 7, .retry_after_s = -1};
        if (last)
            verdict = both[k].ops->admit(both[k].ctx, last, &v, &a, &e);
        buf_printf(&said[k], "admit %s %a %d %lld %s\n", verdict_name(verdict), a.key, a.refused,
                   (long long)a.hold_until_ns, a.why);
        both[k].ops->idle(both[k].ctx);
    }
    if (said[0].len != said[1].len || memcmp(said[0].data, said[1].data, said[0].len) != 0)
        fail_msg("%s, step %d, on the thread:\n%s\nin a process:\n%s", path, i, said[0].data, said[1].data);
    buf_free(&said[0]);
    buf_free(&said[1]);
}

static void same_in(struct rehearsal *r, const struct policy *both, const char *path)
{
    struct buf said[2] = {{0}, {0}};
    bool stands = true;
    for (int k = 0; k < 2; k++) {
        struct err e = {0};
        struct node_facts *node = seen_new(sizeof *node);
        struct node_shape *shape = seen_new(sizeof *shape);
        *node = rehearsal_node(r);
        *shape = *node->shape;
        node->shape = shape;
        struct view v = rehearsal_view(r);
        plan_begin(&r->plan, r->now_ns);
        enum verdict verdict = both[k].ops->start(both[k].ctx, node, &v, &r->plan, &e);
        stands = stands && verdict_stands(verdict);
        transcribe(r, verdict, &e, &said[k]);
        mem_free(node);
        mem_free(shape);
    }
    assert_string_equal(said[0].data, said[1].data);
    buf_free(&said[0]);
    buf_free(&said[1]);
    for (int i = 0; stands && i < STEPS; i++) {
        one_step(r, both, path, i);
        rehearsal_advance(r, 3, NULL, NULL);
        assert_true(world_check(&r->world));
    }
}

/* All policies that come along, on crowds of many seeds, on one rank and on several. */
static void the_same_decisions(void **state)
{
    static const struct rehearsal_size sizes[] = {
        {.kv_blocks = 256, .tokens_per_block = 16, .max_num_seqs = 16, .max_num_batched_tokens = 256},
        {.kv_blocks = 64, .tokens_per_block = 16, .max_num_seqs = 8, .max_num_batched_tokens = 64, .drafter = true},
        {.kv_blocks = 128,
         .tokens_per_block = 16,
         .max_num_seqs = 32,
         .max_num_batched_tokens = 128,
         .n_ranks = 4,
         .groups = {3, 4, 8},
         .n_host = 64},
        {.kv_blocks = 128,
         .tokens_per_block = 16,
         .max_num_seqs = 32,
         .max_num_batched_tokens = 128,
         .n_ranks = 4,
         .n_pooled = 8}};
    struct rig t;
    glob_t found;
    (void)state;
    rig_open(&t, &(struct rig_knobs){.hard_ns = 2000000000});
    assert_int_equal(glob("policies/*.lua", 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 8);
    for (size_t f = 0; f < found.gl_pathc; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            struct policy both[2];
            struct lua_opts plain = t.opts;
            plain.nursery = NULL;
            plain.again = true;
            plain.n_ranks = sizes[s].n_ranks;
            t.opts.again = s > 0;
            t.opts.n_ranks = sizes[s].n_ranks;
            load(&both[0], found.gl_pathv[f], &plain);
            load(&both[1], found.gl_pathv[f], &t.opts);
            assert_string_equal(both[0].sha256, both[1].sha256);
            assert_string_equal(both[0].doc, both[1].doc);
            assert_string_equal(both[0].libs, both[1].libs);
            assert_true(apart_pid(&both[1]) > 0 && !apart_pid(&both[0]));
            struct rehearsal *r = seen_new(sizeof *r);
            rehearsal_init(r, sizes[s], 50);
            rehearsal_crowd(r, 12 + 20 * (int)s, 100 * f + s);
            r->world.step = 1000;
            same_in(r, both, found.gl_pathv[f]);
            for (int k = 0; k < 2; k++)
                both[k].ops->destroy(both[k].ctx);
            rehearsal_free(r);
            mem_free(r);
        }
    globfree(&found);
    rig_close(&t);
}

/* ---- crashes */

static const char steady[] =
    "local n = 0\n"
    "return { api = 1, doc = 'x', params = { most = { type = 'integer', default = 64, min = 1, "
    "max = 64, doc = 'tokens' } },\n"
    "  step = function(view, act, p) n = n + 1\n"
    "  local b = act.batch(1) if not b then return end b:decodes() b:prefill(view.waiting, "
    "p.most) if b.tokens > 0 then act.forward(1, b) end end }";

static void submit_some(struct rig *t, int n)
{
    for (int i = 0; i < n; i++) {
        rig_submit(t, i % 3 ? "blue" : "red", 20 + i % 30, 4 + i % 9);
        rig_run_until(t, clock_now(&t->clock) + 2000000);
    }
}

static void kill_live(struct rig *t)
{
    int pid = apart_pid(engine_policy(t->engine));
    assert_true(pid > 0);
    kill(pid, SIGKILL);
}

/* Each kill costs one step, which the native policy decides; the next one is the policy's again, with its params. */
static void a_killed_process_costs_one_step(void **state)
{
    struct rig t;
    (void)state;
    rig_open(&t, &(struct rig_knobs){.hard_ns = 2000000000});
    assert_int_equal(rig_swap(&t, "steady", steady), 0);
    rig_post(&t, IN_PARAMS, mem_strdup("{\"most\":16}"), 11);
    rig_turn(&t);
    double generation = rig_state(&t, "policy.active.generation");
    for (int kills = 1; kills <= 2; kills++) {
        submit_some(&t, 10);
        kill_live(&t);
        submit_some(&t, 10);
        assert_int_equal(rig_state(&t, "policy.fallback_steps.crashed"), kills);
        assert_int_equal(rig_state(&t, "policy.active.generation"), generation);
        assert_int_equal(rig_state(&t, "policy.active.params.most.value"), 16);
    }
    rig_settle(&t);
    rig_check(&t);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_int_equal(t.heard[i].ending, END_LENGTH);
    assert_int_equal(rig_metric(&t, "policy_hook_errors_total{hook=\"step\",kind=\"crashed\"}"), 2);
    rig_close(&t);
}

/* Too many crashes are too many strikes: the one before takes over. */
static void crashes_are_strikes(void **state)
{
    struct rig t;
    (void)state;
    rig_open(&t, &(struct rig_knobs){.hard_ns = 2000000000});
    assert_int_equal(rig_swap(&t, "before", steady), 0);
    assert_int_equal(rig_swap(&t, "steady", steady), 0);
    for (int i = 0; i < 10 && !rig_state(&t, "policy.withdrawn"); i++) {
        kill_live(&t);
        submit_some(&t, 5);
    }
    assert_int_equal(rig_state(&t, "policy.withdrawn"), 1);
    assert_string_equal(engine_policy(t.engine)->name, "before");
    assert_true(rig_state(&t, "policy.fallback_steps.crashed") == LIVE_STRIKES + 1);
    kill_live(&t); /* and is renewed as well */
    submit_some(&t, 10);
    rig_settle(&t);
    rig_check(&t);
    rig_close(&t);
}

/* A process that is lost while it is not live is another one by the time of a rollback. */
static void a_rollback_renews(void **state)
{
    struct rig t;
    (void)state;
    rig_open(&t, &(struct rig_knobs){.hard_ns = 2000000000});
    assert_int_equal(rig_swap(&t, "before", steady), 0);
    int before = apart_pid(engine_policy(t.engine));
    assert_int_equal(rig_swap(&t, "steady", steady), 0);
    kill(before, SIGKILL);
    rig_post(&t, IN_ROLLBACK, NULL, 0);
    rig_turn(&t);
    assert_string_equal(engine_policy(t.engine)->name, "before");
    assert_true(apart_pid(engine_policy(t.engine)) != before);
    submit_some(&t, 10);
    rig_settle(&t);
    rig_check(&t);
    assert_true(rig_state(&t, "policy.fallback_steps.crashed") <= 1);
    rig_close(&t);
}

struct killer {
    _Atomic int pid;
    _Atomic bool stop;
    int n;
};

static void kill_on(void *arg)
{
    struct killer *k = arg;
    while (!atomic_load(&k->stop)) {
        int pid = atomic_exchange(&k->pid, 0);
        if (pid) {
            kill(pid, SIGKILL);
            k->n++;
        }
        usleep(700);
    }
}

/* Killed at any moment, in the middle of calls and of verbs, while requests come: nobody loses a token. */
static void killed_at_any_moment(void **state)
{
    struct rig t;
    struct killer k = {0};
    struct thread *thread;
    struct err e = {0};
    (void)state;
    rig_open(&t, &(struct rig_knobs){.hard_ns = 2000000000});
    assert_int_equal(thread_start(&thread, "killer", kill_on, &k, &e), 0);
    for (int round = 0; round < 12; round++) {
        char source[sizeof steady + 32];
        snprintf(source, sizeof source, "%s -- %d", steady, round);
        assert_int_equal(rig_swap(&t, "steady", source), 0);
        for (int i = 0; i < 15; i++) {
            atomic_store(&k.pid, i % 5 == 4 ? apart_pid(engine_policy(t.engine)) : 0);
            submit_some(&t, 1);
        }
    }
    atomic_store(&k.stop, true);
    thread_join(thread);
    rig_settle(&t);
    rig_check(&t);
    assert_true(k.n > 0);
    for (uint64_t i = 1; i <= t.n_tags; i++)
        assert_true(t.heard[i].ending == END_LENGTH && t.heard[i].n_tokens >= 4);
    rig_close(&t);
}

/* ---- what a process may do */

static void do_read(void)
{
    open("/etc/hostname", O_RDONLY);
}
static void do_write(void)
{
    syscall(SYS_openat, AT_FDCWD, "/tmp/escaped", O_CREAT | O_WRONLY, 0600);
}
static void do_talk(void)
{
    socket(AF_INET, SOCK_STREAM, 0);
}
static void do_fork(void)
{
    syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}
static void do_run(void)
{
    execl("/bin/true", "true", (char *)NULL);
}
static void do_kill(void)
{
    kill(getppid(), 0);
}
static void do_code(void)
{
    mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static void do_code_later(void)
{
    static char page[8192];
    mprotect((void *)(((uintptr_t)page + 4095) & ~(uintptr_t)4095), 4096, PROT_READ | PROT_EXEC);
}

static int status_of(void (*act)(void))
{
    int status, me = getpid(), pid = fork();
    struct err e = {0};
    if (pid == 0) {
        signal(SIGSYS, SIG_DFL);
        if (confine_ties(me, &e) || confine(&e))
            _exit(3);
        if (act)
            act();
        _exit(0);
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    return status;
}

static void a_confined_process_can_do_nothing(void **state)
{
    static void (*const acts[])(void) = {do_read, do_write, do_talk, do_fork, do_run, do_kill, do_code, do_code_later};
    (void)state;
    int status = status_of(NULL);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        status = status_of(acts[i]);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSYS)
            fail_msg("act %zu: status %x", i, (unsigned)status);
    }
}

/* What policies see can be read there, and never written, whatever is tried. */
static void what_is_seen_is_read_only(void **state)
{
    (void)state;
    rig_nursery();
    int *shared = seen_new(sizeof *shared), status;
    *shared = 7;
    assert_true(seen_has(shared));
    for (int i = 0; i < 3; i++) {
        int pid = fork();
        if (pid == 0) {
            struct err e = {0};
            void *page = (void *)((uintptr_t)shared & ~(uintptr_t)4095);
            signal(SIGSEGV, SIG_DFL);
            if (seen_only_read(&e) || *(volatile int *)shared != 7)
                _exit(1);
            if (i == 0)
                _exit(0);
            if (i == 2)
                _exit(mprotect(page, 4096, PROT_READ | PROT_WRITE) < 0 ? 0 : 2);
            *(volatile int *)shared = 8;
            _exit(3);
        }
        assert_true(waitpid(pid, &status, 0) == pid);
        assert_true(i == 1 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
        assert_int_equal(*shared, 7);
    }
    mem_free(shared);
}

/* ---- how long one may go on that is late */

enum { LOOK_US = 500, GIVEN_US = 2000 };

/* Looks of so much CPU time each; how many until it is over, at most `most`. */
static int looks_until_over(int64_t each_us, int turns, int most)
{
    struct overtime o = {0};
    int64_t cpu_us = 7000000;
    for (int i = 0; i < most; i++) {
        if (overtime_is_over(&o, cpu_us * 1000, GIVEN_US * 1000))
            return i;
        for (int k = 0; k < turns; k++)
            overtime_turn(&o);
        cpu_us += each_us;
    }
    return most;
}

static void a_machine_that_stands_still_is_not_late(void **state)
{
    (void)state;
    assert_int_equal(looks_until_over(LOOK_US, 0, 100), 3 * GIVEN_US / LOOK_US + 1); /* it loops */
    assert_int_equal(looks_until_over(0, 0, 100), 100);                              /* it does not run */
    assert_int_equal(looks_until_over(1000 * LOOK_US, 0, 100), 7);                   /* one standstill is one look */
    assert_int_equal(looks_until_over(90, 1, 400), 400);                             /* it waits for the engine */
    assert_int_equal(looks_until_over(LOOK_US, 20, 400), 113); /* it works in between, too: turns are bounded */
    struct overtime gone = {0};
    assert_false(overtime_is_over(&gone, 5000000, 1000));
    assert_false(overtime_is_over(&gone, -1, 1000));
}

/* ---- what a process may say */

/* Writes into its page whatever comes, and takes and gives the turn as it likes. */
static void babble(struct exchange_page *x, uint64_t seed)
{
    struct rng g;
    rng_init(&g, seed);
    for (;;) {
        uint32_t *verb = (uint32_t *)&x->verb;
        for (size_t i = 0; i < sizeof x->verb / sizeof *verb; i++)
            verb[i] = rng_below(&g, 3) ? (uint32_t)rng_below(&g, 4) : (uint32_t)rng_next(&g);
        x->verb.kind = (int)rng_below(&g, CALL_KINDS + 1);
        x->end.verdict = (int)rng_below(&g, VERDICT_COUNT + 2) - 1;
        memset(x->verb_text, (int)rng_below(&g, 256), sizeof x->verb_text);
        memset(x->switch_order, (int)rng_below(&g, 3), sizeof x->switch_order);
        memset(x->end.error, (int)rng_below(&g, 256), sizeof x->end.error);
        x->n_text = (int64_t)rng_next(&g);
        x->word = rng_below(&g, 8) ? SAY_VERB : (uint32_t)rng_below(&g, 9);
        atomic_store(&x->turn, (uint32_t)(rng_below(&g, 16) ? TURN_ENGINE : rng_below(&g, 5)));
        syscall(SYS_futex, &x->turn, 1 /* FUTEX_WAKE */, 1, NULL, NULL, 0);
    }
}

static void garbage_is_refused(void **state)
{
    (void)state;
    rig_nursery();
    struct rehearsal *r = seen_new(sizeof *r);
    struct talker talker;
    int n_heard[HEARD_WRONG + 1] = {0};
    talker_init(&talker);
    rehearsal_init(
        r,
        (struct rehearsal_size){
            .kv_blocks = 128, .tokens_per_block = 16, .max_num_seqs = 16, .max_num_batched_tokens = 128, .n_ranks = 4},
        50);
    rehearsal_crowd(r, 20, 3);
    for (int i = 0; i < 40; i++) {
        struct born b;
        int file;
        struct err e = {0};
        assert_int_equal(exchange_make(&b.page, &file, &e), 0);
        b.pid = fork();
        if (b.pid == 0)
            babble(b.page, (uint64_t)i);
        b.pidfd = (int)syscall(SYS_pidfd_open, b.pid, 0);
        close(file);
        for (int k = 0; k < 20; k++) {
            struct view v = rehearsal_view(r);
            struct talk t = {.born = &b, .name = "x", .quiet = true, .most_ns = 2000000};
            plan_begin(&r->plan, r->now_ns);
            t.scope = (struct verb_scope){k % 4 ? HOOK_STEP : HOOK_START, &v, &r->plan, NULL};
            n_heard[talk(&talker, &t, SAY_CALL)]++;
        }
        plan_begin(&r->plan, r->now_ns);
        kill(b.pid, SIGKILL);
        waitpid(b.pid, NULL, 0);
        close(b.pidfd);
        exchange_unmap(b.page);
        assert_true(world_check(&r->world));
    }
    assert_true(n_heard[HEARD_WRONG] > 0);
    talker_free(&talker);
    rehearsal_free(r);
    mem_free(r);
}

/* A silent process is given up, and so is one that is gone. */
static void silence_has_an_end(void **state)
{
    struct talker talker;
    struct err e = {0};
    (void)state;
    talker_init(&talker);
    for (int gone = 0; gone < 2; gone++) {
        struct born b;
        int file;
        assert_int_equal(exchange_make(&b.page, &file, &e), 0);
        b.pid = fork();
        if (b.pid == 0)
            for (;;)
                gone ? _exit(0) : (void)pause();
        b.pidfd = (int)syscall(SYS_pidfd_open, b.pid, 0);
        close(file);
        struct talk t = {.born = &b, .name = "x", .quiet = true, .most_ns = gone ? 20000000000 : 200000000};
        assert_int_equal(talk(&talker, &t, SAY_CALL), gone ? HEARD_GONE : HEARD_SILENT);
        kill(b.pid, SIGKILL);
        waitpid(b.pid, NULL, 0);
        close(b.pidfd);
        exchange_unmap(b.page);
    }
    talker_free(&talker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_decisions),        cmocka_unit_test(a_killed_process_costs_one_step),
        cmocka_unit_test(crashes_are_strikes),       cmocka_unit_test(a_rollback_renews),
        cmocka_unit_test(killed_at_any_moment),      cmocka_unit_test(a_confined_process_can_do_nothing),
        cmocka_unit_test(what_is_seen_is_read_only), cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(silence_has_an_end),        cmocka_unit_test(a_machine_that_stands_still_is_not_late),
    };
    if (nursery_refusal()) {
        print_message("left out: %s\n", nursery_refusal());
        return 0;
    }
    setenv("MOONSHIFT_TEST_ISOLATION", "process", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
