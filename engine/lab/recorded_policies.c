#include "engine/lab/recorded_policies.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

static int set_params(struct policy *p, const char *params, struct err *e)
{
    int rc = p->ops->params_set ? p->ops->params_set(p->ctx, params, strlen(params), e) : 0;
    if (rc && p->ops->destroy)
        p->ops->destroy(p->ctx);
    return rc;
}

int recorded_policies_find(const struct recorded_policies *r, const char *name, const char *sha256, const char *params,
                           struct policy *out, struct err *e)
{
    const struct strings none = {0};
    bool native = !strcmp(sha256, "native");
    char namesake[140] = "";
    for (int i = -1; i < r->named->n; i++) {
        char *text = mem_strdup(i >= 0 ? r->named->items[i] : native ? "native" : name);
        text[strcspn(text, ":")] = 0;
        struct policy p = {0};
        struct err why = {0};
        int rc = r->open(r->ctx, text, &none, false, &p, &why);
        mem_free(text);
        if (rc && i < 0 && rc != E_NOTFOUND)
            snprintf(namesake, sizeof namesake, " (that of its name does not load: %.100s)", why.text);
        if (rc)
            continue;
        if (!strcmp(p.sha256, sha256)) {
            *out = p;
            return set_params(out, params, e);
        }
        if (i < 0)
            snprintf(namesake, sizeof namesake, " (that of its name has %.12s)", p.sha256);
        if (p.ops->destroy)
            p.ops->destroy(p.ctx);
    }
    return err_set(e, E_NOTFOUND,
                   "%s the policy %.40s (%.12s) is live, and there is no such file here with these bytes%s: put it "
                   "where --policy-dir or --policy finds it",
                   r->when, name, sha256, namesake);
}
