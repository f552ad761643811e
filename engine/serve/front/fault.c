#include "engine/serve/front/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int fault_set(struct fault *f, int status, const char *code, const char *param, const char *fmt, ...)
{
    *f = (struct fault){.status = status, .retry_after_s = -1, .code = code};
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(f->text, sizeof f->text, fmt, ap);
    va_end(ap);
    return E_INPUT;
}

const char *fault_type(int status)
{
    switch (status) {
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    case 501:
        return "not_implemented_error";
    case 503:
        return "overloaded_error";
    }
    return status < 500 ? "invalid_request_error" : "server_error";
}

static void put_or_null(struct buf *out, const char *key, const char *s)
{
    buf_printf(out, ",\"%s\":", key);
    if (s && *s)
        buf_put_json(out, s, strlen(s));
    else
        buf_puts(out, "null");
}

void fault_put(const struct fault *f, struct buf *out)
{
    buf_puts(out, "{\"error\":{\"message\":");
    buf_put_json(out, f->text, strlen(f->text));
    put_or_null(out, "type", fault_type(f->status));
    put_or_null(out, "param", f->param);
    put_or_null(out, "code", f->code);
    if (f->n_ctx)
        buf_printf(out, ",\"n_prompt_tokens\":%d,\"n_ctx\":%d", f->n_prompt, f->n_ctx);
    buf_puts(out, "}}");
}

static const char *message_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    }
    return status < 500 || status == 503 ? fault_type(status) : "api_error";
}

void fault_put_message(const struct fault *f, struct buf *out)
{
    buf_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", message_type(f->status));
    buf_put_json(out, f->text, strlen(f->text));
    buf_puts(out, "}}");
}
