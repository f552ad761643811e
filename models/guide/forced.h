/* The text that has to come next: names of members, punctuation, what a choice has left. White space that may come or
 * not is guessed: what stood behind the same byte before, else a space behind a colon or a comma. So it is a guess of
 * what is said next (engine/exec/form.h), not a rule. The thread of the guide; nothing is kept. */
#ifndef MODELS_GUIDE_FORCED_H
#define MODELS_GUIDE_FORCED_H

#include "models/guide/guide.h"

/* As the tokenizer spells it, at most `most` tokens. before: the end of the text up to this state. Returns their
 * number. */
int guide_forced(struct guide *g, int32_t state, const struct buf *before, int32_t *to, int most);

#endif
