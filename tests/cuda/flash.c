/* The default mode's attention against float64 over the same cache: wide and narrow tiles, parts, windows, uneven
 * heads, odd blocks; wide ones by Hopper's kernel, too, where there is such a device. */
#include <math.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "kernels/cuda/flash_plan.h"
#include "tests/rig/unified.h"

enum { MAX_SEQS = 8, MAX_ITEMS = 256, MAX_ROWS = 400, MAX_BLOCKS = 1024, MAX_ARRIVED = 64 };

#ifdef EMULATED
void emulator_order(int descending);
#endif

struct site {
    enum dtype type;
    int dim, kv_heads, q_heads, tokens, window;
    int first_head[8];
    int n_seqs, n_rows;
    struct seq_at *seqs; /* [MAX_SEQS] */
    int32_t *blocks;     /* [MAX_BLOCKS] */
    uint8_t *cache;
    size_t row_bytes, head_bytes, block_bytes;
    float *q, *out;
    const int32_t *row_seq;                  /* for rope_write */
    const struct rope_write_job *rope_write; /* or NULL */
    bool hopper, either; /* either: the other kernel's test is slow, and not needed where Hopper's is run */
};

static bool plain_only; /* --plain: for tools that do not know Hopper's instructions */

/* Can this device and type have wide tiles by flash_hopper.cu? */
static bool has_hopper(const struct site *s)
{
    struct cudaDeviceProp p;
    bool here = false;
    if (plain_only)
        return false;
    assert_int_equal(cudaGetDeviceProperties(&p, 0), cudaSuccess);
    if (p.major != 9 || p.minor != 0 || !flash_hopper_can(s->type, s->dim))
        return false;
    assert_int_equal(flash_hopper_prepare(&here), cudaSuccess);
    return here;
}

static void put(enum dtype t, uint8_t *row, int i, float x)
{
    if (t == DT_F8)
        row[i] = f32_to_f8(x);
    else
        ((uint16_t *)(void *)row)[i] = t == DT_F16 ? f32_to_f16(x) : f32_to_bf16(x);
}

static double get(enum dtype t, const uint8_t *row, int i)
{
    if (t == DT_F8)
        return (double)f8_to_f32(row[i]);
    uint16_t h = ((const uint16_t *)(const void *)row)[i];
    return (double)(t == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h));
}

static uint8_t *cached(const struct site *s, int seq, int head, int position, bool value)
{
    int block = s->blocks[s->seqs[seq].block0 + position / s->tokens];
    return s->cache + (size_t)block * s->block_bytes + (size_t)head * s->head_bytes + (value ? s->head_bytes / 2 : 0) +
           (size_t)(position % s->tokens) * s->row_bytes;
}

static double about_normal(struct rng *r)
{
    double v = -3;
    for (int i = 0; i < 6; i++)
        v += rng_unit(r);
    return v;
}

/* lengths: pairs of rows and positions before them, ended by 0. What no sequence has is NaN. */
static void open_site(struct site *s, const int *lengths, struct rng *r)
{
    int n_blocks = 0;
    s->row_bytes = (size_t)s->dim * (s->type == DT_F8 ? 1 : 2);
    s->head_bytes = 2 * s->row_bytes * (size_t)s->tokens;
    s->block_bytes = s->head_bytes * (size_t)s->kv_heads;
    s->n_seqs = s->n_rows = 0;
    s->seqs = unified(MAX_SEQS * sizeof *s->seqs);
    s->blocks = unified(MAX_BLOCKS * sizeof *s->blocks);
    for (const int *l = lengths; l[0]; l += 2) {
        s->seqs[s->n_seqs++] = (struct seq_at){s->n_rows, l[0], l[1], n_blocks};
        s->n_rows += l[0];
        n_blocks += (l[0] + l[1] + s->tokens - 1) / s->tokens;
    }
    assert_true(n_blocks <= MAX_BLOCKS && s->n_rows <= MAX_ROWS);
    s->cache = unified((size_t)n_blocks * s->block_bytes);
    for (int i = 0; i < n_blocks; i++)
        s->blocks[i] = (i * 7 + 3) % n_blocks;
    if (n_blocks % 7 == 0)
        for (int i = 0; i < n_blocks; i++)
            s->blocks[i] = n_blocks - 1 - i;
    for (int q = 0; q < s->n_seqs; q++)
        for (int h = 0; h < s->kv_heads; h++)
            for (int p = 0; p < s->seqs[q].pos0 + s->seqs[q].n_rows; p++)
                for (int c = 0; c < s->dim; c++) {
                    put(s->type, cached(s, q, h, p, false), c, (float)about_normal(r));
                    put(s->type, cached(s, q, h, p, true), c, (float)about_normal(r));
                }
    size_t n = (size_t)s->n_rows * (size_t)s->q_heads * (size_t)s->dim;
    s->q = unified(n * sizeof *s->q);
    s->out = unified(n * sizeof *s->out);
    for (size_t i = 0; i < n; i++)
        s->q[i] = (float)about_normal(r);
}

static void close_site(struct site *s)
{
    unified_free(s->seqs);
    unified_free(s->blocks);
    unified_free(s->cache);
    unified_free(s->q);
    unified_free(s->out);
}

static int most_heads(const struct site *s)
{
    int most = 0;
    for (int k = 0; k < s->kv_heads; k++)
        most = s->first_head[k + 1] - s->first_head[k] > most ? s->first_head[k + 1] - s->first_head[k] : most;
    return most;
}

/* sms: few make long parts, many short ones. */
static void run(struct site *s, int sms)
{
    struct batch_seq seqs[MAX_SEQS];
    for (int i = 0; i < s->n_seqs; i++)
        seqs[i] = (struct batch_seq){s->seqs[i].row0, s->seqs[i].n_rows, s->seqs[i].pos0, NULL, NULL};
    struct batch b = {.n_rows = s->n_rows, .n_seqs = s->n_seqs, .seqs = seqs};
    struct flash_shape shape = {.kv_heads = s->kv_heads,
                                .most_heads = most_heads(s),
                                .window = s->window,
                                .n_sms = sms,
                                .tile = s->hopper ? FLASH_HOPPER_TILE : FLASH_TILE};
    struct flash_item *items = unified(MAX_ITEMS * sizeof *items);
    struct flash_plan plan, counted;
    flash_plan(&counted, &b, &shape, NULL);
    assert_true(counted.n_wide + counted.n_narrow <= MAX_ITEMS);
    flash_plan(&plan, &b, &shape, items);
    assert_memory_equal(&plan, &counted, sizeof plan);
    int ld = s->q_heads * s->dim;
    float *partial = unified(((size_t)s->kv_heads * (size_t)plan.n_parts + 1) * FLASH_ROWS *
                             (size_t)(s->dim + FLASH_SUMS_MORE) * sizeof(float));
    uint32_t *arrived = unified(MAX_ARRIVED * sizeof *arrived);
    int32_t *n = unified(sizeof *n);
    memset(arrived, 0, MAX_ARRIVED * sizeof *arrived);
    struct flash_job j = {.step = {.seqs = s->seqs, .blocks = s->blocks, .n_rows = s->n_rows, .n_seqs = s->n_seqs},
                          .q = s->q,
                          .out = s->out,
                          .ldq = ld,
                          .ldo = ld,
                          .window = s->window,
                          .scale = 1.44269504f / sqrtf((float)s->dim),
                          .partial = partial,
                          .arrived = arrived,
                          .n_sms = 1 + s->n_rows % 7, /* few: CTAs take several tiles */
                          .n_slots = plan.n_slots,
                          .n_parts = plan.n_parts,
                          .rope = s->rope_write};
    j.step.row_seq = s->row_seq;
    j.kv = (struct kv_at){.base = s->cache,
                          .block_bytes = s->block_bytes,
                          .head_bytes = s->head_bytes,
                          .value_at = s->head_bytes / 2,
                          .tokens = s->tokens,
                          .n_heads = s->kv_heads,
                          .head_dim = s->dim,
                          .padded_dim = s->dim,
                          .type = s->type};
    for (int k = 0; k <= s->kv_heads; k++)
        j.first_head[k] = (uint16_t)s->first_head[k];
    assert_true(s->kv_heads * plan.n_slots <= MAX_ARRIVED);
    if (s->rope_write) {
        j.rope_write = *s->rope_write;
        j.rope_write.write.step = j.step;
        j.rope_write.write.kv = j.kv;
    }
    for (int wide = 0; wide < 2; wide++) {
        *n = wide ? plan.n_wide : plan.n_narrow;
        j.wide = j.pdl = wide;
        j.hopper = s->hopper;
        j.items = wide ? items : items + plan.n_wide;
        j.n_items = n;
        j.most_items = *n ? *n + 2 : 0;
        assert_int_equal(launch_flash(NULL, &j), cudaSuccess);
        unified_wait();
    }
    for (int i = 0; i < MAX_ARRIVED; i++)
        assert_int_equal(arrived[i], 0);
    unified_free(partial);
    unified_free(arrived);
    unified_free(items);
    unified_free(n);
}

/* What the cache has of one kv head of a sequence, [position][element]. */
static double *widened(const struct site *s, int seq, int kv, bool value)
{
    int n = s->seqs[seq].pos0 + s->seqs[seq].n_rows;
    double *all = mem_new_array((size_t)n * (size_t)s->dim, sizeof *all);
    for (int k = 0; k < n; k++) {
        const uint8_t *row = cached(s, seq, kv, k, value);
        for (int c = 0; c < s->dim; c++)
            all[(size_t)k * (size_t)s->dim + (size_t)c] = get(s->type, row, c);
    }
    return all;
}

struct query {
    int seq, row, head;
    const double *keys, *values; /* widened */
};

static void check_query(const struct site *s, const struct query *y)
{
    int p = s->seqs[y->seq].pos0 + y->row, lo = s->window && p >= s->window ? p - s->window + 1 : 0,
        at = s->seqs[y->seq].row0 + y->row;
    const float *q = s->q + ((size_t)at * (size_t)s->q_heads + (size_t)y->head) * (size_t)s->dim,
                *out = s->out + (q - s->q);
    double *w = mem_new_array((size_t)p + 1, sizeof *w), most = -1e300, sum = 0, scale = 1 / sqrt((double)s->dim);
    for (int k = lo; k <= p; k++) {
        const double *key = y->keys + (size_t)k * (size_t)s->dim;
        for (int c = 0; c < s->dim; c++)
            w[k] += (double)q[c] * key[c] * scale;
        most = w[k] > most ? w[k] : most;
    }
    for (int k = lo; k <= p; k++)
        sum += w[k] = exp(w[k] - most);
    for (int c = 0; c < s->dim; c++) {
        double v = 0, size = 0;
        for (int k = lo; k <= p; k++) {
            double t = w[k] / sum * y->values[(size_t)k * (size_t)s->dim + (size_t)c];
            v += t;
            size += fabs(t);
        }
        double bound =
            size * (s->type == DT_BF16 ? 1.6e-2 : 2e-3) + 1e-5; /* weights and scaled queries in 11 or 8 bits */
        if (!(fabs((double)out[c] - v) <= bound))
            fail_msg("sequence %d row %d head %d element %d: %.9g, not %.9g +- %g", y->seq, y->row, y->head, c,
                     (double)out[c], v, bound);
    }
    mem_free(w);
}

static void check_rows(const struct site *s, int seq, int n_rows)
{
    for (int kv = 0; kv < s->kv_heads; kv++) {
        double *keys = widened(s, seq, kv, false), *values = widened(s, seq, kv, true);
        for (int row = 0; row < n_rows; row++)
            for (int h = s->first_head[kv]; h < s->first_head[kv + 1]; h++)
                check_query(s, &(struct query){seq, row, h, keys, values});
        mem_free(keys);
        mem_free(values);
    }
}

static void check_all(const struct site *s)
{
    for (int q = 0; q < s->n_seqs; q++)
        check_rows(s, q, s->seqs[q].n_rows);
}

/* By the other kernel; when its copies arrive must not show. */
static void try_hopper(struct site *s, int sms)
{
    size_t bytes = (size_t)s->n_rows * (size_t)s->q_heads * (size_t)s->dim * sizeof *s->out;
    float *first = mem_new(bytes);
    memset(s->out, 0xff, bytes);
    run(s, sms);
    check_all(s);
    memcpy(first, s->out, bytes);
    memset(s->out, 0xff, bytes);
#ifdef EMULATED
    emulator_order(1); /* at once; without it as late as may be */
#endif
    run(s, sms);
#ifdef EMULATED
    emulator_order(0);
#endif
    assert_memory_equal(s->out, first, bytes);
    mem_free(first);
}

static void try_site(struct site *s, const int *lengths, int sms, uint64_t seed)
{
    struct rng r;
    rng_init(&r, seed);
    s->q_heads = s->first_head[s->kv_heads];
    open_site(s, lengths, &r);
    if (!s->either || !has_hopper(s)) {
        run(s, sms);
        check_all(s);
    }
    s->hopper = has_hopper(s);
    if (s->hopper)
        try_hopper(s, sms);
    close_site(s);
}

static void decodes_in_one_part(void **state)
{
    (void)state;
    static const int lengths[] = {1, 0, 1, 63, 1, 64, 2, 130, 1, 15, 0};
    try_site(&(struct site){.type = DT_F16, .dim = 64, .kv_heads = 2, .tokens = 16, .first_head = {0, 3, 6}}, lengths,
             1, 1);
    try_site(&(struct site){.type = DT_BF16, .dim = 128, .kv_heads = 1, .tokens = 48, .first_head = {0, 8}}, lengths, 1,
             2);
}

static void decodes_in_parts(void **state)
{
    (void)state;
    static const int lengths[] = {1, 300, 1, 128, 1, 5, 0};
    try_site(&(struct site){.type = DT_F16, .dim = 128, .kv_heads = 2, .tokens = 32, .first_head = {0, 4, 8}}, lengths,
             132, 3);
    try_site(&(struct site){.type = DT_BF16, .dim = 64, .kv_heads = 1, .tokens = 16, .first_head = {0, 1}}, lengths, 2,
             4);
}

static void chunks_of_prompts(void **state)
{
    (void)state;
    static const int lengths[] = {70, 0, 33, 100, 0};
    try_site(&(struct site){.type = DT_F16, .dim = 64, .kv_heads = 1, .tokens = 16, .first_head = {0, 3}}, lengths, 132,
             5);
    try_site(&(struct site){.type = DT_BF16, .dim = 128, .kv_heads = 2, .tokens = 32, .first_head = {0, 1, 2}}, lengths,
             132, 6);
}

static void mixed_steps_and_uneven_heads(void **state)
{
    (void)state;
    static const int lengths[] = {1, 90, 25, 10, 3, 64, 1, 200, 0};
    try_site(&(struct site){.type = DT_F16, .dim = 64, .kv_heads = 3, .tokens = 16, .first_head = {0, 3, 4, 4}},
             lengths, 132, 7);
    try_site(&(struct site){.type = DT_F16, .dim = 128, .kv_heads = 2, .tokens = 16, .first_head = {0, 5, 7}}, lengths,
             2, 8);
}

static void windows_slide(void **state)
{
    (void)state;
    static const int lengths[] = {1, 200, 40, 100, 1, 20, 0};
    try_site(&(struct site){.type = DT_F16, .dim = 64, .kv_heads = 1, .tokens = 16, .window = 48, .first_head = {0, 2}},
             lengths, 132, 9);
    try_site(&(struct site){.type = DT_F16, .dim = 64, .kv_heads = 1, .tokens = 16, .window = 1, .first_head = {0, 2}},
             lengths, 132, 10);
}

static void caches_of_fp8(void **state)
{
    (void)state;
    static const int lengths[] = {1, 90, 25, 10, 1, 200, 33, 40, 0};
    try_site(&(struct site){.type = DT_F8, .dim = 64, .kv_heads = 2, .tokens = 16, .first_head = {0, 3, 4}}, lengths,
             132, 11);
    try_site(&(struct site){.type = DT_F8, .dim = 128, .kv_heads = 1, .tokens = 48, .window = 70, .first_head = {0, 5}},
             lengths, 2, 12);
}

/* What RoPE needs beside a site. */
struct rope_case {
    struct rope_write_job job;
    int32_t *row_seq;
    float *k, *v, *angles, *gain;
};

static float *normals(size_t n, struct rng *r)
{
    float *x = unified(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)about_normal(r);
    return x;
}

static void open_rope(struct rope_case *t, const struct site *s, int dim, struct rng *r)
{
    int ld = s->kv_heads * s->dim;
    t->k = normals((size_t)(s->n_rows * ld), r);
    t->v = normals((size_t)(s->n_rows * ld), r);
    t->angles = normals((size_t)(s->n_rows * dim) + 1, r);
    t->gain = normals((size_t)s->dim, r);
    t->row_seq = unified((size_t)s->n_rows * sizeof *t->row_seq);
    for (int q = 0; q < s->n_seqs; q++)
        for (int i = 0; i < s->seqs[q].n_rows; i++)
            t->row_seq[s->seqs[q].row0 + i] = q;
    t->job = (struct rope_write_job){.q = {.x = s->q,
                                           .ld = s->q_heads * s->dim,
                                           .rows = s->n_rows,
                                           .n_heads = s->q_heads,
                                           .head_dim = s->dim,
                                           .gain = t->gain,
                                           .eps = 1e-5f,
                                           .angles = t->angles,
                                           .dim = dim,
                                           .halves = dim % 32 == 0},
                                     .k_gain = dim == s->dim ? t->gain : NULL,
                                     .write = {.k = t->k, .v = t->v, .ldk = ld, .ldv = ld}};
}

static void close_rope(struct rope_case *t)
{
    unified_free(t->k);
    unified_free(t->v);
    unified_free(t->angles);
    unified_free(t->gain);
    unified_free(t->row_seq);
}

/* One site twice from the same seed: RoPE by a kernel of its own and then attention, and both in one kernel. The same
 * bits, in the cache, too. */
static void try_rope(struct site base, const int *lengths, int sms, int dim)
{
    struct site s[2] = {base, base};
    struct rope_case t[2];
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        struct rng r;
        rng_init(&r, 21);
        s[i].q_heads = base.first_head[base.kv_heads];
        open_site(&s[i], lengths, &r);
        open_rope(&t[i], &s[i], dim, &r);
        s[i].row_seq = t[i].row_seq;
        bytes = 0;
        for (int q = 0; q < s[i].n_seqs; q++)
            bytes +=
                (size_t)((s[i].seqs[q].pos0 + s[i].seqs[q].n_rows + base.tokens - 1) / base.tokens) * s[i].block_bytes;
    }
    struct rope_write_job first = t[0].job;
    first.write.step = (struct step_view){.seqs = s[0].seqs,
                                          .blocks = s[0].blocks,
                                          .row_seq = t[0].row_seq,
                                          .n_rows = s[0].n_rows,
                                          .n_seqs = s[0].n_seqs};
    first.write.kv = (struct kv_at){.base = s[0].cache,
                                    .block_bytes = s[0].block_bytes,
                                    .head_bytes = s[0].head_bytes,
                                    .value_at = s[0].head_bytes / 2,
                                    .tokens = base.tokens,
                                    .n_heads = base.kv_heads,
                                    .head_dim = base.dim,
                                    .padded_dim = base.dim,
                                    .type = base.type};
    assert_int_equal(launch_rope_write(NULL, &first), cudaSuccess);
    unified_wait();
    s[1].rope_write = &t[1].job;
    run(&s[0], sms);
    run(&s[1], sms);
    check_all(&s[0]);
    assert_memory_equal(s[0].cache, s[1].cache, bytes);
    assert_memory_equal(s[0].out, s[1].out,
                        (size_t)s[0].n_rows * (size_t)s[0].q_heads * (size_t)base.dim * sizeof(float));
    for (int i = 0; i < 2; i++) {
        close_rope(&t[i]);
        close_site(&s[i]);
    }
}

static void rope_inside_attention_gives_the_same_bits(void **state)
{
    (void)state;
    static const int lengths[] = {1, 0, 1, 300, 1, 63, 1, 64, 2, 127, 1, 16, 0}, drafts[] = {4, 61, 3, 0, 1, 200, 0};
    try_rope((struct site){.type = DT_F16, .dim = 64, .kv_heads = 2, .tokens = 16, .first_head = {0, 3, 6}}, lengths,
             132, 64);
    try_rope(
        (struct site){.type = DT_BF16, .dim = 128, .kv_heads = 2, .tokens = 48, .window = 70, .first_head = {0, 8, 15}},
        lengths, 2, 128);
    try_rope((struct site){.type = DT_F8, .dim = 128, .kv_heads = 1, .tokens = 16, .first_head = {0, 4}}, drafts, 132,
             20);
    try_rope((struct site){.type = DT_F8, .dim = 64, .kv_heads = 2, .tokens = 32, .first_head = {0, 4, 5}}, drafts, 1,
             0);
}

/* What is no number shows in whatever sees it. */
static void nan_in_fp8_shows(void **state)
{
    (void)state;
    static const int lengths[] = {1, 20, 20, 0, 0};
    struct site s = {.type = DT_F8, .dim = 64, .kv_heads = 1, .q_heads = 1, .tokens = 16, .first_head = {0, 1}};
    struct rng r;
    rng_init(&r, 13);
    open_site(&s, lengths, &r);
    cached(&s, 0, 0, 7, false)[5] = 0xff;
    cached(&s, 1, 0, 9, true)[3] = 0x7f;
    run(&s, 132);
    assert_true(isnan(s.out[0]) && isnan(s.out[63]));
    for (int row = 0; row < 20; row++)
        for (int c = 0; c < 64; c++)
            if (c != 3 ? isnan(s.out[(1 + row) * 64 + c]) : row >= 9 && !isnan(s.out[(1 + row) * 64 + c]))
                fail_msg("row %d element %d", row, c);
    close_site(&s);
}

/* Several rounds of positions and tiles of queries, chunks that begin in the middle, both or one group of queries; all
 * sizes of blocks and of groups of heads. */
static void long_prompts(void **state)
{
    (void)state;
    static const int one[] = {290, 0, 1, 40, 0}, chunk[] = {100, 431, 0},
                     mixed[] = {40, 0, 130, 257, 17, 383, 2, 30, 0}, tiny[] = {18, 0, 17, 127, 0};
    try_site(&(struct site){.type = DT_BF16, .dim = 128, .kv_heads = 1, .tokens = 16, .first_head = {0, 4}}, one, 132,
             20);
    try_site(
        &(struct site){.either = true, .type = DT_F16, .dim = 64, .kv_heads = 1, .tokens = 256, .first_head = {0, 1}},
        one, 132, 21);
    try_site(
        &(struct site){
            .either = true, .type = DT_F16, .dim = 128, .kv_heads = 2, .tokens = 64, .first_head = {0, 2, 4}},
        chunk, 132, 22);
    try_site(
        &(struct site){.either = true, .type = DT_BF16, .dim = 64, .kv_heads = 1, .tokens = 48, .first_head = {0, 7}},
        mixed, 132, 23);
    try_site(
        &(struct site){.either = true, .type = DT_BF16, .dim = 128, .kv_heads = 1, .tokens = 32, .first_head = {0, 8}},
        tiny, 132, 24);
    try_site(
        &(struct site){
            .type = DT_BF16, .dim = 128, .kv_heads = 2, .tokens = 48, .window = 150, .first_head = {0, 1, 4}},
        mixed, 132, 25);
    try_site(&(struct site){.either = true,
                            .type = DT_F16,
                            .dim = 64,
                            .kv_heads = 1,
                            .tokens = 16,
                            .window = 300,
                            .first_head = {0, 1}},
             chunk, 132, 26);
    try_site(
        &(struct site){
            .either = true, .type = DT_F16, .dim = 64, .kv_heads = 1, .tokens = 64, .window = 3, .first_head = {0, 2}},
        mixed, 132, 27);
}

/* What a query does not see may be anything that is a number, what no query sees anything at all: positions after the
 * last one are NaN here (open_site), a value that is infinite shows in those that see it alone. */
static void what_is_not_seen_does_not_count(void **state)
{
    (void)state;
    static const int lengths[] = {140, 0, 0};
    struct site s = {.type = DT_BF16, .dim = 128, .kv_heads = 1, .q_heads = 2, .tokens = 256, .first_head = {0, 2}};
    struct rng r;
    rng_init(&r, 14);
    open_site(&s, lengths, &r);
    s.hopper = has_hopper(&s);
    put(s.type, cached(&s, 0, 0, 133, false), 5, 1e30f);
    run(&s, 132);
    check_rows(&s, 0, 133);
    close_site(&s);
}

/* Every tile of every sequence with many queries once, those that see most first. */
static void check_wide(const struct batch *b, const struct flash_shape *shape, const struct flash_item *items, int n)
{
    int wanted = 0;
    for (int i = 0; i < b->n_seqs; i++) {
        int queries = b->seqs[i].n_rows * shape->most_heads;
        for (int tile = 0; queries > FLASH_ROWS && tile * shape->tile < queries; tile++, wanted++) {
            int found = 0;
            for (int k = 0; k < n; k++)
                found += items[k].seq == i && items[k].tile == tile;
            assert_int_equal(found, 1);
        }
    }
    assert_int_equal(n, wanted);
    for (int k = 1; k < n; k++)
        assert_true(items[k].key1 - items[k].key0 <= items[k - 1].key1 - items[k - 1].key0);
}

/* A cache so long, and a device so large, that shorter parts would be too many. */
static void parts_of_a_tile_are_bounded(void **state)
{
    struct flash_shape shape = {.kv_heads = 1, .most_heads = 4, .n_sms = 1000, .tile = FLASH_TILE};
    struct batch_seq seq = {0, 1, 2000 * FLASH_KEYS, NULL, NULL};
    struct batch b = {.n_rows = 1, .n_seqs = 1, .seqs = &seq};
    struct flash_plan p;
    (void)state;
    flash_plan(&p, &b, &shape, NULL);
    assert_true(p.n_parts > FLASH_MOST_PARTS / 2 && p.n_parts <= FLASH_MOST_PARTS && p.n_parts == p.n_narrow);
}

/* Random batches: every query of every sequence is in one item, every position it sees in one part. */
static void plans_cover_everything_once(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 1);
    for (int round = 0; round < 500; round++) {
        struct batch_seq seqs[MAX_SEQS];
        struct flash_shape shape = {.kv_heads = 1 + (int)rng_below(&r, 8),
                                    .most_heads = 1 + (int)rng_below(&r, 9),
                                    .n_sms = 1 + (int)rng_below(&r, 200),
                                    .tile = rng_below(&r, 2) ? FLASH_TILE : FLASH_HOPPER_TILE,
                                    .window = rng_below(&r, 2) ? 0 : 1 + (int)rng_below(&r, 300)};
        struct batch b = {.n_seqs = 1 + (int)rng_below(&r, MAX_SEQS), .seqs = seqs};
        for (int i = 0; i < b.n_seqs; i++, b.n_rows += seqs[i - 1].n_rows)
            seqs[i] = (struct batch_seq){b.n_rows, (int)rng_below(&r, rng_below(&r, 2) ? 3 : 90),
                                         (int)rng_below(&r, 5000), NULL, NULL};
        struct flash_plan p;
        flash_plan(&p, &b, &shape, NULL);
        struct flash_item *items = mem_new_array((size_t)(p.n_wide + p.n_narrow + 1), sizeof *items);
        flash_plan(&p, &b, &shape, items);
        int slots = 0, parts = 0, at = p.n_wide;
        check_wide(&b, &shape, items, p.n_wide);
        for (int i = 0; i < b.n_seqs; i++) {
            int end = seqs[i].pos0 + seqs[i].n_rows,
                lowest = shape.window && seqs[i].pos0 >= shape.window ? seqs[i].pos0 - shape.window + 1 : 0;
            if (seqs[i].n_rows == 0 || seqs[i].n_rows * shape.most_heads > FLASH_ROWS)
                continue;
            int key = items[at].key0, n = items[at].n_parts;
            for (int k = 0; k < n; k++, at++) {
                assert_true(items[at].seq == i && items[at].part == k && items[at].n_parts == n &&
                            items[at].key0 == key && items[at].key1 > key);
                assert_true(key % FLASH_KEYS == 0 && (k > 0 || (key <= lowest && key + FLASH_KEYS > lowest)));
                assert_true(n == 1 || (items[at].slot == slots && items[at].part0 == parts));
                key = items[at].key1;
            }
            assert_true(key == end);
            slots += n > 1;
            parts += n > 1 ? n : 0;
        }
        assert_true(at == p.n_wide + p.n_narrow && slots == p.n_slots && parts == p.n_parts);
        mem_free(items);
    }
}

static void what_it_cannot_it_refuses(void **state)
{
    (void)state;
    struct flash_job j = {.most_items = 1, .kv = {.type = DT_F32, .head_dim = 64}};
    assert_int_equal(launch_flash(NULL, &j), cudaErrorInvalidValue);
    assert_false(flash_can(DT_F16, 80));
    assert_true(flash_can(DT_BF16, 128));
    assert_true(flash_can(DT_F8, 64));
    assert_false(flash_hopper_can(DT_F8, 64));
    assert_false(flash_hopper_can(DT_F32, 128));
    assert_false(flash_hopper_can(DT_F16, 80));
    j.wide = j.hopper = true;
    assert_int_equal(launch_flash(NULL, &j), cudaErrorInvalidValue);
    j.kv.type = DT_F8;
    assert_int_equal(launch_flash(NULL, &j), cudaErrorInvalidValue);
    assert_int_equal(flash_prepare(), cudaSuccess);
}

int main(int argc, char **argv)
{
    plain_only = argc > 1 && !strcmp(argv[1], "--plain");
    if (!unified_here() || flash_prepare()) {
        puts("no GPU here: nothing was checked");
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_in_one_part),
        cmocka_unit_test(decodes_in_parts),
        cmocka_unit_test(chunks_of_prompts),
        cmocka_unit_test(long_prompts),
        cmocka_unit_test(what_is_not_seen_does_not_count),
        cmocka_unit_test(caches_of_fp8),
        cmocka_unit_test(nan_in_fp8_shows),
        cmocka_unit_test(mixed_steps_and_uneven_heads),
        cmocka_unit_test(windows_slide),
        cmocka_unit_test(what_it_cannot_it_refuses),
        cmocka_unit_test(plans_cover_everything_once),
        cmocka_unit_test(parts_of_a_tile_are_bounded),
        cmocka_unit_test(rope_inside_attention_gives_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
