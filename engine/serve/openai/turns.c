#include "engine/serve/openai/turns.h"

#include <string.h>

static void put(struct buf *out, const struct buf *text)
{
    buf_put_json(out, text->data ? text->data : "", text->len);
}

static void put_string(struct buf *out, const char *s)
{
    buf_put_json(out, s, strlen(s));
}

/* {"role":...,"content":...; the caller closes it. */
static void open_message(struct turns *t, const char *role, const struct buf *text)
{
    buf_puts(t->out, t->any ? ",{\"role\":" : "{\"role\":");
    put_string(t->out, role);
    buf_puts(t->out, ",\"content\":");
    put(t->out, text);
    t->any = true;
}

static void put_system(struct turns *t)
{
    if (t->system.len) {
        open_message(t, "system", &t->system);
        buf_putc(t->out, '}');
        buf_clear(&t->system);
    }
}

static void end_answer(struct turns *t)
{
    put_system(t);
    if (!t->answering)
        return;
    open_message(t, "assistant", &t->text);
    if (t->thought.len) {
        buf_puts(t->out, ",\"reasoning_content\":");
        put(t->out, &t->thought);
    }
    if (t->calls.len) {
        buf_puts(t->out, ",\"tool_calls\":[");
        buf_put(t->out, t->calls.data, t->calls.len);
        buf_putc(t->out, ']');
    }
    buf_putc(t->out, '}');
    buf_clear(&t->text);
    buf_clear(&t->thought);
    buf_clear(&t->calls);
    t->answering = t->has_text = false;
}

static void answer(struct turns *t)
{
    put_system(t);
    t->answering = true;
}

void turns_begin(struct turns *t, struct buf *out)
{
    *t = (struct turns){.out = out};
    buf_putc(out, '[');
}

void turns_message(struct turns *t, const char *role, const struct buf *text)
{
    bool system = strcmp(role, "system") == 0 || strcmp(role, "developer") == 0;
    if (system && !t->any && !t->answering) {
        buf_puts(&t->system, t->system.len && text->len ? "\n\n" : "");
        buf_put(&t->system, text->data, text->len);
        return;
    }
    end_answer(t);
    open_message(t, system ? "system" : role, text);
    buf_putc(t->out, '}');
}

void turns_said(struct turns *t, const struct buf *text)
{
    if (t->has_text || t->calls.len) /* it said so in two turns */
        end_answer(t);
    answer(t);
    t->has_text = true;
    buf_put(&t->text, text->data, text->len);
}

void turns_thought(struct turns *t, const char *text)
{
    if (t->has_text || t->calls.len)
        end_answer(t);
    answer(t);
    buf_puts(&t->thought, t->thought.len ? "\n" : "");
    buf_puts(&t->thought, text);
}

void turns_called(struct turns *t, const char *id, const char *name, const char *arguments)
{
    struct buf *out = &t->calls;
    answer(t);
    buf_puts(out, out->len ? ",{\"id\":" : "{\"id\":");
    put_string(out, id);
    buf_puts(out, ",\"type\":\"function\",\"function\":{\"name\":");
    put_string(out, name);
    buf_puts(out, ",\"arguments\":");
    put_string(out, arguments);
    buf_puts(out, "}}");
}

void turns_result(struct turns *t, const char *id, const struct buf *text)
{
    end_answer(t);
    open_message(t, "tool", text);
    buf_puts(t->out, ",\"tool_call_id\":");
    put_string(t->out, id);
    buf_putc(t->out, '}');
}

void turns_end(struct turns *t)
{
    end_answer(t);
    buf_putc(t->out, ']');
    buf_free(&t->system);
    buf_free(&t->text);
    buf_free(&t->thought);
    buf_free(&t->calls);
}
