/* Any bytes as a Hugging Face checkpoint: the length of config.json (two bytes), its text, then a safetensors file.
 * Every tensor of an accepted model is read to its end. */
#include <stdint.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "models/load/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 64 << 20 }; /* of a tensor that is made from a scale for each row */

static unsigned read_all(struct model *m)
{
    struct tensor_room room = {0};
    unsigned sum = 0;
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (tensor_per_layer(role) ? model_config(m)->n_layers : 1); l++) {
            struct weight_src s;
            struct err e = {0};
            if (model_shape(m, role, l, &s, NULL) || (size_t)s.rows * dtype_row_bytes(s.type, s.cols) > MOST_BYTES)
                continue;
            if (model_tensor(m, &room, role, l, &s, &e)) {
                ASSERT(e.text[0]);
                continue;
            }
            size_t bytes = (size_t)s.rows * dtype_row_bytes(s.type, s.cols);
            for (size_t i = 0; i < bytes; i++)
                sum += ((const uint8_t *)s.data)[i];
        }
    tensor_room_free(&room);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model *m;
    struct err e = {0};
    size_t n = size >= 2 ? (size_t)(data[0] | data[1] << 8) : 0;
    if (size < 2 || n > size - 2)
        return 0;
    size_t rest = size - 2 - n;
    char *text = mem_try(n + 1), *file = mem_try(rest + 1);
    ASSERT(text && file);
    memcpy(text, data + 2, n);
    memcpy(file, data + 2 + n, rest);
    int rc = model_from_hf(&m, (struct model_text){text, n}, file, rest, &e);
    if (rc) {
        ASSERT(e.text[0] && !m);
    } else {
        volatile unsigned sum = read_all(m);
        (void)sum;
        model_close(m);
    }
    mem_free(text);
    mem_free(file);
    return 0;
}
