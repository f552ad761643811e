/* Captured steps beside others: two nodes of the same model take the same sequences through the same steps, prefills
 * between decodes, in layouts of 1 to 4 ranks; one has graphs, the other is the CPU in invariant mode and makes its
 * steps of ops in the default mode. In invariant mode they choose the same. Over tests/emulator (a graph's nodes then
 * run in a random order that its edges allow), or on a GPU. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "kernels/cuda/graph.h"
#include "engine/base/mem.h"
#include "models/load/quantize.h"
#include "tests/rig/layout_subject.h"

enum { SEQS = 6, LENGTH = 24, STEPS = 5, BLOCK = 16, TOP = 3, GRAPHS = 2 };
static const int sizes[GRAPHS] = {5, 1}; /* 6 sequences at once have none; 5 rows of 4 bytes are more than 16 bytes */

/* Counts what was played. */
static atomic_int n_played;

static int count_post(struct device *d, const struct graph_call *c, bool *played, struct err *e)
{
    int rc = backend_cuda()->graph_post(d, c, played, e);
    atomic_fetch_add(&n_played, *played);
    return rc;
}

static const struct backend_ops *counting(void)
{
    static struct backend_ops ops;
    ops = *backend_cuda();
    ops.graph_post = count_post;
    return &ops;
}

struct pair {
    struct node with, without;
    struct place places[2]; /* of each: the same */
    struct layout layout;
    bool fast;
    int32_t ids[SEQS][LENGTH];
    int pos[SEQS];
};

struct recording {
    struct node_part part;
    int rows;
};

static void record_part(void *arg)
{
    struct recording *r = arg;
    r->part.rc = forward_capture(&r->part.node->forwards[r->part.rank], &r->part.site, r->rows, &r->part.err);
}

static int record(struct node *n, const struct place *p, struct layout l, int rows, struct err *e)
{
    struct recording parts[NODE_RANKS] = {0};
    struct node_step step = {.place = p, .layout = l};
    int rc = 0;
    for (int i = 0; i < p->n; i++) {
        parts[i] = (struct recording){{.node = n, .rank = p->ranks[i], .site = node_site(n, &step, i)}, rows};
        assert_int_equal(thread_start(&parts[i].part.thread, "rank", record_part, &parts[i], NULL), 0);
    }
    for (int i = 0; i < p->n; i++) {
        thread_join(parts[i].part.thread);
        if (parts[i].part.rc && (!rc || rc == E_PEER)) {
            rc = parts[i].part.rc;
            *e = parts[i].part.err;
        }
    }
    return rc;
}

static void open_pair(struct pair *p, struct model *m)
{
    int n = p->layout.sp * p->layout.tp;
    struct node_opts o = {.ops = counting(),
                          .n_ranks = n,
                          .max_rows = 16,
                          .max_logits = 2,
                          .block_tokens = BLOCK,
                          .kv = DT_F16,
                          .fast = p->fast};
    struct err e = {0};
    o.n_blocks = NODE_SEQS * ((LENGTH + BLOCK - 1) / BLOCK);
    o.graph_rows = sizes[0];
    open_node(&p->with, m, &o);
    o.graph_rows = 0;
    o.ops = p->fast ? backend_cuda() : backend_cpu();
    open_node(&p->without, m, &o);
    place_make(&p->places[0], (struct layout){n, 1, 1}, node_tokens_per_block(&p->without, n), LENGTH, 0);
    place_make(&p->places[1], (struct layout){n, 1, 1}, node_tokens_per_block(&p->with, n), LENGTH, 0);
    for (int i = 0; i < GRAPHS; i++)
        if (record(&p->with, &p->places[1], p->layout, sizes[i], &e))
            fail_msg("{%d,%d} of %d rows: %s", p->layout.sp, p->layout.tp, sizes[i], e.text);
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < LENGTH; i++)
            p->ids[s][i] = (s * 31 + i * i * 7 + i * 3 + 5) % model_config(m)->vocab;
}

static void close_pair(struct pair *p)
{
    place_free(&p->places[0]);
    place_free(&p->places[1]);
    node_close(&p->with);
    node_close(&p->without);
}

/* Lists of every kind. */
static struct logit_bias bias[] = {{3, 2.5f}, {9, -4}};
static int32_t allowed[] = {1, 2, 3, 5, 8, 13, 21, 34, 55};
static const int32_t banned[] = {2, 7};
static const struct sampling choices[] = {
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
    {.temperature = 0.8f, .top_p = 0.9f, .top_k = 20, .repetition_penalty = 1, .seed = 5},
    {.temperature = 1,
     .top_p = 1,
     .repetition_penalty = 1.3f,
     .frequency_penalty = 0.5f,
     .presence_penalty = 0.2f,
     .seed = 6},
    {.temperature = 0.7f, .top_p = 1, .min_p = 0.05f, .repetition_penalty = 1, .bias = bias, .n_bias = 2, .seed = 7},
    {.temperature = 0, .top_p = 1, .repetition_penalty = 1},
};
enum { CHOICES = sizeof choices / sizeof choices[0] };

/* Sequence s of this step: how many of its tokens are computed. */
struct stepping {
    int n_seqs, seqs[SEQS], n[SEQS];
};

static struct sample_row ask(const struct pair *p, int s, int at)
{
    return (struct sample_row){.how = &choices[s % CHOICES],
                               .given = -1,
                               .position = (uint64_t)at,
                               .n_top = s % 2 ? TOP : -1,
                               .prompt = p->ids[s],
                               .n_prompt = 4,
                               .output = p->ids[s] + 4,
                               .n_output = at > 4 ? at - 4 : 0,
                               .banned = banned,
                               .n_banned = s % 3 == 1 ? 2 : 0,
                               .allowed = allowed,
                               .n_allowed = s % CHOICES == CHOICES - 1 ? 9 : 0};
}

static void compute_step(struct pair *p, int which, const struct stepping *s, struct sample_result *out)
{
    struct node *n = which ? &p->with : &p->without;
    struct node_part parts[NODE_RANKS];
    struct node_seq seqs[SEQS];
    struct sample_row rows[SEQS];
    int32_t wanted[SEQS];
    for (int i = 0, row = 0; i < s->n_seqs; i++) {
        int q = s->seqs[i];
        seqs[i] = (struct node_seq){q, p->pos[q], s->n[i], p->ids[q]};
        row += s->n[i];
        wanted[i] = row - 1;
        rows[i] = ask(p, q, p->pos[q] + s->n[i]);
    }
    struct node_step step = {.place = &p->places[which],
                             .layout = p->layout,
                             .seqs = seqs,
                             .n_seqs = s->n_seqs,
                             .n_logits = s->n_seqs,
                             .logit_rows = wanted,
                             .samples = rows,
                             .results = out};
    memset(out, 0, SEQS * sizeof *out);
    if (node_run(n, &step, parts))
        for (int i = 0; i < p->places[which].n; i++)
            if (parts[i].rc)
                fail_msg("share %d: %s", i, parts[i].err.text);
}

/* The device's logarithm may round otherwise than the CPU's. */
static void same_answers(const struct pair *p, const struct stepping *s, const struct sample_result *a,
                         const struct sample_result *b)
{
    for (int i = 0; i < s->n_seqs; i++) {
        bool same = p->fast || (a[i].token == b[i].token && a[i].rank == b[i].rank &&
                                !memcmp(a[i].top_ids, b[i].top_ids, sizeof a[i].top_ids));
        float off = fabsf(a[i].logprob - b[i].logprob);
        for (int k = 0; k < a[i].n_top; k++)
            off = fmaxf(off, fabsf(a[i].top_logprobs[k] - b[i].top_logprobs[k]));
        if (!same || a[i].n_top != b[i].n_top || !(off <= (p->fast ? 0.02f : 1e-5f)))
            fail_msg("{%d,%d} %d sequences, row %d: token %d (%g) by the graph, %d (%g) without; off by %g",
                     p->layout.sp, p->layout.tp, s->n_seqs, i, b[i].token, (double)b[i].logprob, a[i].token,
                     (double)a[i].logprob, (double)off);
    }
}

static void step_both(struct pair *p, const struct stepping *s)
{
    struct sample_result a[SEQS], b[SEQS];
    compute_step(p, 0, s, a);
    compute_step(p, 1, s, b);
    same_answers(p, s, a, b);
    for (int i = 0; i < s->n_seqs; i++)
        p->pos[s->seqs[i]] += s->n[i];
}

/* Some sequences in some order; on, a mixed step: the first of them takes several tokens. */
static void random_step(struct rng *r, const struct pair *p, int want, bool mixed, struct stepping *s)
{
    int order[SEQS];
    for (int i = 0; i < SEQS; i++)
        order[i] = i;
    for (int i = SEQS - 1; i > 0; i--) {
        int k = (int)rng_below(r, (uint64_t)i + 1), t = order[i];
        order[i] = order[k];
        order[k] = t;
    }
    *s = (struct stepping){0};
    for (int i = 0; i < SEQS && s->n_seqs < want; i++) {
        int left = LENGTH - p->pos[order[i]], n = mixed && i == 0 ? 3 : 1;
        if (left < n)
            continue;
        s->seqs[s->n_seqs] = order[i];
        s->n[s->n_seqs++] = n;
    }
}

static int course(struct model *m, struct layout l, bool fast, int steps)
{
    struct pair p = {.layout = l, .fast = fast};
    struct rng r;
    int due = 0;
    rng_init(&r, 3 + (uint64_t)l.tp);
    open_pair(&p, m);
    step_both(&p, &(struct stepping){SEQS, {0, 1, 2, 3, 4, 5}, {1, 2, 4, 3, 1, 2}});
    for (int i = 0; i < steps; i++) {
        struct stepping s;
        random_step(&r, &p, i ? 1 + (int)rng_below(&r, SEQS) : sizes[0], i % 3 == 2, &s);
        if (s.n_seqs == 0)
            continue;
        due += i % 3 == 2 || s.n_seqs > sizes[0] ? 0 : p.places[0].n;
        step_both(&p, &s);
    }
    close_pair(&p);
    return due;
}

static void check_model(struct model *m, int widest)
{
    struct layout layouts[8];
    for (int ranks = 1; ranks <= widest; ranks *= 2)
        for (int k = 0, n = layouts_of(model_config(m), ranks, layouts); k < n; k++) {
            if (ranks > 2 && (layouts[k].sp == 1 || layouts[k].tp == 1))
                continue;
            atomic_store(&n_played, 0);
            int due = course(m, layouts[k], false, STEPS);
            assert_int_equal(atomic_load(&n_played), due);
            if (layouts[k].sp > 1)
                continue;
            atomic_store(&n_played, 0);
            due = course(m, layouts[k], true, 3);
            assert_int_equal(atomic_load(&n_played), due);
        }
    model_close(m);
}

static void equal_to_ops(void **state)
{
    (void)state;
    check_model(open_dummy("gqa", DT_Q8_0, 11), 4);
}

static void equal_to_ops_half(void **state)
{
    (void)state;
    check_model(open_dummy("narrow", DT_BF16, 11), 1);
}

static void equal_to_ops_one_kv_head(void **state)
{
    (void)state;
    check_model(open_dummy("mqa", DT_F16, 11), 1);
}

/* All rows of such steps go on, so nothing of them is left out of the graph. */
static void equal_to_ops_swiftkv(void **state)
{
    (void)state;
    check_model(open_dummy("swiftkv", DT_Q8_0, 11), 2);
}

/* More rows than the device was opened for, and a member that cannot: nobody has the graph, the next recording is as if
 * nothing had been. */
static void refused(void **state)
{
    struct model *m = open_dummy("gqa", DT_Q8_0, 11);
    struct pair p = {.layout = {1, 2, 1}};
    struct err e = {0};
    (void)state;
    open_pair(&p, m);
    assert_int_equal(record(&p.with, &p.places[1], p.layout, sizes[0] + 1, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "opened for 5"));
    comm_reset(comm_find(p.with.pool, 3));
    assert_int_equal(record(&p.without, &p.places[0], p.layout, 1, &e), E_UNSUPPORTED);
    comm_reset(comm_find(p.without.pool, 3));
    assert_int_equal(record(&p.with, &p.places[1], (struct layout){2, 1, 1}, 2, &e), 0);
    atomic_store(&n_played, 0);
    step_both(&p, &(struct stepping){2, {0, 1}, {1, 1}});
    assert_int_equal(atomic_load(&n_played), 2);
    close_pair(&p);
    model_close(m);
}

/* Every second matrix of the size of k and v, which is v, in another type, as files called Q4_K_M have them. */
static enum dtype type_of_v;
static int n_of_size;

static int load_mixed(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    enum { KV_ROWS = 256, HIDDEN = 256 };
    struct weight_src own = *src;
    bool changes = src->rows == KV_ROWS && src->cols == HIDDEN && n_of_size++ % 2;
    if (!changes)
        return backend_cuda()->weight_load(d, out, src, e);
    size_t row_bytes = dtype_row_bytes(type_of_v, HIDDEN);
    float x[HIDDEN];
    char *data = mem_new_array(KV_ROWS, row_bytes);
    for (int i = 0; i < KV_ROWS; i++) {
        dtype_to_f32(src->type, (const char *)src->data + (size_t)i * weight_src_pitch(src), x, HIDDEN);
        quantize_row(type_of_v, x, data + (size_t)i * row_bytes, HIDDEN);
    }
    own.type = type_of_v, own.data = data, own.pitch = 0;
    int rc = backend_cuda()->weight_load(d, out, &own, e);
    mem_free(data);
    return rc;
}

/* Kernels of a captured step of so many rows, of a model like "gqa" (where v is of another type: "wide") with so
 * many layers. */
static int kernels_of(enum dtype t, enum dtype v, int layers, int rows)
{
    bool wide = v != t;
    struct backend_ops ops = *backend_cuda();
    struct buf config = {0};
    struct err e = {0};
    struct model *m;
    struct node n;
    struct place p;
    char path[] = "/tmp/moonshift_graph_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(
        file_read(&config, wide ? "tests/data/layout_wide.json" : "tests/data/layout_gqa.json", 1 << 20, &e), 0);
    char *at = strstr(config.data, "\"num_hidden_layers\": 2");
    assert_non_null(at);
    at[strlen("\"num_hidden_layers\": ")] = (char)('0' + layers);
    assert_int_equal(write(fd, config.data, strlen(config.data)), (ssize_t)strlen(config.data));
    assert_int_equal(model_open_dummy(&m, path, t, 3, &e), 0);
    type_of_v = v, n_of_size = 0;
    if (v != t)
        ops.weight_load = load_mixed;
    open_node(&n, m,
              &(struct node_opts){.ops = &ops,
                                  .n_ranks = 1,
                                  .max_rows = 64,
                                  .max_logits = 64,
                                  .block_tokens = BLOCK,
                                  .kv = DT_F16,
                                  .fast = true,
                                  .n_blocks = 64,
                                  .graph_rows = 64});
    place_make(&p, (struct layout){1, 1, 1}, BLOCK, LENGTH, 0);
    if (record(&n, &p, (struct layout){1, 1, 1}, rows, &e))
        fail_msg("%d rows: %s", rows, e.text);
    int kernels = cuda_graph_kernels(n.forwards[0].device);
    assert_true(kernels > 0 && (v == t || n_of_size == 2 * layers));
    place_free(&p);
    node_close(&n);
    model_close(m);
    buf_free(&config);
    close(fd);
    unlink(path);
    return kernels;
}

/* q|k|v with their norm, attention with RoPE and the cache, its output, gate|up with their norm and SwiGLU, down. The
 * library, where it multiplies, needs others. */
static void five_kernels_a_layer(void **state)
{
    static const enum dtype types[][2] = {
        {DT_BF16, DT_BF16}, {DT_F16, DT_F16},   {DT_Q4_1, DT_Q4_1}, {DT_Q8_0, DT_Q8_0}, {DT_F8_SCALED, DT_F8_SCALED},
        {DT_Q4_K, DT_Q6_K}, {DT_Q4_K, DT_Q5_K}, {DT_Q5_K, DT_Q6_K}, {DT_Q5_0, DT_Q8_0}, {DT_Q5_1, DT_Q8_0}};
    static const int rows[] = {1, 5, 16, 17, 32, 64};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            bool by_library = (types[t][0] <= DT_BF16 && rows[i] > 16) || (types[t][0] == DT_F8_SCALED && rows[i] > 32);
            int more =
                kernels_of(types[t][0], types[t][1], 4, rows[i]) - kernels_of(types[t][0], types[t][1], 2, rows[i]);
            if (more != 2 * 5 && !by_library)
                fail_msg("%s, %d rows: two layers more are %d kernels more", dtype_get(types[t][0])->name, rows[i],
                         more);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_to_ops),
        cmocka_unit_test(equal_to_ops_half),
        cmocka_unit_test(equal_to_ops_one_kv_head),
        cmocka_unit_test(equal_to_ops_swiftkv),
        cmocka_unit_test(refused),
        cmocka_unit_test(five_kernels_a_layer),
    };
    if (backend_cuda()->n_devices() == 0) {
        print_message("no GPU here\n");
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
