/* Weights of a node: views of one loaded copy for every share of every layout, no byte copied by any switch; and the
 * sharded copy, which gives the same bits for more memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "models/forward/forward.h"
#include "tests/rig/layout_subject.h"

/* A machine that counts what is loaded into it and allocated on it. */
static struct {
    int loads, uploads, allocs;
} counted;

static int counting_load(struct device *d, struct weight **out, const struct weight_src *src, struct err *e)
{
    counted.loads++;
    return backend_cpu()->weight_load(d, out, src, e);
}

static int counting_upload(struct device *d, void *dst, const void *src, size_t bytes)
{
    counted.uploads++;
    return backend_cpu()->upload(d, dst, src, bytes);
}

static void *counting_alloc(struct device *d, size_t bytes)
{
    counted.allocs++;
    return backend_cpu()->alloc(d, bytes);
}

static void run_all_layouts(struct subject *s, struct node *node, struct rng *rng)
{
    int compared = 0;
    for (int n = node->n_ranks; n >= 1; n--) {
        struct layout layouts[8];
        struct place p;
        if (n > 1 && !comm_find(node->pool, rank_range(0, n)))
            continue;
        place_make(&p, (struct layout){n, 1, 1}, node_tokens_per_block(node, n), LEN, 0);
        struct course c = {.node = node,
                           .place = &p,
                           .layouts = layouts,
                           .n_layouts = layouts_of(model_config(s->model), n, layouts),
                           .n_seqs = MOST_SEQS,
                           .max_logits = MAX_ROWS};
        while (!course_over(s, &c))
            compared += course_step(s, rng, &c);
        place_free(&p);
    }
    assert_true(compared > 0);
}

static int blocks_needed(void)
{
    struct place p;
    int n = place_make(&p, (struct layout){1, 1, 1}, 16, LEN, 0);
    place_free(&p);
    return n;
}

static void no_switch_copies_a_byte(void **state)
{
    (void)state;
    struct backend_ops ops = *backend_cpu();
    struct rng rng;
    struct node node;
    rng_init(&rng, 1);
    struct model *m = open_dummy("9_3", DT_Q4_1, 1);
    struct subject *s = subject_new(m, LEN, &rng);
    struct node_opts o = opts_of(4, MAX_ROWS, MAX_ROWS, blocks_needed());
    ops.weight_load = counting_load;
    ops.upload = counting_upload;
    ops.alloc = counting_alloc;
    o.ops = &ops;
    open_node(&node, m, &o);
    int loads = counted.loads, uploads = counted.uploads, allocs = counted.allocs;
    assert_int_equal(loads, 1 + 7 * model_config(m)->n_layers); /* once for all four ranks */
    assert_int_equal(allocs, uploads + 2 * 4);                  /* norms; KV and scratch of each rank */
    run_all_layouts(s, &node, &rng);
    assert_int_equal(counted.loads, loads);
    assert_int_equal(counted.uploads, uploads);
    assert_int_equal(counted.allocs, allocs);
    assert_true(weights_copy_bytes(node.weights) == 0);
    node_close(&node);
    subject_free(s);
    model_close(m);
}

/* Every share of every layout multiplies with windows of the same matrices, and the shares of a tp group have each row
 * and column once. */
static void views_are_windows_of_what_is_loaded(void **state)
{
    (void)state;
    struct node node;
    struct model *m = open_dummy("9_3", DT_Q4_1, 1);
    struct node_opts o = opts_of(6, MAX_ROWS, MAX_ROWS, 1);
    open_node(&node, m, &o);
    const struct model_config *c = model_config(m);
    const struct model_weights *one = weights_view(node.weights, (struct layout){1, 1, 1}, 0);
    assert_int_equal(one->layers[0].q.rows, c->n_heads * c->head_dim);
    for (int sp = 1; sp <= 6; sp++)
        for (int tp = 1; sp * tp <= 6; tp++) {
            int vocab = 0, q = 0, gate = 0, o_cols = 0, down_cols = 0;
            for (int i = 0; i < sp * tp; i++) {
                const struct model_weights *w = weights_view(node.weights, (struct layout){sp, tp, 1}, i);
                assert_non_null(w);
                assert_int_equal(w->head.row0, vocab);
                vocab += w->head.rows;
                for (int l = 0; l < c->n_layers; l++) {
                    assert_ptr_equal(w->layers[l].q.w, one->layers[l].q.w);
                    assert_ptr_equal(w->layers[l].up.w, one->layers[l].up.w);
                    for (int k = 0; k < w->n_o; k++)
                        assert_ptr_equal(w->layers[l].o[k].w, one->layers[l].o[0].w);
                    for (int k = 0; k < w->n_down; k++)
                        assert_ptr_equal(w->layers[l].down[k].w, one->layers[l].down[0].w);
                }
                if (w->shard.s > 0)
                    continue;
                assert_int_equal(w->layers[1].q.row0, q);
                assert_int_equal(w->layers[1].gate.row0, gate);
                q += w->layers[1].q.rows;
                gate += w->layers[1].gate.rows;
                for (int k = 0; k < w->n_o; o_cols += w->layers[1].o[k++].cols)
                    assert_int_equal(w->layers[1].o[k].col0, o_cols);
                for (int k = 0; k < w->n_down; down_cols += w->layers[1].down[k++].cols)
                    assert_int_equal(w->layers[1].down[k].col0, down_cols);
            }
            assert_int_equal(vocab, c->vocab);
            assert_int_equal(q, c->n_heads * c->head_dim);
            assert_int_equal(o_cols, q);
            assert_int_equal(gate, c->intermediate);
            assert_int_equal(down_cols, gate);
        }
    assert_null(weights_view(node.weights, (struct layout){7, 1, 1}, 0));
    assert_null(weights_view(node.weights, (struct layout){2, 4, 1}, 0));
    assert_null(weights_view(node.weights, (struct layout){2, 2, 1}, 4));
    assert_null(weights_view(node.weights, (struct layout){1, 1, 2}, 0));
    node_close(&node);
    model_close(m);
}

static void a_sharded_copy_gives_the_same_bits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtype type;
    } subjects[] = {{"9_3", DT_Q4_1}, {"gqa", DT_F8_SCALED}, {"mqa", DT_F16}, {"40_8", DT_Q5_0}, {"swiftkv", DT_Q8_0}};
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        struct rng rng;
        struct node node;
        rng_init(&rng, i);
        struct model *m = open_dummy(subjects[i].name, subjects[i].type, 1);
        struct subject *s = subject_new(m, LEN, &rng);
        struct node_opts o = opts_of(4, MAX_ROWS, MAX_ROWS, blocks_needed());
        o.copy_shards = true;
        open_node(&node, m, &o);
        const struct model_weights *base = weights_view(node.weights, (struct layout){4, 1, 1}, 0);
        const struct model_weights *shift = weights_view(node.weights, (struct layout){1, 4, 1}, 2);
        assert_ptr_not_equal(base->layers[0].q.w, shift->layers[0].q.w);
        assert_true(weights_copy_bytes(node.weights) > 0);
        run_all_layouts(s, &node, &rng);
        node_close(&node);
        subject_free(s);
        model_close(m);
    }
}

/* On two ranks there is one layout with tp > 1, whose shards together are the matrices once more. */
static void the_copy_is_counted(void **state)
{
    (void)state;
    struct model *m = open_dummy("mha", DT_F16, 1);
    struct device *d;
    struct device_opts o = {.n_threads = 1, .max_rows = 8, .max_logits = 8};
    struct weights *plain, *copied;
    assert_int_equal(backend_cpu()->open(&d, &o, NULL), 0);
    struct weights_setup s = {.model = m, .ops = backend_cpu(), .device = d, .n_ranks = 2};
    assert_int_equal(weights_load(&plain, &s, NULL), 0);
    s.copy_shards = true;
    assert_int_equal(weights_load(&copied, &s, NULL), 0);
    size_t matrices = 0;
    for (int l = 0; l < model_config(m)->n_layers; l++) {
        const struct layer_weights *w = &weights_view(plain, (struct layout){1, 1, 1}, 0)->layers[l];
        const struct weight *all[] = {w->q.w, w->k.w, w->v.w, w->gate.w, w->up.w, w->o->w, w->down->w};
        for (int i = 0; i < 7; i++)
            matrices += backend_cpu()->weight_bytes(all[i]);
    }
    assert_true(weights_copy_bytes(plain) == 0);
    assert_true(weights_copy_bytes(copied) == matrices);
    assert_true(weights_bytes(copied) == weights_bytes(plain) + matrices);
    weights_free(plain);
    weights_free(copied);
    backend_cpu()->close(d);
    model_close(m);
}

/* Blocks of 256 columns that a share would cut: refused at start, with what to do. Views run them (layout_bits). */
static void a_copy_that_cuts_blocks_is_refused(void **state)
{
    (void)state;
    struct node node;
    struct err e = {0};
    struct model *m = open_dummy("wide", DT_Q4_K, 1);
    struct node_opts o = opts_of(2, MAX_ROWS, MAX_ROWS, 1);
    o.copy_shards = true;
    assert_int_equal(node_open(&node, m, &o, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "--shift-weights"));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_switch_copies_a_byte),
        cmocka_unit_test(views_are_windows_of_what_is_loaded),
        cmocka_unit_test(a_sharded_copy_gives_the_same_bits),
        cmocka_unit_test(the_copy_is_counted),
        cmocka_unit_test(a_copy_that_cuts_blocks_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
