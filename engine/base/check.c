#include "engine/base/check.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* Rule zero: the only mutable globals of the tree. A crash has no caller who could hand them in. */
static struct {
    void (*fn)(void *);
    void *ctx;
} hooks[4];
static atomic_int n_hooks;

void check_on_crash(void (*hook)(void *ctx), void *ctx)
{
    int i = atomic_fetch_add(&n_hooks, 1);
    if (i < 4) {
        hooks[i].ctx = ctx;
        hooks[i].fn = hook;
    }
}

_Noreturn void check_failed(const char *what, const char *file, int line)
{
    fprintf(
        stderr,
        "\nmoonshift: BUG: %s at %s:%d\nThis is a fault of the program. Please report it with the lines around it.\n",
        what, file, line);
    int n = atomic_load(&n_hooks);
    for (int i = 0; i < n && i < 4; i++)
        if (hooks[i].fn)
            hooks[i].fn(hooks[i].ctx);
    fflush(stderr);
    abort();
}
