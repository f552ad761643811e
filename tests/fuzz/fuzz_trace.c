/* Any bytes as a trace, and what follows a form feed as the file of hashes beside it; what is accepted must be in range
 * and in order. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/lab/trace/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static FILE *stream(const uint8_t *data, size_t size)
{
    FILE *f = size ? fmemopen((void *)(uintptr_t)data, size, "r") : fopen("/dev/null", "re");
    ASSERT(f);
    return f;
}

static void read_rows(struct trace *t)
{
    struct trace_row row;
    struct err e = {0};
    int64_t last = 0;
    uint64_t n = 0;
    bool end = false;
    int rc;
    while (!(rc = trace_next(t, &row, &end, &e)) && !end) {
        ASSERT(row.index == n++ && row.arrival_ns >= last && row.n_prompt >= 1 && row.n_prompt <= TRACE_MAX_TOKENS);
        ASSERT(row.n_output >= 1 && row.n_output <= TRACE_MAX_TOKENS && memchr(row.tenant, 0, sizeof row.tenant));
        ASSERT(!row.hashes || row.n_hashes == (row.n_prompt + TRACE_HASH_TOKENS - 1) / TRACE_HASH_TOKENS);
        last = row.arrival_ns;
        if (row.n_prompt <= 4096) {
            int32_t ids[4096];
            trace_prompt(&row, 1, 1000, ids);
            ASSERT(ids[row.n_prompt - 1] >= 0 && ids[row.n_prompt - 1] < 1000);
        }
    }
    ASSERT(!rc || (rc == E_INPUT && e.text[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = size ? memchr(data, '\f', size) : NULL;
    struct trace *t = NULL;
    struct err e = {0};
    size_t n = cut ? (size_t)(cut - data) : size;
    int rc = trace_open_streams(&t, stream(data, n), cut ? stream(cut + 1, size - n - 1) : NULL, "fuzz", &e);
    if (rc) {
        ASSERT(rc == E_INPUT && e.text[0]);
        return 0;
    }
    read_rows(t);
    trace_close(t);
    return 0;
}
