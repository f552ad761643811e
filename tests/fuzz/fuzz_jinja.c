/* Any bytes as a chat template, rendered with tight limits over a fixed conversation. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "models/template/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char context_text[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S \\u00e9\"},{\"role\":\"user\",\"content\":\"  "
    "hello\\n\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\","
    "\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,true,null],\"big\":123456789012345678901}}}]},"
    "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"[1]\"},{\"role\":\"user\",\"content\":[{"
    "\"type\":\"text\","
    "\"text\":\"t\"}]}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
    "\"type\":\"object\","
    "\"properties\":{\"x\":{\"type\":\"array\"}}}}}],\"add_generation_prompt\":true,\"bos_token\":\"<s>\","
    "\"n\":7,\"s\":\"ab,c\","
    "\"l\":[3,1,2],\"d\":{\"a\":1,\"b\":{\"c\":\"x\"}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct chat_template *t;
    struct json *context = json_parse(context_text, sizeof context_text - 1, NULL, &e);
    ASSERT(context);
    if (chat_compile(&t, (const char *)data, size, &e)) {
        ASSERT(!t && (e.code == E_INPUT || e.code == E_UNSUPPORTED) && strncmp(e.text, "line ", 5) == 0);
    } else {
        struct buf out = {0};
        struct chat_input in = {
            .context = context, .now = 1753000000, .limits = {.steps = 20000, .bytes = 1 << 18, .memory = 4 << 20}};
        buf_puts(&out, "kept");
        int rc = chat_render(t, &in, &out, &e);
        ASSERT(rc == 0 ? utf8_valid(out.data, out.len) : buf_equals(&out, "kept"));
        ASSERT(rc == 0 || ((rc == E_INPUT || rc == E_FULL) && strncmp(e.text, "line ", 5) == 0));
        buf_free(&out);
        chat_free(t);
    }
    json_free(context);
    return 0;
}
