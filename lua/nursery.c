#include "lua/nursery.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/monitor.h"
#include "engine/base/seen.h"
#include "lua/child.h"
#include "lua/confine.h"
#include "lua/exchange.h"

enum { SOCKET_FD = 3, ANSWER_MS = 10000 };

/* What it is asked, and what it answers. */
enum nursery_ask { ASK_BEAR, ASK_TAKE };
struct message {
    int ask, pid, status; /* status: of waitpid, or an errno < 0 */
};

struct nursery {
    int pid, socket;
    struct monitor *lock;
    _Atomic uint64_t born, died, killed;
};

const char *nursery_refusal(void)
{
    return confine_refusal();
}

/* ---- in the nursery */

/* The message, and a file that came with it; -1: none did. False: nobody asks any more. */
static bool receive(int socket, struct message *m, int *file)
{
    char room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {m, sizeof *m};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    ssize_t n;
    do
        n = recvmsg(socket, &h, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    struct cmsghdr *c = n == sizeof *m ? CMSG_FIRSTHDR(&h) : NULL;
    *file = -1;
    if (c && c->cmsg_type == SCM_RIGHTS)
        memcpy(file, CMSG_DATA(c), sizeof *file);
    return n == sizeof *m;
}

/* Does not come back. */
static void live_as_child(int file, int nursery)
{
    struct err e = {0};
    if (dup2(file, 0) == 0 && !confine_ties(nursery, &e)) {
        close_range(1, ~0u, 0);
        child_run(0);
    }
    _exit(1);
}

static void bear(struct message *m, int file)
{
    int me = getpid(), pid = file < 0 ? -1 : fork();
    if (pid == 0)
        live_as_child(file, me);
    m->pid = pid;
    m->status = pid < 0 ? -errno : 0;
    if (file >= 0)
        close(file);
}

static void take(struct message *m)
{
    int status = 0, rc;
    do
        rc = waitpid(m->pid, &status, 0);
    while (rc < 0 && errno == EINTR);
    m->status = rc < 0 ? -errno : status;
}

static void serve(void)
{
    struct message m;
    int file;
    while (receive(SOCKET_FD, &m, &file)) {
        if (m.ask == ASK_BEAR)
            bear(&m, file);
        else
            take(&m);
        if (send(SOCKET_FD, &m, sizeof m, MSG_NOSIGNAL) != sizeof m)
            return;
    }
}

/* The words of the command line and the environment, where the kernel laid them: there may be keys among them. */
static void wipe_arguments(void)
{
    char line[2048];
    unsigned long at[4] = {0};
    FILE *f = fopen("/proc/self/stat", "re");
    const char *p = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    for (int field = 3; p && field <= 51; field++) { /* of proc(5); 48: arg_start, to 51: env_end */
        p = strchr(p + 1, ' ');
        if (p && field >= 48)
            at[field - 48] = strtoul(p + 1, NULL, 10);
    }
    if (f)
        fclose(f);
    for (int i = 0; i < 4; i += 2)
        if (at[i] && at[i + 1] > at[i])
            memset((void *)(uintptr_t)at[i], 0, at[i + 1] - at[i]);
}

/* It has no terminal, no files but its socket, and is not told to end: it ends with the server. */
static void live_as_nursery(int socket, int server)
{
    struct err e = {0};
    wipe_arguments();
    prctl(PR_SET_NAME, "policies");
    for (int s = 1; s < NSIG; s++) {
        bool ignored = s == SIGTERM || s == SIGINT || s == SIGHUP;
        signal(s, ignored ? SIG_IGN : SIG_DFL); /* fails for those that have no handler */
    }
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && null >= 0; fd++)
        dup2(null, fd);
    if (seen_only_read(&e) || confine_ties(server, &e) || dup2(socket, SOCKET_FD) != SOCKET_FD)
        _exit(1);
    close_range(SOCKET_FD + 1, ~0u, 0);
    struct hasher *h = hasher_create(); /* libcrypto reads its settings at the first use, which children could not */
    hasher_sha256(h, "", 0);
    hasher_destroy(h);
    hash_sha256("", 0);
    serve();
    _exit(0);
}

/* ---- in the engine's process */

int nursery_start(struct nursery **out, void (*forget)(void *ctx), void *ctx, struct err *e)
{
    int pair[2], server = getpid();
    if (nursery_refusal())
        return err_set(e, E_UNSUPPORTED, "--policy-isolation process: %s", nursery_refusal());
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set(e, E_SYS, "--policy-isolation process: socketpair: %s", strerror(errno));
    int pid = fork();
    if (pid == 0) {
        if (forget)
            forget(ctx);
        live_as_nursery(pair[1], server);
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return err_set(e, E_SYS, "--policy-isolation process: fork: %s", strerror(errno));
    }
    struct timeval most = {ANSWER_MS / 1000, 0};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    struct nursery *n = mem_new(sizeof *n);
    n->pid = pid;
    n->socket = pair[0];
    n->lock = monitor_new();
    *out = n;
    return 0;
}

void nursery_stop(struct nursery *n)
{
    if (!n)
        return;
    close(n->socket);
    while (waitpid(n->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    monitor_free(n->lock);
    mem_free(n);
}

static bool put(int socket, const struct message *m, int file)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } u = {0};
    struct iovec part = {(void *)(uintptr_t)m, sizeof *m};
    struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1};
    if (file >= 0) {
        h.msg_control = u.room;
        h.msg_controllen = sizeof u.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &file, sizeof file);
    }
    return sendmsg(socket, &h, MSG_NOSIGNAL) == (ssize_t)sizeof *m;
}

/* Asks, and waits for the answer. A nursery that does not answer is asked no more: answers would go astray. */
static bool ask(struct nursery *n, struct message *m, int file)
{
    int none;
    monitor_lock(n->lock);
    bool answered = n->socket >= 0 && put(n->socket, m, file) && receive(n->socket, m, &none);
    if (!answered)
        shutdown(n->socket, SHUT_RDWR);
    monitor_unlock(n->lock);
    return answered;
}

int nursery_bear(struct nursery *n, struct born *out, struct err *e)
{
    struct message m = {.ask = ASK_BEAR};
    int file;
    *out = (struct born){.pidfd = -1};
    TRY(exchange_make(&out->page, &file, e));
    bool answered = ask(n, &m, file);
    close(file);
    out->pidfd = answered && m.status == 0 ? (int)syscall(SYS_pidfd_open, m.pid, 0) : -1;
    if (out->pidfd < 0) {
        int why = !answered ? 0 : m.status ? -m.status : errno;
        exchange_unmap(out->page);
        out->page = NULL;
        if (!answered)
            return err_set(e, E_SYS, "the process that starts those of policies is gone: restart the server");
        return err_set(e, E_SYS, "a policy's process cannot be started: %s", strerror(why));
    }
    out->pid = m.pid;
    atomic_fetch_add(&n->born, 1);
    return 0;
}

static void tell(int status, char *why, size_t cap)
{
    if (status < 0)
        snprintf(why, cap, "its process is gone");
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        snprintf(why, cap, "its process was killed by the kernel: it made a system call that it may not make");
    else if (WIFSIGNALED(status))
        snprintf(why, cap, "its process was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(why, cap, "its process ended by itself (%d)", WEXITSTATUS(status));
}

void nursery_end(struct nursery *n, struct born *b, char *why, size_t cap)
{
    if (b->pidfd < 0)
        return;
    struct message m = {.ask = ASK_TAKE, .pid = b->pid};
    bool lived = born_lives(b);
    syscall(SYS_pidfd_send_signal, b->pidfd, SIGKILL, NULL, 0);
    bool answered = ask(n, &m, -1);
    if (why && lived)
        snprintf(why, cap, "its process was killed");
    else if (why)
        tell(answered ? m.status : -1, why, cap);
    close(b->pidfd);
    exchange_unmap(b->page);
    *b = (struct born){.pidfd = -1};
}

bool born_lives(const struct born *b)
{
    struct pollfd p = {.fd = b->pidfd, .events = POLLIN};
    return b->pidfd >= 0 && poll(&p, 1, 0) == 0;
}

int64_t born_cpu_ns(const struct born *b)
{
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(b->pid, &clock) || clock_gettime(clock, &t))
        return -1;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct nursery_counts nursery_counts(const struct nursery *n)
{
    return (struct nursery_counts){atomic_load(&n->born), atomic_load(&n->died), atomic_load(&n->killed)};
}

void nursery_count_end(struct nursery *n, bool killed)
{
    atomic_fetch_add(killed ? &n->killed : &n->died, 1);
}
