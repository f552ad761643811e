/* `moonshift limits`: the limits of a running server, shown or set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/command/session.h"

enum { NAME_MOST = 40 };

/* "max-num-seqs" or "max_num_seqs", as the server has it. The server says which names there are. */
static int read_name(const char *text, size_t n, char out[NAME_MOST + 1], struct err *e)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz_-";
    if (!n || n > NAME_MOST || strspn(text, plain) < n)
        return err_set(e, E_INPUT, "--set NAME=VALUE, like max-num-seqs=64, not '%.60s'", text);
    for (size_t i = 0; i < n; i++)
        out[i] = text[i] == '-' ? '_' : text[i];
    out[n] = 0;
    return 0;
}

static int put_setting(const char *text, struct buf *json, struct err *e)
{
    const char *equals = strchr(text, '=');
    char name[NAME_MOST + 1], *end = NULL;
    int64_t count = 0;
    TRY(read_name(text, equals ? (size_t)(equals - text) : 0, name, e));
    const char *value = equals + 1;
    buf_printf(json, "%c\"%s\":", json->len ? ',' : '{', name);
    if (strstr(name, "_seconds")) {
        double s = strtod(value, &end);
        if (end == value || *end || !isfinite(s))
            return err_set(e, E_INPUT, "--set %.40s: seconds, like 2.5, not '%.40s'", name, value);
        buf_printf(json, "%.17g", s);
        return 0;
    }
    if (opts_human(value, &count))
        return err_set(e, E_INPUT, "--set %.40s: a whole number, like 64 or 2k, not '%.40s'", name, value);
    buf_printf(json, "%lld", (long long)count);
    return 0;
}

static void print_limits(const struct json *all)
{
    printf("%-24s  %12s  %12s  %s\n", "limit", "now", "at the start", "from .. to");
    for (const struct json *j = json_first(json_find(all, "limits")); j; j = json_next(j)) {
        const struct json *start = json_find(json_find(all, "start"), json_key(j));
        const struct json *range = json_find(json_find(all, "ranges"), json_key(j));
        printf("%-24.24s  %12.13g  %12.13g  %.13g .. %.13g\n", json_key(j), json_number(j), json_number(start),
               json_member_number(range, "least"), json_member_number(range, "most"));
    }
}

int session_limits(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf body = {0};
    int rc = 0;
    for (int i = 0; i < o->set.n && !rc; i++)
        rc = put_setting(o->set.items[i], &body, e);
    if (body.len)
        buf_putc(&body, '}');
    buf_puts(&s->path, "/admin/limits");
    bool done = !rc && session_ask(s, body.len ? REMOTE_PATCH : REMOTE_GET, body.len ? &body : NULL);
    buf_free(&body);
    if (!done)
        return rc;
    if (o->as_json) {
        session_print(s);
        return 0;
    }
    struct json *all = session_json(s);
    const char *changed = json_text(json_find(all, "changed"));
    if (o->set.n)
        printf("%s\n", changed && *changed ? changed : "as they were");
    else
        print_limits(all);
    json_free(all);
    return 0;
}
