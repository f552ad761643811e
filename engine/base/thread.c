#include "engine/base/thread.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

struct thread {
    pthread_t id;
    void (*fn)(void *);
    void *arg;
    char name[16];
};

static void *entry(void *p)
{
    struct thread *t = p;
    pthread_setname_np(pthread_self(), t->name);
    t->fn(t->arg);
    return NULL;
}

int thread_start(struct thread **out, const char *name, void (*fn)(void *), void *arg, struct err *e)
{
    struct thread *t = mem_new(sizeof *t);
    t->fn = fn;
    t->arg = arg;
    snprintf(t->name, sizeof t->name, "%s", name);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited by the new thread */
    int rc = pthread_create(&t->id, NULL, entry, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        mem_free(t);
        *out = NULL;
        return err_set(e, E_SYS, "cannot start thread %s: %s", name, strerror(rc));
    }
    *out = t;
    return 0;
}

void thread_join(struct thread *t)
{
    if (!t)
        return;
    pthread_join(t->id, NULL);
    mem_free(t);
}

int thread_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

int thread_pin_self(int i)
{
    cpu_set_t set, one;
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return 0;
    int n = CPU_COUNT(&set), want = n ? i % n : 0;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set) && want-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(c, &one);
            return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
        }
    return 0;
}
