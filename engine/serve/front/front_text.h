/* What the text side of the server knows of the model: how its text becomes tokens, and its chat template. Made once at
 * start from parts that outlive it; it never changes, and every thread may read it. */
#ifndef SERVE_FRONT_FRONT_TEXT_H
#define SERVE_FRONT_FRONT_TEXT_H

#include "models/template/chat.h"
#include "models/template/tool_calls.h"
#include "models/tokenizer/tokenizer.h"

struct think_marks; /* openai/thoughts.h */

struct front_text {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat; /* NULL: the model has none; chat is refused */
    char *bos, *eos;                  /* their names, "" when there is none */
    int n_vocab, max_model_len;
    enum tool_format tools;          /* how it calls the functions that it is shown */
    const struct think_marks *think; /* around what the model thinks; NULL: it does not, or nobody knows how */
    bool splits_thoughts;            /* thoughts are told from answers */
    bool can_probe;                  /* a model that thinks can be asked for its answer by now */
};

#endif
