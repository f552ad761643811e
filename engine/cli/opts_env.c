#include "engine/cli/opts_env.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/cli/opts_table.h"
#include "engine/base/nearest.h"

static const char prefix[] = "MOONSHIFT_";
/* Of our own build, tests and tools: no flags. */
static const char *const tools[] = {"build",    "cuda",  "sanitize", "gxx",  "nvcc", "fuzz",
                                    "has-cuda", "tests", "slow",     "seed", "ci"};
enum { MAX_NAMES = 256 };

/* MAX_NUM_SEQS to max-num-seqs, and back. */
static void respell(char *name, char from, char to, int (*letter)(int))
{
    for (; *name; name++)
        *name = *name == from ? to : (char)letter((unsigned char)*name);
}

static bool is_in(const char *name, const char *const *list, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(list[i], name))
            return true;
    return false;
}

bool opts_env_read(const char *entry, struct env_variable *v)
{
    size_t skip = sizeof prefix - 1, n = strcspn(entry, "=");
    if (strncmp(entry, prefix, skip) != 0 || entry[n] != '=')
        return false;
    snprintf(v->name, sizeof v->name, "%.*s", (int)(n - skip), entry + skip);
    snprintf(v->spelling, sizeof v->spelling, "%.*s", (int)n, entry);
    respell(v->name, '_', '-', tolower);
    v->value = entry + n + 1;
    return !is_in(v->name, tools, sizeof tools / sizeof *tools) || !strcmp(v->name, "seed");
}

int opts_env_unknown(const struct env_variable *v, struct err *e)
{
    const char *names[MAX_NAMES], *bare = strncmp(v->name, "no-", 3) ? v->name : v->name + 3;
    char flag[ENV_NAME] = "";
    int n_rows, n = 0;
    const struct opt_row *rows = opts_rows(&n_rows);
    for (int i = 0; i < n_rows && n < MAX_NAMES - 2; i++) {
        names[n++] = rows[i].name;
        if (rows[i].alias)
            names[n++] = rows[i].alias;
    }
    if (is_in(v->name, names, n) || is_in(bare, names, n))
        return 0;
    const char *near = nearest_word(bare, names, n);
    snprintf(flag, sizeof flag, "%s", near ? near : "");
    respell(flag, '-', '_', toupper);
    return err_set(e, E_INPUT,
                   "%s in the environment: there is no flag --%s%s%s%s (MOONSHIFT_FLAG_NAME sets --flag-name)",
                   v->spelling, v->name, near ? "; did you mean MOONSHIFT_" : "", flag, near ? "?" : "");
}
