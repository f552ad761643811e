#include "engine/serve/versions/good.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/serve/front/auth.h"

bool version_name_ok(const char *name)
{
    return auth_name_ok(name) && strlen(name) <= VERSION_NAME_MAX;
}

bool version_sha_ok(const char *sha, size_t least)
{
    size_t n = strlen(sha);
    return n >= least && n <= 64 && strspn(sha, "0123456789abcdef") == n;
}

void good_put(const struct good *g, struct buf *out)
{
    buf_puts(out, "{\"name\":");
    buf_put_json(out, g->name, strlen(g->name));
    buf_printf(out, ",\"sha256\":\"%s\",\"params\":%s}\n", g->sha256, g->params ? g->params : "{}");
}

int good_read(struct good *g, const char *text, size_t n, struct err *e)
{
    *g = (struct good){0};
    struct json *j = json_parse(text, n, &(struct json_limits){.bytes = GOOD_BYTES, .depth = 6}, e);
    const char *name = json_text(json_find(j, "name")), *sha = json_text(json_find(j, "sha256"));
    const struct json *params = json_find(j, "params");
    int rc = 0;
    if (!j)
        rc = E_INPUT;
    else if (!name || !version_name_ok(name) || !sha || !version_sha_ok(sha, 64) || json_type(params) != JSON_OBJECT)
        rc = err_set(e, E_INPUT, "it names no version: name, sha256 and params are needed");
    if (!rc) {
        snprintf(g->name, sizeof g->name, "%s", name);
        snprintf(g->sha256, sizeof g->sha256, "%s", sha);
        struct buf out = {0};
        json_write(&out, params, NULL);
        g->params = json_count(params) ? buf_take(&out) : NULL;
        buf_free(&out);
    }
    json_free(j);
    return rc;
}

void good_free(struct good *g)
{
    mem_free(g->params);
    *g = (struct good){0};
}
