/* How many requests each tenant has in the server, waiting and running: counted as they come and go, so that a policy
 * may ask at any time. A tenant exists while it has a request. Owned by the world, engine thread. Invariant: the counts
 * are those that a walk through the queues would give. */
#ifndef WORLD_TENANTS_H
#define WORLD_TENANTS_H

#include <stdint.h>

#include "engine/world/ids.h"

struct tenant {
    char name[NAME_BYTES];
    int n_waiting, n_running;
    int64_t waiting_tokens; /* prompt tokens of the waiting */
    struct {
        int n_waiting, n_running;
        int64_t waiting_tokens;
    } canary; /* of all that, what is on the side of a canary (side.h) */
};

struct tenants {
    struct tenant **items; /* in the order of their names */
    int n, cap;
};

struct tenant *tenants_enter(struct tenants *t, const char *name);            /* made where there is none */
void tenants_leave(struct tenants *t, struct tenant *x);                      /* gone when it has no request */
const struct tenant *tenants_find(const struct tenants *t, const char *name); /* NULL: it has no request */
void tenants_free(struct tenants *t);

#endif
