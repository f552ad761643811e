/* `moonshift policy what-if`, and what `push --try` asks first: how a policy fares on a running server's last traffic.
 */
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/cli/what_if_table.h"
#include "engine/command/session.h"

enum { WHAT_IF_WAIT_S = 90 };

bool session_passes(struct session *s, const struct buf *source, int *rc, struct err *e)
{
    const struct opts *o = &s->app->opts;
    char seconds[32];
    snprintf(seconds, sizeof seconds, "%.9g", o->seconds);
    session_flag(&s->path, "seconds", o->seconds > 0 ? seconds : NULL);
    s->remote.seconds = WHAT_IF_WAIT_S;
    bool good = session_ask(s, REMOTE_POST, source);
    s->remote.seconds = REMOTE_SECONDS;
    if (!good)
        return false;
    struct buf table = {0};
    struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, e);
    *rc = j ? what_if_table(j, &table, &good, e) : E_INPUT;
    if (!*rc && o->as_json)
        session_print(s);
    else if (!*rc)
        fwrite(table.data, 1, table.len, stdout);
    json_free(j);
    buf_free(&table);
    if (!*rc && !good)
        s->app->status = SESSION_REFUSED;
    return !*rc && good;
}

int session_what_if(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf source = {0};
    int rc;
    buf_puts(&s->path, "/admin/what-if");
    if (!session_is_file(o->file)) {
        TRY(session_check_name(o->file, e));
        TRY(session_check_sha("--sha", o->sha, e));
        session_flag(&s->path, "policy", o->file);
        session_flag(&s->path, "sha", o->sha);
        rc = 0;
        session_passes(s, NULL, &rc, e);
        return rc;
    }
    if (o->sha)
        return err_set(e, E_INPUT, "--sha is for a version that the server keeps, and %.200s is a file", o->file);
    TRY(session_name_file(s, e));
    rc = file_read(&source, o->file, LUA_SOURCE_BYTES, e);
    session_flag(&s->path, "name", s->app->policy_name);
    if (!rc)
        session_passes(s, &source, &rc, e);
    buf_free(&source);
    return rc;
}
