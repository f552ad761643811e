#include "kernels/cpu/comm.h"

#include <string.h>

#include "engine/base/check.h"

static void fail_peer(struct device *d)
{
    device_fail(d, E_PEER, "another rank of the group failed");
}

void cpu_send(struct device *d, struct comm *c, int me, int to, struct act x, int rows)
{
    struct mail m = {.x = x, .rows = rows};
    if (device_failed(d))
        rendezvous_abort(c);
    else if (!rendezvous_put(c, me, to, &m))
        fail_peer(d);
}

void cpu_receive(struct device *d, struct comm *c, int me, int from, struct act y, int rows)
{
    struct mail m;
    if (device_failed(d)) {
        rendezvous_abort(c);
        return;
    }
    bool ok = rendezvous_find(c, me, from, &m);
    if (ok) {
        ASSERT(m.rows == rows && m.x.cols == y.cols);
        for (int r = 0; r < rows; r++)
            memcpy(act_row(y, r), act_row(m.x, r), (size_t)y.cols * sizeof(float));
        ok = rendezvous_take(c, me, from, NULL);
    }
    if (!ok)
        fail_peer(d);
}
