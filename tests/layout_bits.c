/* Layout-invariant arithmetic, as the whole forward has it: logits and choices of every layout {sp, tp} in both rank orders on 1, 2, 3, 4, 6 and 8 ranks are
 * those of one rank, bit for bit; prefill and decode, chunked or not, 1 to 9 sequences, rows and vocabularies that the ranks do not divide, and layouts
 * that change between steps over the same KV. The truth is each sequence alone, in one piece, on one rank. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "tests/layout_rig.h"

#define DEMO_MODEL "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"

/* Sanitizers are slow: shorter sequences, fewer of them. */
#if defined(__SANITIZE_THREAD__)
enum { LEN = 12, DEMO_LEN = 5, MOST_SEQS = 3, REPEATS = 1, STRIDE = 5 };
#elif defined(__SANITIZE_ADDRESS__)
enum { LEN = 24, DEMO_LEN = 8, MOST_SEQS = 9, REPEATS = 1, STRIDE = 2 };
#else
enum { LEN = 60, DEMO_LEN = 12, MOST_SEQS = 9, REPEATS = 2, STRIDE = 1 };
#endif
enum { MAX_ROWS = 48, ROOM = LEN > 48 ? LEN : 48, N_TOP = 3 };

struct subject {
    struct model *model;
    int vocab, max_len;
    int32_t ids[NODE_SEQS][LEN];
    int len[NODE_SEQS];
    float *logits[NODE_SEQS];                   /* [len][vocab] */
    struct sample_result *chosen[NODE_SEQS];    /* [len] */
};

/* Every sequence chooses in its own way; the raw logits stay as they are under all of these. */
static const struct sampling ways[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5},
    {.temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .seed = 6},
};

static struct sample_row row_of(int seq, int pos)
{
    return (struct sample_row){.how = &ways[seq % 3], .given = -1, .position = (uint64_t)pos, .n_top = N_TOP};
}

static struct node_opts opts_of(int n_ranks, int max_rows, int max_logits, int n_blocks)
{
    return (struct node_opts){.n_ranks = n_ranks, .max_rows = max_rows, .max_logits = max_logits, .n_blocks = n_blocks,
                              .block_tokens = 16, .kv = DT_F16};
}

static void open_node(struct node *n, struct model *m, const struct node_opts *o)
{
    struct err e = {0};
    if (node_open(n, m, o, &e))
        fail_msg("%s", e.text);
}

/* Runs a step with the given rows' logits wanted; where says which (sequence, position) each row is. */
struct want {
    int seq, pos;
};

static void run(struct node *n, struct node_step *s, const struct want *wants, struct sample_result *results)
{
    struct node_part parts[NODE_RANKS];
    struct sample_row rows[ROOM];
    for (int i = 0; i < s->n_logits; i++)
        rows[i] = row_of(wants[i].seq, wants[i].pos);
    s->samples = rows;
    s->results = results;
    if (node_run(n, s, parts)) {
        for (int i = 0; i < s->place->n; i++)
            print_error("share %d: %d %s\n", i, parts[i].rc, parts[i].err.text);
        fail();
    }
}

static void make_truth(struct subject *s, struct rng *rng)
{
    struct node n;
    struct place p;
    int blocks = place_make(&p, (struct layout){1, 1, 1}, 16, LEN, 0);
    struct node_opts o = opts_of(1, s->max_len, s->max_len, blocks);
    open_node(&n, s->model, &o);
    s->vocab = model_config(s->model)->vocab;
    for (int q = 0; q < MOST_SEQS; q++) {
        int32_t all[LEN];
        struct want wants[LEN];
        s->len[q] = 1 + (int)rng_below(rng, (uint64_t)s->max_len);
        for (int i = 0; i < s->len[q]; i++) {
            s->ids[q][i] = (int32_t)rng_below(rng, (uint64_t)s->vocab);
            all[i] = i;
            wants[i] = (struct want){q, i};
        }
        s->logits[q] = mem_new_array((size_t)s->len[q] * (size_t)s->vocab, sizeof(float));
        s->chosen[q] = mem_new_array((size_t)s->len[q], sizeof *s->chosen[q]);
        struct node_seq whole = {q, 0, s->len[q], s->ids[q]};
        struct node_step step = {.place = &p, .layout = {1, 1, 1}, .seqs = &whole, .n_seqs = 1, .n_logits = s->len[q], .logit_rows = all};
        run(&n, &step, wants, s->chosen[q]);
        const struct act *a = &n.forwards[0].logits;
        for (int i = 0; i < s->len[q]; i++)
            memcpy(s->logits[q] + (size_t)i * (size_t)s->vocab, (const float *)a->data + (size_t)i * (size_t)a->ld,
                   (size_t)s->vocab * sizeof(float));
    }
    place_free(&p);
    node_close(&n);
}

static void free_truth(struct subject *s)
{
    for (int q = 0; q < NODE_SEQS; q++) {
        mem_free(s->logits[q]);
        mem_free(s->chosen[q]);
    }
}

/* The logits that the ranks still hold (all of them unless they were taken in chunks) and every choice. Returns the logit rows compared. */
static int compare(const struct subject *s, const struct node *n, const struct node_step *st, const struct want *wants, bool whole)
{
    int compared = 0;
    for (int i = 0; i < st->n_logits; i++) {
        const struct sample_result *want = &s->chosen[wants[i].seq][wants[i].pos];
        if (memcmp(&st->results[i], want, sizeof *want) != 0)
            fail_msg("{%d,%d}: sequence %d, position %d: token %d, not %d", st->layout.sp, st->layout.tp, wants[i].seq, wants[i].pos,
                     st->results[i].token, want->token);
    }
    for (int i = 0; i < st->place->n && st->n_logits; i++) {
        const struct forward *f = &n->forwards[st->place->ranks[i]];
        for (int k = 0; k < f->n_logits; k++, compared++) {
            struct want w = wants[f->first_logit + k];
            const float *got = (const float *)f->logits.data + (size_t)k * (size_t)f->logits.ld;
            if (memcmp(got, s->logits[w.seq] + (size_t)w.pos * (size_t)s->vocab, (size_t)s->vocab * sizeof *got) != 0)
                fail_msg("{%d,%d}: sequence %d, position %d: logits differ", st->layout.sp, st->layout.tp, w.seq, w.pos);
        }
    }
    if (whole)
        assert_int_equal(compared, st->n_logits);
    return compared;
}

/* A step of random pieces of n_seqs sequences that have something left; decodes are pieces of one token. */
static int random_pieces(const struct subject *s, struct rng *rng, int n_seqs, const int *at, struct node_seq *seqs)
{
    int n = 0, rows = 0, start = (int)rng_below(rng, (uint64_t)n_seqs);
    bool decode = rng_below(rng, 3) == 0;
    for (int k = 0; k < n_seqs; k++) {
        int q = (start + k) % n_seqs, left = s->len[q] - at[q];
        int most = decode || rng_below(rng, 3) == 0 ? 1 : MAX_ROWS - rows, take = most > 1 ? 1 + (int)rng_below(rng, (uint64_t)most) : 1;
        take = take < left ? take : left;
        if (take <= 0 || rows + take > MAX_ROWS || rng_below(rng, 6) == 0)
            continue;
        seqs[n++] = (struct node_seq){q, at[q], take, s->ids[q]};
        rows += take;
    }
    return n;
}

/* Which rows' logits are wanted: none, the last of each piece, or all. */
static int choose_logits(struct rng *rng, const struct node_seq *seqs, int n, int32_t *rows, struct want *wants)
{
    int kind = (int)rng_below(rng, 5), out = 0;
    for (int i = 0, row = 0; i < n; row += seqs[i++].n)
        for (int k = 0; k < seqs[i].n; k++)
            if (kind >= 3 || (kind >= 1 && k == seqs[i].n - 1)) {
                rows[out] = row + k;
                wants[out++] = (struct want){seqs[i].seq, seqs[i].pos + k};
            }
    return out;
}

struct course {
    struct node *node;
    const struct place *place;
    const struct layout *layouts;   /* taken in turn, step by step */
    int n_layouts, n_seqs, max_logits;
};

/* All sequences from the first token to the last, in random pieces. */
static int run_course(struct subject *s, struct rng *rng, const struct course *c)
{
    int at[NODE_SEQS] = {0}, left = 0, compared = 0, turn = (int)rng_below(rng, 2);
    for (int q = 0; q < c->n_seqs; q++)
        left += s->len[q];
    while (left > 0) {
        struct node_seq seqs[NODE_SEQS];
        int32_t rows[MAX_ROWS];
        struct want wants[MAX_ROWS];
        struct sample_result results[MAX_ROWS] = {0};
        int n = random_pieces(s, rng, c->n_seqs, at, seqs);
        if (!n)
            continue;
        struct node_step st = {.place = c->place, .layout = c->layouts[turn++ % c->n_layouts], .seqs = seqs, .n_seqs = n, .logit_rows = rows};
        st.n_logits = choose_logits(rng, seqs, n, rows, wants);
        run(c->node, &st, wants, results);
        compared += compare(s, c->node, &st, wants, st.n_logits <= c->max_logits);
        for (int i = 0; i < n; i++) {
            at[seqs[i].seq] += seqs[i].n;
            left -= seqs[i].n;
        }
    }
    return compared;
}

static int layouts_of(const struct model_config *c, int n, struct layout *out)
{
    struct heads h = shard_heads(c);
    int count = 0;
    for (int sp = 1; sp <= n; sp++)
        if (n % sp == 0 && !layout_refusal(&h, (struct layout){sp, n / sp, 1}))
            out[count++] = (struct layout){sp, n / sp, 1};
    return count;
}

/* Every layout of n ranks by itself in both rank orders, then all of them in turn over the same KV. */
static int check_width(struct subject *s, struct rng *rng, int n, int max_logits, enum comm_algorithm how)
{
    struct layout layouts[8];
    int n_layouts = layouts_of(model_config(s->model), n, layouts), compared = 0;
    struct node node;
    struct node_opts o = opts_of(n, MAX_ROWS, max_logits, 1);
    struct place sizes;
    o.n_blocks = place_make(&sizes, (struct layout){n, 1, 1}, 16, LEN, 0);
    place_free(&sizes);
    open_node(&node, s->model, &o);
    if (n > 1)
        comm_choose(comm_find(node.pool, ((uint64_t)1 << n) - 1), how);
    for (int i = 0; i <= n_layouts; i++) {
        bool all = i == n_layouts;
        struct place p;
        struct layout base = all ? layouts[rng_below(rng, (uint64_t)n_layouts)] : layouts[i];
        for (int order = 0; order < (base.sp > 1 && base.tp > 1 ? 2 : 1); order++) {
            place_make(&p, order || all ? base : (struct layout){n, 1, 1}, node_tokens_per_block(&node, n), LEN, 0);
            struct course c = {&node, &p, all ? layouts : &layouts[i], all ? n_layouts : 1, 1 + (int)rng_below(rng, MOST_SEQS), max_logits};
            compared += run_course(s, rng, &c);
            place_free(&p);
        }
    }
    node_close(&node);
    return compared;
}

static void check_subject(struct model *m, int max_len, int stride, uint64_t seed)
{
    static const int widths[] = {8, 4, 6, 3, 2, 1};
    struct subject *s = mem_new(sizeof *s);
    struct rng rng;
    int compared = 0;
    rng_init(&rng, seed);
    s->model = m;
    s->max_len = max_len;
    make_truth(s, &rng);
    for (size_t i = 0; i < 6; i += (size_t)stride) {
        int n = widths[(i + (stride > 1 ? seed : 0)) % 6];
        enum comm_algorithm how = (enum comm_algorithm)rng_below(&rng, 3);
        for (int k = 0; k < REPEATS && n <= model_config(m)->n_heads; k++)
            compared += check_width(s, &rng, n, k ? 5 : MAX_ROWS, how);
    }
    assert_true(compared > 0);
    free_truth(s);
    mem_free(s);
}

static void check_dummy(const char *name, enum dtype type, uint64_t seed)
{
    char path[64];
    struct model *m;
    struct err e = {0};
    snprintf(path, sizeof path, "tests/data/layout_%s.json", name);
    if (model_open_dummy(&m, path, type, seed, &e))
        fail_msg("%s", e.text);
    check_subject(m, LEN, STRIDE, seed);
    model_close(m);
}

static void mha(void **state)
{
    (void)state;
    check_dummy("mha", DT_Q4_1, 1);
}

static void gqa_8_2(void **state)
{
    (void)state;
    check_dummy("gqa", DT_Q8_0, 2);
}

static void mqa(void **state)
{
    (void)state;
    check_dummy("mqa", DT_F16, 3);
}

static void heads_9_3(void **state)
{
    (void)state;
    check_dummy("9_3", DT_Q4_0, 4);
}

static void heads_40_8(void **state)
{
    (void)state;
    check_dummy("40_8", DT_Q5_1, 5);
}

static void heads_28_4(void **state)
{
    (void)state;
    check_dummy("28_4", DT_F32, 6);
}

/* Blocks of 256 columns, cut at 64. */
static void k_quants(void **state)
{
    (void)state;
    check_dummy("wide", DT_Q6_K, 7);
}

/* Heads that fall on no leaf: sequence parallelism only. */
static void narrow_heads(void **state)
{
    (void)state;
    struct model_config c = {.n_heads = 8, .n_kv_heads = 4, .head_dim = 24};
    struct layout layouts[8];
    assert_int_equal(layouts_of(&c, 4, layouts), 1);
    check_dummy("narrow", DT_BF16, 8);
}

static void demo_model(void **state)
{
    (void)state;
    struct model *m;
    struct err e = {0};
    if (access(DEMO_MODEL, R_OK) != 0) {
        print_message("%s is not here: models/fetch.sh fetches it\n", DEMO_MODEL);
        skip();
    }
    if (model_open_gguf(&m, DEMO_MODEL, &e))
        fail_msg("%s", e.text);
    check_subject(m, DEMO_LEN, STRIDE > 1 ? 6 : 1, 9);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mha),        cmocka_unit_test(gqa_8_2),    cmocka_unit_test(mqa),
        cmocka_unit_test(heads_9_3),  cmocka_unit_test(heads_40_8), cmocka_unit_test(heads_28_4),
        cmocka_unit_test(k_quants),   cmocka_unit_test(narrow_heads), cmocka_unit_test(demo_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
