/* `moonshift policy shadow`: a policy beside the live one of a running server. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/command/session.h"

static uint64_t number_of(const struct json *j, const char *name)
{
    int64_t n = 0;
    json_i64(json_find(j, name), &n);
    return (uint64_t)n;
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
    bool on = strcmp(json_member_text(j, "state"), "on") == 0;
    printf("%s (%.12s) beside %s, for %.0f s%s%s\n", json_member_text(j, "name"), json_member_text(j, "sha256"),
           json_member_text(j, "beside"), json_member_number(j, "ran_s"), on ? "" : ": ",
           on ? "" : json_member_text(j, "why_ended"));
    printf("decisions: %" PRIu64 " compared, %" PRIu64 " the same (%.1f%%), %" PRIu64
           " passed over; another request first in the queue at %" PRIu64 "\n",
           compared, equal, share_of(equal, compared), number_of(d, "passed_over"), number_of(d, "other_first"));
    printf("batches: %" PRIu64 " the same, %" PRIu64 " with other requests or rows, %" PRIu64
           " in another layout, %" PRIu64 " of the live one alone, %" PRIu64 " of the shadow alone\n",
           number_of(b, "equal"), number_of(b, "other_requests"), number_of(b, "other_layout"), number_of(b, "live"),
           number_of(b, "shadow"));
    printf("arrivals: %" PRIu64 ", of which %" PRIu64 " are let in, refused or held by both\n", number_of(a, "n"),
           number_of(a, "alike"));
    printf("cost: %.1f us a decision, %.2f%% of the time\n", json_member_number(j, "call_us"),
           100 * json_member_number(j, "share"));
    if (*json_member_text(j, "last_error"))
        printf("last error: %s\n", json_member_text(j, "last_error"));
    print_counts(json_find(j, "verbs"));
    for (const struct json *x = json_first(json_find(j, "differences")); x; x = json_next(x))
        printf("after %.3f s, step %" PRIu64 "\n  live:   %s\n  shadow: %s\n", json_member_number(x, "at_s"),
               number_of(x, "step"), *json_member_text(x, "live") ? json_member_text(x, "live") : "nothing more",
               *json_member_text(x, "shadow") ? json_member_text(x, "shadow") : "nothing more");
}

static void say_shadow(const struct session *s)
{
    struct json *j = json_parse(s->answer.body.data ? s->answer.body.data : "", s->answer.body.len, NULL, NULL);
    if (s->app->opts.as_json)
        session_print(s);
    else if (!strcmp(json_member_text(j, "state"), "none"))
        puts("no policy was asked beside the live one");
    else
        print_shadow(j);
    json_free(j);
}

int session_post_beside(struct session *s, const char *verb, bool *answered, struct err *e)
{
    const struct opts *o = &s->app->opts;
    struct buf source = {0};
    const char *name = o->file;
    *answered = false;
    TRY(session_check_sha("--sha", o->sha, e));
    if (session_is_file(o->file)) {
        app_name_policy(s->app, o->file);
        name = s->app->policy_name;
        TRY(file_read(&source, o->file, LUA_SOURCE_BYTES, e));
    }
    int rc = session_check_name(name, e);
    if (!rc && source.len && o->sha)
        rc = err_set(e, E_INPUT, "--sha is of a version that the server keeps, not of a file");
    if (!rc) {
        buf_printf(&s->path, "/admin/policies/%s/%s?seconds=%.9g", name, verb, o->for_s);
        session_flag(&s->path, "sha", o->sha);
        session_flag(&s->path, "groups", o->groups);
        *answered = session_ask(s, REMOTE_POST, &source);
    }
    buf_free(&source);
    return rc;
}

int session_shadow(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    bool answered = false;
    int rc = 0;
    if (o->end_beside && o->file)
        return err_set(e, E_INPUT, "--end or a policy: which of them?");
    if (o->file) {
        rc = session_post_beside(s, "shadow", &answered, e);
    } else {
        buf_puts(&s->path, "/admin/shadow");
        answered = session_ask(s, o->end_beside ? REMOTE_DELETE : REMOTE_GET, NULL);
    }
    if (answered)
        say_shadow(s);
    return rc;
}
