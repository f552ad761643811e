/* Log lines to stderr: "LEVEL HH:MM:SS [part] text", or one JSON object a line. Any thread; a line is written with one
 * write(2). Text from outside is escaped (control bytes, bad UTF-8), so a log line is always one line.
 * Settings are made once in main before threads start. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log_opts {
    enum log_level level;
    int json; /* --log-format json */
};

void log_setup(const struct log_opts *o);
void log_line(enum log_level level, const char *part, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* A progress line: redrawn in place on a terminal, printed at most every 2 s otherwise. done == total ends it. */
void log_progress(const char *what, double done, double total, const char *unit);

#define log_debug(part, ...) log_line(LOG_DEBUG, part, __VA_ARGS__)
#define log_info(part, ...) log_line(LOG_INFO, part, __VA_ARGS__)
#define log_warn(part, ...) log_line(LOG_WARN, part, __VA_ARGS__)
#define log_error(part, ...) log_line(LOG_ERROR, part, __VA_ARGS__)

#endif
