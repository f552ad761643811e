#include "engine/base/sysfs.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static bool read_text(char text[SYSFS_TEXT], const char *path)
{
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(text, 1, SYSFS_TEXT - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
    return f;
}

bool sysfs_read(char text[SYSFS_TEXT], const char *format, ...)
{
    char path[SYSFS_PATH];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(path, sizeof path, format, ap);
    va_end(ap);
    text[0] = 0;
    return n > 0 && n < SYSFS_PATH && read_text(text, path);
}

bool sysfs_lists(const char *list, int i)
{
    while (*list >= '0' && *list <= '9') {
        char *end;
        long first = strtol(list, &end, 10), last = *end == '-' ? strtol(end + 1, &end, 10) : first;
        if (i >= first && i <= last)
            return true;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}
