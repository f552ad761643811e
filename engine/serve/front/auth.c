#include "engine/serve/front/auth.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

enum { KEY_FILE_BYTES = 1 << 20, KEY_BYTES = 1024 };

bool auth_name_ok(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < NAME_BYTES && name[0] != '.' &&
           strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == n;
}

int auth_add(struct auth *a, const char *key, const char *tenant, struct err *e)
{
    size_t n = strlen(key);
    if (n == 0 || n > KEY_BYTES)
        return err_set(e, E_INPUT, "a key has 1 to %d bytes, not %zu", KEY_BYTES, n);
    for (const unsigned char *c = (const unsigned char *)key; *c; c++)
        if (*c <= 0x20 || *c == 0x7f)
            return err_set(e, E_INPUT, "a key may not have blanks or control characters: no client could send it");
    if (*tenant && !auth_name_ok(tenant))
        return err_set(e, E_INPUT, "tenant names are 1 to %d letters, digits, dots, dashes and underscores",
                       NAME_BYTES - 1);
    a->keys = mem_resize(a->keys, (size_t)a->n + 1, sizeof *a->keys);
    struct auth_key *k = &a->keys[a->n++];
    *k = (struct auth_key){.digest = hash_sha256(key, n)};
    snprintf(k->tenant, sizeof k->tenant, "%s", tenant);
    if (*tenant) {
        snprintf(k->salt, sizeof k->salt, "%s", tenant);
        return 0;
    }
    /* The digest's digest, so that a salt says nothing about the digest that keys are compared with; ':' is in no
     * tenant's name. */
    struct sha256 again = hash_sha256(&k->digest, sizeof k->digest);
    char hex[65];
    hash_hex(&again, hex);
    snprintf(k->salt, sizeof k->salt, "key:%.40s", hex);
    return 0;
}

int auth_add_spec(struct auth *a, const char *spec, struct err *e)
{
    const char *eq = strrchr(spec, '=');
    if (!eq || !eq[1])
        eq = NULL;
    size_t n = eq ? (size_t)(eq - spec) : strlen(spec), inner = strcspn(spec, "=");
    if (inner == 0)
        return err_set(e, E_INPUT, "an empty API key; write KEY or KEY=TENANT");
    if (inner < n && strspn(spec + inner, "=") < n - inner)
        return err_set(e, E_INPUT,
                       "an API key with a = inside cannot be told from KEY=TENANT; put it into a file, one KEY or KEY "
                       "TENANT a line: --api-key-file");
    char *key = mem_strndup(spec, n);
    int rc = auth_add(a, key, eq ? eq + 1 : "", e);
    mem_free(key);
    return rc;
}

static int read_line(struct auth *a, char *line, struct err *e)
{
    static const char blanks[] = " \t\r";
    char *key = line + strspn(line, blanks);
    if (!*key || *key == '#')
        return 0;
    char *end = key + strcspn(key, blanks), *tenant = end + strspn(end, blanks);
    *end = 0;
    char *after = tenant + strcspn(tenant, blanks);
    if (after[strspn(after, blanks)])
        return err_set(e, E_INPUT, "expected KEY or KEY TENANT");
    *after = 0;
    return auth_add(a, key, tenant, e);
}

int auth_read(struct auth *a, const char *path, struct err *e)
{
    struct buf text = {0};
    int rc = file_read(&text, path, KEY_FILE_BYTES, e), number = 0, before = a->n;
    if (!rc && text.len && memchr(text.data, 0, text.len))
        rc = err_set(e, E_INPUT, "%s is not a text", path);
    for (char *line = text.data, *end; !rc && line && *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end)
            *end++ = 0;
        number++;
        rc = read_line(a, line, e);
        if (rc)
            err_prefix(e, rc, "%s:%d", path, number);
    }
    if (!rc && a->n == before)
        rc = err_set(e, E_INPUT, "there is no key in %s: write one a line", path);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    buf_free(&text);
    return rc;
}

void auth_free(struct auth *a)
{
    mem_free(a->keys);
    *a = (struct auth){0};
}

const struct auth_key *auth_find(const struct auth *a, const char *authorization)
{
    static const struct auth_key everyone;
    if (!a->n)
        return &everyone;
    if (!authorization || strncasecmp(authorization, "bearer ", 7) != 0)
        return NULL;
    const char *key = authorization + 7;
    return auth_find_key(a, key + strspn(key, " "));
}

const struct auth_key *auth_find_key(const struct auth *a, const char *key)
{
    struct sha256 digest = hash_sha256(key, strlen(key));
    const struct auth_key *found = NULL;
    for (int i = 0; i < a->n; i++)
        if (hash_equal(&digest, &a->keys[i].digest))
            found = &a->keys[i];
    return found;
}

void auth_describe(const struct auth *a, struct buf *out)
{
    const char *lead = " of tenants ";
    int without = 0;
    buf_printf(out, "%d key%s", a->n, a->n == 1 ? "" : "s");
    for (int i = 0; i < a->n; i++) {
        bool seen = false;
        for (int k = 0; k < i; k++)
            seen = seen || strcmp(a->keys[k].tenant, a->keys[i].tenant) == 0;
        without += !*a->keys[i].tenant;
        if (seen || !*a->keys[i].tenant)
            continue;
        buf_printf(out, "%s%s", lead, a->keys[i].tenant);
        lead = ", ";
    }
    if (without)
        buf_printf(out, ", %d without a tenant", without);
}
