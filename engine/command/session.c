#include "engine/command/session.h"

#include <stdio.h>

#include "engine/base/json.h"

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
