#include "engine/serve/openai/grammars.h"

#include "engine/base/shared.h"
#include "models/guide/grammar.h"

enum { MOST_NODES = 50000 }; /* of one that is kept */

static void give(struct openai_order *o, struct grammar *g)
{
    shared_drop(o->params.grammar);
    o->params.grammar = shared_hold(g);
    for (int i = 0; i < o->n_specs; i++) {
        shared_drop(o->specs[i]->grammar);
        o->specs[i]->grammar = shared_hold(g);
    }
}

void grammars_settle(struct grammars *g, struct openai_order *o)
{
    int oldest = 0;
    if (!o->params.grammar || o->params.grammar->n_nodes > MOST_NODES)
        return;
    g->now++;
    for (int i = 0; i < GRAMMARS_MOST; i++) {
        if (g->list[i].grammar && hash_equal(&g->list[i].key, &o->params.grammar_key)) {
            g->list[i].used = g->now;
            give(o, g->list[i].grammar);
            return;
        }
        if (g->list[i].used < g->list[oldest].used)
            oldest = i;
    }
    shared_drop(g->list[oldest].grammar);
    g->list[oldest].key = o->params.grammar_key;
    g->list[oldest].grammar = shared_hold(o->params.grammar);
    g->list[oldest].used = g->now;
}

void grammars_free(struct grammars *g)
{
    for (int i = 0; i < GRAMMARS_MOST; i++)
        shared_drop(g->list[i].grammar);
    *g = (struct grammars){0};
}
