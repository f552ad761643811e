/* `moonshift policy step` and `moonshift policy why --recording`: what a recording says of a decision, or of requests.
 */
#include <stdio.h>

#include "engine/cli/step_view.h"
#include "engine/cli/why.h"
#include "engine/command/app.h"
#include "engine/lab/revisit.h"

static int begin(void *ctx, int n_ranks, struct err *e)
{
    struct app *a = ctx;
    TRY(app_start_lua_untimed(a, n_ranks, e));
    a->lua.keep_text = true;
    a->lua.again = true; /* what a server has accepted need not be tried once more */
    return 0;
}

static int open_policy(void *ctx, const char *asked, const struct strings *params, bool again, struct policy *out,
                       struct err *e)
{
    (void)again;
    return app_load_policy(ctx, asked, params, out, e);
}

/* What was found, as it is or for people. */
static int print(const struct app *a, const struct buf *found, struct err *e)
{
    struct buf text = {0};
    struct json *j = a->opts.as_json ? NULL : json_parse(found->data, found->len, NULL, e);
    int rc = a->opts.as_json                      ? 0
             : !j                                 ? E_INPUT
             : a->opts.command == CMD_POLICY_STEP ? step_render(j, a->opts.recording, &text, e)
                                                  : why_render(j, NULL, &text, e);
    const struct buf *shown = a->opts.as_json ? found : &text;
    if (!rc && (fwrite(shown->data, 1, shown->len, stdout) != shown->len || (a->opts.as_json && putchar('\n') == EOF)))
        rc = err_set(e, E_SYS, "the text cannot be written");
    json_free(j);
    buf_free(&text);
    return rc;
}

int command_revisit(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    struct buf found = {0};
    struct revisit_setup s = {
        .path = o->recording, .begin = begin, .policies = {.open = open_policy, .ctx = a, .named = &o->policies}};
    struct revisit_which which = {.at_s = o->at_s};
    int64_t number = 0;
    if (o->file)
        TRY(opts_human(o->file, &number)); /* it was looked at before */
    which.number = (uint64_t)number;
    int rc = o->command == CMD_POLICY_STEP ? revisit_decision(&s, &which, &found, e)
                                           : revisit_stories(&s, o->why_id, (int)o->slowest, &found, e);
    if (!rc)
        rc = print(a, &found, e);
    buf_free(&found);
    return rc;
}
