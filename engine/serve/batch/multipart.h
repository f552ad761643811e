/* A multipart/form-data body (RFC 7578), read strictly: a wall for bytes from the network. Nothing is copied but names:
 * parts point into the body. What two readers could understand differently (text before the first boundary or after the
 * last, a boundary with something behind it, two dispositions, filename*, an encoding) is refused. Pure, any thread.
 * Invariant: names hold no control bytes, and every part lies within the body. */
#ifndef SERVE_BATCH_MULTIPART_H
#define SERVE_BATCH_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

enum { MULTIPART_PARTS = 16, MULTIPART_NAME = 64, MULTIPART_FILENAME = 256, MULTIPART_BOUNDARY = 70 };

struct multipart_part {
    char name[MULTIPART_NAME], filename[MULTIPART_FILENAME];
    bool is_file; /* it has a filename */
    const char *p;
    size_t n;
};

struct multipart {
    struct multipart_part parts[MULTIPART_PARTS];
    int n;
};

/* type: the value of the Content-Type header, or NULL. E_INPUT. */
int multipart_read(struct multipart *out, const char *type, const char *body, size_t n, struct err *e);
/* The part of this name; NULL: none. */
const struct multipart_part *multipart_find(const struct multipart *m, const char *name);

#endif
