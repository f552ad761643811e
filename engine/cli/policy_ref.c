#include "engine/cli/policy_ref.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/nearest.h"

enum { MAX_FILES = 256 };

static void add(struct strings *l, char *item)
{
    l->items = mem_resize(l->items, (size_t)l->n + 1, sizeof *l->items);
    l->items[l->n++] = item;
}

static bool same_param(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return n == strcspn(b, "=") && !memcmp(a, b, n);
}

static bool has_param(const struct strings *l, const char *param)
{
    for (int i = 0; i < l->n; i++)
        if (same_param(l->items[i], param))
            return true;
    return false;
}

/* "shift:threshold=256,budget=4096" is taken apart where it stands. */
static void split(char *text, struct strings *params)
{
    char *at = strchr(text, ':');
    if (!at || !strchr(at, '='))
        return;
    *at++ = 0;
    for (char *comma; at; at = comma) {
        comma = strchr(at, ',');
        if (comma)
            *comma++ = 0;
        add(params, at);
    }
}

int policy_ref_read(struct policy_ref *r, const char *asked, const struct strings *common, struct err *e)
{
    struct strings own = {0};
    *r = (struct policy_ref){.name = mem_strdup(asked)};
    split(r->name, &own);
    size_t n = strlen(r->name);
    r->is_path = strchr(r->name, '/') || (n > 4 && !strcmp(r->name + n - 4, ".lua"));
    for (int i = 0; i < common->n; i++)
        if (!has_param(&own, common->items[i]))
            add(&r->params, common->items[i]);
    int rc = 0;
    for (int i = 0; i < own.n; i++) {
        if (!rc && (!strchr(own.items[i], '=') || own.items[i][0] == '='))
            rc = err_set(e, E_INPUT, "--policy %.60s: parameters are NAME=VALUE, not '%.40s'", asked, own.items[i]);
        add(&r->params, own.items[i]);
    }
    mem_free(own.items);
    return rc;
}

void policy_ref_free(struct policy_ref *r)
{
    mem_free(r->params.items);
    mem_free(r->name);
    *r = (struct policy_ref){0};
}

/* No policy is called so: which are there, and which one was probably meant. */
static int missing(const char *name, const char *dir, struct err *e)
{
    char *names[MAX_FILES] = {mem_strdup("native")};
    int n = 1;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && n < MAX_FILES && (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        if (len > 4 && !strcmp(f->d_name + len - 4, ".lua"))
            names[n++] = mem_strndup(f->d_name, len - 4);
    }
    if (d)
        closedir(d);
    const char *near = nearest_word(name, (const char *const *)names, n), *colon = strchr(name, ':');
    int rc = colon ? err_set(e, E_INPUT, "behind the colon there are parameters as NAME=VALUE, not '%.40s'", colon + 1)
             : near
                 ? err_set(e, E_NOTFOUND, "there is no %.60s.lua in %.200s; did you mean %s?", name, dir, near)
                 : err_set(e, E_NOTFOUND,
                           "there is no %.60s.lua in %.200s, which has %d others; a path like ./%.60s.lua works, too",
                           name, dir, n - 1, name);
    for (int i = 0; i < n; i++)
        mem_free(names[i]);
    return rc;
}

int policy_ref_path(const struct policy_ref *r, const char *dir, char out[PATH_MAX], struct err *e)
{
    if (!r->is_path && !dir[0])
        return err_set(
            e, E_NOTFOUND,
            "there is no policy folder here: give --policy-dir FOLDER, --policy FILE.lua or --policy native");
    int len = r->is_path ? snprintf(out, PATH_MAX, "%s", r->name) : snprintf(out, PATH_MAX, "%s/%s.lua", dir, r->name);
    if (len >= PATH_MAX)
        return err_set(e, E_INPUT, "--policy: the path is too long");
    return !r->is_path && access(out, F_OK) != 0 ? missing(r->name, dir, e) : 0;
}
