/* The profile of watched ops: what is counted of known calls, by hand; what is not counted; the same bits; times that
 * add up. */
#include "engine/base/clock.h"
#include "kernels/cpu/pool.h"
#include "kernels/profile.h"
#include "tests/rig/op_fixture.h"

enum { HIDDEN = 128, OUT = 64, VOCAB = 48, HEADS = 4, KV_HEADS = 2, DIM = 32, TOKENS = 16, BLOCKS = 4, ROWS = 4 };

static struct backend_ops watched;

static struct device *open_watched(int n_threads)
{
    struct device *d = NULL;
    struct err e = {0};
    ops = backend_cpu();
    watched = *ops;
    ops->watch(&watched);
    if (watched.open(&d, &(struct device_opts){.n_threads = n_threads, .max_rows = 1024, .max_logits = 64}, &e))
        fail_msg("%s", e.text);
    return d;
}

static struct profile profile_of(struct device *d)
{
    struct profile p = {0};
    watched.add_profile(d, &p);
    return p;
}

/* Two sequences: three rows of a tree behind one that is cached in the same step, and a row behind 9 others. */
struct site {
    struct device *d;
    struct weight *table, *q4, *f16;
    struct kv_space space;
    float *q, *k, *v, *out, *y, *last, *logits;
    struct sample_result results[2];
};

static const int8_t parents[] = {-1, 0, -1};
static const struct row_tree tree = {.first = 4, .n = 3, .parents = parents};
static const int32_t blocks[2][2] = {{0, 1}, {2, 3}}, ids[] = {3, 1, 4, 1, 5}, positions[] = {3, 4, 5, 4, 9},
                     logit_rows[] = {0, 4};
static const struct batch_seq seqs[] = {{.n_rows = 4, .pos0 = 3, .blocks = blocks[0], .tree = &tree},
                                        {.row0 = 4, .n_rows = 1, .pos0 = 9, .blocks = blocks[1]}};
static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
static const struct sample_row samples[2] = {{.how = &greedy, .given = -1, .n_top = -1},
                                             {.how = &greedy, .given = -1, .n_top = -1}};
static const float inv_freq[DIM / 2] = {1, 0.5f, 0.25f};
static const struct rope rope = {.halves = true, .dim = DIM, .inv_freq = inv_freq, .scale = 1};

static struct site site_of(const struct backend_ops *with, struct device *d)
{
    struct site s = {.d = d};
    struct rng r;
    rng_init(&r, 5);
    struct weight_src table = random_matrix(&r, DT_Q8_0, VOCAB, HIDDEN), q4 = random_matrix(&r, DT_Q4_0, OUT, HIDDEN),
                      f16 = random_matrix(&r, DT_F16, VOCAB, HIDDEN);
    s.table = load(d, &table);
    s.q4 = load(d, &q4);
    s.f16 = load(d, &f16);
    free((void *)table.data);
    free((void *)q4.data);
    free((void *)f16.data);
    s.space = (struct kv_space){NULL, with->kv_block_bytes(DT_F16, TOKENS, KV_HEADS, DIM), BLOCKS, 1, DT_F16};
    s.space.base = with->alloc(d, s.space.block_bytes * BLOCKS);
    s.q = random_floats(&r, 5 * HEADS * DIM, 1);
    s.k = random_floats(&r, 5 * KV_HEADS * DIM, 1);
    s.v = random_floats(&r, 5 * KV_HEADS * DIM, 1);
    s.out = calloc(5 * HIDDEN, sizeof(float));
    s.y = calloc(5 * HIDDEN, sizeof(float));
    s.last = calloc(2 * HIDDEN, sizeof(float));
    s.logits = calloc(2 * VOCAB, sizeof(float));
    return s;
}

static void site_free(const struct backend_ops *with, struct site *s)
{
    with->weight_free(s->d, s->table);
    with->weight_free(s->d, s->q4);
    with->weight_free(s->d, s->f16);
    with->release(s->d, s->space.base);
    float *all[] = {s->q, s->k, s->v, s->out, s->y, s->last, s->logits};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    with->close(s->d);
}

static struct batch batch_of(struct site *s)
{
    return (struct batch){.n_rows = 5,
                          .ids = ids,
                          .positions = positions,
                          .n_seqs = 2,
                          .seqs = seqs,
                          .n_logits = 2,
                          .logit_rows = logit_rows,
                          .samples = samples,
                          .results = s->results};
}

static void run_ops(const struct backend_ops *with, struct site *s, int window)
{
    static const int kv_head[HEADS] = {0, 0, 1, 1};
    struct kv_view kv = {&s->space, 0, TOKENS, KV_HEADS, DIM};
    struct linear_args down = {.place = LINEAR_DOWN, .x = act_of(s->y, HIDDEN), .rows = 5, .n_out = 1},
                       head = {.place = LINEAR_HEAD, .x = act_of(s->last, HIDDEN), .rows = 2, .n_out = 1};
    down.out[0] = (struct linear_out){{s->q4, 16, 32, 64, 64}, NULL, act_of(s->out, HIDDEN)};
    down.x.cols = 64;
    head.out[0] = (struct linear_out){{s->f16, 0, VOCAB, 0, HIDDEN}, NULL, act_of(s->logits, VOCAB)};
    with->embed(s->d, (struct wview){s->table, 0, VOCAB, 0, HIDDEN}, act_of(s->y, HIDDEN), 0, 5);
    with->rope(s->d, &(struct rope_args){.q = act_of(s->q, HEADS * DIM),
                                         .k = act_of(s->k, KV_HEADS * DIM),
                                         .n_heads = HEADS,
                                         .n_kv_heads = KV_HEADS,
                                         .head_dim = DIM,
                                         .rows = 5});
    with->kv_write(s->d, act_of(s->k, KV_HEADS * DIM), act_of(s->v, KV_HEADS * DIM), &kv);
    with->attention(s->d, &(struct attention_args){.q = act_of(s->q, HEADS * DIM),
                                                   .out = act_of(s->out, HEADS * DIM),
                                                   .n_heads = HEADS,
                                                   .kv_head = kv_head,
                                                   .kv = kv,
                                                   .scale = 0.2f,
                                                   .window = window});
    with->linear(s->d, &down);
    with->gather(s->d, act_of(s->y, HIDDEN), 0, act_of(s->last, HIDDEN), 0, 2);
    with->linear(s->d, &head);
    with->sample(s->d, act_of(s->logits, VOCAB), VOCAB, 0, 2);
}

static void run_step(const struct backend_ops *with, struct site *s, int window)
{
    struct batch b = batch_of(s);
    assert_int_equal(with->begin(s->d, &b, &rope, NULL), 0);
    run_ops(with, s, window);
    assert_int_equal(with->finish(s->d, NULL, NULL), 0);
}

/* How often, bytes, of those stored ones, operations with quantised weights, with floats. */
static void expect(const struct profile_count *c, uint64_t calls, double bytes, double stored, double int8,
                   double floats)
{
    assert_int_equal(c->calls, calls);
    assert_true(c->bytes == bytes);
    assert_true(c->stored_bytes == stored);
    assert_true(c->int8_ops == int8);
    assert_true(c->float_ops == floats);
}

static void bytes_and_operations_by_hand(void **state)
{
    (void)state;
    struct site s = site_of(backend_cpu(), open_watched(2));
    run_step(&watched, &s, 0);
    struct profile p = profile_of(s.d);
    const struct profile_count *c = p.steps[PROFILE_FEW].ops;
    assert_int_equal(p.n_devices, 1);
    assert_int_equal(p.n_threads, 2);
    assert_int_equal(p.steps[PROFILE_FEW].steps, 1);
    assert_int_equal(p.steps[PROFILE_FEW].rows, 5);
    expect(&c[PROFILE_PREPARE], 1, 0, 0, 0, 0);
    expect(&c[PROFILE_EMBED], 1, 5 * 136, 5 * 136, 0, 0);              /* 4 blocks of 34 bytes a row */
    expect(&c[PROFILE_ROPE], 1, 2 * 5 * 6 * 32 * 4, 0, 0, 0);          /* six heads, read and written */
    expect(&c[PROFILE_KV_WRITE], 1, 5 * 256, 5 * 256, 0, 0);           /* two heads of 64 elements of 2 bytes */
    expect(&c[PROFILE_DOWN], 1, 2 * 2 * 288, 2 * 2 * 288, 20480, 0);   /* 2 groups of rows, 2 blocks; 2*5*32*64 */
    expect(&c[PROFILE_GATHER], 1, 2 * 2 * 128 * 4, 0, 0, 0);           /* read and written */
    expect(&c[PROFILE_HEAD], 1, 48 * 128 * 2, 48 * 128 * 2, 0, 24576); /* 2*2*48*128 */
    expect(&c[PROFILE_SAMPLE], 1, 2 * 48 * 4, 0, 0, 0);
    /* Positions seen: 4, 5, 6 and, on the tree's other branch, 5; 10 of the other sequence. Cached: 7 and 10. */
    expect(&c[PROFILE_ATTENTION], 1, 17 * 256, 17 * 256, 0, 4.0 * (4 + 5 + 6 + 5 + 10) * 4 * 32);
    run_step(&watched, &s, 2); /* two positions each: from 2 and from 8 on */
    p = profile_of(s.d);
    expect(&c[PROFILE_ATTENTION], 2, (17 + 5 + 2) * 256, (17 + 5 + 2) * 256, 0, 4.0 * (30 + 10) * 4 * 32);
    for (int i = 0; i < PROFILE_SIZES; i++)
        assert_int_equal(p.steps[i].steps, i == PROFILE_FEW ? 2 : 0);
    site_free(&watched, &s);
}

static void steps_are_apart_by_their_rows(void **state)
{
    (void)state;
    struct device *d = open_watched(1);
    static const int rows[] = {1, 2, 16, 17, 700}, zeros[1024] = {0};
    for (int i = 0; i < 5; i++) {
        struct batch b = {.n_rows = rows[i], .ids = zeros, .positions = zeros};
        assert_int_equal(watched.begin(d, &b, NULL, NULL), 0);
        assert_int_equal(watched.finish(d, NULL, NULL), 0);
    }
    struct profile p = profile_of(d), twice = p;
    assert_int_equal(p.steps[PROFILE_ONE].steps, 1);
    assert_int_equal(p.steps[PROFILE_FEW].steps, 2);
    assert_int_equal(p.steps[PROFILE_FEW].rows, 18);
    assert_int_equal(p.steps[PROFILE_MANY].steps, 2);
    assert_int_equal(p.steps[PROFILE_MANY].rows, 717);
    assert_int_equal(p.steps[PROFILE_ONE].before_ns, 0); /* there was none */
    assert_true(p.steps[PROFILE_FEW].before_ns > 0 && p.steps[PROFILE_MANY].before_ns > 0);
    watched.add_profile(d, &twice); /* as those of two devices */
    assert_int_equal(twice.n_devices, 2);
    assert_int_equal(twice.steps[PROFILE_MANY].rows, 1434);
    assert_int_equal(twice.steps[PROFILE_MANY].ns, 2 * p.steps[PROFILE_MANY].ns);
    watched.close(d);
}

static void times_of_ops_fit_into_their_steps(void **state)
{
    (void)state;
    struct site s = site_of(backend_cpu(), open_watched(3));
    for (int i = 0; i < 20; i++)
        run_step(&watched, &s, 0);
    struct profile p = profile_of(s.d);
    const struct profile_steps *few = &p.steps[PROFILE_FEW];
    int64_t sum = 0;
    for (int i = 0; i < PROFILE_OPS; i++) {
        const struct profile_count *c = &few->ops[i];
        assert_true(c->ns >= 0 && c->pool_ns >= 0 && c->wait_ns >= 0);
        assert_true(c->wait_ns <= c->pool_ns && c->pool_ns <= c->ns);
        assert_true(c->calls || !c->ns);
        sum += c->ns;
    }
    assert_true(sum > 0 && sum <= few->ns);
    site_free(&watched, &s);
}

/* A step that fails, an op outside of steps, and what follows neither. */
static void what_is_no_step_counts_for_nothing(void **state)
{
    (void)state;
    struct site s = site_of(backend_cpu(), open_watched(2));
    struct batch b = batch_of(&s);
    struct linear_args lost = {.x = act_of(s.y, HIDDEN), .rows = 5, .n_out = 1};
    lost.out[0].w.cols = HIDDEN; /* of a weight that lies elsewhere */
    assert_int_equal(watched.begin(s.d, &b, &rope, NULL), 0);
    watched.embed(s.d, (struct wview){s.table, 0, VOCAB, 0, HIDDEN}, act_of(s.y, HIDDEN), 0, 5);
    watched.linear(s.d, &lost);
    run_ops(&watched, &s, 0);
    assert_int_equal(watched.finish(s.d, NULL, NULL), E_UNSUPPORTED);
    b.n_rows = 4000;
    assert_int_equal(watched.begin(s.d, &b, &rope, NULL), E_FULL);
    struct profile p = profile_of(s.d), none = {.n_devices = 1, .n_threads = 2};
    assert_memory_equal(p.steps, none.steps, sizeof p.steps);
    run_step(&watched, &s, 0);
    p = profile_of(s.d);
    assert_int_equal(p.steps[PROFILE_FEW].steps, 1);
    assert_int_equal(p.steps[PROFILE_FEW].ops[PROFILE_EMBED].calls, 1);
    site_free(&watched, &s);
}

static void the_results_are_the_same_bits(void **state)
{
    (void)state;
    struct site on = site_of(backend_cpu(), open_watched(3)), off = site_of(backend_cpu(), open_device("auto", 3));
    assert_null(backend_cpu()->probe);
    assert_null(backend_cpu()->add_profile);
    for (int i = 0; i < 3; i++) {
        run_step(&watched, &on, 0);
        run_step(backend_cpu(), &off, 0);
        assert_memory_equal(on.q, off.q, 5 * HEADS * DIM * sizeof(float));
        assert_memory_equal(on.out, off.out, 5 * HIDDEN * sizeof(float));
        assert_memory_equal(on.logits, off.logits, 2 * VOCAB * sizeof(float));
        assert_memory_equal(on.space.base, off.space.base, on.space.block_bytes * BLOCKS);
        assert_int_equal(on.results[1].token, off.results[1].token);
    }
    site_free(&watched, &on);
    site_free(backend_cpu(), &off);
}

static void peaks_are_measured_when_asked_for(void **state)
{
    (void)state;
    struct device *d = open_watched(2);
    struct device_facts f;
    assert_true(profile_of(d).peaks.bytes == 0);
    watched.probe(d);
    struct profile p = profile_of(d);
    watched.facts(d, &f);
    bool known = strcmp(f.isa, "portable") != 0;
    assert_true(p.peaks.bytes > 0);
    assert_true((p.peaks.int8_ops > 0) == known);
    assert_true((p.peaks.float_ops > 0) == known);
    watched.close(d);
}

static void spin_item(void *ctx, int item, int thread)
{
    const struct clock *c = ctx;
    int64_t end = clock_now(c) + (item ? 0 : 50000000);
    (void)thread;
    while (clock_now(c) < end)
        ;
}

/* One item of 50 ms: the three other threads wait for it. */
static void a_pool_knows_how_long_threads_wait(void **state)
{
    (void)state;
    struct clock c;
    struct pool *p = NULL;
    clock_init_real(&c);
    assert_int_equal(pool_open(&p, 4, NULL), 0);
    pool_run(p, 4, spin_item, &c);
    assert_true(pool_watched(p).run_ns == 0 && pool_watched(p).wait_ns == 0); /* nobody watches yet */
    assert_int_equal(pool_watch(p, NULL), 0);
    pool_run(p, 4, spin_item, &c);
    pool_run(p, 1, spin_item, &c); /* alone */
    struct pool_time t = pool_watched(p);
    assert_true(t.run_ns >= 50000000 && t.wait_ns <= t.run_ns - 50000000 / 4);
    assert_true(t.wait_ns >= t.run_ns / 4);
    pool_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_and_operations_by_hand),       cmocka_unit_test(steps_are_apart_by_their_rows),
        cmocka_unit_test(times_of_ops_fit_into_their_steps),  cmocka_unit_test(what_is_no_step_counts_for_nothing),
        cmocka_unit_test(the_results_are_the_same_bits),      cmocka_unit_test(peaks_are_measured_when_asked_for),
        cmocka_unit_test(a_pool_knows_how_long_threads_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
