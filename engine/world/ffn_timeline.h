/* What became of the FFN layers of one step on one rank, where weights are pooled: when each was reached, when its
 * products ran, and when its matrices were fetched. Taken of few steps, for a recording and the picture that is drawn
 * from it. In ns of one clock, which all ranks have. Plain values. Written by the rank's thread, read by the engine's
 * once the step has ended. */
#ifndef WORLD_FFN_TIMELINE_H
#define WORLD_FFN_TIMELINE_H

#include "engine/world/ffn.h"

/* 0: never */
struct ffn_layer_times {
    enum ffn_mode mode;
    int64_t ready, begin, end;      /* its rows were there; its matrices were, or its rows were sent; it was done */
    int64_t pause, resume;          /* FFN_WAS: between its products it waited for the last matrix */
    int64_t fetch_begin, fetch_end; /* FFN_WAS: before the step for what lay in a slot when it began */
};

struct ffn_timeline {
    int64_t begin, end;             /* of the step on this rank */
    struct ffn_layer_times *layers; /* of the model */
};

#endif
