/* Matrices of an encoder: rounded to 13 bits a row and laid out for the kernels. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cpu/encode_pack.h"
#include "kernels/cpu/transpose.h"

enum { ALIGN = 64 };

static int round_row(struct encode_matrix *m, int row, const float *x, struct err *e)
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
        TRY(round_row(m, row + r, room, e));
        m->bias[row + r] = p->bias ? p->bias[r] : 0;
        if (!isfinite(m->bias[row + r]))
            return err_set(e, E_INPUT, "the bias of row %d is no finite number", row + r);
    }
    return 0;
}

static void put_folds(struct encode_matrix *m)
{
    int32_t *to = m->fold;
    for (int g = 0; g < m->groups; g++)
        for (int at = 0; at < m->padded_cols; at += ENCODE_LEAF) {
            const int16_t *from = m->data + ((size_t)g * (size_t)m->padded_cols + (size_t)at) * ENCODE_GROUP;
            int n = m->padded_cols - at < ENCODE_LEAF ? m->padded_cols - at : ENCODE_LEAF;
            for (int i = 0; i < ENCODE_GROUP; i++)
                *to++ = encode_fold(from + 2 * i, n, 2 * ENCODE_GROUP);
        }
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
    m->fold = mem_try_aligned(outs * encode_leaves(m->padded_cols) * sizeof *m->fold, ALIGN);
    int rc = m->data && m->scale && m->bias && m->fold
                 ? put_parts(m, parts, n_parts, e)
                 : err_set(e, E_FULL, "no memory for %d x %d weights", m->rows, cols);
    if (rc) {
        encode_matrix_free(m);
        return rc;
    }
    put_folds(m);
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
    mem_free(m->fold);
    mem_free(m);
}

struct encode_matrix encode_matrix_part(const struct encode_matrix *m, int first, int end)
{
    struct encode_matrix part = *m;
    size_t at = (size_t)first * ENCODE_GROUP;
    part.groups = end - first;
    part.data += at * (size_t)m->padded_cols;
    part.scale += at;
    part.bias += at;
    part.fold += at * encode_leaves(m->padded_cols);
    return part;
}

void encode_put_group(int16_t *to, const int16_t *rows, int cols)
{
    for (int at = 0; at < cols; at += 8)
        transpose_words((uint8_t *)(to + at * ENCODE_GROUP), (const uint8_t *)(rows + at), (size_t)cols * sizeof *rows);
}

/* ---- the room of a head ---- */

struct cut {
    uint8_t *base;
    size_t at;
};

static void *take(struct cut *c, size_t n, size_t size)
{
    void *p = c->base ? c->base + c->at : NULL;
    c->at += (n * size + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

static void take_matrix(struct cut *c, struct encode_matrix *m, size_t rows, size_t padded_cols)
{
    m->data = take(c, rows * padded_cols, sizeof *m->data);
    m->scale = take(c, rows, sizeof *m->scale);
    m->bias = take(c, rows, sizeof *m->bias);
    m->fold = take(c, rows * encode_leaves((int)padded_cols), sizeof *m->fold);
}

static void take_inputs(struct cut *c, struct encode_inputs *in, size_t rows, size_t ldq)
{
    in->ldq = ldq;
    in->ldd = encode_leaves((int)ldq);
    in->q = take(c, rows * in->ldq, sizeof *in->q);
    in->d = take(c, rows * in->ldd, sizeof *in->d);
    in->fold = take(c, rows * in->ldd, sizeof *in->fold);
}

size_t encode_head_room(struct encode_head_room *r, uint8_t *base, int dim)
{
    size_t ld = ENCODE_LD(dim);
    struct cut c = {base, 0};
    take_matrix(&c, &r->keys, ENCODE_KEYS, ld);
    take_matrix(&c, &r->values, ld, ENCODE_KEYS);
    take_inputs(&c, &r->queries, ENCODE_QUERIES, ld);
    take_inputs(&c, &r->weights, ENCODE_TILE, ENCODE_KEYS);
    r->row = take(&c, ld, sizeof *r->row);
    r->group = take(&c, ENCODE_GROUP * ld, sizeof *r->group);
    r->scores = take(&c, (size_t)ENCODE_TILE * ENCODE_KEY_LD, sizeof *r->scores);
    r->part = take(&c, ENCODE_TILE * ld, sizeof *r->part);
    r->o = take(&c, ENCODE_QUERIES * ld, sizeof *r->o);
    r->m = take(&c, ENCODE_QUERIES, sizeof *r->m);
    r->l = take(&c, ENCODE_QUERIES, sizeof *r->l);
    return c.at;
}
