/* A file of draft texts, with the sum that any writer can put there: it is refused with a reason, or all its sequences
 * are such as the trees take. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/draft/suffix_file.h"
#include "engine/world/ids.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCABULARY = 300, SUM = 16, SUMMED = 48 };

static void look(void *ctx, const char *tenant, const int32_t *tokens, int n)
{
    struct suffix_cache *c = ctx;
    ASSERT(strlen(tenant) < NAME_BYTES && n > 0);
    for (int i = 0; i < n; i++)
        ASSERT(tokens[i] >= 0 && tokens[i] < VOCABULARY);
    suffix_cache_add(c, tenant, tokens, n);
    while (suffix_cache_work(c))
        ;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct suffix_vocabulary v = {.sum = hash_sha256("", 0), .n_tokens = VOCABULARY};
    struct suffix_cache *c = suffix_cache_new(1 << 16);
    unsigned char *copy = mem_new(size + 1);
    struct err e = {0};
    memcpy(copy, data, size);
    if (size > SUMMED) {
        struct sha256 sum = hash_sha256(copy + SUMMED, size - SUMMED);
        memcpy(copy + SUM, &sum, sizeof sum);
    }
    int rc = suffix_file_parse(copy, size, &v, &(struct suffix_reader){look, c}, &e);
    ASSERT(rc == 0 || (rc == E_INPUT && e.text[0]));
    mem_free(copy);
    suffix_cache_free(c);
    return 0;
}
