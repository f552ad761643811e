#include "engine/base/places.h"

#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The folder of this program. */
static const char *beside(char exe[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", exe, PATH_MAX - 1);
    exe[n > 0 ? n : 0] = 0;
    return n > 0 ? dirname(exe) : ".";
}

/* Puts the first readable FOLDER/FILE of all places into found. */
static bool look_for(const char *folder, const char *file, char found[PATH_MAX])
{
    static const char *const above[] = {"", "../", "../share/moonshift/"};
    char exe[PATH_MAX];
    const char *here = beside(exe);
    for (int i = -1; i < 3; i++) {
        int len = i < 0 ? snprintf(found, PATH_MAX, "%s/%s", folder, file)
                        : snprintf(found, PATH_MAX, "%s/%s%s/%s", here, above[i], folder, file);
        if (len < PATH_MAX && access(found, R_OK) == 0)
            return true;
    }
    return false;
}

void places_policies(const char *given, char out[PATH_MAX])
{
    if (given) {
        snprintf(out, PATH_MAX, "%s", given);
        return;
    }
    out[0] = 0;
    if (look_for("policies", "fcfs.lua", out))
        *strrchr(out, '/') = 0;
    else
        out[0] = 0;
}

int places_description(const char *asked, const char *folder, char out[PATH_MAX], struct err *e)
{
    char file[160];
    size_t n = strlen(asked);
    if (strchr(asked, '/') || (n > 5 && !strcmp(asked + n - 5, ".json"))) {
        if (snprintf(out, PATH_MAX, "%s", asked) >= PATH_MAX)
            return err_set(e, E_INPUT, "the path is too long: %.60s...", asked);
        return 0;
    }
    if (snprintf(file, sizeof file, "%s.json", asked) < (int)sizeof file && look_for(folder, file, out))
        return 0;
    return err_set(e, E_NOTFOUND, "there is no %s/%.60s.json: use a name from %s or the path of a file", folder, asked,
                   folder);
}

static void make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
}

void places_history(const char *given, const char *state, const char *home, char out[PATH_MAX])
{
    int n = 0;
    out[0] = 0;
    if (given && !strcmp(given, "off"))
        return;
    if (given) {
        snprintf(out, PATH_MAX, "%s", given);
        return;
    }
    if (state && *state == '/')
        n = snprintf(out, PATH_MAX, "%s/moonshift/history", state);
    else if (home && *home == '/')
        n = snprintf(out, PATH_MAX, "%s/.local/state/moonshift/history", home);
    if (n <= 0 || n >= PATH_MAX)
        out[0] = 0;
    else
        make_folders(out);
}

void places_cache(const char *given, const char *cache, const char *home, char out[PATH_MAX])
{
    int n = 0;
    out[0] = 0;
    if (given)
        n = snprintf(out, PATH_MAX, "%s/", given);
    else if (cache && *cache == '/')
        n = snprintf(out, PATH_MAX, "%s/moonshift/", cache);
    else if (home && *home == '/')
        n = snprintf(out, PATH_MAX, "%s/.cache/moonshift/", home);
    if (n <= 1 || n >= PATH_MAX) {
        out[0] = 0;
        return;
    }
    make_folders(out);
    out[n - 1] = 0;
}

void places_module(char out[PATH_MAX])
{
    static const char *const folders[] = {"", "/../lib/lua/5.1"};
    char exe[PATH_MAX], folder[PATH_MAX + 32], file[PATH_MAX + 64];
    const char *here = beside(exe);
    for (int i = 0; i < 2; i++) {
        snprintf(folder, sizeof folder, "%s%s", here, folders[i]);
        snprintf(file, sizeof file, "%s/moonshift.so", folder);
        if (access(file, R_OK) == 0 && realpath(folder, out))
            return;
    }
    out[0] = 0;
}
