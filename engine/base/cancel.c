#include "engine/base/cancel.h"

#include "engine/base/clock.h"

void cancel_begin(struct cancel *c, int64_t budget_ns)
{
    c->budget_ns = budget_ns;
    c->until_ns = budget_ns ? clock_thread_cpu() + budget_ns : 0;
    c->unlooked = 0;
}

int cancel_look(struct cancel *c, struct err *e)
{
    c->unlooked = 0;
    if (cancel_asked(c))
        return err_set(e, E_GONE, "nobody waits for it any more");
    if (c->budget_ns && clock_thread_cpu() > c->until_ns)
        return err_set(e, E_FULL, "it takes more than %.3g s of computing", (double)c->budget_ns * 1e-9);
    return 0;
}
