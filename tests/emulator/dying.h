/* A mistake that the emulator ends the program for: made in a process of its own. */
#ifndef EMULATOR_DYING_H
#define EMULATOR_DYING_H

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* number: which it was, should it go by. */
static inline void dies(void (*of)(void *), void *arg, int number)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fclose(stderr);
        signal(SIGABRT, SIG_DFL);
        alarm(60);
        of(arg);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("mistake %d went by, status %d", number, status);
}

#endif
