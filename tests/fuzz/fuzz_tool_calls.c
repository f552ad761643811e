/* What a model says to a request with tools. The first byte chooses the format, the second where the text is cut. How
 * it is cut changes nothing; without a call the text is what it was; a call's arguments are an object. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "models/template/tool_calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(struct tool_reader *r, const char *s, size_t n, size_t piece)
{
    for (size_t len; n; s += len, n -= len) {
        len = piece < n ? piece : n;
        tool_reader_put(r, s, len);
        ASSERT(tool_reader_bytes(r) >= r->text.len);
    }
    tool_reader_end(r);
    ASSERT(r->n_calls == r->n_found && !r->held.len);
}

static void check_call(const struct tool_call *c)
{
    struct json *j = json_parse(c->arguments, strlen(c->arguments), NULL, NULL);
    ASSERT(json_type(j) == JSON_OBJECT && (strcmp(c->name, "f") == 0 || strcmp(c->name, "now") == 0));
    json_free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const formats[] = {"hermes", "llama3_json", "mistral", "none"};
    struct tool_names names = {0};
    struct tool_reader whole, cut;
    if (size < 2)
        return 0;
    enum tool_format format = tool_format_of(formats[data[0] & 3], NULL);
    const char *text = (const char *)data + 2;
    size_t n = size - 2;
    tool_names_add(&names, "now");
    tool_names_add(&names, "f");
    tool_names_ready(&names);
    tool_reader_init(&whole, format, &names, data[0] & 4);
    tool_reader_init(&cut, format, &names, data[0] & 4);
    read_all(&whole, text, n, n + 1);
    read_all(&cut, text, n, 1 + data[1] % 32);
    ASSERT(whole.text.len == cut.text.len && whole.n_found == cut.n_found);
    ASSERT(!cut.text.len || memcmp(whole.text.data, cut.text.data, cut.text.len) == 0);
    ASSERT(whole.n_found || (whole.text.len == n && (!n || memcmp(whole.text.data, text, n) == 0)));
    for (int i = 0; i < whole.n_calls; i++) {
        ASSERT(strcmp(whole.calls[i].arguments, cut.calls[i].arguments) == 0);
        check_call(&whole.calls[i]);
    }
    tool_reader_free(&whole);
    tool_reader_free(&cut);
    tool_names_free(&names);
    return 0;
}
