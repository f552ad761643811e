#include "engine/front/auth.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

bool auth_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < NAME_BYTES && name[0] != '.' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

int auth_add(struct auth *a, const char *spec, struct err *e)
{
    const char *eq = strrchr(spec, '=');
    if (eq && !eq[1])
        eq = NULL;
    size_t n = eq ? (size_t)(eq - spec) : strlen(spec);
    if (n == 0)
        return err_set(e, E_INPUT, "an empty API key; write KEY or KEY=TENANT");
    if (eq && !auth_name_ok(eq + 1))
        return err_set(e, E_INPUT, "tenant names are 1 to %d letters, digits, dots, dashes and underscores",
                       NAME_BYTES - 1);
    a->keys = mem_resize(a->keys, (size_t)a->n + 1, sizeof *a->keys);
    struct auth_key *k = &a->keys[a->n++];
    *k = (struct auth_key){.digest = hash_sha256(spec, n)};
    snprintf(k->tenant, sizeof k->tenant, "%s", eq ? eq + 1 : "");
    return 0;
}

void auth_free(struct auth *a)
{
    mem_free(a->keys);
    *a = (struct auth){0};
}

const char *auth_tenant(const struct auth *a, const char *authorization)
{
    if (!a->n)
        return "";
    if (!authorization || strncasecmp(authorization, "bearer ", 7) != 0)
        return NULL;
    const char *key = authorization + 7;
    key += strspn(key, " ");
    struct sha256 digest = hash_sha256(key, strlen(key));
    const char *found = NULL;
    for (int i = 0; i < a->n; i++)
        if (hash_equal(&digest, &a->keys[i].digest))
            found = a->keys[i].tenant;
    return found;
}

bool auth_guards(const char *path)
{
    static const char *const roots[] = {"/v1", "/v2", "/inference", "/cohere"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) {
        size_t n = strlen(roots[i]);
        if (strncmp(path, roots[i], n) == 0 && (path[n] == '/' || !path[n]))
            return true;
    }
    return false;
}
