/* A model, the expected outcome of some sequences, and random courses over them: what the tests of layouts share. The
 * expected outcome is each sequence alone, in one piece, on one rank. A course takes the sequences to their ends in
 * random pieces and in given layouts, and compares every logit and every sampled token. Tests only. */
#ifndef RIG_LAYOUT_SUBJECT_H
#define RIG_LAYOUT_SUBJECT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "tests/rig/layout_rig.h"

#define DEMO_MODEL "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"

/* Sanitizers are slow: shorter sequences, fewer of them. */
#if defined(__SANITIZE_THREAD__) || defined(EMULATED)
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
    float *logits[NODE_SEQS];                /* [len][vocab] */
    struct sample_result *chosen[NODE_SEQS]; /* [len] */
};

/* Every sequence chooses in its own way; the raw logits stay as they are under all of these. */
static const struct sampling ways[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 5},
    {.temperature = 0.7f, .top_p = 1, .repetition_penalty = 1, .seed = 6},
};

static inline struct sample_row row_of(int seq, int pos)
{
    return (struct sample_row){.how = &ways[seq % 3], .given = -1, .position = (uint64_t)pos, .n_top = N_TOP};
}

static inline struct node_opts opts_of(int n_ranks, int max_rows, int max_logits, int n_blocks)
{
    return (struct node_opts){.n_ranks = n_ranks,
                              .max_rows = max_rows,
                              .max_logits = max_logits,
                              .n_blocks = n_blocks,
                              .block_tokens = 16,
                              .kv = DT_F16};
}

/* Models of fp8 have a cache of fp8, and on CPUs those of Q8_0 one of int8. */
static inline void open_node(struct node *n, struct model *m, const struct node_opts *o)
{
    struct err e = {0};
    struct node_opts own = *o;
    struct weight_src q;
    if (model_shape(m, T_Q, 0, &q, &e) == 0 && q.type == DT_F8_SCALED)
        own.kv = DT_F8;
    if (!o->ops && backend_cpu()->kv_block_bytes(DT_I8, 16, 1, 16) && model_shape(m, T_Q, 0, &q, &e) == 0 &&
        q.type == DT_Q8_0)
        own.kv = DT_I8;
    if (node_open(n, m, &own, &e))
        fail_msg("%s", e.text);
}

/* Runs a step with the given rows' logits wanted; where says which (sequence, position) each row is. */
struct want {
    int seq, pos;
};

static inline void run(struct node *n, struct node_step *s, const struct want *wants, struct sample_result *results)
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

static inline void make_truth(struct subject *s, struct rng *rng)
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
        struct node_step step = {
            .place = &p, .layout = {1, 1, 1}, .seqs = &whole, .n_seqs = 1, .n_logits = s->len[q], .logit_rows = all};
        run(&n, &step, wants, s->chosen[q]);
        const struct act *a = &n.forwards[0].logits;
        for (int i = 0; i < s->len[q]; i++)
            memcpy(s->logits[q] + (size_t)i * (size_t)s->vocab, (const float *)a->data + (size_t)i * (size_t)a->ld,
                   (size_t)s->vocab * sizeof(float));
    }
    place_free(&p);
    node_close(&n);
}

static inline void free_truth(struct subject *s)
{
    for (int q = 0; q < NODE_SEQS; q++) {
        mem_free(s->logits[q]);
        mem_free(s->chosen[q]);
    }
}

/* The logits that the ranks still hold (all of them unless they were taken in chunks) and every choice. Returns the
 * logit rows compared. */
static inline int compare(const struct subject *s, const struct node *n, const struct node_step *st,
                          const struct want *wants, bool whole)
{
    int compared = 0;
    for (int i = 0; i < st->n_logits; i++) {
        const struct sample_result *want = &s->chosen[wants[i].seq][wants[i].pos];
        if (memcmp(&st->results[i], want, sizeof *want) != 0)
            fail_msg("{%d,%d,%d}: sequence %d, position %d: token %d, not %d", st->layout.sp, st->layout.tp,
                     st->layout.pp, wants[i].seq, wants[i].pos, st->results[i].token, want->token);
    }
    for (int i = 0; i < st->place->n && st->n_logits; i++) {
        const struct forward *f = &n->forwards[st->place->ranks[i]];
        for (int k = 0; k < f->n_logits; k++, compared++) {
            struct want w = wants[f->first_logit + k];
            const float *got = (const float *)f->logits.data + (size_t)k * (size_t)f->logits.ld;
            if (memcmp(got, s->logits[w.seq] + (size_t)w.pos * (size_t)s->vocab, (size_t)s->vocab * sizeof *got) != 0)
                fail_msg("{%d,%d,%d}: sequence %d, position %d: logits differ", st->layout.sp, st->layout.tp,
                         st->layout.pp, w.seq, w.pos);
        }
    }
    if (whole)
        assert_int_equal(compared, st->n_logits);
    return compared;
}

/* A step of random pieces of n_seqs sequences that have something left; decodes are pieces of one token. */
static inline int random_pieces(const struct subject *s, struct rng *rng, int n_seqs, const int *at,
                                struct node_seq *seqs)
{
    int n = 0, rows = 0, start = (int)rng_below(rng, (uint64_t)n_seqs);
    bool decode = rng_below(rng, 3) == 0;
    for (int k = 0; k < n_seqs; k++) {
        int q = (start + k) % n_seqs, left = s->len[q] - at[q];
        int most = decode || rng_below(rng, 3) == 0 ? 1 : MAX_ROWS - rows,
            take = most > 1 ? 1 + (int)rng_below(rng, (uint64_t)most) : 1;
        take = take < left ? take : left;
        if (take <= 0 || rows + take > MAX_ROWS || rng_below(rng, 6) == 0)
            continue;
        seqs[n++] = (struct node_seq){q, at[q], take, s->ids[q]};
        rows += take;
    }
    return n;
}

/* Which rows' logits are wanted: none, the last of each piece, or all. */
static inline int choose_logits(struct rng *rng, const struct node_seq *seqs, int n, int32_t *rows, struct want *wants)
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
    const struct layout *layouts; /* taken in turn, step by step */
    int n_layouts, n_seqs, max_logits;
    int at[NODE_SEQS], turn; /* tokens done; steps taken */
};

static inline bool course_over(const struct subject *s, const struct course *c)
{
    for (int q = 0; q < c->n_seqs; q++)
        if (c->at[q] < s->len[q])
            return false;
    return true;
}

/* One step of random pieces; returns the logit rows compared. */
static inline int course_step(struct subject *s, struct rng *rng, struct course *c)
{
    struct node_seq seqs[NODE_SEQS];
    int32_t rows[MAX_ROWS];
    struct want wants[MAX_ROWS];
    struct sample_result results[MAX_ROWS] = {0};
    int n = random_pieces(s, rng, c->n_seqs, c->at, seqs);
    if (!n)
        return 0;
    struct node_step st = {.place = c->place,
                           .layout = c->layouts[c->turn++ % c->n_layouts],
                           .n_micro = 1 + (int)rng_below(rng, 6),
                           .seqs = seqs,
                           .n_seqs = n,
                           .logit_rows = rows};
    st.n_logits = choose_logits(rng, seqs, n, rows, wants);
    run(c->node, &st, wants, results);
    for (int i = 0; i < n; i++)
        c->at[seqs[i].seq] += seqs[i].n;
    return compare(s, c->node, &st, wants, st.n_logits <= c->max_logits && st.layout.pp == 1);
}

static inline int layouts_of(const struct model_config *c, int n, struct layout *out)
{
    struct heads h = shard_heads(c);
    int count = 0;
    for (int sp = 1; sp <= n; sp++)
        if (n % sp == 0 && !layout_refusal(&h, (struct layout){sp, n / sp, 1}))
            out[count++] = (struct layout){sp, n / sp, 1};
    return count;
}

/* The same in pp stages, each of n / pp ranks. */
static inline int staged_layouts_of(const struct model_config *c, int n, int pp, struct layout *out)
{
    int count = n % pp == 0 && pp <= c->n_layers ? layouts_of(c, n / pp, out) : 0;
    for (int i = 0; i < count; i++)
        out[i].pp = pp;
    return count;
}

static inline struct model *open_dummy(const char *name, enum dtype type, uint64_t seed)
{
    char path[64];
    struct model *m;
    struct err e = {0};
    snprintf(path, sizeof path, "tests/data/layout_%s.json", name);
    if (model_open_dummy(&m, path, type, seed, &e))
        fail_msg("%s", e.text);
    return m;
}

static inline struct subject *subject_new(struct model *m, int max_len, struct rng *rng)
{
    struct subject *s = mem_new(sizeof *s);
    s->model = m;
    s->max_len = max_len;
    make_truth(s, rng);
    return s;
}

static inline void subject_free(struct subject *s)
{
    free_truth(s);
    mem_free(s);
}

#endif
