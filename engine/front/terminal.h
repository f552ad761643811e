/* `moonshift run`: one answer, or a chat at the terminal, straight over the engine's two queues without a server. Ctrl-C stops an answer, not the
 * program; Ctrl-D ends it. Main thread, with SIGINT blocked (it is read from a descriptor). Never true: text that reaches a terminal with
 * control characters in it. */
#ifndef FRONT_TERMINAL_H
#define FRONT_TERMINAL_H

#include "engine/base/clock.h"
#include "engine/base/queue.h"
#include "engine/front/openai_prompt.h"
#include "engine/front/opts.h"

struct terminal_setup {
    const struct opts *opts;
    const struct openai_text *words;
    struct clock *clock;
    struct queue *inbox, *outbox;   /* of a threaded engine that runs */
    const char *history;            /* the file that typed lines are kept in; "": none */
    bool smart;                     /* the terminal, where there is one, knows more than plain lines */
    bool colour;                    /* is not unwanted */
};

/* 0 when every answer came to an end; else what went wrong with the last one. */
int terminal_run(const struct terminal_setup *s, struct err *e);

#endif
