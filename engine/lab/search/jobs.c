#include "engine/lab/search/jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/scratch.h"

extern char **environ;

enum { MAX_PARALLEL = 64, PATH_BYTES = 256, MAX_RESULT = 256 << 20, MAX_FAILURE = 64 << 10 };

struct child {
    pid_t pid; /* 0: the place is free */
    int job;
    int64_t begun_ns;
};

struct runner {
    struct jobs *j;
    struct child children[MAX_PARALLEL];
    int n_children, n_running, next, n_done;
    bool screen;
    struct clock clock;
    struct scratch scratch;
};

static void path_of(const struct runner *c, int job, const char *ext, char out[PATH_BYTES + 32])
{
    snprintf(out, PATH_BYTES + 32, "%s/%d.%s", c->scratch.path, job, ext);
}

/* ---- a child */

/* In a process group of its own, so that Ctrl-C at the terminal comes here alone; its own words go to a file. */
static int start(struct runner *c, struct child *to, int job, struct err *e)
{
    const struct job *x = &c->j->items[job];
    char **argv = mem_new_array((size_t)x->n_args + 4, sizeof *argv), json[PATH_BYTES + 32], log[PATH_BYTES + 32];
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    path_of(c, job, "json", json);
    path_of(c, job, "log", log);
    argv[0] = (char *)"moonshift";
    memcpy(argv + 1, x->args, (size_t)x->n_args * sizeof *argv);
    argv[x->n_args + 1] = (char *)"--json";
    argv[x->n_args + 2] = json;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    posix_spawnattr_setsigmask(&attr, &c->j->signals->before);
    int rc = posix_spawn(&to->pid, "/proc/self/exe", &files, &attr, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    mem_free(argv);
    if (rc) {
        to->pid = 0;
        return err_set(e, E_SYS, "cannot start a simulation: %s", strerror(rc));
    }
    to->job = job;
    to->begun_ns = clock_now(&c->clock);
    c->n_running++;
    return 0;
}

/* The last thing that it said, without the program's name. */
static char *last_words(struct runner *c, int job, int status)
{
    char path[PATH_BYTES + 32];
    struct buf text = {0};
    struct err e = {0};
    path_of(c, job, "log", path);
    if (file_read(&text, path, MAX_FAILURE, &e))
        buf_clear(&text);
    const char *found = NULL;
    for (char *line = text.data; line && *line;) {
        char *end = line + strcspn(line, "\n"), *next = *end ? end + 1 : end;
        *end = 0;
        if (!strncmp(line, "moonshift: ", 11))
            found = line + 11;
        line = next;
    }
    char *out;
    if (found) {
        out = mem_strdup(found);
    } else {
        struct buf b = {0};
        buf_printf(&b, WIFSIGNALED(status) ? "it was ended by signal %d" : "it ended with status %d",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        out = buf_take(&b);
    }
    buf_free(&text);
    return out;
}

static void collect(struct runner *c, struct child *k, int status)
{
    struct job *x = &c->j->items[k->job];
    struct buf text = {0};
    struct err e = {0};
    char path[PATH_BYTES + 32];
    path_of(c, k->job, "json", path);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !file_read(&text, path, MAX_RESULT, &e))
        x->result = json_parse(text.data ? text.data : "", text.len, NULL, &e);
    if (!x->result)
        x->failure = last_words(c, k->job, status);
    x->elapsed_ns = clock_now(&c->clock) - k->begun_ns;
    buf_free(&text);
    k->pid = 0;
    c->n_running--;
    c->n_done++;
}

/* ---- all of them */

static void show(const struct runner *c)
{
    enum { WIDE = 30 };
    int all = c->j->n_all ? c->j->n_all : c->j->n, done = c->j->n_before + c->n_done,
        full = all ? WIDE * done / all : WIDE;
    char bar[WIDE + 1];
    if (!c->screen)
        return;
    full = full < WIDE ? full : WIDE;
    memset(bar, '.', WIDE);
    memset(bar, '#', (size_t)full);
    bar[WIDE] = 0;
    fprintf(stderr, "\r[%s] %d of %d %s\033[K", bar, done, all, c->j->what);
}

static void reap(struct runner *c)
{
    for (int i = 0; i < c->n_children; i++) {
        int status;
        if (c->children[i].pid && waitpid(c->children[i].pid, &status, WNOHANG) == c->children[i].pid)
            collect(c, &c->children[i], status);
    }
}

/* Waits until a child has ended or a signal asks for the end of all, and returns whether one did. */
static bool await(struct runner *c)
{
    struct pollfd p = {.fd = c->j->signals->fd, .events = POLLIN};
    struct signalfd_siginfo info;
    poll(&p, 1, 1000);
    bool stop = false;
    while (read(p.fd, &info, sizeof info) == sizeof info)
        stop = stop || info.ssi_signo != SIGCHLD;
    return stop;
}

static int work(struct runner *c, struct err *e)
{
    show(c);
    while (c->n_running || c->next < c->j->n) {
        for (int i = 0; i < c->n_children && c->next < c->j->n; i++)
            if (!c->children[i].pid)
                TRY(start(c, &c->children[i], c->next++, e));
        bool stop = await(c);
        reap(c);
        show(c);
        if (stop)
            return err_set(e, E_GONE, "interrupted; what is shown is as far as it came");
    }
    return 0;
}

static void end_children(struct runner *c)
{
    for (int i = 0; i < c->n_children; i++)
        if (c->children[i].pid) {
            kill(c->children[i].pid, SIGKILL);
            waitpid(c->children[i].pid, NULL, 0);
        }
}

int job_signals_open(struct job_signals *s, struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGCHLD);
    s->fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->fd < 0)
        return err_set(e, E_SYS, "cannot watch for Ctrl-C: %s", strerror(errno));
    sigprocmask(SIG_BLOCK, &set, &s->before);
    return 0;
}

void job_signals_close(struct job_signals *s)
{
    struct signalfd_siginfo info;
    while (read(s->fd, &info, sizeof info) == sizeof info) /* too late to end anything */
        ;
    close(s->fd);
    sigprocmask(SIG_SETMASK, &s->before, NULL);
}

int jobs_run(struct jobs *j, struct err *e)
{
    struct runner *c = mem_new(sizeof *c);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    c->j = j;
    c->n_children = j->parallel > 0 ? j->parallel : cores > 0 ? (int)cores : 1;
    c->n_children = c->n_children < MAX_PARALLEL ? c->n_children : MAX_PARALLEL;
    c->screen = isatty(STDERR_FILENO);
    clock_init_real(&c->clock);
    int rc = scratch_open(&c->scratch, e);
    if (!rc)
        rc = work(c, e);
    end_children(c);
    if (c->screen)
        fprintf(stderr, "\r\033[K");
    scratch_close(&c->scratch);
    mem_free(c);
    return rc;
}

void jobs_clear(struct jobs *j)
{
    for (int i = 0; i < j->n; i++) {
        json_free(j->items[i].result);
        mem_free(j->items[i].failure);
        j->items[i].result = NULL;
        j->items[i].failure = NULL;
    }
}
