#include "models/load/dummy.h"

#include <math.h>

#include "engine/base/rng.h"
#include "models/load/family.h"
#include "models/load/quantize.h"

int dummy_check(const struct model_config *c, enum dtype type, struct err *e)
{
    const struct dtype_info *info = dtype_get(type);
    for (int role = 0; role < T_COUNT; role++) {
        int rows, cols;
        tensor_shape(c, role, &rows, &cols);
        if (!tensor_is_vector(role) && cols % info->block)
            return err_set(e, E_UNSUPPORTED,
                           "dummy weights: %d columns are no multiple of the %d of a %s block; take %s", cols,
                           info->block, info->name, cols % 32 ? "BF16" : "Q8_0");
    }
    return 0;
}

/* Values are centre + spread * u with u uniform in [-1, 1): products and a square root only, which every machine rounds
 * alike. */
struct spread {
    float centre, width;
};

static struct spread spread_of(const struct model_config *c, enum tensor_role role, int cols)
{
    float unit = sqrtf(3.0f / (float)cols); /* outputs as large as inputs */
    switch (role) {
    case T_OUT_NORM:
    case T_KV_NORM:
    case T_ATTN_NORM:
    case T_FFN_NORM:
    case T_Q_NORM:
    case T_K_NORM:
        return (struct spread){1, 0.2f};
    case T_Q_BIAS:
    case T_K_BIAS:
    case T_V_BIAS:
        return (struct spread){0, 0.2f};
    case T_O:
    case T_DOWN: /* what is added to the residual: the sum over the layers stays of size one */
        return (struct spread){0, unit / sqrtf(2.0f * (float)c->n_layers)};
    default:
        return (struct spread){0, unit};
    }
}

static void fill_row(struct rng *r, struct spread s, float *row, int cols)
{
    float step = s.width * 0x1p-15f;
    for (int i = 0; i < cols; i += 4) {
        uint64_t bits = rng_next(r);
        for (int j = i; j < i + 4 && j < cols; j++, bits >>= 16)
            row[j] = s.centre + step * (float)((int)(bits & 0xffff) - 0x8000);
    }
}

/* Which of the seed's streams a tensor takes. SwiftKV's norm has one apart, so that a seed makes the other tensors as
 * it did before there was such a norm. */
static uint64_t stream_of(enum tensor_role role, int layer)
{
    const uint64_t each = T_COUNT - 1;
    if (role == T_KV_NORM)
        return UINT64_MAX;
    return (uint64_t)(tensor_per_layer(role) ? layer : 0) * each + (uint64_t)role - (role > T_KV_NORM);
}

void dummy_fill(const struct model_config *c, enum tensor_role role, int layer, enum dtype type, uint64_t seed,
                void *dst, float *scratch)
{
    int rows, cols;
    tensor_shape(c, role, &rows, &cols);
    enum dtype stored = tensor_is_vector(role) ? DT_F32 : type;
    size_t row_bytes = dtype_row_bytes(stored, cols);
    struct spread s = spread_of(c, role, cols);
    struct rng r;
    rng_init(&r, rng_at(seed, stream_of(role, layer)));
    for (int i = 0; i < rows; i++) {
        fill_row(&r, s, scratch, cols);
        quantize_row(stored, scratch, (char *)dst + (size_t)i * row_bytes, cols);
    }
}
