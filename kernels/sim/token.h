/* What a simulated device says: a token made up of the one before it and its position, so that texts differ, are the
 * same in every run, and can be foretold. Pure. */
#ifndef KERNELS_SIM_TOKEN_H
#define KERNELS_SIM_TOKEN_H

#include "engine/base/rng.h"

/* Behind the token at `position` of a sequence. */
static inline int32_t sim_token(int32_t token, int32_t position, int vocab)
{
    return (int32_t)(rng_at((uint64_t)token, (uint64_t)position) % (uint64_t)vocab);
}

#endif
