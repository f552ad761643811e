#include "engine/serve/openai/thoughts.h"

#include <stdio.h>
#include <string.h>

static bool is_space(char b)
{
    return b == ' ' || b == '\n' || b == '\t' || b == '\r';
}

/* ---- marks */

static bool is_ascii(const char *s)
{
    while (*s > 0)
        s++;
    return !*s;
}

void think_marks_set(struct think_marks *m, const char *end, bool is_control)
{
    const char *slash = strchr(end, '/');
    *m = (struct think_marks){.is_control = is_control, .is_text = !is_control && is_ascii(end)};
    snprintf(m->end, sizeof m->end, "%s", end);
    if (slash)
        snprintf(m->begin, sizeof m->begin, "%.*s%s", (int)(slash - end), end, slash + 1);
    stops_add(&m->ends, m->end, strlen(m->end));
}

void think_marks_free(struct think_marks *m)
{
    stops_free(&m->ends);
    *m = (struct think_marks){.begin = ""};
}

static bool ends_with(const char *text, size_t n, const char *mark)
{
    size_t k = strlen(mark);
    return n >= k && memcmp(text + n - k, mark, k) == 0;
}

enum think_state think_state_after(const struct think_marks *m, const char *text, size_t n)
{
    while (n && is_space(text[n - 1]))
        n--;
    return ends_with(text, n, m->end)                  ? THINK_TEXT
           : *m->begin && ends_with(text, n, m->begin) ? THINK_INSIDE
                                                       : THINK_FIRST;
}

/* ---- the reader */

void thought_reader_init(struct thought_reader *r, const struct think_marks *marks, enum think_state state)
{
    *r = (struct thought_reader){.marks = marks, .state = state};
    stop_scan_init(&r->scan, &marks->ends);
}

void thought_reader_free(struct thought_reader *r)
{
    buf_free(&r->thought);
    buf_free(&r->text);
    buf_free(&r->held);
    stop_scan_free(&r->scan);
}

/* The first n bytes of what is held are thought. */
static void think(struct thought_reader *r, size_t n)
{
    buf_put(&r->thought, r->held.data, n);
    buf_cut(&r->held, n);
    r->settled -= n;
    r->solid -= n;
}

static void give_up(struct thought_reader *r)
{
    buf_put(&r->text, r->held.data, r->held.len);
    buf_clear(&r->held);
    r->state = THINK_TEXT;
}

/* Up to `to` nothing of what is held begins an end marker. */
static void settle(struct thought_reader *r, size_t to)
{
    for (; r->settled < to; r->settled++)
        if (!is_space(r->held.data[r->settled]))
            r->solid = r->settled + 1;
}

/* White space before the first word of a thought. */
static size_t leading(const struct thought_reader *r, const char *s, size_t n)
{
    size_t i = 0;
    while (!r->held.len && !r->any && i < n && is_space(s[i]))
        i++;
    return i;
}

static size_t put_inside(struct thought_reader *r, const char *s, size_t n)
{
    size_t space = leading(r, s, n);
    if (space)
        return space;
    size_t read = stop_scan_read(&r->scan, s, n);
    buf_put(&r->held, s, read);
    bool found = r->scan.found >= 0;
    settle(r, r->held.len - (found ? strlen(r->marks->end) : stop_scan_held(&r->scan)));
    r->any = r->any || r->solid;
    think(r, r->solid);
    if (found) {
        buf_clear(&r->held);
        r->state = THINK_BEHIND;
    }
    return read;
}

/* A byte of what may be white space and the marker that begins a thought. */
static void put_first(struct thought_reader *r, char b)
{
    const char *begin = r->marks->begin;
    size_t n = r->solid; /* of the marker, so far */
    buf_putc(&r->held, b);
    if (n == 0 && is_space(b))
        return;
    if (b != begin[n]) {
        give_up(r);
        return;
    }
    r->solid++;
    if (!begin[r->solid]) {
        buf_clear(&r->held);
        r->solid = 0;
        r->state = THINK_INSIDE;
    }
}

void thought_reader_put(struct thought_reader *r, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (r->state == THINK_INSIDE) {
            i += put_inside(r, s + i, n - i);
        } else if (r->state == THINK_FIRST) {
            put_first(r, s[i++]);
        } else if (r->state == THINK_BEHIND && is_space(s[i])) {
            i++;
        } else {
            r->state = THINK_TEXT;
            buf_put(&r->text, s + i, n - i);
            return;
        }
    }
}

void thought_reader_end(struct thought_reader *r)
{
    if (r->state == THINK_FIRST)
        give_up(r);
    if (r->state == THINK_INSIDE) {
        settle(r, r->held.len);
        think(r, r->solid);
        buf_clear(&r->held);
    }
}

size_t thought_reader_bytes(const struct thought_reader *r)
{
    return r->thought.len + r->text.len + r->held.len;
}
