/* `moonshift policy canary`: a policy that decides for some groups of a running server, and how requests fare on both
 * sides. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/command/session.h"

/* Words of a comparison: how sure is it that there is a difference? */
static void say_chance(const struct json *c)
{
    double p = json_member_number(c, "p"), longer = json_member_number(c, "canary_longer");
    if (!c)
        printf("\n");
    else if (json_find(c, "enough") && !json_true(json_find(c, "enough")))
        printf("  too few to tell\n");
    else if (p >= 0.05)
        printf("  no more than chance (p %.2g)\n", p);
    else if (json_find(c, "canary_longer"))
        printf("  the canary's are %s (p %.2g)\n", longer > 0.5 ? "longer" : "shorter", p);
    else
        printf("  more than chance (p %.2g)\n", p);
}

static void say_count(const struct json *j, const char *field, const char *title)
{
    const struct json *sides = json_find(j, "sides");
    double live = json_member_number(json_find(sides, "live"), field),
           canary = json_member_number(json_find(sides, "canary"), field);
    printf("%-14s  %12.0f  %12.0f", title, live, canary);
    say_chance(live || canary ? json_find(json_find(j, "compared"), field) : NULL);
}

/* Rows of mean and quantiles; the first has what the difference is worth. */
static void say_times(const struct json *j, const char *measure, const char *title)
{
    static const char *const of[] = {"mean", "p50", "p90", "p99"};
    const struct json *sides = json_find(j, "sides");
    char field[32], row[40];
    snprintf(field, sizeof field, "%s_ms", measure);
    const struct json *live = json_find(json_find(sides, "live"), field),
                      *canary = json_find(json_find(sides, "canary"), field);
    for (int i = 0; i < 4; i++) {
        snprintf(row, sizeof row, "%s %s", title, of[i]);
        printf("%-14s  %9.2f ms  %9.2f ms", row, json_member_number(live, of[i]), json_member_number(canary, of[i]));
        say_chance(i ? NULL : json_find(json_find(j, "compared"), measure));
    }
}

static void say_calls(const struct json *j)
{
    printf("calls of the canary:");
    for (const struct json *v = json_first(json_find(j, "calls")); v; v = json_next(v))
        printf(" %s %.0f", json_key(v), json_number(v));
    printf("; decided in its stead: %.0f\n", json_member_number(j, "fallbacks"));
    if (*json_member_text(j, "last_error"))
        printf("last error: %s\n", json_member_text(j, "last_error"));
}

static void print_canary(const struct json *j)
{
    const struct json *sides = json_find(j, "sides");
    bool on = strcmp(json_member_text(j, "state"), "on") == 0;
    printf("%s (%.12s) beside %s, on", json_member_text(j, "name"), json_member_text(j, "sha256"),
           json_member_text(j, "beside"));
    for (const struct json *g = json_first(json_find(j, "groups")); g; g = json_next(g))
        printf("%s %.0f", g == json_first(json_find(j, "groups")) ? " groups" : ",", json_number(g));
    printf(" (%.0f%% of the ranks), for %.0f s%s%s\n\n", 100 * json_member_number(j, "share"),
           json_member_number(j, "ran_s"), on ? "" : ": ", on ? "" : json_member_text(j, "why_ended"));
    printf("%-14s  %12s  %12s\n", "requests", "live", "canary");
    say_count(j, "came", "came");
    say_count(j, "ended", "ended");
    say_count(j, "errors", "errors");
    say_count(j, "refused", "refused");
    say_count(j, "aborted", "aborted");
    say_count(j, "preempted", "preempted");
    say_count(j, "output_tokens", "tokens");
    printf("%-14s  %12.1f  %12.1f\n", "tokens/s", json_member_number(json_find(sides, "live"), "tokens_per_s"),
           json_member_number(json_find(sides, "canary"), "tokens_per_s"));
    say_times(j, "ttft", "TTFT");
    say_times(j, "tpot", "TPOT");
    say_times(j, "queue", "queue");
    say_calls(j);
}

static void say_canary(const struct session *s)
{
    struct json *j = session_json(s);
    if (s->app->opts.as_json)
        session_print(s);
    else if (!strcmp(json_member_text(j, "state"), "none"))
        puts("no policy has been a canary since the start");
    else
        print_canary(j);
    json_free(j);
}

int session_canary(struct session *s, struct err *e)
{
    const struct opts *o = &s->app->opts;
    bool answered = false;
    int rc = 0;
    if (o->end_beside && o->file)
        return err_set(e, E_INPUT, "--end or a policy: which of them?");
    if (!o->file != !o->groups)
        return err_set(e, E_INPUT,
                       o->file ? "which groups is it to decide for? --groups ID,ID: moonshift state has them"
                               : "--groups goes with a policy");
    if (o->file) {
        rc = session_post_beside(s, "canary", &answered, e);
    } else {
        buf_puts(&s->path, "/admin/canary");
        answered = session_ask(s, o->end_beside ? REMOTE_DELETE : REMOTE_GET, NULL);
    }
    if (answered)
        say_canary(s);
    return rc;
}
