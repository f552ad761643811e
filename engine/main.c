/* The entry: reads the command line and hands over to the command (engine/command), then takes down what it opened. */
#include <stdio.h>
#include <string.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/cli/opts_page.h"
#include "engine/cli/policy_new.h"
#include "engine/cli/policy_test.h"
#include "engine/cli/why.h"
#include "engine/command/app.h"
#include "engine/base/version.h"

static void setup_log(const struct opts *o)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    struct log_opts l = {.level = LOG_INFO, .json = o->log_format && !strcmp(o->log_format, "json")};
    for (int i = 0; o->log_level && i < 4; i++)
        if (!strncmp(o->log_level, names[i], 4))
            l.level = (enum log_level)i;
    if (o->command != CMD_SERVE && l.level == LOG_INFO)
        l.level = LOG_WARN; /* an answer is what was asked for, not how it came about */
    log_setup(&l);
}

static void help(const struct opts *o, struct buf *out)
{
    switch (o->form) {
    case FORM_HELP:
        opts_help(o->help_for, out);
        return;
    case FORM_MAN:
        opts_man(out);
        return;
    case FORM_BASH:
        opts_bash(out);
        return;
    case FORM_ZSH:
        opts_zsh(out);
        return;
    }
}

static int obey(struct app *a, struct err *e)
{
    struct buf text = {0};
    switch (a->opts.command) {
    case CMD_SERVE:
        return command_serve(a, e);
    case CMD_RUN:
        return command_run(a, e);
    case CMD_BATCH:
        return command_batch(a, e);
    case CMD_POLICY_CHECK:
        return command_policy_check(a, e);
    case CMD_POLICY_TEST:
        return policy_test(a->opts.file, a->opts.watch, &a->status, e);
    case CMD_POLICY_WHY:
        return a->opts.why_file    ? why_command(&a->opts, e)
               : a->opts.recording ? command_revisit(a, e)
                                   : command_remote(a, e);
    case CMD_POLICY_STEP:
        return command_revisit(a, e);
    case CMD_POLICY_NEW:
        places_policies(a->opts.policy_dir, a->policy_dir);
        return policy_new(&(struct policy_new){a->opts.file, a->opts.template, a->policy_dir}, e);
    case CMD_LUA_PATH:
        return policy_test_path(a->opts.cpath, e);
    case CMD_SIMULATE:
        return command_simulate(a, e);
    case CMD_REPRODUCE:
        return command_reproduce(a, e);
    case CMD_TUNE:
        return command_tune(a, e);
    case CMD_PLAN:
        return command_plan(a, e);
    case CMD_REGRET:
        return command_regret(a, e);
    case CMD_POLICY_PUSH:
    case CMD_POLICY_LIST:
    case CMD_POLICY_SHOW:
    case CMD_POLICY_DIFF:
    case CMD_POLICY_ACTIVATE:
    case CMD_POLICY_ROLLBACK:
    case CMD_POLICY_LOG:
    case CMD_POLICY_SHADOW:
    case CMD_POLICY_CANARY:
    case CMD_LIMITS:
    case CMD_STATE:
    case CMD_TOP:
    case CMD_POLICY_WHAT_IF:
        return command_remote(a, e);
    case CMD_HELP:
        help(&a->opts, &text);
        fputs(text.data, stdout);
        buf_free(&text);
        return 0;
    case CMD_VERSION:
        printf("moonshift %s\n", version_full);
        return 0;
    }
    return 0;
}

int main(int argc, char **argv, char **env)
{
    struct app *a = mem_new(sizeof *a);
    struct err e = {0};
    struct opts_input in = {.argc = argc, .argv = argv, .env = env};
    int rc = opts_parse(&a->opts, &in, &e);
    if (!rc)
        rc = command_check_machine(&a->opts, &e);
    int usage = rc != 0;
    if (!rc) {
        setup_log(&a->opts);
        rc = obey(a, &e);
    }
    if (rc)
        fprintf(stderr, "moonshift: %s\n", e.text);
    app_close(a);
    int status = rc == 0 ? a->status : usage ? 2 : 1;
    opts_free(&a->opts);
    mem_free(a);
    return status;
}
