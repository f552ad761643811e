/* --profile: who is watched, and who is told. */
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/command/app.h"
#include "engine/profile_report.h"

void app_watch_ops(struct app *a, struct engine_setup *s)
{
    if (!a->opts.profile)
        return;
    a->watched = *s->ops;
    s->ops->watch(&a->watched);
    s->ops = &a->watched;
}

/* A log has lines, and may be read by a program. */
static void log_lines(const char *text)
{
    for (const char *end; (end = strchr(text, '\n')) != NULL; text = end + 1)
        if (end > text)
            log_info("profile", "%.*s", (int)(end - text), text);
}

void app_say_profile(const struct app *a)
{
    struct buf table = {0};
    struct profile p;
    if (!a->opts.profile)
        return;
    engine_probe(a->engine);
    engine_profile(a->engine, &p);
    profile_table(&p, &table);
    if (a->opts.command == CMD_SERVE)
        log_lines(table.data);
    else
        fprintf(stderr, "%s", table.data);
    buf_free(&table);
}
