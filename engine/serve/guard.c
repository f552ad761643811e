#include "engine/serve/guard.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

static const int64_t SECOND_NS = 1000000000;

enum note { NOTE_DRAIN, NOTE_END }; /* what others tell the guard */

struct guard {
    struct thread *thread;
    struct queue *words, *notes; /* of enum guard_word, to the server; of enum note, to the guard */
    struct clock clock;
    int signals; /* a signalfd */
    int64_t timeout_ns;
    /* the thread's own */
    int n_signals;
    bool drains, stops;
    int64_t stop_ns, end_ns; /* when the server is told to stop; when the process ends. INT64_MAX: not yet */
};

static void say(struct guard *g, enum guard_word w)
{
    queue_post(g->words, &w);
}

static void drain(struct guard *g, int64_t now)
{
    if (g->drains)
        return;
    g->drains = true;
    g->stop_ns = now + g->timeout_ns;
}

/* How many signals to end have come since it was last asked. */
static int read_signals(struct guard *g)
{
    struct signalfd_siginfo info;
    int n = 0;
    while (read(g->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGHUP)
            say(g, GUARD_RELOAD);
        else
            n++;
    return n;
}

static void take_signals(struct guard *g, int64_t now)
{
    for (int n = read_signals(g); n > 0; n--) {
        g->n_signals++;
        if (g->drains)
            g->stop_ns = now;
        if (g->stops)
            g->end_ns = now;
        if (!g->drains)
            say(g, GUARD_DRAIN);
        drain(g, now);
    }
}

static void keep_time(struct guard *g, int64_t now)
{
    if (now >= g->stop_ns && !g->stops) {
        g->stops = true;
        g->end_ns = now + GUARD_GRACE_S * SECOND_NS;
        if (g->n_signals < 2)
            log_warn("server", "the end takes longer than --shutdown-timeout allows: what is under way is cut off");
        say(g, GUARD_STOP);
    }
    if (now >= g->end_ns) {
        log_error("server", "something does not end: the process ends where it stands");
        _exit(1);
    }
}

static int wait_ms(const struct guard *g, int64_t now)
{
    int64_t next = g->stops ? g->end_ns : g->stop_ns;
    if (next == INT64_MAX)
        return -1;
    return next <= now ? 0 : (int)((next - now) / 1000000) + 1;
}

static void watch(void *ctx)
{
    struct guard *g = ctx;
    for (;;) {
        struct pollfd fds[] = {{.fd = g->signals, .events = POLLIN}, {.fd = queue_fd(g->notes), .events = POLLIN}};
        enum note note;
        poll(fds, 2, wait_ms(g, clock_now(&g->clock)));
        int64_t now = clock_now(&g->clock);
        queue_fd_clear(g->notes);
        while (queue_take(g->notes, &note)) {
            if (note == NOTE_END)
                return;
            drain(g, now);
        }
        take_signals(g, now);
        keep_time(g, now);
    }
}

static void close_guard(struct guard *g)
{
    queue_destroy(g->words);
    queue_destroy(g->notes);
    if (g->signals >= 0)
        close(g->signals);
    mem_free(g);
}

int guard_start(struct guard **out, int timeout_s, struct err *e)
{
    struct guard *g = mem_new(sizeof *g);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    g->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    g->words = queue_create(sizeof(enum guard_word), 0, true);
    g->notes = queue_create(sizeof(enum note), 0, true);
    clock_init_real(&g->clock);
    g->timeout_ns = timeout_s * SECOND_NS;
    g->stop_ns = g->end_ns = INT64_MAX;
    int rc =
        g->signals < 0 || !g->words || !g->notes ? err_set(e, E_SYS, "no descriptors to watch for signals with") : 0;
    if (!rc)
        rc = thread_start(&g->thread, "guard", watch, g, e);
    if (rc)
        close_guard(g);
    *out = rc ? NULL : g;
    return rc;
}

int guard_fd(const struct guard *g)
{
    return queue_fd(g->words);
}

enum guard_word guard_take(struct guard *g)
{
    enum guard_word w;
    queue_fd_clear(g->words);
    return queue_take(g->words, &w) ? w : GUARD_NOTHING;
}

void guard_note_drain(struct guard *g)
{
    enum note n = NOTE_DRAIN;
    queue_post(g->notes, &n);
}

void guard_end(struct guard *g)
{
    enum note n = NOTE_END;
    if (!g)
        return;
    queue_post(g->notes, &n);
    thread_join(g->thread);
    close_guard(g);
}
