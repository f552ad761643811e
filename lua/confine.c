#include "lua/confine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef MOONSHIFT_SECCOMP
#include <seccomp.h>
#endif

int confine_ties(int parent, struct err *e)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
        prctl(PR_SET_DUMPABLE, 0) < 0)
        return err_set(e, E_SYS, "prctl: %s", strerror(errno));
    return getppid() == parent ? 0 : err_set(e, E_GONE, "its parent has ended");
}

#ifdef MOONSHIFT_SECCOMP

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

const char *confine_refusal(void)
{
#if defined(__SANITIZE_THREAD__)
    return "ThreadSanitizer does not follow processes that share memory: use a build without it";
#else
    return NULL;
#endif
}

/* Private memory that can be written: what a policy's checks and its own heap take is some ten MiB. */
static int limit_memory(struct err *e)
{
    static const rlim_t MOST = (rlim_t)192 << 20;
    struct rlimit none = {0, 0}, data;
    char line[128];
    unsigned long had_kib = 0;
    FILE *f = fopen("/proc/self/status", "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmData:", 7) == 0)
            had_kib = strtoul(line + 7, NULL, 10);
    if (f)
        fclose(f);
    if (!had_kib)
        return err_set(e, E_SYS, "/proc/self/status says nothing of memory");
    data.rlim_cur = data.rlim_max = ((rlim_t)had_kib << 10) + (SANITIZED ? 16 * MOST : MOST);
    if (setrlimit(RLIMIT_DATA, &data) || setrlimit(RLIMIT_FSIZE, &none) || setrlimit(RLIMIT_CORE, &none) ||
        setrlimit(RLIMIT_MEMLOCK, &none) || setrlimit(RLIMIT_MSGQUEUE, &none) || setrlimit(RLIMIT_NOFILE, &none))
        return err_set(e, E_SYS, "setrlimit: %s", strerror(errno));
    return 0;
}

/* Memory is taken by mmap, never of a file and never to run code from. */
static int allow_memory(scmp_filter_ctx f)
{
    const struct scmp_arg_cmp data = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0),
                              anonymous = SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS);
    int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, data, anonymous);
    return rc ? rc : seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1, data);
}

static int allow_calls(scmp_filter_ctx f)
{
    /* what the watchdog's thread may not have done yet of its beginning; what qsort asks; memory; sleeping on the page
     * and on locks; the watchdog's timer; the clocks; the seed of a Lua machine; ends */
    static const int calls[] = {SCMP_SYS(rseq),
                                SCMP_SYS(set_robust_list),
                                SCMP_SYS(rt_sigprocmask),
                                SCMP_SYS(sysinfo),
                                SCMP_SYS(brk),
                                SCMP_SYS(munmap),
                                SCMP_SYS(mremap),
                                SCMP_SYS(madvise),
                                SCMP_SYS(futex),
                                SCMP_SYS(sched_yield),
                                SCMP_SYS(read),
                                SCMP_SYS(timerfd_settime),
                                SCMP_SYS(clock_gettime),
                                SCMP_SYS(gettimeofday),
                                SCMP_SYS(restart_syscall),
                                SCMP_SYS(rt_sigreturn),
                                SCMP_SYS(getrandom),
                                SCMP_SYS(exit),
                                SCMP_SYS(exit_group)};
    static const int sanitizers[] = {
        SCMP_SYS(write),          SCMP_SYS(sigaltstack), SCMP_SYS(rt_sigaction), SCMP_SYS(sched_getaffinity),
        SCMP_SYS(prlimit64),      SCMP_SYS(getpid),      SCMP_SYS(gettid),       SCMP_SYS(nanosleep),
        SCMP_SYS(clock_nanosleep)};
    const struct scmp_arg_cmp name = {.arg = 0, .op = SCMP_CMP_EQ, .datum_a = PR_SET_NAME};
    int rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, SCMP_SYS(prctl), 1, name);
    for (size_t i = 0; i < sizeof calls / sizeof *calls && !rc; i++)
        rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, calls[i], 0);
    for (size_t i = 0; SANITIZED && i < sizeof sanitizers / sizeof *sanitizers && !rc; i++)
        rc = seccomp_rule_add(f, SCMP_ACT_ALLOW, sanitizers[i], 0);
    return rc;
}

int confine(struct err *e)
{
    TRY(limit_memory(e));
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_KILL_PROCESS);
    int rc = f ? seccomp_attr_set(f, SCMP_FLTATR_CTL_TSYNC, 1) : -ENOMEM;
    rc = rc ? rc : allow_memory(f);
    rc = rc ? rc : allow_calls(f);
    rc = rc ? rc : seccomp_load(f);
    if (f)
        seccomp_release(f);
    return rc ? err_set(e, E_SYS, "seccomp: %s", strerror(-rc)) : 0;
}

#else

const char *confine_refusal(void)
{
    return "this build has no libseccomp, without which a process is not confined: install libseccomp-dev "
           "(libseccomp-devel, libseccomp) and build again";
}

int confine(struct err *e)
{
    return err_set(e, E_UNSUPPORTED, "%s", confine_refusal());
}

#endif
