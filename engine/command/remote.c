/* The commands about a running server: its policies (push, list, show, diff, activate, rollback, log, shadow) and its
 * requests (why) are here; limits, state and top have files of their own. What the server refuses is exit status 1, a
 * server that does not answer 3. */
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
#include "engine/cli/why.h"
#include "engine/command/session.h"
#include "engine/serve/versions/audit.h"
#include "engine/serve/versions/good.h"

enum { LOG_PAGE = 1000 };

static void put_flag(struct buf *path, const char *name, const char *value)
{
    if (value)
        buf_printf(path, "%c%s=%s", strchr(path->data, '?') ? '&' : '?', name, value);
}

static int check_sha(const char *flag, const char *sha, struct err *e)
{
    return !sha || version_sha_ok(sha, SHA_PREFIX_MIN)
               ? 0
               : err_set(e, E_INPUT, "%s wants a SHA-256, or the first %d or more of its digits", flag, SHA_PREFIX_MIN);
}

static int check_name(const char *name, struct err *e)
{
    return version_name_ok(name)
               ? 0
               : err_set(e, E_INPUT,
                         "a policy's name has at most %d letters, digits, dots, dashes and underscores, not "
                         "'%.60s'",
                         VERSION_NAME_MAX, name);
}

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
    if (o->as_name)
        snprintf(s->app->policy_name, sizeof s->app->policy_name, "%s", o->as_name);
    else
        app_name_policy(s->app, o->file);
    TRY(check_name(s->app->policy_name, e));
    int rc = file_read(&source, o->file, LUA_SOURCE_BYTES, e);
    if (!rc) {
        buf_printf(&s->path, "/admin/policies/%s", s->app->policy_name);
        put_flag(&s->path, "activate", o->activate ? NULL : "0");
        put_flag(&s->path, "force", o->force ? "1" : NULL);
        if (session_ask(s, REMOTE_PUT, &source))
            say_live(s);
    }
    buf_free(&source);
    return rc;
}

static int activate(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    TRY(check_name(o->file, e));
    TRY(check_sha("--sha", o->sha, e));
    buf_printf(&s->path, "/admin/policies/%s/activate", o->file);
    put_flag(&s->path, "sha", o->sha);
    put_flag(&s->path, "force", o->force ? "1" : NULL);
    if (session_ask(s, REMOTE_POST, NULL))
        say_live(s);
    return 0;
}

static int roll_back(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    TRY(check_sha("--to", o->to, e));
    buf_puts(&s->path, "/admin/policy/rollback");
    put_flag(&s->path, "to", o->to);
    put_flag(&s->path, "force", o->force ? "1" : NULL);
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
    TRY(check_name(o->file, e));
    TRY(check_sha("--sha", o->sha, e));
    buf_printf(&s->path, "/admin/policies/%s", o->file);
    put_flag(&s->path, "sha", o->sha);
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

static bool is_path(const char *word)
{
    return strchr(word, '/') || (strlen(word) > 4 && !strcmp(word + strlen(word) - 4, ".lua"));
}

/* The text of FILE, NAME, NAME@SHA or, NULL, of the live one. False: said, and the status is set; rc: it is none. */
static bool fetch(struct session *s, const char *what, struct buf *out, int *rc, struct err *e)
{
    char name[AUDIT_NAME] = "", sha[65] = "";
    if (what && is_path(what))
        return (*rc = file_read(out, what, LUA_SOURCE_BYTES, e)) == 0;
    buf_clear(&s->path);
    if (what) {
        const char *at = strchr(what, '@');
        snprintf(name, sizeof name, "%.*s", at ? (int)(at - what) : (int)strlen(what), what);
        snprintf(sha, sizeof sha, "%s", at ? at + 1 : "");
        if ((*rc = check_name(name, e)) != 0 || (at && (*rc = check_sha("NAME@SHA", sha, e)) != 0))
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
    put_flag(&s->path, "sha", sha[0] ? sha : NULL);
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

/* ---- shadow */

static uint64_t number_of(const struct json *j, const char *name)
{
    int64_t n = 0;
    json_i64(json_find(j, name), &n);
    return (uint64_t)n;
}

static const char *text_of(const struct json *j, const char *name)
{
    const char *text = json_text(json_find(j, name));
    return text ? text : "";
}

static double share_of(uint64_t n, uint64_t of)
{
    return of ? 100 * (double)n / (double)of : 0;
}

static void print_counts(const struct json *counts)
{
    printf("%-10s  %10s  %12s  %14s\n", "", "both", "live alone", "shadow alone");
    for (const struct json *v = json_first(counts); v; v = json_next(v))
        printf("%-10.10s  %10" PRIu64 "  %12" PRIu64 "  %14" PRIu64 "\n", json_key(v), number_of(v, "both"),
               number_of(v, "live"), number_of(v, "shadow"));
}

static void print_shadow(const struct json *j)
{
    const struct json *d = json_find(j, "decisions"), *b = json_find(j, "batches"), *a = json_find(j, "arrivals");
    uint64_t compared = number_of(d, "compared"), equal = number_of(d, "equal");
    bool on = strcmp(text_of(j, "state"), "on") == 0;
    printf("%s (%.12s) beside %s, for %.0f s%s%s\n", text_of(j, "name"), text_of(j, "sha256"), text_of(j, "beside"),
           json_number(json_find(j, "ran_s")), on ? "" : ": ", on ? "" : text_of(j, "why_ended"));
    printf("decisions: %" PRIu64 " compared, %" PRIu64 " the same (%.1f%%), %" PRIu64
           " passed over; another request first in the queue at %" PRIu64 "\n",
           compared, equal, share_of(equal, compared), number_of(d, "passed_over"), number_of(d, "other_first"));
    printf("batches: %" PRIu64 " the same, %" PRIu64 " with other requests or rows, %" PRIu64
           " in another layout, %" PRIu64 " of the live one alone, %" PRIu64 " of the shadow alone\n",
           number_of(b, "equal"), number_of(b, "other_requests"), number_of(b, "other_layout"), number_of(b, "live"),
           number_of(b, "shadow"));
    printf("arrivals: %" PRIu64 ", of which %" PRIu64 " are let in, refused or held by both\n", number_of(a, "n"),
           number_of(a, "alike"));
    printf("cost: %.1f us a decision, %.2f%% of the time\n", json_number(json_find(j, "call_us")),
           100 * json_number(json_find(j, "share")));
    if (*text_of(j, "last_error"))
        printf("last error: %s\n", text_of(j, "last_error"));
    print_counts(json_find(j, "verbs"));
    for (const struct json *x = json_first(json_find(j, "differences")); x; x = json_next(x))
        printf("after %.3f s, step %" PRIu64 "\n  live:   %s\n  shadow: %s\n", json_number(json_find(x, "at_s")),
               number_of(x, "step"), *text_of(x, "live") ? text_of(x, "live") : "nothing more",
               *text_of(x, "shadow") ? text_of(x, "shadow") : "nothing more");
}

static void say_shadow(const struct session *s)
{
    struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
    if (s->app->opts.as_json)
        session_print(s);
    else if (!strcmp(text_of(j, "state"), "none"))
        puts("no policy was asked beside the live one");
    else
        print_shadow(j);
    json_free(j);
}

static int begin_shadow(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf source = {0};
    const char *name = o->file;
    TRY(check_sha("--sha", o->sha, e));
    if (is_path(o->file)) {
        app_name_policy(s->app, o->file);
        name = s->app->policy_name;
        TRY(file_read(&source, o->file, LUA_SOURCE_BYTES, e));
    }
    int rc = check_name(name, e);
    if (!rc && source.len && o->sha)
        rc = err_set(e, E_INPUT, "--sha is of a version that the server keeps, not of a file");
    if (!rc) {
        buf_printf(&s->path, "/admin/policies/%s/shadow?seconds=%.9g", name, o->for_s);
        put_flag(&s->path, "sha", o->sha);
        if (session_ask(s, REMOTE_POST, &source))
            say_shadow(s);
    }
    buf_free(&source);
    return rc;
}

static int shadow(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    if (o->end_shadow && o->file)
        return err_set(e, E_INPUT, "--end or a policy: which of them?");
    if (o->file)
        return begin_shadow(s, e);
    buf_puts(&s->path, "/admin/shadow");
    if (session_ask(s, o->end_shadow ? REMOTE_DELETE : REMOTE_GET, NULL))
        say_shadow(s);
    return 0;
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
        return shadow(s, e);
    case CMD_LIMITS:
        return session_limits(s, e);
    case CMD_STATE:
        return session_state(s, e);
    case CMD_TOP:
        return session_top(s, e);
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
