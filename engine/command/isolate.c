/* `serve --policy-isolation process`: what has to stand before anything else does. */
#include <string.h>

#include "engine/base/seen.h"
#include "engine/command/app.h"

/* Addresses, not memory: what all requests and groups that there can be would take, and room for what is freed. */
#define SEEN_BYTES ((size_t)8 << 30)

/* In the nursery: keys that were given as words. Those in files are read later, by the server alone. */
static void forget_keys(void *ctx)
{
    struct app *a = ctx;
    const struct strings *keys[] = {&a->opts.api_keys, &a->opts.admin_keys};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < keys[k]->n; i++)
            explicit_bzero(keys[k]->items[i], strlen(keys[k]->items[i]));
}

int app_isolate(struct app *a, struct err *e)
{
    const char *how = a->opts.policy_isolation;
    if (!how || strcmp(how, "process") != 0)
        return 0;
    if (nursery_refusal())
        return err_set(e, E_UNSUPPORTED, "--policy-isolation process: %s", nursery_refusal());
    TRY(seen_open(SEEN_BYTES, e));
    return nursery_start(&a->nursery, forget_keys, a, e);
}
