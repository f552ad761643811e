#include "engine/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/utf8.h"

/* Rule zero: set once in main, read by every thread; a log handle in every struct would say no more. */
static struct log_opts opts = {.level = LOG_INFO};

void log_setup(const struct log_opts *o)
{
    opts = *o;
}

static void write_line(const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(STDERR_FILENO, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

/* One line of text that does nothing to a terminal: whole UTF-8 without control characters (C0, DEL, C1). */
static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == 0x7F || (c == 0xC2 && i + 1 < n && (unsigned char)s[i + 1] < 0xA0))
            return false;
    }
    return utf8_valid(s, n);
}

void log_line(enum log_level level, const char *part, const char *fmt, ...)
{
    static const char *const names[] = {"DEBUG", "INFO", "WARN", "ERROR"};
    if (level < opts.level)
        return;
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    int whole = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (whole < 0)
        return;
    size_t len = (size_t)whole < sizeof text ? (size_t)whole : utf8_whole(text, sizeof text - 1);
    text[len] = 0;
    time_t now = time(NULL);
    struct tm tm;
    localtime_r(&now, &tm);
    char stamp[40];
    strftime(stamp, sizeof stamp, opts.json ? "%Y-%m-%dT%H:%M:%S%z" : "%H:%M:%S", &tm);
    struct buf quoted = {0}, line = {0};
    buf_put_json(&quoted, text, len);
    if (opts.json) {
        buf_printf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"part\":\"%s\",\"text\":%s}\n", stamp, names[level], part,
                   quoted.data);
    } else {
        /* the JSON escapes keep it one line; plain text needs no escaped quotes, so those stay as they came */
        buf_printf(&line, "%s %s [%s] %s\n", names[level], stamp, part, is_plain(text, len) ? text : quoted.data);
    }
    write_line(line.data, line.len);
    buf_free(&line);
    buf_free(&quoted);
}

void log_progress(const char *what, double done, double total, const char *unit)
{
    static _Atomic long last_ms;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long ms = t.tv_sec * 1000L + t.tv_nsec / 1000000;
    int tty = isatty(STDERR_FILENO), end = done >= total;
    if (!end && ms - atomic_load(&last_ms) < (tty ? 100 : 2000))
        return;
    atomic_store(&last_ms, ms);
    int pct = total > 0 ? (int)(done * 100 / total) : 100;
    if (!tty) {
        log_info("load", "%s: %d%% | %.4g/%.4g %s", what, pct, done, total, unit);
        return;
    }
    char line[200], bar[31];
    for (int i = 0; i < 30; i++)
        bar[i] = i * 100 < pct * 30 ? '#' : '.';
    bar[30] = 0;
    int n = snprintf(line, sizeof line, "\r%s: %3d%% |%s| %.4g/%.4g %s%s", what, pct, bar, done, total, unit, end ? "\n" : "");
    write_line(line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1));
}
