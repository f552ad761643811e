#include "engine/lab/trace/lines.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "engine/base/mem.h"

enum { CHUNK_BYTES = 1 << 16, SHOWN_BYTES = 40 };

int lines_bad(const struct lines *l, struct err *e, const char *what)
{
    return err_set(e, E_INPUT, "%s:%llu: %s", l->name, (unsigned long long)l->number, what);
}

/* A field that is not as it must be; what comes from outside is shown without control characters. */
int lines_bad_field(const struct lines *l, const char *field, const char *must, const char *is, struct err *e)
{
    char shown[SHOWN_BYTES + 1];
    size_t n = strnlen(is, SHOWN_BYTES);
    for (size_t i = 0; i < n; i++)
        shown[i] = isprint((unsigned char)is[i]) ? is[i] : '?';
    shown[n] = 0;
    return err_set(e, E_INPUT, "%s:%llu: %s must be %s, not '%s'", l->name, (unsigned long long)l->number, field, must,
                   shown);
}

static bool more_bytes(struct lines *l)
{
    if (l->at == l->end) {
        l->end = fread(l->chunk, 1, CHUNK_BYTES, l->file);
        l->at = 0;
    }
    return l->at < l->end;
}

int lines_next(struct lines *l, bool *end, struct err *e)
{
    do {
        bool whole = false;
        buf_clear(&l->line);
        *end = !more_bytes(l);
        l->number++;
        while (!whole && more_bytes(l)) {
            char *from = l->chunk + l->at, *stop = memchr(from, '\n', l->end - l->at);
            size_t n = stop ? (size_t)(stop - from) : l->end - l->at;
            if (l->line.len + n > LINES_MAX_BYTES)
                return lines_bad(l, e, "the line is longer than 1 MiB");
            buf_put(&l->line, from, n);
            l->at += n + (stop != NULL);
            whole = stop != NULL;
        }
        l->ended = whole;
        if (ferror(l->file))
            return err_set(e, E_SYS, "cannot read %s: %s", l->name, strerror(errno));
        while (l->line.len && strchr("\r \t", l->line.data[l->line.len - 1]))
            l->line.data[--l->line.len] = 0;
    } while (!l->line.len && !*end);
    if (memchr(l->line.data ? l->line.data : "", 0, l->line.len))
        return lines_bad(l, e, "there is a NUL byte in the line");
    return 0;
}

void lines_start(struct lines *l, FILE *file, const char *name)
{
    l->file = file;
    l->chunk = mem_new(CHUNK_BYTES);
    snprintf(l->name, sizeof l->name, "%s", name);
}

void lines_stop(struct lines *l)
{
    if (l->file)
        fclose(l->file);
    mem_free(l->chunk);
    buf_free(&l->line);
}

bool lines_digits(const char *text, uint64_t max, uint64_t *out, const char **end)
{
    uint64_t v = 0;
    const char *c = text;
    for (; isdigit((unsigned char)*c); c++) {
        unsigned d = (unsigned)(*c - '0');
        if (v > (max - d) / 10)
            return false;
        v = v * 10 + d;
    }
    *out = v;
    *end = c;
    return c > text;
}
