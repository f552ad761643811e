#include "models/encode/pool.h"

#include <math.h>
#include <string.h>

void pool_rows(enum encoder_pooling pooling, const float *rows, size_t ld, int n, int dim, float *out)
{
    enum { PART = 64 };
    if (pooling != POOL_MEAN) {
        memcpy(out, rows + (pooling == POOL_CLS ? 0 : (size_t)(n - 1) * ld), (size_t)dim * sizeof *out);
        return;
    }
    for (int from = 0; from < dim; from += PART) {
        double sum[PART] = {0};
        int m = dim - from < PART ? dim - from : PART;
        for (int i = 0; i < n; i++)
            for (int k = 0; k < m; k++)
                sum[k] += (double)rows[(size_t)i * ld + (size_t)(from + k)];
        for (int k = 0; k < m; k++)
            out[from + k] = (float)(sum[k] / n);
    }
}

void pool_normalise(float *v, int n)
{
    double square = 0;
    for (int i = 0; i < n; i++)
        square += (double)v[i] * (double)v[i];
    double scale = square > 0 ? 1 / sqrt(square) : 1;
    for (int i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * scale);
}

int pool_check(const float *v, int n, struct err *e)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(e, E_DEVICE, "a vector is not finite; are the weights those of a trained model?");
    return 0;
}
