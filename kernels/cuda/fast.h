/* What the host part of the CUDA backend asks of the kernels of the default mode, in addition to job.h: products on
 * tensor cores, and attention that divides a sequence's cache. Every pointer is device memory; a launcher only
 * enqueues. On the rank's thread. Invariant: a result does not depend on timing. Unlike the results of job.h's
 * invariant kernels it may depend on the number of rows in the batch and on the layout.
 *
 * What goes into a product is rounded to 16 bits (with fp8 weights and many rows on compute capability 9.0: to fp8, see
 * product_f8.c). Activations stay f32 from op to op, as in invariant mode; but with many rows q, k, v, what comes out
 * of attention (which is rounded on its way into the next product in any case) and what is gated are bf16
 * (cuda_narrows). The residual is never rounded. */
#ifndef CUDA_FAST_H
#define CUDA_FAST_H

#include "kernels/cuda/job.h"

#ifdef __cplusplus
extern "C" {
#endif

/* skinny.cu, and lean.cu for weights of 8 bits and fewer: up to SKINNY_ROWS rows; weights of any family but F32, read
 * once, straight from their planes. All outputs share the input. */
enum { SKINNY_ROWS = 8, SLIM_ROWS = 64, SKINNY_OUTS = 3, SKINNY_CTAS = 2 /* of a multiprocessor */ };
enum skinny_in { SKINNY_PLAIN, SKINNY_NORM }; /* x; x / rms(x) * gain */
struct skinny_out {
    struct weight_window w; /* all of the same columns; of one family, or skinny_mixes */
    const float *bias;      /* or NULL */
    float *y;
    int ldy;
};
struct skinny_job {
    enum skinny_in in;
    const float *x, *gain; /* rows start at multiples of 16 elements */
    int ldx, rows, n_out;
    int places; /* skinny.cu, lean.cu: CTAs at most, > 0; lean.cu's count as SKINNY_CTAS */
    int shared; /* skinny.cu, lean.cu: bytes of shared memory that a CTA may have */
    float eps;
    bool accumulate;
    bool gated; /* of two outputs as large as each other silu(first) * second goes into the first; never accumulated */
    float *partial;    /* lean.cu: as lean_needs says */
    uint32_t *arrived; /* the same; zero between launches */
    bool pdl; /* up to SKINNY_ROWS: programmatic dependent launch, on devices of compute capability 9: tensor.h */
    struct skinny_out out[SKINNY_OUTS];
};
cudaError_t launch_skinny(cudaStream_t s, const struct skinny_job *j);
cudaError_t launch_lean(cudaStream_t s, const struct skinny_job *j); /* by launch_skinny */
/* Does lean.cu run where a CTA has so many bytes of shared memory? Not on devices of compute capability 8.6, 8.9, 12.
 */
bool lean_can(int shared);
/* Floats of `partial` and counters, whatever the number of rows. Weights of 8 bits and fewer. */
void lean_needs(const struct skinny_job *j, size_t *floats, size_t *counters);
/* May the first outputs be of family f and the last ones of g? So it is with q, k and v in files called Q4_K_M and the
 * like, also where their columns are no multiple of 256 and other types stand in for those of K. */
static inline bool skinny_mixes(enum family f, enum family g)
{
    return f == g || (f == FAM_K4 && (g == FAM_K5 || g == FAM_K6)) || (f == FAM_K5 && g == FAM_K6) ||
           ((f == FAM_U5 || f == FAM_U5M) && g == FAM_S8);
}

/* slim.cu: the same for up to SLIM_ROWS. Where there are too few outputs to fill the device the columns are
 * cut into parts, and the last part to finish adds them up in order. */
struct slim_room {
    int n_tiles, n_parts;
    float *partial;    /* as slim_needs says */
    uint32_t *arrived; /* [n_tiles], zero between launches */
};
void slim_cut(const struct skinny_job *j, int n_sms, struct slim_room *out); /* n_tiles, n_parts */
/* Floats of `partial` and counters, enough for this product with any number of rows: so a rehearsal with one of them
 * takes all the memory that steps will need. */
void slim_needs(const struct skinny_job *j, int n_sms, size_t *floats, size_t *counters);
cudaError_t launch_slim(cudaStream_t s, const struct skinny_job *j, const struct slim_room *r);

/* flash.cu: attention over f16, bf16 or fp8 caches of heads of 64 or 128 elements. The queries of a kv head of a
 * sequence, row by row and within a row head by head, are cut into tiles. A sequence with up to FLASH_ROWS queries (a
 * decode) is one narrow tile whose cache is cut into parts, and the last part to finish adds them up in order; any
 * other has wide tiles, each over all of its cache. */
/* Queries of a wide tile and of a narrow one; positions of a round. */
enum { FLASH_TILE = 64, FLASH_ROWS = 16, FLASH_KEYS = 64 };
/* Floats of a row of partial sums beside its head_dim; parts of a tile at most. */
enum { FLASH_SUMS_MORE = 4, FLASH_MOST_PARTS = 512 };
enum { FLASH_HOPPER_TILE = 128 }; /* queries of a wide tile of flash_hopper.cu */
struct flash_item {
    int32_t seq;
    int32_t tile;       /* wide: queries FLASH_TILE (FLASH_HOPPER_TILE) * tile on; narrow: 0 */
    int32_t key0, key1; /* narrow: positions of this part; key0 a multiple of FLASH_KEYS. wide: about what it sees, by
                           which the plan orders */
    int32_t part, n_parts; /* narrow; n_parts 1: no sum */
    int32_t slot, part0; /* narrow, n_parts > 1: such tiles are numbered 0, 1, ...; so are their parts, from part0 on */
};
struct flash_job {
    struct step_view step;
    const void *q;
    void *out;
    int ldq, ldo, window;
    bool half_q, half_out; /* bf16, rows of an even number of elements */
    float scale;           /* log2(e) included */
    struct kv_at kv;
    const struct flash_item *items; /* [most_items] in device memory; *n_items of them count */
    const int32_t *n_items;
    int most_items;
    bool wide;
    bool rope; /* narrow: RoPE on q and k first and k and v into the cache (rope_write); all items are narrow */
    struct rope_write_job rope_write; /* its q is this job's; without rope it has a head_dim and turns nothing */
    bool hopper;                      /* wide: flash_hopper.cu, whose tiles have FLASH_HOPPER_TILE queries */
    int n_sms;                        /* hopper: CTAs at most, > 0 */
    bool pdl;                         /* as in skinny_job */
    float *partial;                   /* narrow: [kv heads][n_parts][FLASH_ROWS][head_dim + FLASH_SUMS_MORE] */
    uint32_t *arrived;                /* narrow: [kv heads][n_slots], zero between launches */
    int n_slots, n_parts;
    uint16_t first_head[ATTEND_MAX_KV + 1]; /* q heads of kv head k: first_head[k] .. first_head[k + 1] - 1 */
};
bool flash_can(enum dtype t, int head_dim);
cudaError_t flash_prepare(void); /* once for each device, before the first launch there */
cudaError_t launch_flash(cudaStream_t s, const struct flash_job *j);
/* flash_hopper.cu: wide tiles on devices of compute capability 9.0; not every type that flash_can. */
bool flash_hopper_can(enum dtype t, int head_dim);
cudaError_t flash_hopper_prepare(bool *here); /* as flash_prepare; here: it was compiled for this device */
cudaError_t launch_flash_hopper(cudaStream_t s, const struct flash_job *j);

#ifdef __cplusplus
}
#endif

#endif
