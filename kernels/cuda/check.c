/* A device is tried before it serves: each kernel that has a plainer one beside it computes something whose result is
 * known, or is compared with the plainer one, and what comes out wrong is left to that one from then on. What has no
 * other must be right, or the device does not open. It takes some ten launches of small kernels. Numbers are small
 * integers, which every type here has exactly. */
#include "kernels/cuda/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/fast.h"

enum {
    SIDE = 256,
    FEW = 4,
    SOME = 12,
    MORE = 24,
    MANY = 80,
    LONG = 130,
    HEADS = 4,
    BLOCK = 16,
    VOCAB = 512,
    MOST_DIM = 128
};
enum kind { AS_BF16, AS_F8_ROWS, AS_F8_BLOCKS, AS_INT8, KINDS };

/* A square matrix of each kind, an input of MANY rows and two outputs on the device. */
struct check {
    struct device *d;
    struct weight *w[KINDS];
    float *x, *y, *z;
    float *host; /* [MANY][SIDE] */
};

static const int32_t nothing[LONG];

/* ---- numbers */

static int weight_number(int out, int col)
{
    return (out * 7 + col * 3) % 5 - 2;
}

/* Of each row of a matrix, or of each 128 of them. */
static int scale_number(enum kind k, int out)
{
    return k == AS_BF16 || k == AS_INT8 ? 1 : k == AS_F8_ROWS ? 1 + out % 2 : 1 + out / F8_SCALE_BLOCK;
}

/* 7 is the largest in any 128 columns, so that the codes of fp8 are exact. */
static int input_number(int row, int col, int turn)
{
    return ((row + turn) * 5 + col * 4) % 15 - 7;
}

static void fill_row(void *to, enum kind k, int out)
{
    uint16_t *half = to;
    uint8_t *code = to;
    float scale = (float)scale_number(k, out);
    for (int col = 0; col < SIDE; col++) {
        float v = (float)weight_number(out, col);
        if (k == AS_BF16) {
            half[col] = f32_to_bf16(v);
            continue;
        }
        if (k == AS_INT8) { /* of 32 columns a scale and the integers: DT_Q8_0 */
            uint16_t one = f32_to_f16(1);
            if (col % BLOCK_COLS == 0) {
                memcpy(code, &one, sizeof one);
                code += sizeof one;
            }
            *code++ = (uint8_t)weight_number(out, col);
            continue;
        }
        if (col % LEAF_COLS == 0) { /* a scale and its 64 codes */
            memcpy(code, &scale, sizeof scale);
            code += sizeof scale;
        }
        *code++ = f32_to_f8(v);
    }
}

static int load(struct check *c, enum kind k, struct err *e)
{
    struct weight_src src = {.type = k == AS_BF16   ? DT_BF16
                                     : k == AS_INT8 ? DT_Q8_0
                                                    : DT_F8_SCALED,
                             .rows = SIDE,
                             .cols = SIDE,
                             .scales = k == AS_F8_BLOCKS ? F8_BY_BLOCK : F8_BY_ROW};
    size_t bytes = dtype_row_bytes(src.type, SIDE);
    char *data = mem_new_array(SIDE, bytes);
    for (int out = 0; out < SIDE; out++)
        fill_row(data + (size_t)out * bytes, k, out);
    src.data = data;
    int rc = cuda_weight_load(c->d, &c->w[k], &src, e);
    mem_free(data);
    return rc;
}

/* ---- moving numbers */

static bool send(struct check *c, float *to, size_t n)
{
    return backend_cuda()->upload(c->d, to, c->host, n * sizeof *to) == 0;
}

static bool fetch(struct check *c, float *to, const float *from, size_t n)
{
    return backend_cuda()->download(c->d, to, from, n * sizeof *from) == 0;
}

/* Numbers that are bf16 on the device. */
static bool fetch_halves(struct check *c, float *to, const float *from, size_t n)
{
    const uint16_t *half = (const uint16_t *)(const void *)to;
    if (backend_cuda()->download(c->d, to, from, n * sizeof *half))
        return false;
    for (size_t i = n; i-- > 0;) { /* from the last on: they lie in the same place */
        float v = bf16_to_f32(half[i]);
        memcpy(&to[i], &v, sizeof v);
    }
    return true;
}

static bool send_input(struct check *c, int rows, int turn)
{
    for (int row = 0; row < rows; row++)
        for (int col = 0; col < SIDE; col++)
            c->host[row * SIDE + col] = (float)input_number(row, col, turn);
    return send(c, c->x, (size_t)rows * SIDE);
}

/* ---- products */

static struct linear_args product_of(const struct check *c, enum kind k, float *from, float *to, int rows)
{
    return (struct linear_args){.in = LINEAR_PLAIN,
                                .x = {from, SIDE, SIDE, false},
                                .rows = rows,
                                .n_out = 1,
                                .out = {{{c->w[k], 0, SIDE, 0, SIDE}, NULL, {to, SIDE, SIDE, false}}}};
}

/* One output of the product of an input; *size: that of its terms. */
static double output_number(enum kind k, const double *in, int out, double *size)
{
    double sum = 0;
    *size = 0;
    for (int col = 0; col < SIDE; col++) {
        double t = in[col] * weight_number(out, col) * scale_number(k, out);
        sum += t;
        *size += fabs(t);
    }
    return sum;
}

/* What is rounded to 16 bits on the way is off by less than one in 200 of the terms, what is wrong by more. */
static bool near(double is, double should, double size)
{
    return fabs(is - should) <= size / 200;
}

static bool outputs_are_right(const struct check *c, enum kind k, int rows)
{
    double in[SIDE], size;
    for (int row = 0; row < rows; row++) {
        for (int col = 0; col < SIDE; col++)
            in[col] = input_number(row, col, 0);
        for (int out = 0; out < SIDE; out++) {
            double should = output_number(k, in, out, &size);
            if (!near((double)c->host[row * SIDE + out], should, size))
                return false;
        }
    }
    return true;
}

static bool product_is_right(struct check *c, enum kind k, int rows, bool half)
{
    size_t n = (size_t)rows * SIDE;
    struct batch b = {.n_rows = rows, .ids = nothing, .positions = nothing};
    struct linear_args a = product_of(c, k, c->x, c->y, rows);
    struct err e = {0};
    a.out[0].y.half = half;
    if (!send_input(c, rows, 0) || cuda_begin(c->d, &b, NULL, &e))
        return false;
    cuda_product(c->d, &a);
    return cuda_finish(c->d, NULL, &e) == 0 &&
           (half ? fetch_halves(c, c->host, c->y, n) : fetch(c, c->host, c->y, n)) && outputs_are_right(c, k, rows);
}

/* ---- attention */

static float noise(int i)
{
    return (float)(i * 37 % 101 - 50) / 64;
}

/* A prompt's queries, keys and values on the device, a cache for them and what attention makes of them. */
struct prompt {
    struct kv_space space;
    struct kv_view kv;
    int rows;
    size_t n; /* numbers of all queries */
    float *at;
    float *one, *other; /* results [n] */
};

static bool open_prompt(struct check *c, struct prompt *p, enum dtype type, int dim)
{
    int rows = c->d->opts.max_rows < LONG ? c->d->opts.max_rows : LONG;
    size_t n = (size_t)rows * (size_t)(HEADS * dim), all = 2 * n + 2 * (size_t)rows * (size_t)dim;
    *p = (struct prompt){.space = {.block_bytes = cuda_kv_block_bytes(type, BLOCK, 1, dim),
                                   .n_blocks = LONG / BLOCK + 1,
                                   .n_layers = 1,
                                   .dtype = type},
                         .kv = {.space = &p->space, .tokens_per_block = BLOCK, .n_kv_heads = 1, .head_dim = dim},
                         .rows = rows,
                         .n = n,
                         .at = backend_cuda()->alloc(c->d, all * sizeof *p->at),
                         .one = mem_new_array(all, sizeof *p->one),
                         .other = mem_new_array(n, sizeof *p->other)};
    p->space.base = backend_cuda()->alloc(c->d, p->space.block_bytes * (size_t)p->space.n_blocks);
    for (size_t i = 0; i < all; i++)
        p->one[i] = noise((int)i);
    return p->at && p->space.base && backend_cuda()->upload(c->d, p->at, p->one, all * sizeof *p->at) == 0;
}

static void close_prompt(struct check *c, struct prompt *p)
{
    backend_cuda()->release(c->d, p->at);
    backend_cuda()->release(c->d, p->space.base);
    mem_free(p->one), mem_free(p->other);
}

/* The prompt's queries over its own keys and values, by the kernel that the device would take. half: queries and
 * results are bf16, which has all of `noise`. */
static bool attend(struct check *c, struct prompt *p, float *out, bool half)
{
    static const int kv_head[HEADS] = {0};
    int dim = p->kv.head_dim;
    float *k = p->at + p->n, *v = k + (size_t)p->rows * (size_t)dim, *y = v + (size_t)p->rows * (size_t)dim;
    int32_t blocks[LONG / BLOCK + 1];
    for (int i = 0; i < LONG / BLOCK + 1; i++)
        blocks[i] = LONG / BLOCK - i;
    struct batch_seq seq = {.n_rows = p->rows, .blocks = blocks};
    struct batch b = {.n_rows = p->rows, .ids = nothing, .positions = nothing, .n_seqs = 1, .seqs = &seq};
    struct attention_args a = {.q = {p->at, HEADS * dim, HEADS * dim, half},
                               .out = {y, HEADS * dim, HEADS * dim, half},
                               .n_heads = HEADS,
                               .kv_head = kv_head,
                               .kv = p->kv,
                               .scale = 0.125f};
    struct err e = {0};
    if (cuda_begin(c->d, &b, NULL, &e))
        return false;
    cuda_kv_write(c->d, (struct act){k, dim, dim, false}, (struct act){v, dim, dim, false}, &p->kv);
    cuda_attention(c->d, &a);
    return cuda_finish(c->d, NULL, &e) == 0 && (half ? fetch_halves(c, out, y, p->n) : fetch(c, out, y, p->n));
}

static bool results_are_near(const struct prompt *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (!(fabsf(p->one[i] - p->other[i]) <= 0.02f))
            return false;
    return true;
}

/* Hopper's kernel beside the plain one. */
static bool kernels_agree(struct check *c, enum dtype type, int dim)
{
    struct prompt p;
    bool is_there = open_prompt(c, &p, type, dim), same = is_there && attend(c, &p, p.one, false);
    c->d->hopper = false;
    same = is_there && attend(c, &p, p.other, false) && same && results_are_near(&p);
    c->d->hopper = true;
    close_prompt(c, &p);
    return same;
}

static bool hopper_is_right(struct check *c)
{
    return kernels_agree(c, DT_BF16, 64) && kernels_agree(c, DT_BF16, MOST_DIM) && kernels_agree(c, DT_F16, 64) &&
           kernels_agree(c, DT_F16, MOST_DIM);
}

/* The kernel that the device takes, with queries and results in bf16 beside the same in f32. */
static bool halves_agree(struct check *c, int dim)
{
    struct prompt p;
    bool same = open_prompt(c, &p, DT_BF16, dim) && attend(c, &p, p.one, false);
    for (size_t i = 0; i < p.n; i++)
        ((uint16_t *)(void *)p.other)[i] = f32_to_bf16(noise((int)i));
    same = same && backend_cuda()->upload(c->d, p.at, p.other, p.n * sizeof(uint16_t)) == 0 &&
           attend(c, &p, p.other, true) && results_are_near(&p);
    close_prompt(c, &p);
    return same;
}

/* ---- graphs */

/* Two products, the second of the first's outputs: each kernel may begin before the one before it has ended. */
static bool record_chain(struct check *c, const struct graph_call *call)
{
    static const float freq[1] = {1};
    const struct rope rope = {.dim = 2, .inv_freq = freq, .scale = 1};
    struct linear_args first = product_of(c, AS_BF16, c->x, c->y, call->batch->n_rows),
                       second = product_of(c, AS_BF16, c->y, c->z, call->batch->n_rows);
    struct err e = {0};
    if (cuda_graph_begin(c->d, call, &rope, &e))
        return false;
    cuda_product(c->d, &first);
    cuda_product(c->d, &second);
    return cuda_graph_end(c->d, &e) == 0;
}

static bool chain_is_right(const struct check *c, int rows, int turn)
{
    double in[SIDE], mid[SIDE], size;
    for (int row = 0; row < rows; row++) {
        for (int col = 0; col < SIDE; col++)
            in[col] = input_number(row, col, turn);
        for (int out = 0; out < SIDE; out++)
            mid[out] = output_number(AS_BF16, in, out, &size);
        for (int out = 0; out < SIDE; out++) {
            double should = output_number(AS_BF16, mid, out, &size);
            if (!near((double)c->host[row * SIDE + out], should, size))
                return false;
        }
    }
    return true;
}

static bool play_chain(struct check *c, const struct graph_call *call, int turn)
{
    struct err e = {0};
    int rows = call->batch->n_rows;
    bool posted = false;
    return send_input(c, rows, turn) && cuda_graph_post(c->d, call, &posted, &e) == 0 && posted &&
           cuda_graph_wait(c->d, NULL, &e) == 0 && fetch(c, c->host, c->z, (size_t)rows * SIDE) &&
           chain_is_right(c, rows, turn);
}

/* Recorded once and played twice, over other numbers. */
static bool graph_is_right(struct check *c)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct batch_seq seqs[FEW];
    struct sample_row samples[FEW];
    int32_t rows[FEW];
    int n = c->d->opts.graph_rows < FEW ? c->d->opts.graph_rows : FEW;
    for (int i = 0; i < n; i++) {
        seqs[i] = (struct batch_seq){.row0 = i, .n_rows = 1, .blocks = nothing};
        samples[i] = (struct sample_row){.how = &greedy, .given = -1, .n_top = -1};
        rows[i] = i;
    }
    const struct batch b = {.n_rows = n,
                            .ids = nothing,
                            .positions = nothing,
                            .n_seqs = n,
                            .seqs = seqs,
                            .n_logits = n,
                            .logit_rows = rows,
                            .samples = samples};
    const struct graph_key key = {.tokens_per_block = BLOCK};
    const struct graph_call call = {&key, &b};
    if (!record_chain(c, &call))
        return false;
    bool right = play_chain(c, &call, 0) && play_chain(c, &call, 1);
    graph_forget_last(c->d);
    return right;
}

/* ---- sampling */

static bool sampling_is_right(struct check *c)
{
    static const struct sampling ways[2] = {{.top_p = 1, .repetition_penalty = 1},
                                            {.temperature = 1, .top_p = 0.5f, .top_k = 3, .repetition_penalty = 1}};
    static const int32_t rows[2] = {0, 0};
    enum { BEST = 377 };
    struct sample_result results[2] = {0};
    struct sample_row samples[2];
    struct err e = {0};
    for (int i = 0; i < 2; i++) {
        samples[i] = (struct sample_row){.how = &ways[i], .given = -1, .n_top = -1};
        for (int id = 0; id < VOCAB; id++)
            c->host[i * VOCAB + id] = id == BEST ? 9 : noise(id);
    }
    struct batch b = {.n_rows = 1,
                      .ids = nothing,
                      .positions = nothing,
                      .n_logits = 2,
                      .logit_rows = rows,
                      .samples = samples,
                      .results = results};
    if (!send(c, c->x, 2 * VOCAB) || cuda_begin(c->d, &b, NULL, &e))
        return false;
    cuda_sample(c->d, (struct act){c->x, VOCAB, VOCAB, false}, VOCAB, 0, 2);
    return cuda_finish(c->d, NULL, &e) == 0 && results[0].token == BEST && results[1].token == BEST;
}

/* ---- what is left out */

static void leave_out(struct device *d, const char *what)
{
    d->facts.parts_off++;
    gpu_lacks(d, "switched off, as it came out wrong: %s", what);
}

/* The way that a device takes, and the plainer one after it. */
static bool settle_products(struct check *c)
{
    struct device *d = c->d;
    int few = d->opts.max_rows < FEW ? d->opts.max_rows : FEW,
        most_few = d->opts.max_rows < SKINNY_ROWS ? d->opts.max_rows : SKINNY_ROWS;
    if (!product_is_right(c, AS_BF16, few, false)) {
        d->no_skinny = true;
        leave_out(d, "the kernel for products of few rows and 16 bits");
    }
    if (lean_can(d->cta_shared) &&
        !(product_is_right(c, AS_F8_ROWS, few, false) && product_is_right(c, AS_INT8, few, false) &&
          product_is_right(c, AS_INT8, most_few, false))) {
        d->no_lean = true;
        leave_out(d, "the kernel for products of few rows and 8 bits");
    }
    if ((d->opts.max_rows >= SOME && !product_is_right(c, AS_BF16, SOME, false)) ||
        (d->opts.max_rows >= MORE && !product_is_right(c, AS_F8_ROWS, MORE, false))) {
        d->no_slim = true;
        leave_out(d, "the kernel for products of up to 64 rows");
    }
    if (d->opts.max_rows < MANY)
        return product_is_right(c, AS_BF16, few, false);
    if (d->lt && !product_is_right(c, AS_BF16, MANY, false)) {
        lt_forbid(d->lt, LT_BF16);
        lt_forbid(d->lt, LT_F16);
        leave_out(d, "cuBLASLt's products in 16 bits");
    }
    if (lt_multiplies_f8(d->lt) && !product_is_right(c, AS_F8_ROWS, MANY, false)) {
        lt_forbid(d->lt, LT_F8_ROWS);
        leave_out(d, "cuBLASLt's products in fp8 with scales by rows");
    }
    if (lt_multiplies_f8(d->lt) && !product_is_right(c, AS_F8_BLOCKS, MANY, false)) {
        lt_forbid(d->lt, LT_F8_BLOCKS);
        leave_out(d, "cuBLASLt's products in fp8 with scales by blocks");
    }
    for (int k = 0; k <= AS_F8_BLOCKS && !d->no_narrow; k++)
        d->no_narrow = !product_is_right(c, (enum kind)k, MANY, true);
    if (d->no_narrow)
        leave_out(d, "results of products in bf16");
    return product_is_right(c, AS_BF16, few, false) && product_is_right(c, AS_BF16, SOME, false) &&
           product_is_right(c, AS_BF16, MANY, false) && product_is_right(c, AS_F8_ROWS, MANY, false);
}

static void settle_graphs(struct check *c)
{
    struct device *d = c->d;
    if (graph_is_right(c))
        return;
    if (d->pdl) {
        d->pdl = false;
        leave_out(d, "kernels that begin early");
        if (graph_is_right(c))
            return;
    }
    d->no_graphs = true;
    leave_out(d, "graphs");
}

static const char *settle(struct check *c)
{
    struct device *d = c->d;
    if (!settle_products(c))
        return "products";
    if (d->hopper && !hopper_is_right(c)) {
        d->hopper = false;
        leave_out(d, "Hopper's kernel for attention");
    }
    if (!d->no_narrow && d->opts.max_rows >= MANY && !(halves_agree(c, 64) && halves_agree(c, MOST_DIM))) {
        d->no_narrow = true;
        leave_out(d, "attention over queries in bf16");
    }
    if (d->opts.graph_rows > 0)
        settle_graphs(c);
    return d->opts.max_logits < 2 || sampling_is_right(c) ? NULL : "sampling";
}

static int open_check(struct check *c, struct err *e)
{
    const size_t bytes = (size_t)MANY * SIDE * sizeof *c->x;
    c->host = mem_new(bytes);
    c->x = backend_cuda()->alloc(c->d, bytes);
    c->y = backend_cuda()->alloc(c->d, bytes);
    c->z = backend_cuda()->alloc(c->d, bytes);
    for (int k = 0; k < KINDS; k++)
        TRY(load(c, (enum kind)k, e));
    return c->x && c->y && c->z ? 0 : err_set(e, E_FULL, "no GPU memory to try the device");
}

static void close_check(struct check *c)
{
    for (int k = 0; k < KINDS; k++)
        cuda_weight_free(c->d, c->w[k]);
    backend_cuda()->release(c->d, c->x);
    backend_cuda()->release(c->d, c->y);
    backend_cuda()->release(c->d, c->z);
    mem_free(c->host);
}

int cuda_check(struct device *d, struct err *e)
{
    struct check c = {.d = d};
    int rc = open_check(&c, e);
    const char *wrong = rc ? NULL : settle(&c);
    close_check(&c);
    memset(&d->error, 0, sizeof d->error);
    if (d->broken.code)
        return err_set(e, d->broken.code,
                       "%s, while the device was tried: --plain-kernels, --no-early-launch and --enforce-eager leave "
                       "parts of it out",
                       d->broken.text);
    if (wrong)
        return err_set(e, E_DEVICE, "GPU %d: its %s come out wrong, also by the plainest kernels", d->index, wrong);
    return rc;
}
