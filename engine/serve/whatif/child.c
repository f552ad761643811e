#include "engine/serve/whatif/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/mem.h"

enum { LOWEST_PRIORITY = 19 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAN_BOUND_MEMORY = false }; /* a sanitizer's own takes terabytes of addresses */
#else
enum { CAN_BOUND_MEMORY = true };
#endif

/* Settings of the server are none of the child's, and its keys least of all. The array alone is the caller's. */
static char **environment(char *parent)
{
    extern char **environ;
    size_t n = 0, kept = 0;
    while (environ[n])
        n++;
    char **out = mem_new_array(n + 2, sizeof *out);
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "MOONSHIFT_", 10) != 0 && strncmp(environ[i], "VLLM_", 5) != 0)
            out[kept++] = environ[i];
    out[kept] = parent;
    return out;
}

static int spawn(pid_t *pid, const struct child_setup *s)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none, usual;
    char parent[64];
    snprintf(parent, sizeof parent, CHILD_PARENT "=%d", (int)getpid());
    char **env = environment(parent);
    sigemptyset(&none);
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGINT);
    sigaddset(&usual, SIGTERM);
    sigaddset(&usual, SIGHUP);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, 2, s->said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_addclosefrom_np(&files, 3);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &usual);
    int rc = posix_spawn(pid, "/proc/self/exe", &files, &attr, s->args, env);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
    mem_free(env);
    return rc;
}

/* From outside, as posix_spawn knows nothing of limits: the child has hardly begun. */
static bool bound(pid_t pid, const struct child_setup *s)
{
    const struct rlimit cpu = {(rlim_t)s->cpu_s, (rlim_t)s->cpu_s + 5}, memory = {s->memory, s->memory}, core = {0, 0};
    return setpriority(PRIO_PROCESS, (id_t)pid, LOWEST_PRIORITY) == 0 && prlimit(pid, RLIMIT_CPU, &cpu, NULL) == 0 &&
           prlimit(pid, RLIMIT_CORE, &core, NULL) == 0 &&
           (!CAN_BOUND_MEMORY || prlimit(pid, RLIMIT_AS, &memory, NULL) == 0);
}

int child_tie(const char *parent, struct err *e)
{
    if (!parent)
        return 0;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return err_set(e, E_SYS, "prctl: %s", strerror(errno));
    return getppid() == strtol(parent, NULL, 10) ? 0 : err_set(e, E_GONE, "who started it has ended");
}

int child_start(struct child *c, const struct child_setup *s, struct err *e)
{
    *c = (struct child){0};
    int rc = spawn(&c->pid, s);
    if (rc) {
        c->pid = 0;
        return err_set(e, E_SYS, "cannot start a simulation: %s", strerror(rc));
    }
    if (bound(c->pid, s))
        return 0;
    rc = errno;
    child_end(c);
    return err_set(e, E_SYS, "cannot bound a simulation: %s", strerror(rc));
}

bool child_has_ended(struct child *c)
{
    if (c->pid && waitpid(c->pid, &c->status, WNOHANG) == 0)
        return false;
    c->pid = 0;
    return true;
}

void child_kill(struct child *c)
{
    if (c->pid)
        kill(c->pid, SIGKILL);
}

void child_end(struct child *c)
{
    child_kill(c);
    while (c->pid && waitpid(c->pid, &c->status, 0) < 0 && errno == EINTR)
        ;
    c->pid = 0;
}
