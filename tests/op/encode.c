/* The encoder's ops: linear layers and attention against doubles, and whole models: the same bits whatever the packing,
 * the threads and the instruction set. tests/oracle/encode_oracle.py compares whole models with BERT in float64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/cpu/pool.h"
#include "kernels/encode.h"
#include "models/encode/bert.h"
#include "tests/rig/bert_build.h"
#include "tests/rig/isas.h"

/* ---- a linear layer ---- */

static void compare_linear(int rows, int cols, int n, const char *isa)
{
    const struct encode_ops *ops = encode_cpu();
    struct encode_device *d;
    struct encode_matrix *w;
    struct err e;
    uint64_t seed = (uint64_t)(rows * 1000 + cols);
    size_t ldx = ENCODE_LD(cols), ldy = ENCODE_LD(rows);
    float *m = mem_new_array((size_t)rows * (size_t)cols, sizeof *m), *bias = mem_new_array((size_t)rows, sizeof *bias);
    float *x = mem_new_array((size_t)n * ldx, sizeof *x), *y = mem_new_array((size_t)n * ldy, sizeof *y);
    for (int i = 0; i < rows * cols; i++)
        m[i] = build_noise(&seed) * (float)(1 + i % 3);
    for (int i = 0; i < rows; i++)
        bias[i] = build_noise(&seed);
    for (int r = 0; r < n; r++)
        for (int c = 0; c < cols; c++)
            x[(size_t)r * ldx + (size_t)c] = build_noise(&seed) * (c % 128 == 5 ? 20.0f : 1.0f);
    struct encode_opts o = {.n_threads = 2, .isa = isa, .hidden = cols, .ffn = cols, .n_heads = 1, .eps = 0};
    struct encode_part parts[2] = {{DT_F32, m, rows / 2, bias},
                                   {DT_F32, m + (size_t)(rows / 2) * (size_t)cols, rows - rows / 2, bias + rows / 2}};
    if (ops->open(&d, &o, &e) == E_UNSUPPORTED)
        goto done; /* not on this CPU */
    assert_int_equal(ops->matrix_new(&w, parts, 2, cols, &e), 0);
    ops->linear(d, w, x, y, n);
    for (int r = 0; r < n; r++)
        for (int i = 0; i < rows; i++) {
            double sum = 0, size = 0;
            for (int c = 0; c < cols; c++) {
                double p = (double)x[(size_t)r * ldx + (size_t)c] * (double)m[(size_t)i * (size_t)cols + (size_t)c];
                sum += p;
                size += fabs(p);
            }
            /* each factor is off by at most half a step of its scale */
            double bound = (size + 1) * 0x1p-12 + 60.0 * 3 * cols * 0x1p-13 / 32 + 1e-4;
            if (fabs(sum + (double)bias[i] - (double)y[(size_t)r * ldy + (size_t)i]) > bound)
                fail_msg("%s %dx%d row %d output %d: %g, not %g", isa, rows, cols, r, i,
                         (double)y[(size_t)r * ldy + (size_t)i], sum + (double)bias[i]);
        }
    for (int r = 0; r < n; r++) /* nothing past the columns */
        for (size_t i = (size_t)rows; i < ldy; i++)
            assert_true(y[(size_t)r * ldy + i] == 0);
    ops->matrix_free(w);
    ops->close(d);
done:
    mem_free(m);
    mem_free(bias);
    mem_free(x);
    mem_free(y);
}

static void linear_is_near_doubles(void **state)
{
    static const int shapes[][3] = {{1, 1, 1},    {16, 32, 3},    {17, 33, 9},   {48, 128, 8},
                                    {50, 129, 7}, {100, 300, 70}, {96, 384, 65}, {3, 1000, 2}};
    (void)state;
    for (int s = 0; s < N_ISAS; s++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            compare_linear(shapes[i][0], shapes[i][1], shapes[i][2], isas[s]);
}

/* The largest products there can be, in every column of a leaf: the sum still fits. */
static void a_leaf_of_extremes_fits(void **state)
{
    enum { COLS = 2 * ENCODE_LEAF };
    (void)state;
    for (int s = 0; s < N_ISAS; s++) {
        float m[COLS], x[COLS], y[32] = {0};
        struct encode_opts o = {.n_threads = 1, .isa = isas[s], .hidden = COLS, .ffn = COLS, .n_heads = 1};
        struct encode_part part = {DT_F32, m, 1, NULL};
        const struct encode_ops *ops = encode_cpu();
        struct encode_device *d;
        struct encode_matrix *w;
        struct err e;
        for (int i = 0; i < COLS; i++)
            m[i] = x[i] = 2;
        if (ops->open(&d, &o, &e))
            continue;
        assert_int_equal(ops->matrix_new(&w, &part, 1, COLS, &e), 0);
        ops->linear(d, w, x, y, 1);
        assert_true(fabsf(y[0] - 4.0f * COLS) < 0.01f);
        ops->matrix_free(w);
        ops->close(d);
    }
}

/* ---- attention ---- */

/* Sequences of these packed one behind the other: around the sizes of tiles, and more keys than are looked at at once.
 */
static const int32_t packed[] = {1, 17, 2, 33, 16, 515, 7, 64, 65, 1};
enum { N_PACKED = sizeof packed / sizeof *packed };

struct attention {
    int heads, dim, rows;
    size_t ld, ldo;
    int32_t row0[N_PACKED + 1];
    float *qkv;
    double *want, *bound; /* [rows][heads * dim], [rows][heads] */
};

/* One query's answer in doubles, and how far off 13-bit integers may be: scores by their size, weights and values a
 * little more; an eighth of what half steps of 2^-13 could add up to, as they have both signs. */
static void attend_in_doubles(const struct attention *a, int seq, int row, int head)
{
    double s[600], most = -INFINITY, size = 0, sum = 0, *o = a->want + (size_t)row * (size_t)(a->heads * a->dim);
    int from = a->row0[seq], n = a->row0[seq + 1] - from, hidden = a->heads * a->dim, at = head * a->dim;
    const float *q = a->qkv + (size_t)row * a->ld + at;
    for (int i = 0; i < n; i++) {
        const float *k = a->qkv + (size_t)(from + i) * a->ld + hidden + at;
        double dot = 0, abs = 0;
        for (int c = 0; c < a->dim; c++) {
            dot += (double)q[c] * (double)k[c];
            abs += fabs((double)q[c] * (double)k[c]);
        }
        s[i] = dot / sqrt(a->dim);
        most = fmax(most, s[i]);
        size = fmax(size, abs / sqrt(a->dim));
    }
    for (int i = 0; i < n; i++)
        sum += s[i] = exp(s[i] - most);
    for (int c = 0; c < a->dim; c++)
        o[at + c] = 0;
    for (int i = 0; i < n; i++)
        for (int c = 0; c < a->dim; c++)
            o[at + c] += s[i] / sum * (double)a->qkv[(size_t)(from + i) * a->ld + 2 * hidden + at + c];
    a->bound[(size_t)row * (size_t)a->heads + head] = (size + 4) * 0x1p-15;
}

static struct attention make_attention(int heads, int dim)
{
    struct attention a = {.heads = heads, .dim = dim, .ld = ENCODE_LD(3 * heads * dim), .ldo = ENCODE_LD(heads * dim)};
    uint64_t seed = (uint64_t)(heads * 100 + dim);
    for (int i = 0; i < N_PACKED; i++)
        a.row0[i + 1] = a.row0[i] + packed[i];
    a.rows = a.row0[N_PACKED];
    a.qkv = mem_new_array((size_t)a.rows * a.ld, sizeof *a.qkv);
    a.want = mem_new_array((size_t)a.rows * (size_t)(heads * dim), sizeof *a.want);
    a.bound = mem_new_array((size_t)a.rows * (size_t)heads, sizeof *a.bound);
    for (int r = 0; r < a.rows; r++)
        for (int c = 0; c < 3 * heads * dim; c++) /* some queries whose scores no exponential would take as they are */
            a.qkv[(size_t)r * a.ld + (size_t)c] = build_noise(&seed) * (c < heads * dim && r % 5 == 0 ? 400.0f : 2.0f);
    for (int s = 0; s < N_PACKED; s++)
        for (int r = a.row0[s]; r < a.row0[s + 1]; r++)
            for (int h = 0; h < heads; h++)
                attend_in_doubles(&a, s, r, h);
    return a;
}

/* Into o. False: this CPU has no such instructions. */
static bool attend_with(const struct attention *a, const char *isa, int threads, float *o)
{
    const struct encode_ops *ops = encode_cpu();
    struct encode_device *d;
    struct err e;
    int hidden = a->heads * a->dim;
    struct encode_opts opts = {.n_threads = threads, .isa = isa, .hidden = hidden, .ffn = hidden, .n_heads = a->heads};
    if (ops->open(&d, &opts, &e) == E_UNSUPPORTED)
        return false;
    ops->attend(d, &(struct encode_attend){.qkv = a->qkv, .row0 = a->row0, .n_seqs = N_PACKED, .o = o});
    ops->close(d);
    return true;
}

static void compare_attention(const struct attention *a, const float *o, const char *isa)
{
    int hidden = a->heads * a->dim;
    for (int r = 0; r < a->rows; r++) {
        for (int c = 0; c < hidden; c++) {
            double want = a->want[(size_t)r * (size_t)hidden + (size_t)c],
                   got = (double)o[(size_t)r * a->ldo + (size_t)c];
            double bound = 4 * a->bound[(size_t)r * (size_t)a->heads + (size_t)(c / a->dim)]; /* values are within 2 */
            if (!(fabs(want - got) <= bound))
                fail_msg("%s, %d heads of %d: row %d column %d: %.9g, not %.9g (by %.2g)", isa, a->heads, a->dim, r, c,
                         got, want, bound);
        }
        for (size_t c = (size_t)hidden; c < a->ldo; c++)
            assert_true(o[(size_t)r * a->ldo + c] == 0);
    }
}

static void attention_is_near_doubles(void **state)
{
    static const int shapes[][2] = {{1, 1}, {3, 5}, {2, 32}, {2, 48}, {1, 65}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct attention a = make_attention(shapes[i][0], shapes[i][1]);
        size_t n = (size_t)a.rows * a.ldo;
        float *first = mem_new_array(n, sizeof *first), *o = mem_new_array(n, sizeof *o);
        assert_true(attend_with(&a, isas[0], 1, first));
        compare_attention(&a, first, isas[0]);
        for (int s = 0; s < N_ISAS; s++)
            if (attend_with(&a, isas[s], 2, o))
                assert_memory_equal(o, first, n * sizeof *o);
        mem_free(first);
        mem_free(o);
        mem_free(a.qkv);
        mem_free(a.want);
        mem_free(a.bound);
    }
}

/* An infinity or a NaN of a query shows in its answer; that of a key in all answers of its sequence and head, of a
 * value in that column of them; and nowhere else. */
static bool spoils(const struct attention *a, int row, int column, int r, int c)
{
    int hidden = a->heads * a->dim, kind = column / hidden, at = column % hidden, seq = 0;
    while (a->row0[seq + 1] <= row)
        seq++;
    if (r < a->row0[seq] || r >= a->row0[seq + 1] || c / a->dim != at / a->dim)
        return false;
    return kind == 0 ? r == row : kind == 1 || c == at;
}

static void bad_numbers_show(void **state)
{
    static const uint32_t bad[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00000u, 0x7fedcba9u, 0xffed1234u};
    static const int at[] = {0, 17, 20, 70, 100, 560}; /* rows: the first keys of the longest sequence, and the last */
    struct attention a = make_attention(2, 33);
    int hidden = a.heads * a.dim;
    size_t n = (size_t)a.rows * a.ldo;
    float *fine = mem_new_array(n, sizeof *fine), *o = mem_new_array(n, sizeof *o);
    (void)state;
    assert_true(attend_with(&a, isas[0], 1, fine));
    for (size_t i = 0; i < 6 * 3; i++) {
        int row = at[i / 3], column = (int)(i % 3) * hidden + (int)(i * 7) % hidden;
        float *x = a.qkv + (size_t)row * a.ld + column, was = *x;
        memcpy(x, &bad[(i + i / 6) % 6], sizeof *x);
        for (int s = 0; s < N_ISAS; s++) {
            if (!attend_with(&a, isas[s], 2, o))
                continue;
            for (int r = 0; r < a.rows; r++)
                for (int c = 0; c < hidden; c++) {
                    size_t to = (size_t)r * a.ldo + (size_t)c;
                    bool holds = spoils(&a, row, column, r, c) ? !isfinite(o[to]) : o[to] == fine[to];
                    if (!holds)
                        fail_msg("%s: %g in row %d column %d, then row %d column %d is %g", isas[s], (double)*x, row,
                                 column, r, c, (double)o[to]);
                }
        }
        *x = was;
    }
    mem_free(fine);
    mem_free(o);
    mem_free(a.qkv);
    mem_free(a.want);
    mem_free(a.bound);
}

static void bad_weights_are_refused(void **state)
{
    float m[4] = {1, 2, NAN, 4}, bias[2] = {0, INFINITY};
    struct encode_part parts[] = {{DT_F32, m, 2, NULL}, {DT_F32, m, 1, bias + 1}};
    struct encode_matrix *w;
    struct err e;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(encode_cpu()->matrix_new(&w, &parts[i], 1, 2, &e), E_INPUT);
        assert_null(w);
        assert_non_null(strstr(e.text, "finite"));
    }
}

/* ---- whole models ---- */

enum { N_SEQS = 24, MOST = 1100, MAX_DIM = 256 };

struct subject {
    struct st_build st;
    struct bert *bert;
    struct bert_config config;
    int32_t ids[N_SEQS][MOST];
    int n[N_SEQS], first[N_SEQS];
    float want[N_SEQS][MAX_DIM]; /* one at a time, one thread */
    int dim;
};

static void run_some(const struct subject *s, const int *which, int n, int threads, const char *isa,
                     float (*out)[MAX_DIM])
{
    struct encoder_seq seqs[N_SEQS];
    struct bert_run *r;
    struct err e;
    int rows = 0;
    for (int i = 0; i < n; i++) {
        int k = which[i];
        seqs[i] = (struct encoder_seq){s->ids[k], s->n[k], s->first[k], out[k]};
        rows += s->n[k];
    }
    assert_int_equal(bert_run_open(&r, s->bert, threads, rows, isa, &e), 0);
    assert_int_equal(bert_run(r, seqs, n, &e), 0);
    bert_run_close(r);
}

static struct subject *open_subject(struct bert_build b)
{
    static const int lengths[] = {1, 2, 3, 15, 16, 17, 31, 40, 64, 7, 9, 11, 5, 33, 48, 12, 1, 8, 24, 60, 13, 6, 4, 29};
    struct subject *s = mem_new(sizeof *s);
    struct buf config = {0};
    struct safetensors *st;
    struct err e;
    const struct buf *file = bert_file(&s->st, b);
    bert_config_text(&config, &b, "");
    struct card_text texts[CARD_FILES] = {{config.data, config.len}};
    assert_int_equal(bert_config_read(&s->config, texts, &e), 0);
    assert_int_equal(safetensors_open_memory(&st, file->data, file->len, &e), 0);
    assert_int_equal(bert_open(&s->bert, &s->config, st, NULL, &e), 0);
    safetensors_close(st);
    buf_free(&config);
    s->dim = b.labels ? b.labels : b.hidden;
    for (int i = 0; i < N_SEQS; i++) {
        s->n[i] = i == 0 && b.positions >= MOST ? MOST : lengths[i];
        s->first[i] = i % 3 ? s->n[i] : s->n[i] / 2;
        for (int k = 0; k < s->n[i]; k++)
            s->ids[i][k] = (int32_t)((unsigned)(i * 31 + k * 17 + k * k) % (unsigned)b.vocab);
        run_some(s, &i, 1, 1, "portable", s->want);
    }
    return s;
}

static void close_subject(struct subject *s)
{
    bert_close(s->bert);
    st_free(&s->st);
    mem_free(s);
}

static void check_packings(const struct subject *s)
{
    float(*got)[MAX_DIM] = mem_new_array(N_SEQS, sizeof *got);
    struct encode_device *d;
    for (int set = 0; set < N_ISAS; set++) {
        struct encode_opts o = {.n_threads = 1, .isa = isas[set], .hidden = 16, .ffn = 16, .n_heads = 1};
        if (encode_cpu()->open(&d, &o, NULL))
            continue;
        encode_cpu()->close(d);
        for (int threads = 1; threads <= 4; threads += 1 + (threads > 1)) {
            int order[N_SEQS];
            for (int i = 0; i < N_SEQS; i++)
                order[i] = (i * 7 + threads * 5) % N_SEQS; /* 7 and 24 share no factor */
            for (int from = 0, n; from < N_SEQS; from += n) {
                n = from == 0 ? 1 + threads : N_SEQS - from;
                run_some(s, order + from, n, threads, isas[set], got);
            }
            for (int i = 0; i < N_SEQS; i++)
                if (memcmp(got[i], s->want[i], (size_t)s->dim * sizeof(float)) != 0)
                    fail_msg("sequence %d differs: %s, %d threads", i, isas[set], threads);
        }
    }
    mem_free(got);
}

static void vectors_depend_on_their_tokens_alone(void **state)
{
    static const struct bert_build forms[] = {
        {.hidden = 32, .heads = 2, .ffn = 64, .layers = 2, .vocab = 50, .positions = 64, .types = 2},
        {.hidden = 45, .heads = 3, .ffn = 77, .layers = 2, .vocab = 50, .positions = 64, .types = 2},
        {.hidden = 144, .heads = 4, .ffn = 300, .layers = 1, .vocab = 50, .positions = 64, .types = 1},
        {.hidden = 24, .heads = 1, .ffn = 48, .layers = 1, .vocab = 50, .positions = 1100, .types = 2},
        {.hidden = 40, .heads = 4, .ffn = 50, .layers = 2, .vocab = 50, .positions = 64, .types = 2, .labels = 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct subject *s = open_subject(forms[i]);
        check_packings(s);
        close_subject(s);
    }
}

/* Tokens, their order and their segments all count. */
static void other_tokens_give_other_vectors(void **state)
{
    (void)state;
    struct subject *s = open_subject((struct bert_build){
        .hidden = 32, .heads = 2, .ffn = 64, .layers = 2, .vocab = 50, .positions = 64, .types = 2});
    float(*got)[MAX_DIM] = mem_new_array(N_SEQS, sizeof *got);
    int which = 8;
    for (int change = 0; change < 3; change++) {
        struct subject *t = mem_new(sizeof *t);
        memcpy(t, s, sizeof *t);
        if (change == 0)
            t->ids[which][63] = (t->ids[which][63] + 1) % 50;
        else if (change == 1)
            t->ids[which][1] = s->ids[which][2], t->ids[which][2] = s->ids[which][1];
        else
            t->first[which] = 20;
        run_some(t, &which, 1, 1, NULL, got);
        assert_true(memcmp(got[which], s->want[which], 32 * sizeof(float)) != 0);
        mem_free(t);
    }
    mem_free(got);
    close_subject(s);
}

static void sizes_and_sets_that_are_not_there(void **state)
{
    struct encode_device *d;
    struct encode_opts o = {.n_threads = 1, .isa = "sse9", .hidden = 16, .ffn = 16, .n_heads = 1};
    struct err e;
    (void)state;
    assert_int_equal(encode_cpu()->open(&d, &o, &e), E_INPUT);
    assert_null(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_is_near_doubles),
        cmocka_unit_test(attention_is_near_doubles),
        cmocka_unit_test(bad_numbers_show),
        cmocka_unit_test(a_leaf_of_extremes_fits),
        cmocka_unit_test(bad_weights_are_refused),
        cmocka_unit_test(vectors_depend_on_their_tokens_alone),
        cmocka_unit_test(other_tokens_give_other_vectors),
        cmocka_unit_test(sizes_and_sets_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
