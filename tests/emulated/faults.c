/* What becomes of a failure of the CUDA runtime, wherever it strikes: each call of an opening, a step and a move fails
 * in turn (tests/emulator/faults.h), once or from then on. Memory that is not there is E_FULL and passes; anything else
 * breaks the device for good; the other rank hears E_PEER and goes on; nothing is left behind. */
#include "tests/emulator/faults.h"
#include "tests/emulator/lt_twin.h"
#include "tests/rig/layout_subject.h"

/* Sanitizers are slow: there each third call of an opening, a step or a recording fails. */
#if defined(__SANITIZE_ADDRESS__)
enum { FAIL_STRIDE = 3 };
#else
enum { FAIL_STRIDE = 1 };
#endif
enum {
    TOKENS = 21,
    PROMPT = 18,
    BLOCK = 16,
    FAILING = 1,
    GRAPH_ROWS = 4,
    ANSWERS = 9
}; /* after each ninth failure the answers are compared too */

struct scene {
    bool fast;
    int ranks;
    struct layout layout;
    int device; /* whose calls fail */
};

static struct node_opts opts_of_scene(const struct scene *s)
{
    return (struct node_opts){.ops = backend_cuda(),
                              .n_ranks = s->ranks,
                              .max_rows = 32,
                              .max_logits = 8,
                              .block_tokens = BLOCK,
                              .kv = DT_F16,
                              .n_blocks = 2 * NODE_SEQS * ((TOKENS + BLOCK - 1) / BLOCK),
                              .fast = s->fast,
                              .spread = true,
                              .graph_rows = GRAPH_ROWS};
}

/* As little as there can be of a model of two ranks: every trial runs it anew. */
static struct model *small_model(enum dtype type)
{
    static const char config[] = "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_act\":"
                                 "\"silu\",\"max_position_embeddings\":256,"
                                 "\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"num_hidden_layers\":2,\"hidden_size\":"
                                 "64,\"num_attention_heads\":2,"
                                 "\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":128,\"vocab_size\":"
                                 "96,\"tie_word_embeddings\":true}";
    struct model *m;
    struct err e = {0};
    if (model_open_described(&m, config, type, &e))
        fail_msg("%s", e.text);
    return m;
}

/* ---- the work whose calls fail: a prompt of one sequence and the second half of another, then its next token */

struct work {
    struct node *node;
    struct place place;
    int32_t ids[TOKENS];
    struct node_part parts[NODE_RANKS];
    struct sample_result results[3];
};

/* A sampler with penalties needs what one without does not. */
static const struct sampling with_penalties = {
    .temperature = 0.7f, .top_p = 0.9f, .repetition_penalty = 1.2f, .seed = 3};

static int run_step(struct work *w, struct layout l, const struct node_seq *seqs, int n_seqs)
{
    struct sample_row rows[3];
    int32_t wanted[3];
    int n = 0, row = -1;
    for (int i = 0; i < n_seqs; i++) {
        row += seqs[i].n;
        wanted[n] = row;
        rows[n++] = (struct sample_row){.how = i ? &with_penalties : &ways[1],
                                        .prompt = w->ids,
                                        .n_prompt = 4,
                                        .given = -1,
                                        .position = (uint64_t)i,
                                        .n_top = 2};
    }
    memset(w->results, 0, sizeof w->results);
    struct node_step step = {.place = &w->place,
                             .layout = l,
                             .seqs = seqs,
                             .n_seqs = n_seqs,
                             .n_logits = n,
                             .logit_rows = wanted,
                             .samples = rows,
                             .results = w->results};
    return node_run(w->node, &step, w->parts);
}

static int run_work(struct work *w, struct layout l)
{
    const struct node_seq seqs[2] = {{0, 0, PROMPT, w->ids}, {1, 0, 3, w->ids}};
    return run_step(w, l, seqs, 2);
}

static int run_decode(struct work *w, struct layout l)
{
    const struct node_seq seqs[2] = {{0, PROMPT, 1, w->ids}, {1, 3, 1, w->ids}};
    return run_step(w, l, seqs, 2);
}

static void begin_work(struct work *w, struct node *n, int ranks, int first_rank)
{
    *w = (struct work){.node = n};
    for (int i = 0; i < TOKENS; i++)
        w->ids[i] = (i * 13 + 5) % model_config(n->model)->vocab;
    place_make(&w->place, (struct layout){ranks, 1, 1}, node_tokens_per_block(n, ranks), TOKENS, 0);
    for (int i = 0; i < ranks; i++)
        w->place.ranks[i] = first_rank + i;
}

/* What a rank alone answers on a node that nothing happened to. */
static void truth(struct model *m, const struct scene *s, struct sample_result out[3])
{
    struct node n;
    struct work w;
    struct node_opts o = opts_of_scene(s);
    open_node(&n, m, &o);
    begin_work(&w, &n, 1, 0);
    assert_int_equal(run_work(&w, (struct layout){1, 1, 1}), 0);
    memcpy(out, w.results, sizeof w.results);
    place_free(&w.place);
    node_close(&n);
    assert_int_equal(fault_live(), 0);
}

/* The rank goes on by itself, with the right answer (NULL: any), or not at all. */
static void check_alone(struct node *n, int rank, int wanted, const struct sample_result *right)
{
    struct work w;
    begin_work(&w, n, 1, rank);
    fault_compute(right != NULL);
    int rc = run_work(&w, (struct layout){1, 1, 1});
    fault_compute(true);
    if (rc != wanted)
        fail_msg("rank %d alone afterwards: %d (%s), not %d", rank, rc, w.parts[0].err.text, wanted);
    if (!rc && right && memcmp(w.results, right, sizeof w.results))
        fail_msg("rank %d alone afterwards: another answer", rank);
    place_free(&w.place);
}

/* ---- steps */

/* Calls of the device in an undisturbed step. */
static int count_calls(struct model *m, const struct scene *s)
{
    struct node n;
    struct work w;
    struct node_opts o = opts_of_scene(s);
    open_node(&n, m, &o);
    begin_work(&w, &n, s->ranks, 0);
    fault_arm(s->device, 0, false);
    fault_compute(false);
    assert_int_equal(run_work(&w, s->layout), 0);
    fault_compute(true);
    int calls = fault_calls(s->device);
    place_free(&w.place);
    node_close(&n);
    return calls;
}

static void fail_step(struct model *m, const struct scene *s, int at, bool for_good, const struct sample_result *right)
{
    struct node n;
    struct work w;
    struct node_opts o = opts_of_scene(s);
    open_node(&n, m, &o);
    begin_work(&w, &n, s->ranks, 0);
    fault_arm(s->device, at, for_good);
    fault_compute(false);
    run_work(&w, s->layout);
    fault_compute(true);
    enum fault_kind hit = fault_hit(s->device);
    fault_arm(s->device, 0, false);
    int wanted = hit == FAULT_MALLOC && !for_good ? E_FULL : E_DEVICE;
    for (int i = 0; i < s->ranks; i++) {
        int rc = w.parts[i].rc;
        bool right_code =
            i == s->device ? rc == wanted || (hit == FAULT_MALLOC && rc == E_FULL) : rc == 0 || rc == E_PEER;
        if (hit == FAULT_NONE || !right_code)
            fail_msg("call %d (kind %d): rank %d says %d (%s)", at, (int)hit, i, rc, w.parts[i].err.text);
    }
    comm_reset_within(n.pool, ~0ull);
    bool broken = w.parts[s->device].rc == E_DEVICE || (hit == FAULT_MALLOC && for_good);
    if (!broken || hit != FAULT_MALLOC)
        for (int i = 0; i < s->ranks; i++)
            check_alone(&n, i, i == s->device && broken ? E_DEVICE : 0,
                        at % ANSWERS && hit != FAULT_MALLOC ? NULL : right);
    place_free(&w.place);
    node_close(&n);
    if (fault_live())
        fail_msg("call %d (kind %d): %d things are left", at, (int)hit, fault_live());
}

static void sweep_steps(const struct scene *s, enum dtype type)
{
    struct model *m = small_model(type);
    struct sample_result right[3];
    truth(m, s, right);
    int calls = count_calls(m, s);
    assert_true(calls > 20);
    for (int at = 1; at <= calls; at += FAIL_STRIDE)
        fail_step(m, s, at, at % 2, right);
    print_message("%d calls of a step failed in turn\n", calls);
    model_close(m);
}

static void a_step_alone(void **state)
{
    (void)state;
    sweep_steps(&(struct scene){true, 1, {1, 1, 1}, 0}, DT_Q8_0);
    sweep_steps(&(struct scene){false, 1, {1, 1, 1}, 0}, DT_BF16);
}

static void a_step_of_two(void **state)
{
    (void)state;
    sweep_steps(&(struct scene){true, 2, {1, 2, 1}, FAILING}, DT_BF16);
    sweep_steps(&(struct scene){true, 2, {2, 1, 1}, FAILING}, DT_BF16);
    sweep_steps(&(struct scene){false, 2, {1, 2, 1}, 0}, DT_BF16);
}

/* ---- graphs */

struct recording {
    struct node *node;
    struct forward_member site;
    struct err err;
    struct thread *thread;
    int rank, rc;
};

static void record_part(void *arg)
{
    struct recording *r = arg;
    r->rc = forward_capture(&r->node->forwards[r->rank], &r->site, GRAPH_ROWS, &r->err);
}

/* parts: by share. */
static void record_all(struct work *w, struct layout l, struct recording *parts)
{
    const struct node_step step = {.place = &w->place, .layout = l};
    for (int i = 0; i < w->place.n; i++)
        parts[i] = (struct recording){.node = w->node, .site = node_site(w->node, &step, i), .rank = w->place.ranks[i]};
    for (int i = 1; i < w->place.n; i++)
        assert_int_equal(thread_start(&parts[i].thread, "rank", record_part, &parts[i], NULL), 0);
    record_part(&parts[0]);
    for (int i = 1; i < w->place.n; i++)
        thread_join(parts[i].thread);
}

/* Returns how many calls there were to fail. What cannot be recorded runs without a graph. */
static int fail_recording(struct model *m, const struct scene *s, int at, bool for_good,
                          const struct sample_result *right)
{
    struct node n;
    struct work w;
    struct recording parts[NODE_RANKS];
    struct node_opts o = opts_of_scene(s);
    open_node(&n, m, &o);
    begin_work(&w, &n, s->ranks, 0);
    fault_compute(false);
    fault_arm(s->device, at, for_good);
    record_all(&w, s->layout, parts);
    int calls = fault_calls(s->device);
    enum fault_kind hit = fault_hit(s->device);
    fault_arm(s->device, 0, false);
    /* all have the graph or none, unless the last word between them is lost: then who lost it is broken */
    bool others = s->ranks == 2 && parts[1 - s->device].rc == 0;
    for (int i = 0; i < s->ranks; i++) {
        int rc = parts[i].rc;
        bool good = hit == FAULT_NONE ? rc == 0
                    : i == s->device  ? rc == E_DEVICE || (hit == FAULT_MALLOC && rc == E_FULL)
                                      : rc == E_PEER || hit == FAULT_STREAM;
        if (!good)
            fail_msg("recording, call %d (kind %d): rank %d says %d (%s)", at, (int)hit, i, rc, parts[i].err.text);
    }
    comm_reset_within(n.pool, ~0ull);
    struct err e;
    bool broken = n.ops->begin(n.devices[s->device], &(struct batch){.n_rows = 0}, NULL, &e) != 0;
    assert_true(broken ? s->device == FAILING && hit == FAULT_STREAM : hit == FAULT_NONE || !others);
    if (!broken)
        assert_int_equal(n.ops->finish(n.devices[s->device], NULL, &e), 0);
    for (int i = 0; i < s->ranks; i++)
        check_alone(&n, i, broken && i == s->device ? E_DEVICE : 0, at % ANSWERS ? NULL : right);
    fault_compute(false);
    if (!broken) {
        assert_int_equal(run_work(&w, s->layout), 0);
        assert_int_equal(run_decode(&w, s->layout), 0);
    }
    fault_compute(true);
    place_free(&w.place);
    node_close(&n);
    if (fault_live())
        fail_msg("recording, call %d (kind %d): %d things are left", at, (int)hit, fault_live());
    return calls;
}

/* The same of a step that is played. */
static int fail_playing(struct model *m, const struct scene *s, int at, bool for_good)
{
    struct node n;
    struct work w;
    struct recording recorded[NODE_RANKS];
    struct node_opts o = opts_of_scene(s);
    open_node(&n, m, &o);
    begin_work(&w, &n, s->ranks, 0);
    fault_compute(false);
    record_all(&w, s->layout, recorded);
    assert_int_equal(recorded[0].rc, 0);
    fault_arm(s->device, at, for_good);
    run_decode(&w, s->layout);
    int calls = fault_calls(s->device);
    enum fault_kind hit = fault_hit(s->device);
    fault_arm(s->device, 0, false);
    for (int i = 0; i < s->ranks; i++) {
        int rc = w.parts[i].rc;
        bool good = hit == FAULT_NONE ? rc == 0 : i == s->device ? rc == E_DEVICE : rc == 0 || rc == E_PEER;
        if (!good)
            fail_msg("playing, call %d (kind %d): rank %d says %d (%s)", at, (int)hit, i, rc, w.parts[i].err.text);
    }
    comm_reset_within(n.pool, ~0ull);
    for (int i = 0; i < s->ranks; i++)
        check_alone(&n, i, hit != FAULT_NONE && i == s->device ? E_DEVICE : 0, NULL);
    fault_compute(true);
    place_free(&w.place);
    node_close(&n);
    if (fault_live())
        fail_msg("playing, call %d (kind %d): %d things are left", at, (int)hit, fault_live());
    return calls;
}

static void recording_and_playing(void **state)
{
    static const struct scene scenes[] = {{true, 1, {1, 1, 1}, 0},
                                          {true, 2, {1, 2, 1}, 0},
                                          {true, 2, {2, 1, 1}, FAILING},
                                          {false, 2, {1, 2, 1}, FAILING}};
    (void)state;
    struct model *m = small_model(DT_BF16);
    for (size_t k = 0; k < sizeof scenes / sizeof *scenes; k++) {
        struct sample_result right[3];
        truth(m, &scenes[k], right);
        int recording = fail_recording(m, &scenes[k], 0, false, right), playing = fail_playing(m, &scenes[k], 0, false);
        for (int at = 1; at <= recording; at += FAIL_STRIDE)
            fail_recording(m, &scenes[k], at, at % 2, right);
        for (int at = 1; at <= playing; at += FAIL_STRIDE)
            fail_playing(m, &scenes[k], at, at % 2);
        print_message("%d calls of a recording and %d of playing it failed in turn\n", recording, playing);
        assert_true(recording >= 5 && playing >= 5);
    }
    model_close(m);
}

/* ---- opening and moving */

static void opening(void **state)
{
    (void)state;
    struct model *m = small_model(DT_Q4_0);
    struct scene s = {true, 2, {1, 2, 1}, 0};
    struct node_opts o = opts_of_scene(&s);
    int wrong = 0, n_failed = 0;
    for (s.device = 0; s.device < 2; s.device++)
        for (int at = 1, hit = 1; hit; at += FAIL_STRIDE) {
            struct node n;
            struct err e = {0};
            fault_arm(s.device, at, at % 2);
            fault_compute(false);
            int rc = node_open(&n, m, &o, &e);
            hit = fault_hit(s.device);
            fault_arm(s.device, 0, false);
            fault_compute(true);
            if (!rc)
                node_close(&n);
            n_failed += rc != 0;
            /* a piece of memory that could not be cleared is one that is not there */
            bool good = hit == FAULT_NONE     ? rc == 0
                        : hit == FAULT_MALLOC ? rc == E_FULL
                                              : rc == E_DEVICE || (rc == E_FULL && hit >= FAULT_COPY);
            if (!good || (rc && !e.text[0]) || fault_live()) {
                print_error("device %d, call %d (kind %d): %d '%s', %d things are left\n", s.device, at, hit, rc,
                            e.text, fault_live());
                wrong++;
            }
        }
    print_message("%d openings failed\n", n_failed);
    assert_int_equal(wrong, 0);
    assert_true(n_failed > 30);
    model_close(m);
}

/* One matrix of several pieces, quantised (so sorted on the device) or padded. */
static void load_failing(enum dtype type, int rows, int cols)
{
    size_t bytes = (size_t)rows * dtype_row_bytes(type, cols);
    struct weight_src src = {type, rows, cols, .data = mem_new(bytes)};
    const struct backend_ops *ops = backend_cuda();
    int n_failed = 0;
    for (int at = 1, hit = 1; hit; at++) {
        struct device *d;
        struct weight *w = NULL;
        struct err e = {0}, again = {0};
        const struct batch none = {.n_rows = 0};
        assert_int_equal(ops->open(&d, &(struct device_opts){.max_rows = 32, .max_logits = 8}, &e), 0);
        fault_arm(0, at, false);
        int rc = ops->weight_load(d, &w, &src, &e);
        hit = fault_hit(0);
        fault_arm(0, 0, false);
        n_failed += hit != FAULT_NONE;
        assert_int_equal(rc, hit == FAULT_NONE ? 0 : hit == FAULT_MALLOC ? E_FULL : E_DEVICE);
        assert_true(rc ? !w && e.text[0] : w != NULL);
        if (w)
            ops->weight_free(d, w);
        bool broken = rc == E_DEVICE;
        assert_int_equal(ops->weight_load(d, &w, &src, &again), broken ? E_DEVICE : 0);
        if (w)
            ops->weight_free(d, w);
        rc = ops->begin(d, &none, NULL, &again);
        assert_int_equal(rc, broken ? E_DEVICE : 0);
        if (!rc)
            assert_int_equal(ops->finish(d, NULL, &again), 0);
        ops->close(d);
        assert_int_equal(fault_live(), 0);
    }
    print_message("%s: %d calls of a load failed in turn\n", dtype_get(type)->name, n_failed);
    assert_true(n_failed > 10);
    mem_free((void *)src.data);
}

static void loading(void **state)
{
    (void)state;
    fault_compute(false);
    load_failing(DT_Q8_0, 40000, 1024);
    load_failing(DT_BF16, 20000, 1000);
    fault_compute(true);
}

/* Every call of a product in turn; returns how many there are. */
static int product_failing(const struct weight_src *src, int rows)
{
    const struct backend_ops *ops = backend_cuda();
    static const int32_t zeros[96];
    static float bias[64];
    const struct batch b = {.n_rows = rows, .ids = zeros, .positions = zeros};
    size_t n_x = (size_t)rows * (size_t)src->cols * sizeof(float),
           n_y = (size_t)rows * (size_t)src->rows * sizeof(float);
    int n_failed = 0;
    assert_true(rows <= 96 && src->rows <= 64);
    for (int at = 1, hit = 1; hit; at++) {
        struct device *d;
        struct weight *w;
        struct err e = {0};
        assert_int_equal(ops->open(&d, &(struct device_opts){.max_rows = 96, .max_logits = 8}, &e), 0);
        assert_int_equal(ops->weight_load(d, &w, src, &e), 0);
        float *x = ops->alloc(d, n_x), *y = ops->alloc(d, n_y);
        struct linear_args a = {.x = {x, src->cols, src->cols},
                                .rows = rows,
                                .n_out = 1,
                                .out = {{{w, 0, src->rows, 0, src->cols}, bias, {y, src->rows, src->rows}}}};
        fault_arm(0, at, at % 2);
        int rc = ops->begin(d, &b, NULL, &e);
        if (!rc) {
            ops->linear(d, &a);
            rc = ops->finish(d, NULL, &e);
        }
        hit = fault_hit(0);
        fault_arm(0, 0, false);
        n_failed += hit != FAULT_NONE;
        assert_int_equal(rc, hit == FAULT_NONE ? 0 : hit == FAULT_MALLOC ? E_FULL : E_DEVICE);
        assert_true(!rc || e.text[0]);
        ops->release(d, x), ops->release(d, y);
        ops->weight_free(d, w);
        ops->close(d);
        assert_int_equal(fault_live(), 0);
    }
    return n_failed;
}

/* Two fp8 factors: inputs, scales and sums in working memory, the last rows by themselves. */
static void multiplying_fp8(void **state)
{
    struct weight_src src = {DT_F8_SCALED, 48, 256, .data = mem_new(48 * dtype_row_bytes(DT_F8_SCALED, 256)),
                             .scales = F8_BY_BLOCK};
    int before = lt_twin_products(CUDA_R_8F_E4M3);
    (void)state;
    int n = product_failing(&src, 77);
    print_message("%d calls of a product in fp8 failed in turn\n", n);
    assert_true(n > 8 && lt_twin_products(CUDA_R_8F_E4M3) > before);
    mem_free((void *)src.data);
}

/* Few rows, the columns in parts: room for these, counters, which are cleared. */
static void multiplying_in_parts(void **state)
{
    struct weight_src src = {DT_BF16, 48, 2048, .data = mem_new(48 * dtype_row_bytes(DT_BF16, 2048))};
    struct weight_src whole = {DT_BF16, 48, 256, .data = src.data};
    (void)state;
    int n = product_failing(&src, 12), fewer = product_failing(&whole, 12);
    print_message("%d calls of a product in parts failed in turn\n", n);
    assert_true(n > fewer); /* it had parts */
    mem_free((void *)src.data);
}

static void moving(void **state)
{
    (void)state;
    struct scene s = {true, 2, {1, 2, 1}, 0};
    struct model *m = small_model(DT_BF16);
    struct node_opts o = opts_of_scene(&s);
    struct sample_result right[3];
    int n_failed = 0;
    truth(m, &s, right);
    for (int at = 1, hit = 1; hit; at++) {
        struct node n;
        struct work one;
        struct place two;
        open_node(&n, m, &o);
        begin_work(&one, &n, 1, 1);
        place_make(&two, (struct layout){2, 1, 1}, node_tokens_per_block(&n, 2), TOKENS, o.n_blocks / 2);
        fault_compute(false);
        assert_int_equal(run_work(&one, (struct layout){1, 1, 1}), 0);
        fault_arm(0, at, at % 2);
        node_move(&n, &one.place, &two, 0, (const int[2]){0, PROMPT});
        hit = fault_hit(0);
        fault_arm(0, 0, false);
        n_failed += hit != FAULT_NONE;
        check_alone(&n, 0, hit == FAULT_NONE ? 0 : hit == FAULT_MALLOC ? E_FULL : E_DEVICE, right);
        check_alone(&n, 1, 0, right);
        place_free(&two);
        place_free(&one.place);
        node_close(&n);
        assert_int_equal(fault_live(), 0);
    }
    print_message("%d calls of a move failed in turn\n", n_failed);
    assert_true(n_failed > 0);
    model_close(m);
}

/* All kinds were there to fail. */
static void every_kind_was_seen(void **state)
{
    (void)state;
    for (int k = FAULT_NONE + 1; k < FAULT_KINDS; k++)
        assert_true(fault_seen((enum fault_kind)k) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_alone),
                                       cmocka_unit_test(a_step_of_two),
                                       cmocka_unit_test(recording_and_playing),
                                       cmocka_unit_test(opening),
                                       cmocka_unit_test(loading),
                                       cmocka_unit_test(multiplying_fp8),
                                       cmocka_unit_test(multiplying_in_parts),
                                       cmocka_unit_test(moving),
                                       cmocka_unit_test(every_kind_was_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
