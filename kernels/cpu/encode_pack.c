/* Matrices of an encoder: rounded to 13 bits a row and laid out for the kernels. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cpu/encode_pack.h"

enum { ALIGN = 64 };

static int put_row(struct encode_matrix *m, int row, const float *x, struct err *e)
{
    float most = 0;
    for (int c = 0; c < m->cols; c++) {
        if (!isfinite(x[c]))
            return err_set(e, E_INPUT, "a weight of row %d is no finite number", row);
        most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
    }
    int16_t *to = m->data + ((size_t)(row / ENCODE_GROUP) * (size_t)m->padded_cols * ENCODE_GROUP) +
                  (size_t)(row % ENCODE_GROUP) * 2;
    m->scale[row] = most < 1e-30f ? 0 : most / (float)ENCODE_LEVELS;
    for (int c = 0; c < m->cols && m->scale[row] > 0; c++)
        to[(size_t)(c / 2) * 2 * ENCODE_GROUP + (size_t)(c % 2)] =
            (int16_t)lrintf(x[c] * ((float)ENCODE_LEVELS / most));
    return 0;
}

/* row: the place of the part's first one. room: [cols] floats; bytes: one row as it is in the file. */
static int put_part(struct encode_matrix *m, const struct encode_part *p, int row, float *room, void *bytes,
                    struct err *e)
{
    size_t row_bytes = dtype_row_bytes(p->type, m->cols);
    for (int r = 0; r < p->rows; r++) {
        memcpy(bytes, (const uint8_t *)p->data + (size_t)r * row_bytes, row_bytes);
        dtype_to_f32(p->type, bytes, room, m->cols);
        TRY(put_row(m, row + r, room, e));
        m->bias[row + r] = p->bias ? p->bias[r] : 0;
        if (!isfinite(m->bias[row + r]))
            return err_set(e, E_INPUT, "the bias of row %d is no finite number", row + r);
    }
    return 0;
}

static int put_parts(struct encode_matrix *m, const struct encode_part *parts, int n_parts, struct err *e)
{
    float *room = mem_try_array((size_t)m->cols, sizeof *room);
    void *bytes = mem_try_array((size_t)m->cols + 1, 4); /* no type takes more for an element */
    int rc = room && bytes ? 0 : err_set(e, E_FULL, "no memory for a row of %d", m->cols);
    for (int i = 0, row = 0; i < n_parts && !rc; row += parts[i++].rows)
        rc = put_part(m, &parts[i], row, room, bytes, e);
    mem_free(room);
    mem_free(bytes);
    return rc;
}

int encode_matrix_new(struct encode_matrix **out, const struct encode_part *parts, int n_parts, int cols, struct err *e)
{
    struct encode_matrix *m = mem_new(sizeof *m);
    *out = NULL;
    for (int i = 0; i < n_parts; i++)
        m->rows += parts[i].rows;
    m->cols = cols;
    m->padded_cols = (int)ENCODE_LD(cols);
    m->groups = (m->rows + ENCODE_GROUP - 1) / ENCODE_GROUP;
    size_t outs = (size_t)m->groups * ENCODE_GROUP;
    m->data = mem_try_aligned(outs * (size_t)m->padded_cols * sizeof *m->data, ALIGN);
    m->scale = mem_try_aligned(outs * sizeof *m->scale, ALIGN);
    m->bias = mem_try_aligned(outs * sizeof *m->bias, ALIGN);
    int rc = m->data && m->scale && m->bias ? put_parts(m, parts, n_parts, e)
                                            : err_set(e, E_FULL, "no memory for %d x %d weights", m->rows, cols);
    if (rc) {
        encode_matrix_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void encode_matrix_free(struct encode_matrix *m)
{
    if (!m)
        return;
    mem_free(m->data);
    mem_free(m->scale);
    mem_free(m->bias);
    mem_free(m);
}
