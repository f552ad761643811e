/* Guides at a pipe, for the oracle in Python. MODEL: a GGUF file whose vocabulary is used.
 *   guide_say MODEL    stdin: a line of JSON each, {"schema": ...} or {"regex": ...}, with "seed", "walks" and "texts".
 * stdout, for each: {"said": [...], "takes": [...]}, what as many random walks have said, token by token (null: one
 * that did not come to an end), and which of the texts are taken; or {"error": ...} */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/shared.h"
#include "models/guide/guide.h"
#include "models/guide/outline.h"
#include "models/load/gguf.h"
#include "tests/rig/guide_rig.h"

enum { MOST_TOKENS = 2000, SOON = 40 };

struct speaker {
    struct tokenizer *tokenizer;
    struct guide_tokens *tokens;
    struct guides *guides;
    struct rng rng;
};

static int compare(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static bool may_follow(const struct guide_ids *ids, int32_t id)
{
    return (bsearch(&id, ids->ids, (size_t)ids->n, sizeof id, compare) != NULL) == ids->allowed;
}

static int32_t any_of(struct speaker *s, const struct guide_ids *ids)
{
    if (ids->allowed)
        return ids->ids[rng_below(&s->rng, (uint64_t)ids->n)];
    for (;;) {
        int32_t id = (int32_t)rng_below(&s->rng, (uint64_t)tokenizer_n_vocab(s->tokenizer));
        if (may_follow(ids, id))
            return id;
    }
}

/* Once much has been said, what is open is closed where it can be. */
static int32_t choose(struct speaker *s, const struct guide_ids *ids, int n)
{
    static const char *const closing[] = {"\"", "}", "]"};
    const int32_t *ends;
    size_t n_ends = tokenizer_end_ids(s->tokenizer, &ends);
    if (n_ends && may_follow(ids, ends[0]) && (n > SOON || rng_below(&s->rng, 4) == 0))
        return ends[0];
    for (int i = 0; i < 3 && (n > SOON || rng_below(&s->rng, 3) == 0); i++) {
        int32_t id = tokenizer_find(s->tokenizer, closing[i], 1);
        if (id >= 0 && may_follow(ids, id))
            return id;
    }
    return any_of(s, ids);
}

/* false: it did not end. */
static bool walk(struct speaker *s, struct grammar *g, struct buf *out)
{
    int32_t output[MOST_TOKENS];
    struct guided at = {0};
    struct guide_ids ids;
    const int32_t *ends;
    size_t n_ends = tokenizer_end_ids(s->tokenizer, &ends);
    for (int n = 0; n < MOST_TOKENS; n++) {
        if (!guide_next(guides_of(s->guides, g), &at, output, n, &ids) || (ids.allowed && !ids.n))
            return false;
        output[n] = choose(s, &ids, n);
        if (n_ends && bsearch(&output[n], ends, n_ends, sizeof *ends, compare))
            return true;
        tokenizer_piece(s->tokenizer, output[n], out);
    }
    return false;
}

/* One that may follow and that the text begins with, of any length; -1: there is none. */
static int32_t any_beginning(struct speaker *s, const struct guide_ids *ids, const char *text, size_t n)
{
    int lo = 0, hi = s->tokens->n, found = 0;
    int32_t one = -1;
    for (uint32_t k = 0; k < n && lo < hi; k++) {
        guide_tokens_narrow(s->tokens, &lo, &hi, k, (unsigned char)text[k]);
        for (int i = lo; i < hi && s->tokens->at[i + 1] - s->tokens->at[i] == k + 1; i++)
            if (may_follow(ids, s->tokens->ids[i]) && rng_below(&s->rng, (uint64_t)++found) == 0)
                one = s->tokens->ids[i];
    }
    return one;
}

/* Does some token that may follow go on with the text, up to its end? */
static bool can_be_said(struct speaker *s, struct grammar *g, const char *text)
{
    int32_t output[MOST_TOKENS];
    struct guided at = {0};
    struct guide_ids ids;
    struct buf said = {0};
    bool good = true;
    int n = 0;
    for (; good && said.len < strlen(text) && n < MOST_TOKENS; n++) {
        good = guide_next(guides_of(s->guides, g), &at, output, n, &ids) &&
               (output[n] = any_beginning(s, &ids, text + said.len, strlen(text + said.len))) >= 0;
        guide_tokens_put(s->tokens, good ? output[n] : -1, &said);
    }
    buf_free(&said);
    return good && n < MOST_TOKENS;
}

/* Is what has to come spelt as the tokenizer spells it? One that puts a space before a text does not where a line
 * begins.
 */
static bool is_spelt(struct speaker *s, struct grammar *g, const char *text)
{
    struct tokens ids = {0};
    struct buf line = {0};
    struct guided at = {0};
    struct guide_ids may;
    buf_printf(&line, "\n%s", text);
    bool spm = tokenizer_find(s->tokenizer, "\n", 1) < 0;
    size_t first = spm ? 2 : 0; /* the space, and the line break */
    bool same =
        !tokenizer_encode(s->tokenizer, line.data + !spm, line.len - !spm, (struct tokenize_how){0}, &ids, NULL);
    for (size_t n = first; same && n < ids.len; n++)
        same = guide_next(guides_of(s->guides, g), &at, ids.ids + first, (int)(n - first), &may) && may.allowed &&
               may.n == 1 && may.ids[0] == ids.ids[n];
    buf_free(&line);
    tokens_free(&ids);
    return same;
}

static void put_said(struct speaker *s, struct grammar *g, const struct json *line, struct buf *out)
{
    int walks = (int)json_member_number(line, "walks");
    buf_puts(out, "{\"said\":[");
    for (int i = 0; i < walks; i++) {
        struct buf text = {0};
        bool ended = walk(s, g, &text);
        buf_puts(out, i ? "," : "");
        if (ended)
            json_put_string(out, text.data ? text.data : "", text.len, true);
        else
            buf_puts(out, "null");
        buf_free(&text);
    }
    buf_puts(out, "],\"takes\":[");
    for (const struct json *t = json_first(json_find(line, "texts")); t; t = json_next(t)) {
        struct guide *guide = guides_of(s->guides, g);
        bool takes = guide_may_end(guide, guide_read(guide, json_text(t), strlen(json_text(t))));
        buf_puts(out, t == json_first(json_find(line, "texts")) ? "" : ",");
        buf_puts(out, !takes ? "false" : can_be_said(s, g, json_text(t)) ? "true" : "\"not by tokens\"");
    }
    const char *whole = json_text(json_find(line, "whole"));
    buf_puts(out, whole && is_spelt(s, g, whole) ? "],\"spelt\":true}" : "],\"spelt\":false}");
}

static void answer(struct speaker *s, const struct json *line, struct buf *out)
{
    struct grammar *g = NULL;
    struct err e = {0};
    const char *regex = json_text(json_find(line, "regex")), *gbnf = json_text(json_find(line, "gbnf"));
    rng_init(&s->rng, (uint64_t)json_member_number(line, "seed"));
    int rc = regex  ? outline_regex(regex, &g, &e)
             : gbnf ? outline_gbnf(gbnf, &g, &e)
                    : outline_schema(json_find(line, "schema"), &g, &e);
    if (rc) {
        buf_puts(out, "{\"error\":");
        json_put_string(out, e.text, strlen(e.text), true);
        buf_putc(out, '}');
        return;
    }
    put_said(s, g, line, out);
    shared_drop(g);
}

int main(int argc, char **argv)
{
    struct speaker s = {0};
    struct gguf *g;
    struct err e = {0};
    char *text = NULL;
    size_t cap = 0;
    if (argc != 2 || gguf_open(&g, argv[1], &e) || tokenizer_from_gguf(&s.tokenizer, g, &e)) {
        fprintf(stderr, "guide_say MODEL %s\n", e.text);
        return 1;
    }
    s.tokens = guide_tokens_new(s.tokenizer);
    s.guides = guides_new(s.tokens, (size_t)64 << 20);
    for (ssize_t n; (n = getline(&text, &cap, stdin)) > 0;) {
        struct json *line = json_parse(text, (size_t)n, NULL, &e);
        struct buf out = {0};
        answer(&s, line, &out);
        puts(out.data);
        fflush(stdout);
        buf_free(&out);
        json_free(line);
    }
    free(text);
    guides_free(s.guides);
    guide_tokens_free(s.tokens);
    tokenizer_free(s.tokenizer);
    gguf_close(g);
    return 0;
}
