/* A tree of files like those of /sys and /proc, in a folder that a test has to itself. Tests only. */
#ifndef RIG_SYSTEM_TREE_H
#define RIG_SYSTEM_TREE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char folder[64];

static inline int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s", "/tmp/system_tree-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static inline int drop_folder(void **state)
{
    (void)state;
    char command[100];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static inline void put(const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", folder, path);
    for (char *p = full + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

#endif
