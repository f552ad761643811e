/* Renders chat templates for the oracle: one JSON job a line on stdin, {"template", "context", "now"?,
 * "memory"?, "steps"?}; one JSON answer a line on stdout, {"text"}, or {"error", "code", "at": "compile" or
 * "render"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "models/template/chat.h"

static int64_t number(const struct json *job, const char *key)
{
    int64_t v = 0;
    json_i64(json_find(job, key), &v);
    return v;
}

static void fail(struct buf *out, const struct err *e, const char *at)
{
    buf_puts(out, "{\"error\":");
    buf_put_json(out, e->text, strlen(e->text));
    buf_printf(out, ",\"code\":\"%s\",\"at\":\"%s\"}\n", err_name(e->code), at);
}

static void answer(const char *line, size_t n, struct buf *out)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    struct buf text = {0};
    struct json *job = json_parse(line, n, &(struct json_limits){.depth = 300}, &e);
    const char *source = job ? json_text(json_find(job, "template")) : NULL;
    struct chat_input in = {.context = json_find(job, "context"), .now = number(job, "now")};
    in.limits.memory = (size_t)number(job, "memory");
    in.limits.steps = (size_t)number(job, "steps");
    if (!source) {
        fail(out, &e, "job");
    } else if (chat_compile(&t, source, strlen(source), &e)) {
        fail(out, &e, "compile");
    } else if (chat_render(t, &in, &text, &e)) {
        fail(out, &e, "render");
    } else {
        buf_puts(out, "{\"text\":");
        json_put_string(out, text.data, text.len, true);
        buf_puts(out, "}\n");
    }
    chat_free(t);
    buf_free(&text);
    json_free(job);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    struct buf out = {0};
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        buf_clear(&out);
        answer(line, (size_t)n, &out);
        fwrite(out.data, 1, out.len, stdout);
        fflush(stdout);
    }
    buf_free(&out);
    free(line);
    return 0;
}
