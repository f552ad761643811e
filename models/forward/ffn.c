#include "models/forward/ffn.h"

void forward_ffn(const struct backend_ops *ops, struct device *d, const struct ffn_job *j)
{
    bool gated = ops->gates && j->rows <= ops->gates(d);
    struct linear_args gate_up = {.in = LINEAR_NORM,
                                  .place = LINEAR_GATE_UP,
                                  .x = j->x,
                                  .gain = j->gain,
                                  .eps = j->eps,
                                  .rows = j->rows,
                                  .gated = gated,
                                  .n_out = 2,
                                  .out = {{j->gate, NULL, j->gate_out}, {j->up, NULL, j->up_out}}};
    struct linear_args down = {.in = gated ? LINEAR_PLAIN : LINEAR_SWIGLU,
                               .place = LINEAR_DOWN,
                               .x = j->gate_out,
                               .x2 = j->up_out,
                               .rows = j->rows,
                               .accumulate = true,
                               .n_out = 1,
                               .out = {{j->down, NULL, j->x}}};
    ops->linear(d, &gate_up);
    ops->linear(d, &down);
}
