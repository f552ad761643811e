/* What a client asks its answer to be: any bytes as a regular expression, a schema, a list of choices or tools, and
 * then a walk through what comes of it. What is taken leaves, at each step, something that may follow or an end; what
 * is not allowed is dead at once; nothing grows beyond its bounds. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/shared.h"
#include "models/guide/guide.h"
#include "models/guide/outline.h"
#include "tests/rig/guide_rig.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 270, STEPS = 40, BYTES = 1 << 22 };

static struct tokenizer *tokenizer;
static struct guide_tokens *tokens;

static int make(uint8_t kind, const char *text, struct grammar **g, struct err *e)
{
    if (kind >= 0xC0)
        return outline_gbnf(text, g, e);
    if (kind % 4 == 0)
        return outline_regex(text, g, e);
    struct json *j = json_parse(text, strlen(text), NULL, e);
    int rc = !j              ? E_INPUT
             : kind % 4 == 1 ? outline_schema(j, g, e)
             : kind % 4 == 2
                 ? outline_choice(j, g, e)
                 : outline_calls(kind & 4 ? TOOLS_HERMES : TOOLS_LLAMA3, j, kind & 8 ? "f" : NULL, kind & 16, g, e);
    json_free(j);
    return rc;
}

static bool is_listed(const struct guide_ids *ids, int32_t id)
{
    for (int i = 0; i < ids->n; i++)
        if (ids->ids[i] == id)
            return true;
    return false;
}

static void walk(struct guides *all, struct grammar *g, uint64_t turns)
{
    int32_t output[STEPS];
    struct guided at = {0};
    struct guide_ids ids;
    for (int n = 0; n < STEPS && guide_next(guides_of(all, g), &at, output, n, &ids); n++) {
        ASSERT(ids.n >= 0 && ids.n <= VOCAB && !(ids.allowed && !ids.n) && !(!ids.allowed && ids.n == VOCAB));
        for (int i = 1; i < ids.n; i++)
            ASSERT(ids.ids[i] > ids.ids[i - 1] && ids.ids[i] < VOCAB);
        int32_t id = (int32_t)(turns % VOCAB);
        turns = turns * 6364136223846793005u + 1442695040888963407u;
        while (is_listed(&ids, id) != ids.allowed)
            id = (id + 1) % VOCAB;
        output[n] = id;
        if (id == 257)
            break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct grammar *g = NULL;
    struct err e = {0};
    if (size < 9)
        return 0;
    if (!tokenizer) { /* made once: they never change */
        ASSERT(tokenizer_bytes(&tokenizer, VOCAB, NULL) == 0);
        tokens = guide_tokens_new(tokenizer);
    }
    uint64_t turns;
    memcpy(&turns, data + 1, sizeof turns);
    char *text = mem_strndup((const char *)data + 9, size - 9);
    int rc = make(data[0], text, &g, &e);
    mem_free(text);
    ASSERT(rc ? e.text[0] : g->n_nodes <= GRAMMAR_MOST_NODES);
    if (rc)
        return 0;
    struct guides *all = guides_new(tokens, BYTES);
    walk(all, g, turns);
    shared_drop(g);
    guides_free(all);
    return 0;
}
