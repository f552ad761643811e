/* The commands about a running server: its policies (push, what-if, list, show, diff, activate, rollback, log, shadow,
 * canary)
 * and its requests (why) are here; limits, state and top have files of their own. What the server refuses is exit
 * status 1, a server that does not answer 3. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/cli/what_if_table.h"
#include "engine/cli/why.h"
#include "engine/command/session.h"
#include "engine/serve/versions/audit.h"
#include "engine/serve/versions/good.h"

enum { LOG_PAGE = 1000 };

/* What is live after an order, in a line; or the answer as it came. */
static void say_live(const struct session *s)
{
    struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
    const struct json *a = json_find(j, "active");
    const char *name = json_text(json_find(a ? a : j, "name")), *sha = json_text(json_find(a ? a : j, "sha256"));
    if (s->app->opts.as_json)
        session_print(s);
    else
        printf("%s (%.12s) is %s\n", name ? name : "?", sha ? sha : "?", a ? "live" : "kept");
    json_free(j);
}

/* ---- push, activate, rollback */

static int push(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf source = {0};
    TRY(session_name_file(s, e));
    int rc = file_read(&source, o->file, LUA_SOURCE_BYTES, e);
    bool good = true;
    if (!rc && o->try_first) {
        buf_printf(&s->path, "/admin/what-if?name=%s", s->app->policy_name);
        good = session_passes(s, &source, &rc, e);
        buf_clear(&s->path);
    }
    if (!rc && good) {
        buf_printf(&s->path, "/admin/policies/%s", s->app->policy_name);
        session_flag(&s->path, "activate", o->activate ? NULL : "0");
        session_flag(&s->path, "force", o->force ? "1" : NULL);
        session_flag(&s->path, "strict-prediction", o->hold_to_prediction ? "1" : NULL);
        if (session_ask(s, REMOTE_PUT, &source))
            say_live(s);
    }
    buf_free(&source);
    return rc;
}

static int activate(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    TRY(session_check_name(o->file, e));
    TRY(session_check_sha("--sha", o->sha, e));
    buf_printf(&s->path, "/admin/policies/%s/activate", o->file);
    session_flag(&s->path, "sha", o->sha);
    session_flag(&s->path, "force", o->force ? "1" : NULL);
    session_flag(&s->path, "strict-prediction", o->hold_to_prediction ? "1" : NULL);
    if (session_ask(s, REMOTE_POST, NULL))
        say_live(s);
    return 0;
}

static int roll_back(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    TRY(session_check_sha("--to", o->to, e));
    buf_puts(&s->path, "/admin/policy/rollback");
    session_flag(&s->path, "to", o->to);
    session_flag(&s->path, "force", o->force ? "1" : NULL);
    if (session_ask(s, REMOTE_POST, NULL))
        say_live(s);
    return 0;
}

/* ---- list, show */

static void print_version(const struct json *v)
{
    int64_t at = 0;
    char when[24] = "", states[80] = "";
    const char *name = json_text(json_find(v, "name")), *sha = json_text(json_find(v, "sha256"));
    const char *actor = json_text(json_find(v, "actor"));
    json_i64(json_find(v, "at"), &at);
    time_t t = (time_t)at;
    struct tm tm = {0};
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    for (const struct json *w = json_first(json_find(v, "state")); w; w = json_next(w)) {
        size_t n = strlen(states);
        snprintf(states + n, sizeof states - n, "%s%.16s", n ? ", " : "", json_text(w) ? json_text(w) : "");
    }
    printf("%-12.12s  %-20s  %-20s  %-16s  %s\n", sha ? sha : "", when, name ? name : "", actor ? actor : "", states);
}

static int list(struct session *s)
{
    buf_puts(&s->path, "/admin/policies");
    if (!session_ask(s, REMOTE_GET, NULL))
        return 0;
    if (s->app->opts.as_json) {
        session_print(s);
        return 0;
    }
    struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
    printf("%-12s  %-20s  %-20s  %-16s  %s\n", "sha256", "when", "name", "from", "state");
    for (const struct json *v = json_first(json_find(j, "versions")); v; v = json_next(v))
        print_version(v);
    json_free(j);
    return 0;
}

static int show(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    TRY(session_check_name(o->file, e));
    TRY(session_check_sha("--sha", o->sha, e));
    buf_printf(&s->path, "/admin/policies/%s", o->file);
    session_flag(&s->path, "sha", o->sha);
    if (!session_ask(s, REMOTE_GET, NULL))
        return 0;
    if (o->as_json) {
        struct buf out = {0};
        buf_puts(&out, "{\"source\":");
        buf_put_json(&out, s->answer.body.data ? s->answer.body.data : "", s->answer.body.len);
        printf("%s}\n", out.data);
        buf_free(&out);
        return 0;
    }
    fwrite(s->answer.body.data ? s->answer.body.data : "", 1, s->answer.body.len, stdout);
    return 0;
}

/* ---- diff */

/* The text of FILE, NAME, NAME@SHA or, NULL, of the live one. False: said, and the status is set; rc: it is none. */
static bool fetch(struct session *s, const char *what, struct buf *out, int *rc, struct err *e)
{
    char name[AUDIT_NAME] = "", sha[65] = "";
    if (what && session_is_file(what))
        return (*rc = file_read(out, what, LUA_SOURCE_BYTES, e)) == 0;
    buf_clear(&s->path);
    if (what) {
        const char *at = strchr(what, '@');
        snprintf(name, sizeof name, "%.*s", at ? (int)(at - what) : (int)strlen(what), what);
        snprintf(sha, sizeof sha, "%s", at ? at + 1 : "");
        if ((*rc = session_check_name(name, e)) != 0 || (at && (*rc = session_check_sha("NAME@SHA", sha, e)) != 0))
            return false;
    } else {
        buf_puts(&s->path, "/admin/policy");
        if (!session_ask(s, REMOTE_GET, NULL))
            return false;
        struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
        const char *live = json_text(json_find(json_find(j, "active"), "name"));
        const char *hash = json_text(json_find(json_find(j, "active"), "sha256"));
        snprintf(name, sizeof name, "%s", live ? live : "");
        snprintf(sha, sizeof sha, "%s", hash && version_sha_ok(hash, 64) ? hash : "");
        json_free(j);
        buf_clear(&s->path);
    }
    buf_printf(&s->path, "/admin/policies/%s", name);
    session_flag(&s->path, "sha", sha[0] ? sha : NULL);
    if (!session_ask(s, REMOTE_GET, NULL))
        return false;
    buf_put(out, s->answer.body.data ? s->answer.body.data : "", s->answer.body.len);
    return true;
}

static int to_file(const struct buf *text, char path[64], struct err *e)
{
    snprintf(path, 64, "/tmp/moonshift-diff-XXXXXX");
    int fd = mkstemp(path);
    bool ok = fd >= 0 && (!text->len || write(fd, text->data, text->len) == (ssize_t)text->len);
    if (fd >= 0)
        close(fd);
    return ok ? 0 : err_set(e, E_SYS, "cannot write %s: %s", path, strerror(errno));
}

/* What a child writes there, to its end. */
static int read_all(int fd, struct buf *out, struct err *e)
{
    char part[4096];
    for (;;) {
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n ? err_set(e, E_SYS, "cannot read what diff says: %s", strerror(errno)) : 0;
        buf_put(out, part, (size_t)n);
    }
}

/* diff(1) says 0: the same, 1: different. */
static int run_diff(const char *from, const char *to, const char *labels[2], struct buf *out, struct err *e)
{
    extern char **environ;
    int ends[2];
    char *argv[] = {"diff",
                    "-u",
                    "--label",
                    (char *)(uintptr_t)labels[0],
                    "--label",
                    (char *)(uintptr_t)labels[1],
                    (char *)(uintptr_t)from,
                    (char *)(uintptr_t)to,
                    NULL};
    pid_t pid;
    posix_spawn_file_actions_t child;
    if (pipe2(ends, O_CLOEXEC))
        return err_set(e, E_SYS, "cannot make a pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&child);
    posix_spawn_file_actions_adddup2(&child, ends[1], STDOUT_FILENO);
    int status = 0, rc = posix_spawnp(&pid, "diff", &child, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&child);
    close(ends[1]);
    int read_rc = rc ? 0 : read_all(ends[0], out, e);
    close(ends[0]);
    if (rc)
        return err_set(e, E_SYS, "diff is needed and cannot be run (%s): apt-get install diffutils", strerror(rc));
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    TRY(read_rc);
    return WIFEXITED(status) && WEXITSTATUS(status) <= 1 ? 0 : err_set(e, E_SYS, "diff did not come to its end");
}

/* As it is, or as {"from", "to", "equal", "diff"}. */
static int print_diff(const struct session *s, const char *labels[2], const struct buf *diff, struct err *e)
{
    struct buf json = {0};
    if (s->app->opts.as_json) {
        buf_puts(&json, "{\"from\":");
        buf_put_json(&json, labels[0], strlen(labels[0]));
        buf_puts(&json, ",\"to\":");
        buf_put_json(&json, labels[1], strlen(labels[1]));
        buf_printf(&json, ",\"equal\":%s,\"diff\":", diff->len ? "false" : "true");
        buf_put_json(&json, diff->data ? diff->data : "", diff->len);
        buf_puts(&json, "}\n");
    }
    const struct buf *out = s->app->opts.as_json ? &json : diff;
    bool written = !out->len || fwrite(out->data, 1, out->len, stdout) == out->len;
    buf_free(&json);
    return written ? 0 : err_set(e, E_SYS, "the text cannot be written");
}

static int compare(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    const char *labels[] = {o->file2 ? o->file : "live", o->file2 ? o->file2 : o->file};
    struct buf texts[2] = {{0}, {0}}, diff = {0};
    char paths[2][64] = {"", ""};
    int rc = 0;
    bool have = fetch(s, o->file2 ? o->file : NULL, &texts[0], &rc, e) && fetch(s, labels[1], &texts[1], &rc, e);
    for (int i = 0; i < 2 && have && !rc; i++)
        rc = to_file(&texts[i], paths[i], e);
    if (have && !rc)
        rc = run_diff(paths[0], paths[1], labels, &diff, e);
    if (have && !rc)
        rc = print_diff(s, labels, &diff, e);
    buf_free(&diff);
    for (int i = 0; i < 2; i++) {
        if (paths[i][0])
            unlink(paths[i]);
        buf_free(&texts[i]);
    }
    return rc;
}

/* ---- log */

static void print_entry(void *ctx, uint64_t seq, const struct audit_entry *a)
{
    (void)ctx;
    char when[24];
    time_t t = (time_t)a->at_s;
    struct tm tm = {0};
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    printf("%5" PRIu64 "  %s  %-12s  %-8s  %-11s  %s  %.12s%s%.12s  %s\n", seq, when, a->actor, a->event, a->result,
           a->policy, a->from, a->from[0] ? " -> " : "", a->to, a->reason);
}

/* All lines, or the newest; false: said, and the status is set. */
static bool fetch_log(struct session *s, bool all, struct buf *out)
{
    uint64_t from = 1;
    for (;;) {
        buf_clear(&s->path);
        buf_puts(&s->path, "/admin/audit");
        if (all)
            buf_printf(&s->path, "?from=%" PRIu64 "&n=%d", from, LOG_PAGE);
        if (!session_ask(s, REMOTE_GET, NULL))
            return false;
        int lines = 0;
        for (size_t i = 0; i < s->answer.body.len; i++)
            lines += s->answer.body.data[i] == '\n';
        buf_put(out, s->answer.body.data ? s->answer.body.data : "", s->answer.body.len);
        if (!all || lines < LOG_PAGE)
            return true;
        from += (uint64_t)lines;
    }
}

static int verify(struct session *s, const struct buf *text, const char *where)
{
    struct audit_found f;
    struct err e = {0};
    if (audit_read(text->data ? text->data : "", text->len, NULL, NULL, &f, &e))
        fprintf(stderr, "moonshift: %s does not verify: %s\n", where, e.text);
    else if (f.whole < text->len)
        fprintf(stderr, "moonshift: %s ends in the middle of a line, behind line %" PRIu64 "\n", where, f.chain.seq);
    else if (printf("%s: %" PRIu64 " lines, each bound to the one before; the last one's SHA-256 is %s\n", where,
                    f.chain.seq, f.chain.prev) > 0)
        return 0;
    s->app->status = SESSION_REFUSED;
    return 0;
}

static int show_log(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf text = {0};
    struct audit_found f;
    if (o->file)
        TRY(file_read(&text, o->file, 1u << 30, e));
    int rc = 0;
    if (o->file || fetch_log(s, o->verify || !o->as_json, &text)) {
        if (o->verify)
            rc = verify(s, &text, o->file ? o->file : "the server's record");
        else if (o->as_json)
            fwrite(text.data ? text.data : "", 1, text.len, stdout);
        else
            rc = audit_read(text.data ? text.data : "", text.len, print_entry, NULL, &f, e);
    }
    buf_free(&text);
    return rc;
}

/* ---- why */

static int why(struct session *s, struct err *e)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
    const struct opts *o = &s->app->opts;
    struct buf out = {0};
    if (o->why_id && (!*o->why_id || strspn(o->why_id, plain) != strlen(o->why_id)))
        return err_set(e, E_INPUT, "the id of a request has letters, digits, '.', '_', ':' and '-', not '%.60s'",
                       o->why_id);
    if (o->why_id)
        buf_printf(&s->path, "/admin/requests/%s", o->why_id);
    else
        buf_printf(&s->path, "/admin/requests?slowest=%d", (int)o->slowest);
    if (!session_ask(s, REMOTE_GET, NULL))
        return 0;
    if (o->as_json) {
        session_print(s);
        return 0;
    }
    struct json *j = json_parse(s->answer.body.data, s->answer.body.len, NULL, e);
    int rc = j ? why_render(j, NULL, &out, e) : E_INPUT;
    if (!rc)
        fwrite(out.data, 1, out.len, stdout);
    json_free(j);
    buf_free(&out);
    return rc;
}

/* ---- which of them */

static int obey(struct session *s, struct err *e)
{
    switch ((int)s->app->opts.command) {
    case CMD_POLICY_PUSH:
        return push(s, e);
    case CMD_POLICY_LIST:
        return list(s);
    case CMD_POLICY_SHOW:
        return show(s, e);
    case CMD_POLICY_DIFF:
        return compare(s, e);
    case CMD_POLICY_ACTIVATE:
        return activate(s, e);
    case CMD_POLICY_ROLLBACK:
        return roll_back(s, e);
    case CMD_POLICY_WHY:
        return why(s, e);
    case CMD_POLICY_SHADOW:
        return session_shadow(s, e);
    case CMD_POLICY_CANARY:
        return session_canary(s, e);
    case CMD_LIMITS:
        return session_limits(s, e);
    case CMD_STATE:
        return session_state(s, e);
    case CMD_TOP:
        return session_top(s, e);
    case CMD_POLICY_WHAT_IF:
        return session_what_if(s, e);
    default:
        return show_log(s, e);
    }
}

/* False: there is no usual place. */
static bool usual_config(char out[PATH_MAX])
{
    const char *xdg = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = xdg && *xdg     ? snprintf(out, PATH_MAX, "%s/moonshift/client.json", xdg)
            : home && *home ? snprintf(out, PATH_MAX, "%s/.config/moonshift/client.json", home)
                            : -1;
    return n > 0 && n < PATH_MAX;
}

int command_remote(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    struct session s = {.app = a};
    char usual[PATH_MAX];
    struct remote_setup setup = {
        .server = o->server,
        .key = o->admin_keys.n ? o->admin_keys.items[o->admin_keys.n - 1] : NULL,
        .key_file = o->admin_key_files.n ? o->admin_key_files.items[o->admin_key_files.n - 1] : NULL,
        .config = o->client_config,
        .usual = usual_config(usual) ? usual : NULL,
    };
    int rc = o->command == CMD_POLICY_LOG && o->file ? 0 : remote_settle(&s.remote, &setup, e);
    if (!rc)
        rc = obey(&s, e);
    if (rc == E_INPUT || rc == E_UNSUPPORTED || rc == E_NOTFOUND) { /* what was asked for is wrong, no server's word */
        fprintf(stderr, "moonshift: %s\n", e->text);
        a->status = 2;
        rc = 0;
    }
    remote_free(&s.remote);
    buf_free(&s.answer.body);
    buf_free(&s.path);
    return rc;
}
