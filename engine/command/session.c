#include "engine/command/session.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/serve/versions/good.h"

struct json *session_json(const struct session *s)
{
    return json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
}

/* The error's text of an answer, else the answer itself. */
static void say_refusal(const struct session *s)
{
    const struct remote_answer *a = &s->answer;
    struct json *j = session_json(s);
    const char *text = json_text(json_find(json_find(j, "error"), "message"));
    fprintf(stderr, "moonshift: refused (%d): %.2000s\n", a->status, text ? text : a->body.data ? a->body.data : "");
    json_free(j);
}

int session_try(struct session *s, enum remote_method method, const struct buf *body, struct err *e)
{
    buf_free(&s->answer.body);
    return remote_ask(&s->remote, method, s->path.data, body, &s->answer, e);
}

bool session_judge(struct session *s, int rc, const struct err *e)
{
    if (rc)
        fprintf(stderr, "moonshift: %s\n", e->text);
    else if (s->answer.status != 200)
        say_refusal(s);
    s->app->status = rc ? SESSION_AWAY : s->answer.status == 200 ? 0 : SESSION_REFUSED;
    return s->app->status == 0;
}

bool session_ask(struct session *s, enum remote_method method, const struct buf *body)
{
    struct err e = {0};
    int rc = session_try(s, method, body, &e);
    return session_judge(s, rc, &e);
}

void session_print(const struct session *s)
{
    fwrite(s->answer.body.data ? s->answer.body.data : "", 1, s->answer.body.len, stdout);
    putchar('\n');
}

void session_flag(struct buf *path, const char *name, const char *value)
{
    if (value)
        buf_printf(path, "%c%s=%s", strchr(path->data, '?') ? '&' : '?', name, value);
}

int session_check_sha(const char *flag, const char *sha, struct err *e)
{
    return !sha || version_sha_ok(sha, SHA_PREFIX_MIN)
               ? 0
               : err_set(e, E_INPUT, "%s wants a SHA-256, or the first %d or more of its digits", flag, SHA_PREFIX_MIN);
}

int session_check_name(const char *name, struct err *e)
{
    return version_name_ok(name)
               ? 0
               : err_set(e, E_INPUT,
                         "a policy's name has at most %d letters, digits, dots, dashes and underscores, not "
                         "'%.60s'",
                         VERSION_NAME_MAX, name);
}

bool session_is_file(const char *word)
{
    return strchr(word, '/') || (strlen(word) > 4 && !strcmp(word + strlen(word) - 4, ".lua"));
}

int session_name_file(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    if (o->as_name)
        snprintf(s->app->policy_name, sizeof s->app->policy_name, "%s", o->as_name);
    else
        app_name_policy(s->app, o->file);
    return session_check_name(s->app->policy_name, e);
}
