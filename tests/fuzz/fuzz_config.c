/* Any bytes as config.json; what is accepted must be a model that can be made: sizes that multiply without overflow,
 * finite frequencies. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "models/load/config.h"
#include "models/load/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    struct err e = {0};
    char *exact = malloc(size ? size : 1); /* no NUL after it, so that reading past the end is seen */
    ASSERT(exact);
    memcpy(exact, data, size);
    int rc = config_from_hf(&c, exact, size, &e);
    free(exact);
    if (rc) {
        ASSERT((rc == E_INPUT || rc == E_UNSUPPORTED) && e.text[0]);
        return 0;
    }
    ASSERT(config_check(&c, NULL) == 0 && c.family);
    for (int i = 0; i < c.rope_dim / 2; i++)
        ASSERT(isfinite(c.inv_freq[i]));
    for (int role = 0; role < T_COUNT; role++) {
        int rows, cols;
        tensor_shape(&c, role, &rows, &cols);
        ASSERT(rows > 0 && cols > 0);
    }
    return 0;
}
