#include "engine/serve/front/front.h"

#include <stdio.h>

void front_fault(struct http_exchange *x, const struct fault *f)
{
    struct buf out = {0};
    fault_put(f, &out);
    if (f->retry_after_s >= 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", f->retry_after_s);
        http_add_header(x, "Retry-After", seconds);
    }
    http_answer(x, f->status, "application/json", out.data, out.len);
    buf_free(&out);
}

void front_refuse_busy(struct http_exchange *x, const char *why)
{
    struct fault f;
    fault_set(&f, 503, "overloaded", NULL, "%s", why);
    f.retry_after_s = 1;
    front_fault(x, &f);
}

void front_json(struct http_exchange *x, const struct buf *body)
{
    http_answer(x, 200, "application/json", body->data, body->len);
}
