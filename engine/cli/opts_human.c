#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cli/opts.h"

int opts_human(const char *text, int64_t *out)
{
    static const struct {
        const char *suffix;
        double factor;
        bool fraction;
    } units[] = {
        {"", 1, false},        {"k", 1e3, true},      {"m", 1e6, true},      {"g", 1e9, true},
        {"t", 1e12, true},     {"kB", 1e3, true},     {"MB", 1e6, true},     {"GB", 1e9, true},
        {"TB", 1e12, true},    {"K", 0x1p10, false},  {"M", 0x1p20, false},  {"G", 0x1p30, false},
        {"T", 0x1p40, false},  {"KiB", 0x1p10, true}, {"MiB", 0x1p20, true}, {"GiB", 0x1p30, true},
        {"TiB", 0x1p40, true},
    };
    size_t digits = strspn(text, "0123456789"), n = digits;
    if (text[n] == '.')
        n += 1 + strspn(text + n + 1, "0123456789");
    if (!digits || n > 19)
        return E_INPUT;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcmp(text + n, units[i].suffix) != 0 || (n != digits && !units[i].fraction))
            continue;
        if (n == digits) { /* exact: no rounding by way of a double */
            long long whole;
            errno = 0;
            whole = strtoll(text, NULL, 10);
            return errno || __builtin_mul_overflow(whole, (int64_t)units[i].factor, out) ? E_INPUT : 0;
        }
        double v = strtod(text, NULL) * units[i].factor;
        *out = v < 0x1p62 ? (int64_t)(v + 0.5) : 0;
        return v < 0x1p62 ? 0 : E_INPUT;
    }
    return E_INPUT;
}

int64_t opts_disk_bytes(const char *text, size_t *path_len)
{
    const char *colon = strrchr(text, ':');
    bool given = colon && strchr("0123456789", colon[1]) && colon[1] && !strchr(colon, '/');
    int64_t bytes = (int64_t)DISK_GIB << 30;
    *path_len = given ? (size_t)(colon - text) : strlen(text);
    return given && opts_human(colon + 1, &bytes) ? -1 : bytes;
}
