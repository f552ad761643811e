#include "engine/serve/front/front.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void front_set_limits(struct front *f, int places, int step_tokens, int queued)
{
    f->places = places;
    f->step_tokens = step_tokens;
    f->max_live = queued ? places + queued : 0;
}

void front_fault(struct http_exchange *x, const struct fault *f)
{
    static const char messages[] = "/v1/messages";
    struct buf out = {0};
    if (x->head.path && strncmp(x->head.path, messages, sizeof messages - 1) == 0)
        fault_put_message(f, &out);
    else
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

bool front_request_id(struct front *f, const struct http_exchange *x, char out[NAME_BYTES])
{
    const char *given = http_head_find(&x->head, "x-request-id");
    size_t n = given ? strlen(given) : 0;
    if (n && n < NAME_BYTES &&
        strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-") == n) {
        memcpy(out, given, n + 1);
        return true;
    }
    snprintf(out, NAME_BYTES, "%016" PRIx64 "%016" PRIx64, rng_next(&f->rng), rng_next(&f->rng));
    return false;
}

void front_refuse_alone(const struct front *f, struct http_exchange *x)
{
    struct fault why;
    fault_set(&why, 404, "model_not_found", NULL,
              "The model does not support %.100s: '%.100s' is an encoder, and served alone, for vectors and scores",
              x->head.path, f->encoder);
    http_add_header(x, "x-should-retry", "false");
    front_fault(x, &why);
}
