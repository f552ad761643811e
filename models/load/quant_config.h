/* What a Hugging Face config.json says of how its matrices are quantised: fp8 with scales, or not at all. Untrusted
 * input. Pure, any thread. Invariant: a scheme that is not understood is refused. */
#ifndef MODELS_LOAD_QUANT_CONFIG_H
#define MODELS_LOAD_QUANT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/err.h"

struct quant_config {
    bool fp8;    /* there are matrices of F8_E4M3 with scales: one for each tensor, or one for each row */
    bool blocks; /* one for each 128 x 128 elements instead */
};

/* E_UNSUPPORTED for any other scheme, E_INPUT for what contradicts itself. */
int quant_config_read(struct quant_config *out, const char *json, size_t n, struct err *e);

#endif
