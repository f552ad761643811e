/* Grammars that were asked for lately: a request that asks for the same gets the same one, so that what the engine has
 * found out of it is found again. Bounded in number and bytes; front thread only. */
#ifndef SERVE_OPENAI_GRAMMARS_H
#define SERVE_OPENAI_GRAMMARS_H

#include "engine/serve/openai/order.h"

enum { GRAMMARS_MOST = 64 };

struct grammars {
    struct {
        struct sha256 key;
        struct grammar *grammar; /* held; NULL: free */
        uint64_t used;
    } list[GRAMMARS_MOST];
    uint64_t now;
};

/* Puts the grammar of its key in the place of the order's own, or keeps the order's. */
void grammars_settle(struct grammars *g, struct openai_order *o);
void grammars_free(struct grammars *g);

#endif
