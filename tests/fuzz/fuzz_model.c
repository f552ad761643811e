/* Any bytes as a GGUF model file, past the format's wall: metadata and tensors that must fit each other. Every tensor
 * of an accepted model is read to its end. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/load/config.h"
#include "models/load/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned read_all(struct model *m)
{
    struct tensor_room room = {0};
    unsigned sum = 0;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (tensor_per_layer(role) ? model_config(m)->n_layers : 1); l++) {
            struct weight_src s;
            if (model_tensor(m, &room, role, l, &s, NULL))
                continue;
            size_t bytes = (size_t)s.rows * dtype_row_bytes(s.type, s.cols);
            for (size_t i = 0; i < bytes; i++)
                sum += ((const uint8_t *)s.data)[i];
        }
    tensor_room_free(&room);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct gguf *g;
    struct model *m;
    struct err e = {0};
    void *exact = mem_try_aligned(size ? size : 1, 64);
    ASSERT(exact);
    memcpy(exact, data, size);
    if (gguf_open_memory(&g, exact, size, &e) == 0) {
        int rc = model_from_gguf(&m, g, "fuzz", &e);
        if (rc) {
            ASSERT(e.text[0]);
            gguf_close(g);
        } else {
            volatile unsigned sum = read_all(m);
            (void)sum;
            model_close(m);
        }
    }
    mem_free(exact);
    return 0;
}
