#include "engine/serve/batch/multipart.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { HEAD_BYTES = 4096 };

/* A run of bytes that is being read: [p, end). */
struct span {
    const char *p, *end;
};

static size_t left(const struct span *s)
{
    return (size_t)(s->end - s->p);
}

static bool take(struct span *s, const char *word)
{
    size_t n = strlen(word);
    if (left(s) < n || memcmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

static bool take_word(struct span *s, const char *word)
{
    size_t n = strlen(word);
    if (left(s) < n || strncasecmp(s->p, word, n) != 0)
        return false;
    s->p += n;
    return true;
}

static void skip_blanks(struct span *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t'))
        s->p++;
}

static const char *find(const struct span *s, const char *word, size_t n)
{
    return memmem(s->p, left(s), word, n);
}

/* ---- Content-Type */

static bool may_be_in_boundary(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("'()+_,-./:=?", c));
}

/* mark: "\r\n--" and the boundary, as it stands behind each part. */
static int read_boundary(const char *type, char mark[MULTIPART_BOUNDARY + 5], struct err *e)
{
    struct span s = {type ? type : "", type ? type + strlen(type) : ""};
    if (!take_word(&s, "multipart/form-data"))
        return err_set(e, E_INPUT, "Content-Type must be multipart/form-data");
    skip_blanks(&s);
    bool divided = take(&s, ";");
    skip_blanks(&s);
    if (!divided || !take_word(&s, "boundary="))
        return err_set(e, E_INPUT, "Content-Type: multipart/form-data needs a boundary, and nothing before it");
    bool quoted = take(&s, "\"");
    size_t n = 0;
    while (n < left(&s) && may_be_in_boundary(s.p[n]))
        n++;
    const char *boundary = s.p;
    s.p += n;
    if (n == 0 || n > MULTIPART_BOUNDARY || (quoted && !take(&s, "\"")))
        return err_set(e, E_INPUT, "the boundary must have 1 to %d letters, digits or signs", MULTIPART_BOUNDARY);
    skip_blanks(&s);
    if (left(&s))
        return err_set(e, E_INPUT, "there is something behind the boundary in Content-Type");
    snprintf(mark, MULTIPART_BOUNDARY + 5, "\r\n--%.*s", (int)n, boundary);
    return 0;
}

/* ---- the head of a part */

static bool take_quoted(struct span *s, char *out, size_t most)
{
    const char *end = take(s, "\"") ? memchr(s->p, '"', left(s)) : NULL;
    size_t n = end ? (size_t)(end - s->p) : 0;
    if (!end || n >= most)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s->p[i] < 32 || s->p[i] == 127)
            return false;
    memcpy(out, s->p, n);
    out[n] = 0;
    s->p = end + 1;
    return true;
}

static int read_disposition(struct multipart_part *part, struct span line, struct err *e)
{
    bool ok = take_word(&line, "form-data");
    for (skip_blanks(&line); ok && left(&line); skip_blanks(&line)) {
        ok = take(&line, ";");
        skip_blanks(&line);
        if (ok && take_word(&line, "name=")) {
            ok = !*part->name && take_quoted(&line, part->name, sizeof part->name) && *part->name;
        } else if (ok && take_word(&line, "filename=")) {
            ok = !part->is_file && take_quoted(&line, part->filename, sizeof part->filename);
            part->is_file = true;
        } else {
            ok = false;
        }
    }
    return ok && *part->name ? 0
                             : err_set(e, E_INPUT,
                                       "Content-Disposition must be form-data; name=\"...\" of at most %d bytes, and "
                                       "filename=\"...\" of at most %d if it is a file",
                                       MULTIPART_NAME - 1, MULTIPART_FILENAME - 1);
}

static int read_header(struct multipart_part *part, struct span line, struct err *e)
{
    for (const char *p = line.p; p < line.end; p++)
        if (((unsigned char)*p < 32 && *p != '\t') || *p == 127)
            return err_set(e, E_INPUT, "the head of a part holds control bytes");
    if (take_word(&line, "content-disposition:")) {
        if (*part->name)
            return err_set(e, E_INPUT, "a part has two Content-Dispositions");
        skip_blanks(&line);
        return read_disposition(part, line, e);
    }
    if (take_word(&line, "content-transfer-encoding:"))
        return err_set(e, E_INPUT, "Content-Transfer-Encoding is not taken: send the bytes as they are");
    return take_word(&line, "content-") && memchr(line.p, ':', left(&line))
               ? 0
               : err_set(e, E_INPUT, "the head of a part has a line that is not Content-...: ...");
}

static int read_head(struct multipart_part *part, struct span *s, struct err *e)
{
    struct span near = {s->p, left(s) < HEAD_BYTES ? s->end : s->p + HEAD_BYTES};
    while (!take(&near, "\r\n")) {
        struct span line = {near.p, find(&near, "\r\n", 2)};
        if (!line.end)
            return err_set(e, E_INPUT, "the head of a part has no end within %d bytes", HEAD_BYTES);
        TRY(read_header(part, line, e));
        near.p = line.end + 2;
    }
    s->p = near.p;
    return *part->name ? 0 : err_set(e, E_INPUT, "a part has no Content-Disposition");
}

/* ---- the body */

int multipart_read(struct multipart *out, const char *type, const char *body, size_t n, struct err *e)
{
    struct span s = {body, body + n};
    char mark[MULTIPART_BOUNDARY + 5];
    *out = (struct multipart){0};
    TRY(read_boundary(type, mark, e));
    if (!take(&s, mark + 2))
        return err_set(e, E_INPUT, "the body does not begin with its boundary");
    while (!take(&s, "--")) {
        if (!take(&s, "\r\n"))
            return err_set(e, E_INPUT, "there is something behind a boundary in the body");
        if (out->n == MULTIPART_PARTS)
            return err_set(e, E_INPUT, "the body has more than %d parts", MULTIPART_PARTS);
        struct multipart_part *part = &out->parts[out->n++];
        TRY(read_head(part, &s, e));
        const char *end = find(&s, mark, strlen(mark));
        if (!end)
            return err_set(e, E_INPUT, "the body ends before its last boundary");
        part->p = s.p;
        part->n = (size_t)(end - s.p);
        s.p = end + strlen(mark);
    }
    take(&s, "\r\n");
    return left(&s) ? err_set(e, E_INPUT, "there is something behind the last boundary of the body") : 0;
}

const struct multipart_part *multipart_find(const struct multipart *m, const char *name)
{
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->parts[i].name, name) == 0)
            return &m->parts[i];
    return NULL;
}
