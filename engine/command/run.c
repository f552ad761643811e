/* `moonshift run`: the parts of a server without a server; the terminal asks the engine. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/places.h"
#include "engine/base/thread.h"
#include "engine/command/app.h"
#include "engine/serve/terminal/terminal.h"

static char *piece(const struct tokenizer *t, int32_t id)
{
    struct buf out = {0};
    if (id >= 0)
        tokenizer_piece(t, id, &out);
    return buf_take(&out);
}

int command_run(struct app *a, struct err *e)
{
    TRY(app_open(a, e));
    if (!a->chat && !a->opts.raw)
        return err_set(
            e, E_INPUT,
            "this model has no chat template: give --chat-template chatml (or another), or --raw to continue the text");
    TRY(thread_start(&a->engine_thread, "engine", engine_run, a->engine, e));
    struct front_text model_text = {a->tokenizer,
                                    a->chat,
                                    piece(a->tokenizer, tokenizer_bos(a->tokenizer)),
                                    piece(a->tokenizer, tokenizer_eos(a->tokenizer)),
                                    tokenizer_n_vocab(a->tokenizer),
                                    engine_node(a->engine)->limits.max_model_len,
                                    TOOLS_NONE, /* a conversation has no tools, asks for no early stop, and shows all */
                                    NULL,
                                    false,
                                    false};
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    char history[PATH_MAX];
    places_history(a->opts.history, getenv("XDG_STATE_HOME"), getenv("HOME"), history);
    const struct opts *o = &a->opts;
    struct terminal_setup s = {
        .prompt = o->prompt,
        .system = o->system,
        .raw = o->raw,
        .max_tokens = o->max_tokens,
        .sampling = {.temperature = (float)o->temperature,
                     .top_p = (float)o->top_p,
                     .min_p = (float)o->min_p,
                     .top_k = (int)o->top_k,
                     .repetition_penalty = 1,
                     .seed = o->seed,
                     .n_logprobs = -1,
                     .n_prompt_logprobs = -1},
        .model_text = &model_text,
        .clock = &a->clock,
        .inbox = engine_inbox(a->engine),
        .outbox = engine_outbox(a->engine),
        .history = history,
        .smart = term && *term && strcmp(term, "dumb") != 0,
        .colour = !no_color || !*no_color,
    };
    int rc = terminal_run(&s, e);
    app_stop_engine(a);
    mem_free(model_text.bos);
    mem_free(model_text.eos);
    return rc;
}
