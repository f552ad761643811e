/* Any bytes into the JSON wall; what is accepted must survive being written and read again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_limits limits = {.bytes = 1 << 16, .depth = 100, .nodes = 5000};
    char *exact = malloc(size ? size : 1); /* no NUL after it, so that reading past the end is seen */
    ASSERT(exact);
    memcpy(exact, data, size);
    struct err e = {0};
    struct json *j = json_parse(exact, size, &limits, &e);
    free(exact);
    if (!j) {
        ASSERT(e.code == E_INPUT && e.text[0]);
        return 0;
    }
    struct buf first = {0}, second = {0};
    json_write(&first, j, &(struct json_style){.ascii_only = size & 1, .spaced = size & 2, .indent = size & 4 ? 2 : 0});
    struct json *again = json_parse(first.data, first.len, NULL, &e);
    ASSERT(again);
    buf_clear(&first);
    json_write(&first, j, NULL);
    json_write(&second, again, NULL);
    ASSERT(buf_equals(&second, first.data));
    buf_free(&first);
    buf_free(&second);
    json_free(j);
    json_free(again);
    return 0;
}
