/* Pooled FFN weights never show: logits and choices of every layout on 2, 3, 4 and 8 ranks, with layers fetched, sent
 * to their owners, local, and all of these at random from step to step, are those of one rank that holds everything,
 * bit for bit. What a rank does not hold cannot be read by mistake; a rank that fails leaves nobody waiting; what a
 * rank holds is what the arithmetic says, to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/exec/slice.h"
#include "engine/exec/step.h"
#include "models/forward/forward.h"
#include "tests/rig/layout_subject.h"

/* How one course goes through the pool. */
struct way {
    int n_slots;
    enum ffn_order order;
    const char *owners;
    enum { ALL_FETCHED, ALL_SENT, AT_RANDOM } modes;
};

static struct ffn_setup setup_of(const struct model *m, int n, const struct way *w)
{
    struct err e = {0};
    struct ffn_setup s = {.n_ranks = n,
                          .n_layers = model_config(m)->n_layers,
                          .n_slots = w->n_slots,
                          .order = w->order,
                          .tile_bytes = 4096};
    if (ffn_parse_owners(&s, w->owners, &e))
        fail_msg("%s", e.text);
    return s;
}

/* Owners that are groups cut blocks of 256 columns, and need a model that runs in layouts of so many. */
static bool can_pool(const struct model *m, int n, const struct way *w)
{
    const char *group = strchr(w->owners, ':');
    struct weight_src down;
    if (!group)
        return true;
    assert_int_equal(model_shape(m, T_DOWN, 0, &down, NULL), 0);
    int size = atoi(group + 1);
    return n % size == 0 && !slice_refusal(model_config(m), size) && dtype_get(down.type)->block <= SUM_LEAF;
}

static struct ffn_modes modes_of(const struct way *w, struct rng *rng, int n_layers)
{
    struct ffn_modes m = {0};
    for (int l = 0; l < n_layers; l++)
        if (w->modes == ALL_SENT || (w->modes == AT_RANDOM && rng_below(rng, 2)))
            ffn_set(&m, l, l + 1, FFN_CAS);
    return m;
}

/* Every layout of n ranks, the modes of each step as the way says. */
static int check_way(struct subject *s, struct rng *rng, int n, const struct way *w)
{
    struct layout layouts[8];
    struct node node;
    struct place p, sizes;
    struct ffn_setup ffn = setup_of(s->model, n, w);
    struct node_opts o = opts_of(n, MAX_ROWS, MAX_ROWS, 1);
    int compared = 0;
    o.n_blocks = place_make(&sizes, (struct layout){n, 1, 1}, 16, LEN, 0);
    o.ffn = &ffn;
    place_free(&sizes);
    open_node(&node, s->model, &o);
    place_make(&p, (struct layout){n, 1, 1}, node_tokens_per_block(&node, n), LEN, 0);
    struct course c = {.node = &node,
                       .place = &p,
                       .layouts = layouts,
                       .n_layouts = layouts_of(model_config(s->model), n, layouts),
                       .n_seqs = MOST_SEQS,
                       .max_logits = MAX_ROWS};
    while (!course_over(s, &c)) {
        node.modes = modes_of(w, rng, ffn.n_layers);
        compared += course_step(s, rng, &c);
    }
    place_free(&p);
    node_close(&node);
    return compared;
}

static void check_model(struct model *m, int max_len, uint64_t seed)
{
    static const struct way pooled[] = {
        {2, FFN_PLAIN, "layer-mod", ALL_FETCHED},    {2, FFN_SLICED, "layer-mod", AT_RANDOM},
        {8, FFN_SHIFTED, "contiguous", AT_RANDOM},   {8, FFN_SHIFTED, "layer-mod", ALL_FETCHED},
        {2, FFN_SLICED, "contiguous", ALL_SENT},     {1, FFN_PLAIN, "layer-mod", AT_RANDOM},
        {2, FFN_SLICED, "layer-mod:2", ALL_FETCHED}, {8, FFN_SHIFTED, "contiguous:2", ALL_FETCHED},
        {1, FFN_PLAIN, "layer-mod:4", ALL_FETCHED},
    };
#if defined(EMULATED)
    static const int widths[] = {2, 0, 4};
#else
    static const int widths[] = {2, 3, 4, 8};
#endif
    struct rng rng;
    int compared = 0;
    size_t stride = STRIDE == 2 || (!getenv("MOONSHIFT_WIDE") && STRIDE == 1) ? 3 : STRIDE;
    rng_init(&rng, seed);
    struct subject *s = subject_new(m, max_len, &rng);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (size_t k = 0; k < sizeof pooled / sizeof *pooled && widths[i] <= model_config(m)->n_heads; k++)
            if (widths[i] && (i + k + seed) % stride == 0 && can_pool(m, widths[i], &pooled[k]))
                compared += check_way(s, &rng, widths[i], &pooled[k]);
    assert_true(compared > 0);
    subject_free(s);
}

static void check_dummy(const char *name, enum dtype type, uint64_t seed)
{
    struct model *m = open_dummy(name, type, seed);
    check_model(m, LEN, seed);
    model_close(m);
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
    check_dummy("9_3", DT_F8_SCALED, 4);
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

static void k_quants(void **state)
{
    (void)state;
    check_dummy("wide", DT_Q6_K, 7);
}

static void the_demo_model(void **state)
{
    (void)state;
    struct err e = {0};
    struct model *m;
    if (access(DEMO_MODEL, R_OK) != 0)
        skip();
    assert_int_equal(model_open_gguf(&m, DEMO_MODEL, &e), 0);
    check_model(m, DEMO_LEN, 8);
    model_close(m);
}

/* ---- what lies where */

static void freed_bytes_are_the_ffn_of_others(void **state)
{
    (void)state;
    struct model *m = open_dummy("gqa", DT_Q8_0, 1);
    struct node all, pooled;
    struct node_opts o = opts_of(4, 8, 8, 4);
    struct ffn_setup ffn = setup_of(m, 4, &(struct way){2, FFN_PLAIN, "layer-mod", ALL_FETCHED});
    open_node(&all, m, &o);
    o.ffn = &ffn;
    open_node(&pooled, m, &o);
    size_t whole = weights_ffn_bytes(all.weights), sum = 0;
    assert_true(whole > 0);
    for (int r = 0; r < 4; r++) {
        size_t own = weights_ffn_bytes(pooled.own[r]);
        assert_int_equal(own, whole / (size_t)ffn.n_layers * (size_t)ffn_owned(&ffn, r)); /* layers are alike */
        assert_int_equal(weights_bytes(all.weights) - weights_bytes(pooled.own[r]), whole - own);
        sum += own;
    }
    assert_int_equal(sum, whole);
    node_close(&pooled);
    node_close(&all);
    model_close(m);
}

/* Two pooled ranks, and a step of three tokens on rank 0 alone. */
struct alone {
    struct model *model;
    struct ffn_setup ffn;
    struct node node;
    struct place place;
    int32_t ids[LEN], row;
    struct sample_row sample;
    struct sample_result result;
    struct node_seq seq;
    struct node_step step;
    struct node_part parts[NODE_RANKS];
};

static void open_step(struct alone *a, int slots, struct layout base, const char *owners)
{
    memset(a, 0, sizeof *a);
    a->model = open_dummy("gqa", DT_Q8_0, 1);
    a->ffn = setup_of(a->model, 2, &(struct way){slots, FFN_PLAIN, owners, ALL_FETCHED});
    int n_blocks = place_make(&a->place, base, 16 * base.sp * base.tp, LEN, 0);
    struct node_opts o = opts_of(2, 8, 8, n_blocks);
    o.ffn = &a->ffn;
    open_node(&a->node, a->model, &o);
    memcpy(a->ids, (const int32_t[]){1, 2, 3}, 3 * sizeof *a->ids);
    a->row = 2;
    a->sample = row_of(0, 2);
    a->seq = (struct node_seq){0, 0, 3, a->ids};
    a->step = (struct node_step){.place = &a->place,
                                 .layout = base,
                                 .seqs = &a->seq,
                                 .n_seqs = 1,
                                 .n_logits = 1,
                                 .logit_rows = &a->row,
                                 .samples = &a->sample,
                                 .results = &a->result};
}

static void open_alone(struct alone *a, int slots)
{
    open_step(a, slots, (struct layout){1, 1, 1}, "layer-mod");
}

static void open_together(struct alone *a, int slots, const char *owners)
{
    open_step(a, slots, (struct layout){2, 1, 1}, owners);
}

static int run_alone(struct alone *a)
{
    return node_run(&a->node, &a->step, a->parts);
}

static void close_alone(struct alone *a)
{
    place_free(&a->place);
    node_close(&a->node);
    model_close(a->model);
}

/* A step that asks no pool finds no weights where they do not lie: the step fails and says so, and nothing is read. */
static void what_is_not_here_cannot_be_read(void **state)
{
    (void)state;
    struct alone a;
    open_alone(&a, 2);
    assert_int_equal(run_alone(&a), 0);
    a.node.no_pool = true;
    assert_int_equal(run_alone(&a), E_UNSUPPORTED);
    assert_non_null(strstr(a.parts[0].err.text, "do not lie on this rank"));
    a.node.no_pool = false;
    assert_int_equal(run_alone(&a), 0);
    close_alone(&a);
}

/* Rank 1's device has failed: a step on rank 0 ends with the peer's failure, whichever way its layers take. */
static void nobody_waits_for_a_rank_that_failed(void **state)
{
    (void)state;
    for (int sent = 0; sent < 2; sent++) {
        struct alone a;
        open_alone(&a, 2);
        ffn_set(&a.node.modes, 0, a.ffn.n_layers, sent ? FFN_CAS : FFN_WAS);
        ffn_seat_fail(ffn_pool_seat(a.node.ffn_pool, 1));
        assert_int_equal(run_alone(&a), E_PEER);
        assert_non_null(strstr(a.parts[0].err.text, "rank 1, which holds the FFN weights of layer 1, has failed"));
        close_alone(&a);
    }
}

/* Rank 5 failed, whose layer rank 3 needed, so 2 and 3 did not meet; the step behind that one only knows that it
 * failed. Neither says that 2 or 3 failed. A device's own failure says more than either. */
static void a_failed_step_names_the_rank_that_failed(void **state)
{
    (void)state;
    struct step_part first[2] = {{.rc = E_PEER}, {.rc = E_PEER, .lost_owner = 6}};
    struct step_part second[2] = {{.rc = E_PEER}, {.rc = E_PEER}};
    struct step prev = {.n_ranks = 2, .ranks = {2, 3}, .parts = first};
    struct step next = {.n_ranks = 2, .ranks = {2, 3}, .parts = second, .prev = &prev};
    int rank = -1;
    assert_ptr_equal(step_failure(&prev, &rank), &first[1]);
    assert_int_equal(rank, 5);
    rank = -1;
    assert_ptr_equal(step_failure(&next, &rank), &first[1]);
    assert_int_equal(rank, 5);
    second[0].rc = E_DEVICE;
    assert_ptr_equal(step_failure(&next, &rank), &second[0]);
    assert_int_equal(rank, 2);
}

/* A rank failed in the step behind it, while the others were coming out of their last meeting: what they have is no
 * result, though the step before was whole. */
static void a_step_whose_members_lost_a_peer_has_failed(void **state)
{
    (void)state;
    struct step_part first[2] = {{.rc = 0}, {.rc = 0}}, second[2] = {{.rc = E_PEER}, {.rc = 0}};
    struct step prev = {.n_ranks = 2, .ranks = {2, 3}, .parts = first};
    struct step next = {.n_ranks = 2, .ranks = {2, 3}, .parts = second, .prev = &prev};
    int rank = -1;
    assert_null(step_failure(&prev, &rank));
    assert_ptr_equal(step_failure(&next, &rank), &second[0]);
}

/* Fetched alone: only what others own crosses, each layer once a step; sent alone: only rows cross; and a rank without
 * a step moves nothing. */
static void only_work_moves_bytes(void **state)
{
    (void)state;
    struct alone a;
    struct ffn_account busy, idle;
    open_alone(&a, 8);
    const struct model_config *c = model_config(a.model);
    int last = a.ffn.owner[c->n_layers - 1] == 1; /* that layer has only the rows whose logits are wanted */
    uint64_t rows = 3 * (uint64_t)(ffn_owned(&a.ffn, 1) - last) + (uint64_t)last;
    ffn_set(&a.node.modes, 0, a.ffn.n_layers, FFN_CAS);
    assert_int_equal(run_alone(&a), 0);
    ffn_seat_account(ffn_pool_seat(a.node.ffn_pool, 0), &busy);
    assert_int_equal(busy.bytes, 0);
    assert_int_equal(busy.cas_rows, rows);
    assert_int_equal(busy.cas_bytes, rows * 2 * (uint64_t)c->hidden * sizeof(float));
    ffn_set(&a.node.modes, 0, a.ffn.n_layers, FFN_WAS);
    for (int i = 0; i < 3; i++)
        assert_int_equal(run_alone(&a), 0);
    ffn_seat_account(ffn_pool_seat(a.node.ffn_pool, 0), &busy);
    assert_int_equal(busy.bytes, weights_ffn_bytes(a.node.own[1])); /* slots for all: they came once and stayed */
    assert_int_equal(busy.cas_rows, rows);
    ffn_seat_account(ffn_pool_seat(a.node.ffn_pool, 1), &idle);
    assert_true(idle.bytes == 0 && idle.cas_bytes == 0 && idle.cas_rows == 0);
    close_alone(&a);
}

/* Makes a copy of the layer on rank 0, and waits for it. Returns how it ended. */
static int keep(struct alone *a, int layer)
{
    struct replica_task t = {.layer = layer, .ranks = 1, .left = 1};
    ffn_seat_keep(ffn_pool_seat(a->node.ffn_pool, 0), &t);
    while (atomic_load(&t.left))
        usleep(100);
    return atomic_load(&t.rc);
}

/* With copies of all layers of rank 1 a step on rank 0 fetches nothing, needs rank 1 no more, and chooses the same
 * token with the same logprob; without them all is as it was before. */
static void layers_on_every_rank_move_no_bytes(void **state)
{
    (void)state;
    struct alone a;
    struct ffn_account before, after;
    open_alone(&a, 1);
    struct ffn_seat *seat = ffn_pool_seat(a.node.ffn_pool, 0);
    assert_int_equal(run_alone(&a), 0);
    struct sample_result fetched = a.result;
    for (int l = 0; l < a.ffn.n_layers; l++)
        if (a.ffn.owner[l] == 1) {
            assert_int_equal(keep(&a, l), 0);
            a.node.modes.here[l / 64] |= 1ull << (l % 64);
        }
    ffn_seat_account(seat, &before);
    for (int i = 0; i < 3; i++)
        assert_int_equal(run_alone(&a), 0);
    ffn_seat_account(seat, &after);
    assert_int_equal(after.bytes, before.bytes);
    assert_true(a.result.token == fetched.token && a.result.logprob == fetched.logprob);
    a.node.modes = (struct ffn_modes){0};
    for (int l = 0; l < a.ffn.n_layers; l++)
        if (a.ffn.owner[l] == 1)
            ffn_seat_give_up(seat, l);
    assert_int_equal(run_alone(&a), 0);
    assert_true(a.result.token == fetched.token && a.result.logprob == fetched.logprob);
    close_alone(&a);
}

/* Its owner has failed: whoever waits for the copy hears so. */
static void a_copy_of_a_failed_rank_is_not_waited_for(void **state)
{
    (void)state;
    struct alone a;
    open_alone(&a, 1);
    ffn_seat_fail(ffn_pool_seat(a.node.ffn_pool, 1));
    assert_int_equal(keep(&a, 1), E_PEER);
    ffn_seat_give_up(ffn_pool_seat(a.node.ffn_pool, 0), 1);
    close_alone(&a);
}

/* ---- shares */

static uint64_t fetched_by(const struct node *n, int rank)
{
    struct ffn_account a;
    ffn_seat_account(ffn_pool_seat(n->ffn_pool, rank), &a);
    return a.bytes;
}

/* Bytes that rank 0 or 1 fetches, in a step of both, of the layers that the other owns: its share of each. A Q8_0
 * matrix has equal bytes in each column. */
static uint64_t shares_of_others(const struct alone *a, int rank, struct layout l)
{
    const struct model_config *c = model_config(a->model);
    struct shard sh = shard_of(c, l, a->place.ranks[1] == rank);
    size_t others = weights_ffn_bytes(a->node.own[1 - rank]);
    assert_int_equal(others % (size_t)c->intermediate, 0);
    return others / (size_t)c->intermediate * (uint64_t)sh.ffn.n;
}

/* A tensor parallel group fetches its ranks' shares, once while they serve. Whoever has whole layers needs no share of
 * them; whoever has a share needs the whole. */
static void a_tp_group_fetches_its_shares(void **state)
{
    (void)state;
    const struct layout tp = {1, 2, 1}, sp = {2, 1, 1};
    struct alone a;
    uint64_t part[2], whole[2];
    open_together(&a, 8, "layer-mod");
    for (int r = 0; r < 2; r++) {
        part[r] = shares_of_others(&a, r, tp);
        whole[r] = weights_ffn_bytes(a.node.own[1 - r]);
        assert_true(part[r] > 0 && part[r] < whole[r]);
    }
    a.step.layout = tp;
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_alone(&a), 0);
    for (int r = 0; r < 2; r++)
        assert_int_equal(fetched_by(&a.node, r), part[r]);
    a.step.layout = sp;
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_alone(&a), 0);
    a.step.layout = tp;
    assert_int_equal(run_alone(&a), 0);
    for (int r = 0; r < 2; r++)
        assert_int_equal(fetched_by(&a.node, r), part[r] + whole[r]);
    close_alone(&a);
}

/* Of layers in shares each rank holds its share and nothing else. A step of the same layout moves nothing, one that
 * needs whole layers fetches the other's share. */
static void owners_that_are_groups_have_their_shares_at_hand(void **state)
{
    (void)state;
    const struct layout tp = {1, 2, 1}, sp = {2, 1, 1};
    struct alone a;
    struct node all;
    struct node_opts o = opts_of(2, 8, 8, 4);
    open_together(&a, 8, "contiguous:2");
    open_node(&all, a.model, &o);
    const struct model_config *c = model_config(a.model);
    size_t whole = weights_ffn_bytes(all.weights);
    for (int r = 0; r < 2; r++) {
        struct shard sh = shard_of(c, tp, r);
        size_t own = weights_ffn_bytes(a.node.own[r]);
        assert_int_equal(own, whole / (size_t)c->intermediate * (size_t)sh.ffn.n);
        assert_int_equal(weights_bytes(all.weights) - weights_bytes(a.node.own[r]), whole - own);
    }
    a.step.layout = tp;
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_alone(&a), 0);
    assert_true(fetched_by(&a.node, 0) == 0 && fetched_by(&a.node, 1) == 0);
    a.step.layout = sp;
    for (int i = 0; i < 2; i++)
        assert_int_equal(run_alone(&a), 0);
    for (int r = 0; r < 2; r++)
        assert_int_equal(fetched_by(&a.node, r), weights_ffn_bytes(a.node.own[1 - r]));
    node_close(&all);
    close_alone(&a);
}

/* Whoever has one share of a layer waits no more than others for the rank that has failed with the other. */
static void nobody_waits_for_a_failed_share(void **state)
{
    (void)state;
    struct alone a;
    open_step(&a, 2, (struct layout){1, 1, 1}, "layer-mod:2");
    ffn_seat_fail(ffn_pool_seat(a.node.ffn_pool, 1));
    assert_int_equal(run_alone(&a), E_PEER);
    assert_non_null(strstr(a.parts[0].err.text, "rank 1, which holds the FFN weights of layer 0, has failed"));
    close_alone(&a);
}

/* Blocks of 256 columns that a share would cut, and models that no such layout can run. */
static void shares_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *owners;
        enum dtype type;
        int ranks;
        const char *says;
    } cases[] = {
        {"wide", "layer-mod:2", DT_Q4_K, 2, "would cut"},
        {"wide", "layer-mod:2", DT_Q4_K, 4, "--pool-owner"},
        {"9_3", "layer-mod:4", DT_F16, 4, "--pool-owner: layer 0 cannot be cut into 4 shares"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct node node;
        struct err e = {0};
        struct model *m = open_dummy(cases[i].model, cases[i].type, 1);
        struct ffn_setup ffn = setup_of(m, cases[i].ranks, &(struct way){2, FFN_PLAIN, cases[i].owners, ALL_FETCHED});
        struct node_opts o = opts_of(cases[i].ranks, MAX_ROWS, MAX_ROWS, 1);
        o.ffn = &ffn;
        assert_int_equal(node_open(&node, m, &o, &e), E_UNSUPPORTED);
        if (!strstr(e.text, cases[i].says))
            fail_msg("'%s', not '%s'", e.text, cases[i].says);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gqa_8_2),
        cmocka_unit_test(mqa),
        cmocka_unit_test(heads_9_3),
        cmocka_unit_test(heads_40_8),
        cmocka_unit_test(heads_28_4),
        cmocka_unit_test(k_quants),
        cmocka_unit_test(the_demo_model),
        cmocka_unit_test(freed_bytes_are_the_ffn_of_others),
        cmocka_unit_test(what_is_not_here_cannot_be_read),
        cmocka_unit_test(nobody_waits_for_a_rank_that_failed),
        cmocka_unit_test(a_failed_step_names_the_rank_that_failed),
        cmocka_unit_test(a_step_whose_members_lost_a_peer_has_failed),
        cmocka_unit_test(only_work_moves_bytes),
        cmocka_unit_test(layers_on_every_rank_move_no_bytes),
        cmocka_unit_test(a_copy_of_a_failed_rank_is_not_waited_for),
        cmocka_unit_test(a_tp_group_fetches_its_shares),
        cmocka_unit_test(owners_that_are_groups_have_their_shares_at_hand),
        cmocka_unit_test(nobody_waits_for_a_failed_share),
        cmocka_unit_test(shares_that_cannot_be_are_refused),
    };
    const struct CMUnitTest few[] = {
        cmocka_unit_test(heads_9_3),
        cmocka_unit_test(nobody_waits_for_a_rank_that_failed),
        cmocka_unit_test(only_work_moves_bytes),
        cmocka_unit_test(layers_on_every_rank_move_no_bytes),
        cmocka_unit_test(a_copy_of_a_failed_rank_is_not_waited_for),
        cmocka_unit_test(a_tp_group_fetches_its_shares),
        cmocka_unit_test(owners_that_are_groups_have_their_shares_at_hand),
    };
#if defined(EMULATED) /* these go every way there is; copies that stay need memory that a GPU does not give back */
    const struct CMUnitTest emulated[] = {
        cmocka_unit_test(gqa_8_2),
        cmocka_unit_test(mqa),
        cmocka_unit_test(heads_9_3),
        cmocka_unit_test(k_quants),
        cmocka_unit_test(freed_bytes_are_the_ffn_of_others),
        cmocka_unit_test(what_is_not_here_cannot_be_read),
        cmocka_unit_test(nobody_waits_for_a_rank_that_failed),
        cmocka_unit_test(only_work_moves_bytes),
        cmocka_unit_test(a_tp_group_fetches_its_shares),
    };
    return sizeof tests > sizeof few ? cmocka_run_group_tests(emulated, NULL, NULL) : 1;
#endif
#if defined(__SANITIZE_THREAD__)
    return sizeof tests > sizeof few ? cmocka_run_group_tests(few, NULL, NULL)
                                     : 1; /* what races does so in any model */
#endif
    return sizeof few ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
