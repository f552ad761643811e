/* Any bytes as an upload: the first line is the Content-Type, the rest the body. Parts lie within the body, in order,
 * without the boundary; and a body written of the parts that were read gives the same parts again. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/check.h"
#include "engine/serve/batch/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_part(const struct multipart_part *p, const char *from, const char *end)
{
    ASSERT(*p->name && memchr(p->name, 0, sizeof p->name) && memchr(p->filename, 0, sizeof p->filename));
    ASSERT(p->is_file || !*p->filename);
    ASSERT(p->p >= from && p->p <= end && p->n <= (size_t)(end - p->p));
}

/* With a boundary that no part holds. */
static void write_again(const struct multipart *m, const char *boundary, struct buf *out)
{
    for (int i = 0; i < m->n; i++) {
        buf_printf(out, "--%s\r\nContent-Disposition: form-data; name=\"%s\"", boundary, m->parts[i].name);
        if (m->parts[i].is_file)
            buf_printf(out, "; filename=\"%s\"", m->parts[i].filename);
        buf_puts(out, "\r\n\r\n");
        buf_put(out, m->parts[i].p, m->parts[i].n);
        buf_puts(out, "\r\n");
    }
    buf_printf(out, "--%s--\r\n", boundary);
}

static void check_again(const struct multipart *m, const char *body, size_t n)
{
    static struct multipart again;
    char boundary[24], type[80];
    int k = 0;
    do
        snprintf(boundary, sizeof boundary, "other%d", k++);
    while (memmem(body, n, boundary, strlen(boundary)));
    snprintf(type, sizeof type, "multipart/form-data; boundary=\"%s\"", boundary);
    struct buf out = {0};
    write_again(m, boundary, &out);
    ASSERT(multipart_read(&again, type, out.data, out.len, NULL) == 0 && again.n == m->n);
    for (int i = 0; i < m->n; i++) {
        ASSERT(strcmp(again.parts[i].name, m->parts[i].name) == 0);
        ASSERT(strcmp(again.parts[i].filename, m->parts[i].filename) == 0);
        ASSERT(again.parts[i].n == m->parts[i].n && !memcmp(again.parts[i].p, m->parts[i].p, m->parts[i].n));
    }
    buf_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct multipart m;
    struct err e = {0};
    struct buf type = {0};
    const char *line = size ? memchr(data, '\n', size) : NULL;
    if (!line)
        return 0;
    buf_put(&type, data, (size_t)(line - (const char *)data));
    buf_putc(&type, 0);
    const char *body = line + 1, *end = (const char *)data + size, *from = body;
    if (multipart_read(&m, type.data, body, (size_t)(end - body), &e) == 0) {
        for (int i = 0; i < m.n; i++) {
            check_part(&m.parts[i], from, end);
            from = m.parts[i].p + m.parts[i].n;
        }
        check_again(&m, body, (size_t)(end - body));
    } else {
        ASSERT(e.code == E_INPUT && *e.text);
    }
    buf_free(&type);
    return 0;
}
