/* What the forward of a SwiftKV model computes, counted exactly: every multiplication of every op of every rank.
 * Prefill costs N layers and the later layers' k and v, whatever the layout; rows whose logits are wanted cost a whole
 * pass; and a row that wants none has no query past layer N - 1. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <cmocka.h>

#include "tests/rig/layout_subject.h"

enum { TRIALS = 24, TOKENS = 60 };
enum { L = 4, N = 2, H = 128, Q = 512, KV = 128, FFN = 448, VOCAB = 500 };

/* ---- ops that count */

static struct counted {
    atomic_llong linear, attention; /* products */
    _Atomic int parts;
    struct device *devices[NODE_RANKS];
    const struct batch_seq *seqs[NODE_RANKS]; /* what each device works on */
    int n_seqs[NODE_RANKS];
} counted;

static int place_of(struct device *d)
{
    int i = 0;
    while (counted.devices[i] && counted.devices[i] != d)
        i++;
    return i;
}

static int count_open(struct device **out, const struct device_opts *o, struct err *e)
{
    int rc = backend_cpu()->open(out, o, e);
    if (!rc)
        counted.devices[place_of(NULL)] = *out;
    return rc;
}

static int count_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    counted.seqs[place_of(d)] = b->seqs;
    counted.n_seqs[place_of(d)] = b->n_seqs;
    return backend_cpu()->begin(d, b, rope, e);
}

static void count_begin_part(struct device *d, const struct batch_part *p)
{
    int rows = 0;
    for (int i = 0; i < p->n_seqs; i++)
        rows += p->seqs[i].n_rows;
    assert_int_equal(rows, p->n_rows);
    counted.seqs[place_of(d)] = p->seqs;
    counted.n_seqs[place_of(d)] = p->n_seqs;
    counted.parts++;
    backend_cpu()->begin_part(d, p);
}

static void count_linear(struct device *d, const struct linear_args *a)
{
    for (int i = 0; i < a->n_out; i++)
        counted.linear += (long long)a->rows * a->out[i].w.rows * a->out[i].w.cols;
    backend_cpu()->linear(d, a);
}

static void count_attention(struct device *d, const struct attention_args *a)
{
    int at = place_of(d);
    for (int s = 0; s < counted.n_seqs[at]; s++)
        for (int i = 0; i < counted.seqs[at][s].n_rows; i++)
            counted.attention += 2LL * (counted.seqs[at][s].pos0 + i + 1) * a->n_heads * a->kv.head_dim;
    backend_cpu()->attention(d, a);
}

static const struct backend_ops *counting(void)
{
    static struct backend_ops ops;
    ops = *backend_cpu();
    ops.open = count_open;
    ops.begin = count_begin;
    ops.begin_part = count_begin_part;
    ops.linear = count_linear;
    ops.attention = count_attention;
    return &ops;
}

/* ---- steps */

/* Pieces of sequences, and whether the last row's logits are wanted, or all. */
struct piece {
    int seq, pos, n;
    enum { NONE, LAST, EVERY } logits;
};

struct scene {
    struct node *node;
    const struct place *place;
    struct layout layout;
    const int32_t *ids;
};

static void run_pieces(const struct scene *at, const struct piece *pieces, int n, int micro)
{
    struct node_seq seqs[NODE_SEQS];
    struct want wants[MAX_ROWS];
    struct sample_result results[MAX_ROWS];
    int32_t rows[MAX_ROWS];
    long long all = 0, on = 0, seen = 0, seen_on = 0;
    struct node_step s = {.place = at->place, .layout = at->layout, .n_micro = micro, .seqs = seqs, .n_seqs = n};
    for (int i = 0; i < n; i++) {
        const struct piece *p = &pieces[i];
        seqs[i] = (struct node_seq){p->seq, p->pos, p->n, at->ids};
        for (int k = 0; k < p->n; k++, all++) {
            bool wanted = p->logits == EVERY || (p->logits == LAST && k == p->n - 1);
            seen += p->pos + k + 1;
            seen_on += wanted ? p->pos + k + 1 : 0;
            on += wanted;
            if (wanted)
                wants[s.n_logits] = (struct want){p->seq, p->pos + k}, rows[s.n_logits++] = (int32_t)all;
        }
    }
    s.logit_rows = rows;
    counted.linear = counted.attention = 0;
    counted.parts = 0;
    run(at->node, &s, wants, results);
    long long rest = 2LL * Q * H + 3LL * H * FFN, kv = 2LL * KV * H;
    long long linear = N * all * (rest + kv) + (L - N) * (all * kv + on * rest) + on * H * VOCAB;
    if (counted.linear != linear)
        fail_msg("{%d,%d,%d}: %lld products, not %lld", at->layout.sp, at->layout.tp, at->layout.pp,
                 (long long)counted.linear, linear);
    assert_int_equal(counted.attention, 2 * Q * (N * seen + (L - N) * seen_on));
}

/* Ranks that have layers past the N-th. */
static int later_ranks(struct layout l)
{
    int n = 0;
    for (int i = 0; i < l.pp; i++) {
        struct layer_span s = stage_layers(L, l.pp, i);
        n += s.first + s.n > N ? l.sp * l.tp : 0;
    }
    return n;
}

static void check_layout(struct model *m, struct layout l, int max_logits)
{
    static const struct piece prompt[] = {{0, 0, 40, LAST}}, middle[] = {{1, 0, 30, NONE}, {2, 0, 12, NONE}},
                              mixed[] = {{0, 40, 1, LAST}, {1, 30, 20, LAST}, {2, 12, 9, NONE}},
                              scored[] = {{0, 41, 1, LAST}, {3, 0, 30, EVERY}},
                              drafts[] = {{0, 42, 4, EVERY}, {1, 50, 1, LAST}, {3, 30, 3, EVERY}},
                              decodes[] = {{0, 46, 1, LAST}, {1, 51, 1, LAST}, {3, 33, 1, LAST}};
    struct node node;
    struct place p;
    int32_t ids[TOKENS];
    int n = layout_size(l);
    struct node_opts o = opts_of(n, MAX_ROWS, max_logits, 1);
    memset(&counted, 0, sizeof counted);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = i * 7 % VOCAB;
    o.ops = counting();
    o.n_blocks = place_make(&p, l, 16, TOKENS, 0);
    open_node(&node, m, &o);
    if (l.pp > 1)
        place_stage(&p, &node);
    struct scene at = {&node, &p, l, ids};
    run_pieces(&at, prompt, 1, 1);
    assert_int_equal(counted.parts, later_ranks(l));
    run_pieces(&at, middle, 2, 1);
    assert_int_equal(counted.parts, 0);
    run_pieces(&at, mixed, 3, 1);
    run_pieces(&at, scored, 2, 2);
    run_pieces(&at, drafts, 3, 1);
    run_pieces(&at, decodes, 3, 1);
    assert_int_equal(counted.parts, 0); /* as they come: steps of decodes can be captured */
    place_free(&p);
    node_close(&node);
}

static void products_are_counted(void **state)
{
    static const struct layout layouts[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2},
                                            {1, 1, 4}, {2, 1, 2}, {1, 2, 3}};
    struct model *m = open_dummy("swiftkv", DT_F16, 1);
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        check_layout(m, layouts[i], MAX_ROWS);
    model_close(m);
}

/* Any rows of a prompt may give logits, and a row more than once: it goes on by itself each time. */
static void check_rows(struct subject *s, struct rng *rng, struct layout l, int max_logits)
{
    struct node node;
    struct place p;
    int n = layout_size(l);
    struct node_opts o = opts_of(n, MAX_ROWS, max_logits, 1);
    o.n_blocks = place_make(&p, l, 16, LEN, 0);
    open_node(&node, s->model, &o);
    if (l.pp > 1)
        place_stage(&p, &node);
    for (int trial = 0; trial < TRIALS; trial++) {
        struct want wants[MAX_ROWS];
        struct sample_result results[MAX_ROWS] = {0};
        int32_t rows[MAX_ROWS];
        int q = (int)rng_below(rng, MOST_SEQS), len = s->len[q], most = trial % 3 ? 3 : 2;
        struct node_seq seq = {q, 0, len, s->ids[q]};
        struct node_step st = {.place = &p, .layout = l, .n_micro = 1, .seqs = &seq, .n_seqs = 1, .logit_rows = rows};
        for (int row = 0; row < len; row++)
            for (int k = (int)rng_below(rng, (uint64_t)most); k > 0 && st.n_logits < MAX_ROWS; k--) {
                wants[st.n_logits] = (struct want){q, row};
                rows[st.n_logits++] = row;
            }
        if (trial % 4 == 3) /* as many as rows, but for the last: it is the one before it again */
            for (int row = st.n_logits = 0; row < len; row++) {
                int at = row == len - 1 && row > 0 ? row - 1 : row;
                wants[st.n_logits] = (struct want){q, at};
                rows[st.n_logits++] = at;
            }
        run(&node, &st, wants, results);
        compare(s, &node, &st, wants, false);
    }
    place_free(&p);
    node_close(&node);
}

static void any_rows_go_on(void **state)
{
    static const struct layout layouts[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 1, 2}};
    struct model *m = open_dummy("swiftkv", DT_Q8_0, 2);
    struct rng rng;
    (void)state;
    rng_init(&rng, 3);
    struct subject *s = subject_new(m, (int)MAX_ROWS < (int)LEN ? MAX_ROWS : LEN, &rng);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        check_rows(s, &rng, layouts[i], i % 2 ? 5 : MAX_ROWS);
    subject_free(s);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_counted), cmocka_unit_test(any_rows_go_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
