/* `moonshift policy check`. */
#include <stdio.h>

#include "engine/base/file.h"
#include "engine/cli/policy_params.h"
#include "engine/command/app.h"

int command_policy_check(struct app *a, struct err *e)
{
    struct buf source = {0}, params = {0}, report = {0};
    char folder[PATH_MAX];
    TRY(app_start_lua(a, e));
    app_name_policy(a, a->opts.file);
    file_folder(a->opts.file, folder, sizeof folder);
    a->lua.folder = folder;
    int rc = policy_params_json(a->opts.policy_params_file, &a->opts.policy_params, &params, e);
    if (!rc)
        rc = file_read(&source, a->opts.file, LUA_SOURCE_BYTES, e);
    if (!rc)
        rc = lua_policy_check(a->policy_name, source.data ? source.data : "", source.len, &a->lua, params.data, &report,
                              e);
    a->lua.folder = NULL;
    if (report.len)
        fputs(report.data, stdout);
    buf_free(&source);
    buf_free(&params);
    buf_free(&report);
    return rc;
}
