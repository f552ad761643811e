#include "engine/cli/policy_params.h"

#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"

enum { MAX_PARAMS_FILE = 64 << 10 };

static bool is_paired(const struct strings *pairs, const char *name)
{
    for (int i = 0; i < pairs->n; i++)
        if (strlen(name) == strcspn(pairs->items[i], "=") && !strncmp(pairs->items[i], name, strlen(name)))
            return true;
    return false;
}

static int from_file(const char *file, const struct strings *pairs, struct buf *out, struct err *e)
{
    struct buf text = {0};
    int rc = file_read(&text, file, MAX_PARAMS_FILE, e);
    struct json *root = rc ? NULL : json_parse(text.data ? text.data : "", text.len, NULL, e);
    if (!rc && !root)
        rc = err_prefix(e, E_INPUT, "%s", file);
    if (!rc && json_type(root) != JSON_OBJECT)
        rc = err_set(e, E_INPUT, "%s must be an object of params, not %s", file, json_type_name(root));
    for (const struct json *j = rc ? NULL : json_first(root); j; j = json_next(j)) {
        if (is_paired(pairs, json_key(j)))
            continue;
        buf_puts(out, out->len > 1 ? "," : "");
        buf_put_json(out, json_key(j), strlen(json_key(j)));
        buf_putc(out, ':');
        json_write(out, j, NULL);
    }
    json_free(root);
    buf_free(&text);
    return rc;
}

int policy_params_json(const char *file, const struct strings *pairs, struct buf *out, struct err *e)
{
    buf_putc(out, '{');
    if (file)
        TRY(from_file(file, pairs, out, e));
    for (int i = 0; i < pairs->n; i++) {
        const char *pair = pairs->items[i], *v = strchr(pair, '=') + 1;
        struct json *j = json_parse(v, strlen(v), NULL, NULL);
        buf_puts(out, out->len > 1 ? "," : "");
        buf_put_json(out, pair, (size_t)(v - 1 - pair));
        buf_putc(out, ':');
        if (j && (json_type(j) == JSON_NUMBER || json_type(j) == JSON_BOOL))
            buf_puts(out, v);
        else
            buf_put_json(out, v, strlen(v));
        json_free(j);
    }
    buf_putc(out, '}');
    return 0;
}
