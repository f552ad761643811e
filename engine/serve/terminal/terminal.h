/* `moonshift run`: one answer, or a chat at the terminal, straight over the engine's two queues without a server.
 * Ctrl-C stops an answer, not the program; Ctrl-D ends it. Main thread, with SIGINT blocked (it is read from a
 * descriptor). Invariant: text that reaches a terminal holds no control characters. */
#ifndef SERVE_TERMINAL_TERMINAL_H
#define SERVE_TERMINAL_TERMINAL_H

#include "engine/base/clock.h"
#include "engine/base/queue.h"
#include "engine/serve/openai/prompt.h"
#include "engine/world/sampling.h"

struct terminal_setup {
    const char *prompt, *system; /* the one question, NULL: a chat; what the system says, NULL: nothing */
    bool raw;                    /* the text is continued as it is, without a chat template */
    int64_t max_tokens;          /* of an answer; 0: as many as there is room for */
    struct sampling sampling;    /* seed: of the first answer */
    const struct front_text *model_text;
    struct clock *clock;
    struct queue *inbox, *outbox; /* of a threaded engine that runs */
    const char *history;          /* the file that typed lines are kept in; "": none */
    bool smart;                   /* the terminal, where there is one, knows more than plain lines */
    bool colour;                  /* is not unwanted */
};

/* 0 when every answer came to an end; else what went wrong with the last one. */
int terminal_run(const struct terminal_setup *s, struct err *e);

#endif
