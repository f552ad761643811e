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

/* An exception to the rule of no globals: set once in main, read by every thread; a log handle in every struct would
 * add nothing. */
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

/* One line of text that does nothing to a terminal: whole UTF-8, all of which can be seen. */
static bool is_plain(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(s + i, n - i, &cp);
        if (len <= 0 || !utf8_is_seen(cp))
            return false;
        i += (size_t)len;
    }
    return true;
}

/* A JSON string again, with what cannot be seen as \uNNNN. */
static void put_seen(struct buf *out, const struct buf *json)
{
    for (size_t i = 0; i < json->len;) {
        uint32_t cp = 0;
        int len = utf8_decode(json->data + i, json->len - i, &cp);
        if (len <= 1 || utf8_is_seen(cp))
            buf_put(out, json->data + i, len > 0 ? (size_t)len : 1);
        else if (cp < 0x10000)
            buf_printf(out, "\\u%04x", (unsigned)cp);
        else
            buf_printf(out, "\\u%04x\\u%04x", 0xD800 + (unsigned)((cp - 0x10000) >> 10),
                       0xDC00 + (unsigned)((cp - 0x10000) & 0x3FF));
        i += len > 0 ? (size_t)len : 1;
    }
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
    struct buf json = {0}, quoted = {0}, line = {0};
    buf_put_json(&json, text, len);
    put_seen(&quoted, &json);
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
    buf_free(&json);
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
    int n = snprintf(line, sizeof line, "\r%s: %3d%% |%s| %.4g/%.4g %s%s", what, pct, bar, done, total, unit,
                     end ? "\n" : "");
    write_line(line, (size_t)(n < (int)sizeof line ? n : (int)sizeof line - 1));
}
