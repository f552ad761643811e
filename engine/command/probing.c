/* How the model's thinking ends: the marker of its own chat template, or the operator's, and the words that begin an
 * answer behind it. */
#include <string.h>

#include "engine/command/app.h"

static const char usual_end[] = "</think>", usual_text[] = "The final answer is \\boxed{";

/* The bytes of a token, for what was said. */
static void put_piece(const void *ctx, int32_t token, struct buf *text)
{
    tokenizer_piece(ctx, token, text);
}

static bool template_has(const struct app *a, const char *word)
{
    return a->chat && a->chat_source.data && strstr(a->chat_source.data, word);
}

int app_plan_thinking(struct app *a, struct err *e)
{
    const struct opts *o = &a->opts;
    const char *end = o->think_end ? o->think_end : template_has(a, usual_end) ? usual_end : NULL;
    const char *text = o->probe_text ? o->probe_text : usual_text;
    struct tokens ids = {0};
    struct buf words = {0};
    if (!end && o->probe_text)
        return err_set(e, E_INPUT, "--probe-text: the chat template has no %s, so --think-end must name the marker",
                       usual_end);
    if (!end)
        return 0;
    buf_printf(&words, "\n%s\n\n%s", end, text);
    struct tokenize_how how = {.flags = TOKENIZE_SPECIAL};
    int rc = tokenizer_encode(a->tokenizer, words.data, words.len, how, &ids, e);
    if (!rc && !thinking_set(&a->thinking, end, text, ids.ids, (int)ids.len))
        rc =
            err_set(e, E_INPUT,
                    "--think-end takes 1 to %d bytes, and with --probe-text behind it at most %d tokens; the text must "
                    "not close a brace that it did not open",
                    PROBE_END_BYTES, PROBE_MOST_SUFFIX);
    a->thinking.piece = put_piece;
    a->thinking.ctx = a->tokenizer;
    tokens_free(&ids);
    buf_free(&words);
    return rc;
}

bool app_can_probe(const struct app *a)
{
    return a->thinking.n_suffix && a->opts.prefix_caching && !a->opts.record;
}
