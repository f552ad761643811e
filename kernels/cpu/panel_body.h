/* Quantised weights on their way to a product: their scales and minima, and panels of them, unpacked once for many
 * rows. On the lanes of vec_*.h; included by linear_body.h and linear_amx.c. */
#ifndef CPU_PANEL_BODY_H
#define CPU_PANEL_BODY_H

#include "kernels/cpu/sums_body.h"

/* A block ready to multiply: in place in the packed matrix, or one of each group, unpacked into the panel. */
struct block_at {
    const uint8_t *w, *head;  /* head: of its 256 columns (K types, in place) */
    const float *scale, *min; /* panel: [2][G][16] each */
};

INLINE int zero_shift(enum family f)
{
    if (f == FAM_S8 || f == FAM_C4 || f == FAM_KC4)
        return S8_SHIFT;
    return f == FAM_U4 ? 3 : f == FAM_U5 ? 4 : f == FAM_K6 ? 5 : f == FAM_K3 ? 2 : 0;
}

INLINE vf packed_scale(enum family f, const struct block_at *b, int part)
{
    const uint8_t *s = family_scales(f, b->w, b->head) + 16 * part;
    if (!family_is_k(f))
        return vf_load_f16((const uint16_t *)s);
    vf d = vf_load_f16((const uint16_t *)b->head);
    if (f == FAM_K2)
        return vf_mul(d, vf_load_nibble(s, false));
    return vf_mul(d, family_has_min(f) ? vf_load_u8(s) : vf_load_s8((const int8_t *)s));
}

INLINE vf packed_min(enum family f, const struct block_at *b, int part)
{
    const uint8_t *s = family_scales(f, b->w, b->head) + 16 * part;
    if (!family_is_k(f))
        return vf_load_f16((const uint16_t *)(s + 32));
    vf dmin = vf_load_f16((const uint16_t *)(b->head + 32));
    vf m = f == FAM_K2 ? vf_load_nibble(s, true) : vf_load_u8(s + 16);
    return vf_sub(vf_set1(0), vf_mul(dmin, m));
}

/* Block i of the panel. */
INLINE struct block_at block_of_panel(struct tile t, const struct linear_scratch *s, int i)
{
    return (struct block_at){.w = s->panel + (size_t)(i * t.G) * PANEL_BLOCK,
                             .scale = s->scale + (size_t)(i * 2 * t.G) * GROUP_ROWS,
                             .min = s->min + (size_t)(i * 2 * t.G) * GROUP_ROWS};
}

/* Block `to` of the panel, which lies [block][group], gets its scales. */
INLINE void panel_scales(struct tile t, const struct block_at *from, int to, struct linear_scratch *s)
{
    for (int part = 0; part < family_parts(t.f); part++) {
        size_t lanes = (size_t)(to / t.G * 2 * t.G + part * t.G + to % t.G) * GROUP_ROWS;
        vf_store(s->scale + lanes, packed_scale(t.f, from, part));
        if (family_has_min(t.f))
            vf_store(s->min + lanes, packed_min(t.f, from, part));
    }
}

/* Of block b of each group, or where the window ends before it, of a first one of the groups that are next. */
INLINE void prefetch_panel(struct tile t, const struct linear_job *j, struct place p, int b)
{
    int blocks = j->col1 / BLOCK_COLS;
    if (b >= blocks) {
        b -= blocks - j->col0 / BLOCK_COLS;
        p.g += t.G;
    }
    size_t bytes = j->w->group_bytes / (size_t)(j->w->cols / BLOCK_COLS);
    for (int i = 0; i < t.G; i++)
        for (size_t k = 0; k < bytes; k += 64)
            prefetch(group_at(j, p.g + i) + (size_t)b * bytes + k);
}

#endif
