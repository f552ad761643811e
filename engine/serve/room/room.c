#include "engine/serve/room/room.h"

#include <string.h>

#include "engine/serve/room/room_files.h"

static const struct room_file *find(const char *path)
{
    for (size_t i = 0; i < n_room_files; i++)
        if (strcmp(room_files[i].path, path) == 0)
            return &room_files[i];
    return NULL;
}

bool room_has(const char *path)
{
    return find(path) != NULL;
}

void room_answer(struct http_exchange *x)
{
    const struct room_file *f = find(x->head.path);
    http_add_header(x, "Content-Security-Policy",
                    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
                    "form-action 'none'; frame-ancestors 'none'");
    http_add_header(x, "X-Content-Type-Options", "nosniff");
    http_add_header(x, "Referrer-Policy", "no-referrer");
    http_add_header(x, "Cross-Origin-Opener-Policy", "same-origin");
    http_add_header(x, "Cache-Control", "no-cache");
    http_answer(x, 200, f->type, (const char *)f->data, f->n);
}
