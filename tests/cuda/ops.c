/* Every op of the CUDA backend beside its CPU twin: the same inputs, the same bits in invariant mode, and in the
 * default mode what rounding to 16 bits allows. Built over tests/emulator for machines without a GPU, and for a GPU
 * where the toolkit is; there it passes over itself, and says so, when no GPU is found. Draws and ids are equal;
 * logprobs, and angles on a GPU, may differ by rounding of the device's own logarithm and sine. */
#include "engine/base/mem.h"
#include "kernels/cuda/job.h"
#include "tests/rig/op_fixture.h"
#include "tests/rig/unified.h"

#if defined(EMULATED)
void emulator_order(int descending);
enum { ANGLES_EXACT = 1 };
#else
static void emulator_order(int descending)
{
    (void)descending;
}
enum { ANGLES_EXACT = 0 };
#endif

enum { MAX_ROWS = 260, N_SIDES = 2 };

/* The CPU's device, then the GPU's. */
struct side {
    const struct backend_ops *ops;
    struct device *d;
};
struct pair {
    struct side side[N_SIDES];
    bool exact;
    double rms, most; /* else: errors allowed, in units of the values' root mean square */
};

static int open_pair(void **state, bool invariant)
{
    struct pair *p = mem_new(sizeof *p);
    struct err e = {0};
    p->side[0].ops = backend_cpu();
    p->side[1].ops = backend_cuda();
    if (p->side[1].ops->n_devices() == 0) {
        print_message("no GPU here: nothing of the CUDA backend was checked\n");
        mem_free(p);
        *state = NULL;
        return 0;
    }
    struct device_opts o = {.n_threads = 1, .max_rows = MAX_ROWS, .max_logits = MAX_ROWS, .invariant = invariant};
    p->exact = invariant;
    p->rms = 0.01;
    p->most = 0.06;
    for (int i = 0; i < N_SIDES; i++)
        if (p->side[i].ops->open(&p->side[i].d, &o, &e))
            fail_msg("%s", e.text);
    *state = p;
    return 0;
}

static int open_invariant(void **state)
{
    return open_pair(state, true);
}

static int open_default(void **state)
{
    return open_pair(state, false);
}

static int close_pair(void **state)
{
    struct pair *p = *state;
    for (int i = 0; i < N_SIDES && p; i++)
        p->side[i].ops->close(p->side[i].d);
    mem_free(p);
    return 0;
}

static struct pair *pair_or_skip(void **state)
{
    if (!*state)
        skip();
    return *state;
}

static void *put(const struct side *s, const void *host, size_t bytes)
{
    void *p = s->ops->alloc(s->d, bytes);
    assert_non_null(p);
    if (host)
        assert_int_equal(s->ops->upload(s->d, p, host, bytes), 0);
    return p;
}

static void drop(const struct side *s, void *p)
{
    s->ops->release(s->d, p);
}

static void near_enough(const struct pair *p, float *const host[N_SIDES], size_t n, const char *what)
{
    double size = 0, off = 0, most = 0;
    for (size_t k = 0; k < n; k++) {
        double x = (double)host[0][k], e = fabs((double)host[1][k] - x);
        size += x * x;
        off += e * e;
        most = e > most || e != e ? e : most;
    }
    size = sqrt(size / (double)n);
    off = sqrt(off / (double)n);
    if (!(off <= p->rms * size) || !(most <= p->most * size))
        fail_msg("%s: off by %.3g, at most %.3g, where the values' size is %.3g", what, off, most, size);
}

/* n floats of both sides: the same bits, or near enough. */
static void same(const struct pair *p, void *const data[N_SIDES], size_t n, const char *what)
{
    float *host[N_SIDES];
    for (int i = 0; i < N_SIDES; i++) {
        host[i] = mem_new_array(n, sizeof(float));
        assert_int_equal(p->side[i].ops->download(p->side[i].d, host[i], data[i], n * sizeof(float)), 0);
    }
    if (!p->exact)
        near_enough(p, host, n, what);
    for (size_t k = 0; k < n && p->exact; k++)
        if (memcmp(&host[0][k], &host[1][k], sizeof(float)))
            fail_msg("%s: element %zu is %a on the GPU, %a on the CPU", what, k, (double)host[1][k],
                     (double)host[0][k]);
    for (int i = 0; i < N_SIDES; i++)
        mem_free(host[i]);
}

static void begin(const struct side *s, const struct batch *b, const struct rope *rope)
{
    struct err e = {0};
    if (s->ops->begin(s->d, b, rope, &e))
        fail_msg("%s", e.text);
}

static void end(const struct side *s)
{
    struct err e = {0};
    struct step_time t;
    if (s->ops->finish(s->d, &t, &e))
        fail_msg("%s", e.text);
    assert_true(t.ns >= 0);
}

static void begin_plain(const struct side *s, int rows)
{
    static const int32_t zeros[MAX_ROWS];
    struct batch b = {.n_rows = rows, .ids = zeros, .positions = zeros};
    begin(s, &b, NULL);
}

/* ---- linear */

static const enum dtype types[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q4_0, DT_Q4_1, DT_Q5_0,
                                   DT_Q5_1, DT_Q8_0, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_F8_SCALED};
enum { N_TYPES = sizeof types / sizeof *types };

struct linear_case {
    enum linear_in in;
    int rows, outs, cols, row0, n_outs, col0, n_cols; /* the matrix, the window */
    bool bias, accumulate;
};

static void check_linear(struct pair *p, struct rng *r, enum dtype t, const struct linear_case *c)
{
    struct weight_src src = random_matrix(r, t, c->outs, c->cols);
    int ld = (c->n_cols + 15) / 16 * 16, ldy = (c->n_outs + 15) / 16 * 16;
    size_t n_x = (size_t)c->rows * (size_t)ld, n_y = (size_t)c->rows * (size_t)ldy;
    float *x = random_floats(r, n_x, 2.0f), *x2 = random_floats(r, n_x, 1.0f),
          *gain = random_floats(r, (size_t)c->n_cols, 1.0f);
    float *bias = random_floats(r, (size_t)c->n_outs, 1.0f), *y = random_floats(r, n_y, 1.0f);
    void *out[N_SIDES];
    for (int i = 0; i < N_SIDES; i++) {
        const struct side *s = &p->side[i];
        struct weight *w = NULL;
        struct err e = {0};
        if (s->ops->weight_load(s->d, &w, &src, &e))
            fail_msg("%s", e.text);
        void *dx = put(s, x, n_x * 4), *dx2 = put(s, x2, n_x * 4), *dgain = put(s, gain, (size_t)c->n_cols * 4),
             *dbias = put(s, bias, (size_t)c->n_outs * 4);
        out[i] = put(s, y, n_y * 4);
        struct linear_args a = {.in = c->in,
                                .x = {dx, c->n_cols, ld},
                                .x2 = {dx2, c->n_cols, ld},
                                .gain = dgain,
                                .eps = 1e-5f,
                                .rows = c->rows,
                                .accumulate = c->accumulate,
                                .n_out = 1};
        a.out[0] = (struct linear_out){
            {w, c->row0, c->n_outs, c->col0, c->n_cols}, c->bias ? dbias : NULL, {out[i], c->n_outs, ldy, false}};
        begin_plain(s, c->rows);
        s->ops->linear(s->d, &a);
        end(s);
        s->ops->weight_free(s->d, w);
        drop(s, dx), drop(s, dx2), drop(s, dgain), drop(s, dbias);
    }
    same(p, out, n_y, dtype_get(t)->name);
    for (int i = 0; i < N_SIDES; i++)
        drop(&p->side[i], out[i]);
    free(x), free(x2), free(gain), free(bias), free(y), free((void *)src.data);
}

static void linear_of_every_type(void **state)
{
    static const struct linear_case cases[] = {
        {LINEAR_PLAIN, 1, 16, 256, 0, 16, 0, 256, false, false},
        {LINEAR_NORM, 3, 37, 768, 16, 21, 0, 768, true, false},
        {LINEAR_SWIGLU, 9, 20, 2304, 0, 20, 0, 2304, false, true},
        {LINEAR_PLAIN, 17, 33, 1280, 0, 33, 192, 832, true, true}, /* leaves 3 to 15 */
        {LINEAR_PLAIN, 2, 18, 5376, 0, 18, 2112, 3264, false,
         false}, /* leaves 33 to 83: spans of 32 that are not whole */
        {LINEAR_PLAIN, 1, 9, 4352, 0, 9, 0, 4352, false, false},
        {LINEAR_NORM, 31, 40, 1024, 0, 40, 0, 1024, false, true},
        {LINEAR_SWIGLU, 50, 70, 1280, 16, 54, 64, 1152, true, true},
        {LINEAR_NORM, 257, 70, 512, 16, 54, 64, 384, true, true},
    };
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 1);
    for (int t = 0; t < N_TYPES; t++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (cases[i].rows < 100 || t % 4 == 2 ||
                types[t] == DT_F8_SCALED) /* BF16, Q5_1, Q6_K, fp8: many rows take the emulator long */
                check_linear(p, &r, types[t], &cases[i]);
}

static void linear_of_odd_columns(void **state)
{
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 2);
    for (int t = 0; t < 3; t++)
        check_linear(p, &r, types[t], &(struct linear_case){LINEAR_NORM, 5, 33, 100, 0, 33, 0, 100, true, true});
    for (int t = 3; t < 8; t++)
        check_linear(p, &r, types[t], &(struct linear_case){LINEAR_PLAIN, 5, 17, 288, 0, 17, 0, 288, false, false});
}

/* q, k and v: three outputs of one input, the last of another type. */
static void linear_of_three_outputs(void **state)
{
    enum { COLS = 384, LD = 80 };
    static const int outs[3] = {70, 32, 16}, batches[] = {3, 20, 40};
    static const enum dtype kinds[][3] = {{DT_Q4_K, DT_Q4_K, DT_Q6_K}, {DT_Q4_K, DT_Q5_K, DT_Q6_K},
                                          {DT_Q5_K, DT_Q6_K, DT_Q6_K}, {DT_Q4_K, DT_Q6_K, DT_Q4_K},
                                          {DT_Q4_K, DT_Q4_K, DT_Q5_K}, {DT_Q5_0, DT_Q5_0, DT_Q8_0},
                                          {DT_Q5_1, DT_Q5_1, DT_Q8_0}, {DT_BF16, DT_BF16, DT_BF16},
                                          {DT_F16, DT_F32, DT_Q8_0},   {DT_Q5_1, DT_Q5_1, DT_Q5_1}};
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 7);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t b = 0; b < 3; b++) {
            int rows = batches[b], cols = k < 5 ? 512 : COLS;
            struct weight_src src[3];
            float *x = random_floats(&r, (size_t)(rows * cols), 2), *gain = random_floats(&r, (size_t)cols, 1),
                  *bias = random_floats(&r, LD, 1);
            void *out[3][N_SIDES];
            for (int i = 0; i < 3; i++)
                src[i] = random_matrix(&r, kinds[k][i], outs[i], cols);
            for (int s = 0; s < N_SIDES; s++) {
                const struct side *e = &p->side[s];
                struct weight *w[3];
                void *dx = put(e, x, (size_t)(rows * cols) * 4), *dgain = put(e, gain, (size_t)cols * 4),
                     *dbias = put(e, bias, LD * 4);
                struct linear_args a = {
                    .in = LINEAR_NORM, .x = {dx, cols, cols}, .gain = dgain, .eps = 1e-5f, .rows = rows, .n_out = 3};
                for (int i = 0; i < 3; i++) {
                    assert_int_equal(e->ops->weight_load(e->d, &w[i], &src[i], NULL), 0);
                    out[i][s] = put(e, NULL, (size_t)(rows * LD) * 4);
                    a.out[i] = (struct linear_out){
                        {w[i], 0, outs[i], 0, cols}, i == 1 ? dbias : NULL, {out[i][s], outs[i], LD, false}};
                }
                begin_plain(e, rows);
                e->ops->linear(e->d, &a);
                end(e);
                drop(e, dx), drop(e, dgain), drop(e, dbias);
                for (int i = 0; i < 3; i++)
                    e->ops->weight_free(e->d, w[i]);
            }
            for (int i = 0; i < 3; i++) {
                same(p, out[i], (size_t)(rows * LD), "one of three outputs");
                drop(&p->side[0], out[i][0]), drop(&p->side[1], out[i][1]);
                free((void *)src[i].data);
            }
            free(x), free(gain), free(bias);
        }
}

enum { GATED_COLS = 512, GATED_OUTS = 70, GATED_LD = 80 };

/* Gate and up of one side; the CPU's side gates nothing. */
static void gate_and_up(const struct side *s, const struct weight_src src[2], const float *x, int rows, float *to[2])
{
    size_t n_y = (size_t)rows * GATED_LD * sizeof(float);
    struct weight *w[2];
    void *dx = put(s, x, (size_t)rows * GATED_COLS * sizeof(float)), *y[2];
    struct linear_args a = {
        .x = {dx, GATED_COLS, GATED_COLS}, .rows = rows, .n_out = 2, .gated = s->ops == backend_cuda()};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s->ops->weight_load(s->d, &w[i], &src[i], NULL), 0);
        memset(to[i], 0, n_y);
        y[i] = put(s, to[i], n_y);
        a.out[i] = (struct linear_out){{w[i], 0, GATED_OUTS, 0, GATED_COLS}, NULL, {y[i], GATED_OUTS, GATED_LD, false}};
    }
    begin_plain(s, rows);
    s->ops->linear(s->d, &a);
    end(s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s->ops->download(s->d, to[i], y[i], n_y), 0);
        s->ops->weight_free(s->d, w[i]);
        drop(s, y[i]);
    }
    drop(s, dx);
}

/* By the kernel that multiplies them, or afterwards: two types, many rows, f32. */
static void gated_outputs(void **state)
{
    static const enum dtype kinds[][2] = {{DT_BF16, DT_BF16}, {DT_Q4_K, DT_Q6_K}, {DT_Q8_0, DT_Q8_0}, {DT_F32, DT_F32}};
    static const int batches[] = {3, 12, 40, 90};
    struct pair *p = pair_or_skip(state), close = *p;
    struct rng r;
    rng_init(&r, 8);
    close.rms = p->exact ? 1e-6 : p->rms;
    close.most = p->exact ? 1e-5 : p->most;
    for (size_t k = 0; k < 4; k++)
        for (size_t b = 0; b < 4; b++) {
            size_t n = (size_t)batches[b] * GATED_LD;
            struct weight_src src[2];
            float *x = random_floats(&r, (size_t)batches[b] * GATED_COLS, 2), *to[N_SIDES][2];
            for (int i = 0; i < 2; i++)
                src[i] = random_matrix(&r, kinds[k][i], GATED_OUTS, GATED_COLS);
            for (int s = 0; s < N_SIDES; s++) {
                to[s][0] = mem_new_array(n, sizeof(float)), to[s][1] = mem_new_array(n, sizeof(float));
                gate_and_up(&p->side[s], src, x, batches[b], to[s]);
            }
            for (size_t i = 0; i < n; i++)
                to[0][0][i] = (float)((double)to[0][0][i] / (1 + exp(-(double)to[0][0][i])) * (double)to[0][1][i]);
            near_enough(&close, (float *const[]){to[0][0], to[1][0]}, n, dtype_get(kinds[k][0])->name);
            for (int s = 0; s < N_SIDES; s++)
                mem_free(to[s][0]), mem_free(to[s][1]);
            free(x), free((void *)src[0].data), free((void *)src[1].data);
        }
}

/* ---- rows */

static void embed_and_gather(void **state)
{
    enum { VOCAB = 40, COLS = 256, ROWS = 11 };
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 3);
    static const int32_t ids[ROWS] = {0, 39, 7, 7, 21, 3, 30, 1, 2, 38, 5}, positions[ROWS] = {0},
                         wanted[] = {2, 2, 5, 10};
    for (int t = 0; t < N_TYPES; t++) {
        struct weight_src src = random_matrix(&r, types[t], VOCAB, COLS);
        void *out[N_SIDES], *some[N_SIDES];
        for (int i = 0; i < N_SIDES; i++) {
            const struct side *s = &p->side[i];
            struct weight *w;
            struct batch b = {.n_rows = ROWS, .ids = ids, .positions = positions, .n_logits = 4, .logit_rows = wanted};
            assert_int_equal(s->ops->weight_load(s->d, &w, &src, NULL), 0);
            out[i] = put(s, NULL, ROWS * COLS * 4);
            some[i] = put(s, NULL, 4 * COLS * 4);
            begin(s, &b, NULL);
            s->ops->embed(s->d, (struct wview){w, 0, VOCAB, 0, COLS}, act_of(out[i], COLS), 1, ROWS - 1);
            s->ops->gather(s->d, act_of(out[i], COLS), 2, act_of(some[i], COLS), 1, 3);
            end(s);
            s->ops->weight_free(s->d, w);
        }
        same(p, out, ROWS * COLS, "embed");
        same(p, some, 4 * COLS, "gather");
        for (int i = 0; i < N_SIDES; i++)
            drop(&p->side[i], out[i]), drop(&p->side[i], some[i]);
        free((void *)src.data);
    }
}

/* ---- attention */

struct attention_case {
    int n_q, n_kv, dim, window, tokens;
    enum dtype kv;
    bool gains, halves;
};

/* Two steps: a prefill of two sequences, then a chunk of the first and a decode of the second. Writes, turns, attends.
 */
static void check_attention(struct pair *p, struct rng *r, const struct attention_case *c)
{
    enum { BLOCKS = 24 };
    int q_cols = c->n_q * c->dim, kv_cols = c->n_kv * c->dim, rope_dim = c->dim / 4 * 2;
    float freq[128], *gain = random_floats(r, (size_t)c->dim, 1), *x[2], *k[2], *v[2];
    int32_t blocks[BLOCKS], heads[16], ids[MAX_ROWS] = {0}, positions[2][MAX_ROWS];
    struct batch_seq seqs[2][2] = {{{0, 40, 0, blocks, NULL}, {40, 20, 0, blocks + 12, NULL}},
                                   {{0, 15, 40, blocks, NULL}, {15, 1, 20, blocks + 12, NULL}}};
    int rows[2] = {60, 16};
    void *out[N_SIDES][2], *turned[N_SIDES];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7 + 3) % BLOCKS;
    for (int i = 0; i < c->n_q; i++)
        heads[i] = i * c->n_kv / c->n_q;
    for (int i = 0; i < rope_dim / 2; i++)
        freq[i] = powf(10000.0f, -2.0f * (float)i / (float)rope_dim);
    for (int step = 0; step < 2; step++) {
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < seqs[step][s].n_rows; i++)
                positions[step][seqs[step][s].row0 + i] = seqs[step][s].pos0 + i;
        x[step] = random_floats(r, (size_t)(rows[step] * q_cols), 1.5f);
        k[step] = random_floats(r, (size_t)(rows[step] * kv_cols), 1.5f);
        v[step] = random_floats(r, (size_t)(rows[step] * kv_cols), 1);
    }
    for (int i = 0; i < N_SIDES; i++) {
        const struct side *s = &p->side[i];
        size_t bytes = s->ops->kv_block_bytes(c->kv, c->tokens, c->n_kv, c->dim);
        assert_true(bytes > 0);
        struct kv_space space = {put(s, NULL, bytes * BLOCKS * 2), bytes, BLOCKS, 2, c->kv};
        struct kv_view view = {&space, 1, c->tokens, c->n_kv, c->dim};
        struct rope rope = {c->halves, ANGLES_EXACT ? rope_dim : 0, freq, 1.25f};
        void *dgain = put(s, gain, (size_t)c->dim * 4);
        for (int step = 0; step < 2; step++) {
            struct batch b = {
                .n_rows = rows[step], .ids = ids, .positions = positions[step], .n_seqs = 2, .seqs = seqs[step]};
            void *dq = put(s, x[step], (size_t)(rows[step] * q_cols) * 4),
                 *dk = put(s, k[step], (size_t)(rows[step] * kv_cols) * 4);
            void *dv = put(s, v[step], (size_t)(rows[step] * kv_cols) * 4);
            out[i][step] = put(s, NULL, (size_t)(rows[step] * q_cols) * 4);
            begin(s, &b, &rope);
            struct rope_args turn = {.q = act_of(dq, q_cols),
                                     .k = act_of(dk, kv_cols),
                                     .n_heads = c->n_q,
                                     .n_kv_heads = c->n_kv,
                                     .head_dim = c->dim,
                                     .rows = rows[step],
                                     .q_gain = c->gains ? dgain : NULL,
                                     .k_gain = c->gains ? dgain : NULL,
                                     .eps = 1e-6f};
            if (s->ops->rope_write && step == 1) {
                s->ops->rope_write(s->d, &turn, act_of(dv, kv_cols), &view);
            } else {
                s->ops->rope(s->d, &turn);
                s->ops->kv_write(s->d, act_of(dk, kv_cols), act_of(dv, kv_cols), &view);
            }
            s->ops->attention(s->d, &(struct attention_args){.q = act_of(dq, q_cols),
                                                             .out = act_of(out[i][step], q_cols),
                                                             .n_heads = c->n_q,
                                                             .kv_head = heads,
                                                             .kv = view,
                                                             .scale = 0.11f,
                                                             .window = c->window});
            end(s);
            drop(s, dk), drop(s, dv);
            if (step == 0)
                turned[i] = dq;
            else
                drop(s, dq);
        }
        drop(s, dgain), drop(s, space.base);
    }
    same(p, turned, (size_t)(rows[0] * q_cols), "rope");
    for (int step = 0; step < 2; step++)
        same(p, (void *const[]){out[0][step], out[1][step]}, (size_t)(rows[step] * q_cols), "attention");
    for (int i = 0; i < N_SIDES; i++)
        drop(&p->side[i], turned[i]), drop(&p->side[i], out[i][0]), drop(&p->side[i], out[i][1]);
    for (int step = 0; step < 2; step++)
        free(x[step]), free(k[step]), free(v[step]);
    free(gain);
}

/* A long cache, written in pieces, then one row of it and a few more: parts that are folded, windows that begin within
 * one. */
static void check_long(struct pair *p, struct rng *r, const struct attention_case *c)
{
    enum { LENGTH = 900, BLOCKS = 64, LAST = 3 };
    int q_cols = c->n_q * c->dim, kv_cols = c->n_kv * c->dim;
    int32_t blocks[BLOCKS], heads[16], ids[MAX_ROWS] = {0}, positions[MAX_ROWS] = {0};
    float *k = random_floats(r, (size_t)(LENGTH * kv_cols), 1.5f), *v = random_floats(r, (size_t)(LENGTH * kv_cols), 1);
    float *q = random_floats(r, (size_t)(LAST * q_cols), 1.5f);
    void *out[N_SIDES];
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = (i * 7 + 3) % BLOCKS;
    for (int i = 0; i < c->n_q; i++)
        heads[i] = i * c->n_kv / c->n_q;
    for (int i = 0; i < N_SIDES; i++) {
        const struct side *s = &p->side[i];
        size_t bytes = s->ops->kv_block_bytes(c->kv, c->tokens, c->n_kv, c->dim);
        struct kv_space space = {put(s, NULL, bytes * BLOCKS), bytes, BLOCKS, 1, c->kv};
        struct kv_view view = {&space, 0, c->tokens, c->n_kv, c->dim};
        void *dk = put(s, k, (size_t)(LENGTH * kv_cols) * 4), *dv = put(s, v, (size_t)(LENGTH * kv_cols) * 4),
             *dq = put(s, q, (size_t)(LAST * q_cols) * 4);
        out[i] = put(s, NULL, (size_t)(2 * LAST * q_cols) * 4);
        for (int at = 0, n; at < LENGTH; at += n) {
            n = LENGTH - at < 60 ? LENGTH - at : 60;
            struct batch_seq seq = {0, n, at, blocks, NULL};
            begin(s, &(struct batch){.n_rows = n, .ids = ids, .positions = positions, .n_seqs = 1, .seqs = &seq}, NULL);
            s->ops->kv_write(s->d, act_of((float *)dk + at * kv_cols, kv_cols),
                             act_of((float *)dv + at * kv_cols, kv_cols), &view);
            end(s);
        }
        for (int rows = 1; rows <= LAST; rows += LAST - 1) {
            struct batch_seq seq = {0, rows, LENGTH - rows, blocks, NULL};
            begin(s, &(struct batch){.n_rows = rows, .ids = ids, .positions = positions, .n_seqs = 1, .seqs = &seq},
                  NULL);
            s->ops->attention(
                s->d, &(struct attention_args){.q = act_of(dq, q_cols),
                                               .out = act_of((float *)out[i] + (rows > 1) * LAST * q_cols, q_cols),
                                               .n_heads = c->n_q,
                                               .kv_head = heads,
                                               .kv = view,
                                               .scale = 0.11f,
                                               .window = c->window});
            end(s);
        }
        drop(s, dk), drop(s, dv), drop(s, dq), drop(s, space.base);
    }
    same(p, (void *const[]){out[0], out[1]}, (size_t)q_cols, "decode");
    same(p, (void *const[]){(float *)out[0] + LAST * q_cols, (float *)out[1] + LAST * q_cols}, (size_t)(LAST * q_cols),
         "last rows");
    for (int i = 0; i < N_SIDES; i++)
        drop(&p->side[i], out[i]);
    free(k), free(v), free(q);
}

static void long_caches(void **state)
{
    static const struct attention_case cases[] = {{8, 2, 64, 0, 16, DT_F16, false, true},
                                                  {3, 3, 128, 517, 32, DT_F16, false, true},
                                                  {4, 1, 80, 0, 48, DT_BF16, false, true},
                                                  {6, 2, 128, 300, 32, DT_F8, false, true}};
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 6);
    p->rms = 0.02;
    p->most = 0.15;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_long(p, &r, &cases[i]);
}

static void attention_rope_and_cache(void **state)
{
    static const struct attention_case cases[] = {
        {8, 2, 64, 0, 16, DT_F16, false, true},   {9, 3, 64, 0, 16, DT_F16, true, false},
        {4, 4, 128, 13, 32, DT_BF16, true, true}, {16, 1, 24, 0, 16, DT_F32, false, true},
        {2, 1, 256, 0, 16, DT_F16, false, true},  {3, 3, 80, 33, 48, DT_F32, true, false},
        {4, 2, 64, 0, 16, DT_F8, false, true},    {3, 1, 40, 0, 32, DT_F8, false, true},
    };
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 4);
    p->rms = 0.02;
    p->most = 0.25;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int descending = 0; descending < 2; descending++) {
            emulator_order(descending);
            check_attention(p, &r, &cases[i]);
        }
    emulator_order(0);
}

/* ---- sampling */

static void close_to(float a, float b, const char *what)
{
    if (a != b && !(fabsf(a - b) <= 2e-6f * (1 + fabsf(b))))
        fail_msg("%s: %.9g on the GPU, %.9g on the CPU", what, (double)a, (double)b);
}

static void check_sample(struct pair *p, float *logits, int vocab, const struct sample_row *rows, int n)
{
    struct sample_result results[N_SIDES][MAX_ROWS];
    static const int32_t zeros[MAX_ROWS];
    for (int i = 0; i < N_SIDES; i++) {
        const struct side *s = &p->side[i];
        struct batch b = {.n_rows = n,
                          .ids = zeros,
                          .positions = zeros,
                          .n_logits = n,
                          .logit_rows = zeros,
                          .samples = rows,
                          .results = results[i]};
        void *d = put(s, logits, (size_t)n * (size_t)vocab * 4);
        begin(s, &b, NULL);
        int half = n / 2;
        s->ops->sample(s->d, act_of(d, vocab), vocab, 0, half);
        s->ops->sample(s->d, act_of((float *)d + (size_t)half * (size_t)vocab, vocab), vocab, half, n - half);
        end(s);
        drop(s, d);
    }
    for (int k = 0; k < n; k++) {
        const struct sample_result *cpu = &results[0][k], *gpu = &results[1][k];
        if (cpu->token != gpu->token || cpu->rank != gpu->rank || cpu->n_top != gpu->n_top ||
            memcmp(cpu->top_ids, gpu->top_ids, sizeof cpu->top_ids))
            fail_msg("row %d of %d: token %d (rank %d, top %d) on the GPU, %d (%d, %d) on the CPU", k, vocab,
                     gpu->token, gpu->rank, gpu->top_ids[0], cpu->token, cpu->rank, cpu->top_ids[0]);
        close_to(gpu->logprob, cpu->logprob, "logprob");
        for (int i = 0; i < cpu->n_top; i++)
            close_to(gpu->top_logprobs[i], cpu->top_logprobs[i], "top logprob");
    }
}

static void random_ways(struct rng *r, struct sampling *h, int n)
{
    for (int i = 0; i < n; i++) {
        h[i] = (struct sampling){
            .temperature = (float)(0.2 + 1.3 * rng_unit(r)), .top_p = 1, .repetition_penalty = 1, .seed = rng_next(r)};
        if (rng_below(r, 5) == 0)
            h[i].temperature = 0;
        if (rng_below(r, 2))
            h[i].top_p = (float)(0.05 + 0.95 * rng_unit(r));
        if (rng_below(r, 2))
            h[i].top_k = 1 + (int)rng_below(r, 60);
        if (rng_below(r, 3) == 0)
            h[i].min_p = (float)(0.3 * rng_unit(r));
        if (rng_below(r, 3) == 0)
            h[i].repetition_penalty = 1.3f;
        if (rng_below(r, 3) == 0)
            h[i].frequency_penalty = 0.5f, h[i].presence_penalty = -0.25f;
    }
}

/* Logits of few distinct values have many equals; every third row has something that is not a number. */
static float *random_logits(struct rng *r, int vocab, int n)
{
    float *x = random_floats(r, (size_t)n * (size_t)vocab, 3);
    for (int i = 0; i < n; i++) {
        float *row = x + (size_t)i * (size_t)vocab;
        for (int k = 0; i % 2 && k < vocab; k++)
            row[k] = roundf(row[k]) * (i % 4 == 1 ? 1.0f : 0.5f);
        if (i % 3 == 0)
            row[rng_below(r, (uint64_t)vocab)] = nanf(""), row[rng_below(r, (uint64_t)vocab)] = -INFINITY;
        if (i == 5)
            row[rng_below(r, (uint64_t)vocab)] = INFINITY;
        for (int k = 0; i == 7 && k < vocab; k++)
            row[k] = -INFINITY;
    }
    return x;
}

static void sampling_of_every_kind(void **state)
{
    enum { N = 24, TOKENS = 40 };
    static const int vocabs[] = {3, 64, 1000, 9003}; /* every fourth row of the last is read 16 bytes at a time */
    struct pair *p = pair_or_skip(state);
    struct rng r;
    rng_init(&r, 5);
    for (int round = 0; round < 12; round++) {
        int vocab = vocabs[round % 4];
        struct sampling ways[N];
        struct sample_row rows[N];
        int32_t prompt[TOKENS], output[TOKENS], banned[3], allowed[4] = {0, 1, 2, vocab};
        struct logit_bias bias[2] = {{1, 2.5f}, {2, -100}};
        for (int i = 0; i < TOKENS; i++)
            prompt[i] = (int32_t)rng_below(&r, (uint64_t)vocab), output[i] = (int32_t)rng_below(&r, (uint64_t)vocab);
        for (int i = 0; i < 3; i++)
            banned[i] = (int32_t)rng_below(&r, (uint64_t)vocab + 1);
        random_ways(&r, ways, N);
        for (int i = 0; i < N; i++) {
            if (i % 6 == 2)
                ways[i].bias = bias, ways[i].n_bias = 2;
            rows[i] = (struct sample_row){.how = &ways[i],
                                          .prompt = prompt,
                                          .output = output,
                                          .n_prompt = TOKENS,
                                          .n_output = i % 3 ? TOKENS : 0,
                                          .banned = banned,
                                          .n_banned = i % 5 == 1 ? 3 : 0,
                                          .allowed = allowed,
                                          .n_allowed = i % 6 == 5 ? 4 : 0,
                                          .position = rng_next(&r) % 1000,
                                          .given = i % 8 == 4 ? (int32_t)rng_below(&r, (uint64_t)vocab) : -1,
                                          .n_top = (int)rng_below(&r, 23) - 1};
        }
        float *x = random_logits(&r, vocab, N);
        emulator_order(round % 2);
        check_sample(p, x, vocab, rows, N);
        free(x);
    }
    emulator_order(0);
}

/* ---- the device */

static void refusals(void **state)
{
    struct pair *p = pair_or_skip(state);
    const struct side *s = &p->side[1];
    struct device *d = NULL;
    struct weight *w = NULL;
    struct err e = {0};
    static const int32_t zeros[MAX_ROWS + 1];
    struct batch b = {.n_rows = MAX_ROWS + 1, .ids = zeros, .positions = zeros};
    assert_int_equal(s->ops->open(&d, &(struct device_opts){.max_rows = 70000}, &e), E_INPUT);
    assert_int_equal(s->ops->open(&d, &(struct device_opts){.index = 4711, .invariant = true}, &e), E_INPUT);
    assert_null(d);
    assert_int_equal(s->ops->begin(s->d, &b, NULL, &e), E_FULL);
    assert_int_equal(s->ops->weight_load(s->d, &w, &(struct weight_src){DT_Q4_K, 4, 320, .data = zeros}, &e),
                     E_UNSUPPORTED);
    static const enum dtype cpu_alone[] = {DT_IQ4_NL, DT_IQ4_XS, DT_Q2_K, DT_Q3_K};
    for (size_t i = 0; i < sizeof cpu_alone / sizeof *cpu_alone; i++)
        assert_int_equal(s->ops->weight_load(s->d, &w, &(struct weight_src){cpu_alone[i], 4, 256, .data = zeros}, &e),
                         E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "Q3_K on GPUs"));
    assert_null(w);
    assert_int_equal(s->ops->kv_block_bytes(DT_Q8_0, 16, 1, 64), 0);
    assert_int_equal(s->ops->kv_block_bytes(DT_F8_SCALED, 16, 1, 64), 0);
    assert_int_equal(2 * s->ops->kv_block_bytes(DT_F8, 16, 3, 64), s->ops->kv_block_bytes(DT_F16, 16, 3, 64));
    assert_int_equal(s->ops->kv_block_bytes(DT_F16, 16, 1, 257), 0);
    assert_int_equal(s->ops->kv_block_bytes(DT_F16, 24, 1, 64), 0);
}

/* ---- how a captured step begins and ends */

enum { IDS = 16, FEEDS = 32, PIECE = 48, ITEMS = 64, WORDS = 96, FRAME = 160 };

struct turn_case {
    uint32_t turns[FLIGHTS], done;
    int from;
};

/* Each byte says whose it is; row 0 takes its token from the step before, row 1 the host's. */
static char *make_frame(int which, uint32_t turn)
{
    static const int32_t feeds[2] = {1, 0};
    char *f = unified(FRAME);
    int32_t ids[2] = {100 + which, 200 + which};
    memset(f, which + 1, FRAME);
    memcpy(f, &(struct frame_head){turn, 16, 32, 0}, sizeof(struct frame_head));
    memcpy(f + IDS, ids, sizeof ids);
    memcpy(f + FEEDS, feeds, sizeof feeds);
    return f;
}

static void check_turn(const struct turn_case *c)
{
    struct frame_turn *turn = unified(sizeof *turn);
    struct sample_out *results = unified(2 * sizeof *results);
    int32_t *fed = unified(2 * sizeof *fed);
    char *hosts[FLIGHTS] = {make_frame(0, c->turns[0]), make_frame(1, c->turns[1])}, *dev = unified(FRAME);
    *turn = (struct frame_turn){.done = c->done};
    fed[0] = 7, fed[1] = 8;
    struct frame_job j = {.hosts = {hosts[0], hosts[1]},
                          .dev = dev,
                          .turn = turn,
                          .pieces = {{PIECE, 16}},
                          .n_pieces = 1,
                          .items = ITEMS,
                          .words = WORDS,
                          .ids = IDS,
                          .feeds = FEEDS,
                          .fed = fed,
                          .results = results,
                          .n = 2};
    assert_int_equal(launch_fetch_frame(NULL, &j), cudaSuccess);
    unified_wait();
    assert_int_equal(turn->from, c->from);
    assert_int_equal(turn->now, c->turns[c->from]);
    assert_int_equal(turn->done, c->done);
    assert_int_equal(((int32_t *)(void *)(dev + IDS))[0], 7);
    assert_int_equal(((int32_t *)(void *)(dev + IDS))[1], 200 + c->from);
    for (int i = PIECE; i < FRAME; i++) { /* the piece, 16 bytes of items, 32 of words */
        bool copied = i < ITEMS + 16 || (i >= WORDS && i < WORDS + 32);
        assert_int_equal(dev[i], copied ? c->from + 1 : -1);
    }
    assert_int_equal(results[0].token, -1);
    assert_int_equal(results[1].token, -1);
    results[1].token = 5;
    assert_int_equal(
        launch_gather_tokens(
            NULL, &(struct gather_tokens_job){.results = {results}, .fed = fed, .turn = turn, .n_members = 1, .n = 2}),
        cudaSuccess);
    unified_wait();
    assert_int_equal(turn->done, c->turns[c->from]);
    assert_true(fed[0] == 7 && fed[1] == 5);
    unified_free(turn), unified_free(results), unified_free(fed), unified_free(dev);
    unified_free(hosts[0]), unified_free(hosts[1]);
}

static void the_frame_in_turn_is_taken(void **state)
{
    static const struct turn_case cases[] = {
        {{1, 0}, 0, 0},
        {{1, 2}, 0, 0},            /* the host is ahead */
        {{3, 2}, 1, 1},            /* and again */
        {{8, 6}, 6, 0},            /* 7 was filled in and never launched */
        {{UINT32_MAX, 0}, ~1u, 0}, /* turns begin anew */
        {{UINT32_MAX, 0}, UINT32_MAX, 1},
    };
    (void)state;
    if (!unified_here())
        skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_turn(&cases[i]);
}

int main(void)
{
#define BOTH_MODES(test)                                                                                               \
    cmocka_unit_test_setup_teardown(test, open_invariant, close_pair),                                                 \
    {                                                                                                                  \
#test " (default mode)", test, open_default, close_pair, NULL                                                  \
    }
    const struct CMUnitTest tests[] = {
        BOTH_MODES(linear_of_every_type),
        BOTH_MODES(linear_of_odd_columns),
        BOTH_MODES(linear_of_three_outputs),
        BOTH_MODES(gated_outputs),
        BOTH_MODES(embed_and_gather),
        BOTH_MODES(attention_rope_and_cache),
        BOTH_MODES(long_caches),
        cmocka_unit_test_setup_teardown(sampling_of_every_kind, open_invariant, close_pair),
        cmocka_unit_test_setup_teardown(refusals, open_invariant, close_pair),
        cmocka_unit_test(the_frame_in_turn_is_taken),
    };
#undef BOTH_MODES
    return cmocka_run_group_tests(tests, NULL, NULL);
}
