/* Pooled FFN weights as pure functions: owners from a text, modes by layer, and which layer a rank fetches next. The
 * last is tried as ranks would live by it: ranks that advance equally never read one owner together and never wait,
 * and with two slots no layer is missing for ever. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/world/ffn.h"

enum { MOST_RANKS = 8, MOST_SLOTS = 12 };

static struct ffn_setup make_setup(int n_ranks, int n_layers, int n_slots, enum ffn_order order)
{
    struct ffn_setup s = {.n_ranks = n_ranks, .n_layers = n_layers, .n_slots = n_slots, .order = order};
    assert_int_equal(ffn_parse_owners(&s, "layer-mod", NULL), 0);
    return s;
}

static int slot_of(const struct ffn_setup *s, const int *slots, int layer)
{
    for (int i = 0; i < s->n_slots; i++)
        if (slots[i] == layer)
            return i;
    return -1;
}

/* ---- ranks that advance equally */

struct crew {
    struct ffn_setup s;
    struct ffn_modes modes;
    int slots[MOST_RANKS][MOST_SLOTS];
    int n_most; /* readers of one owner at once */
};

/* The layers of the first cycle lie there, as they do in all cycles but the very first. */
static void begin_crew(struct crew *c, int n_ranks, int n_layers)
{
    memset(c, 0, sizeof *c);
    c->s = make_setup(n_ranks, n_layers, n_ranks, FFN_SHIFTED);
    for (int r = 0; r < n_ranks; r++)
        for (int i = 0, l = 0; i < n_ranks; i++, l++) {
            l += c->s.owner[l] == r;
            c->slots[r][i] = i < n_ranks - 1 && l < n_layers && l < n_ranks ? l : -1;
        }
}

/* While layer `now` is multiplied, every rank has time for so many fetches of whole layers. */
static void advance_crew(struct crew *c, int now, int n_fetches, bool goes_on)
{
    for (int r = 0; r < c->s.n_ranks; r++)
        if (c->s.owner[now] != r && slot_of(&c->s, c->slots[r], now) < 0)
            fail_msg("%d ranks, %d layers: rank %d waits for layer %d", c->s.n_ranks, c->s.n_layers, r, now);
    for (int k = 0; k < n_fetches; k++) {
        int readers[MOST_RANKS] = {0};
        uint64_t read = 0;
        for (int r = 0; r < c->s.n_ranks; r++) {
            bool kept[MOST_SLOTS] = {false};
            int layer, slot, used = slot_of(&c->s, c->slots[r], now);
            if (used >= 0)
                kept[used] = true;
            struct ffn_need need = {.rank = r,
                                    .at = now - 1,
                                    .slots = c->slots[r],
                                    .kept = kept,
                                    .modes = &c->modes,
                                    .read = read,
                                    .goes_on = goes_on};
            if (!ffn_next_fetch(&c->s, &need, &layer, &slot))
                continue;
            c->slots[r][slot] = layer;
            int n = ++readers[c->s.owner[layer]];
            read |= 1u << c->s.owner[layer];
            c->n_most = n > c->n_most ? n : c->n_most;
        }
    }
}

/* A cycle that is cut short by the end of the model leaves less time: then the link has to be faster by that. There
 * some ranks still have a layer of the step before and go on to the next at once, so that two may meet. */
static int fetches_a_product(int n_ranks, int n_layers)
{
    int rest = n_layers % n_ranks;
    return rest ? (n_ranks - 1 + rest - 1) / rest : 1;
}

static void ranks_that_advance_equally_never_read_one_owner_together(void **state)
{
    (void)state;
    for (int d = 2; d <= MOST_RANKS; d++)
        for (int layers = d; layers <= 5 * d + 3; layers++) {
            struct crew c;
            begin_crew(&c, d, layers);
            for (int step = 0; step < 4; step++)
                for (int l = 0; l < layers; l++)
                    advance_crew(&c, l, fetches_a_product(d, layers), step < 3);
            if (c.n_most > (layers % d ? (d + 1) / 2 : 1))
                fail_msg("%d ranks, %d layers: %d read one owner at once", d, layers, c.n_most);
            assert_true(layers <= d || c.n_most >= 1); /* they do read */
        }
}

/* Ranks that do not advance equally meet: whoever comes second goes on to the next owner, while there is a free one. */
static void an_owner_that_somebody_reads_is_left_for_a_free_one(void **state)
{
    (void)state;
    struct ffn_setup s = make_setup(4, 8, 4, FFN_SHIFTED);
    struct ffn_modes modes = {0};
    int slots[4] = {-1, -1, -1, -1}, layer, slot;
    bool kept[4] = {false};
    struct ffn_need need = {.rank = 0, .at = -1, .slots = slots, .kept = kept, .modes = &modes, .goes_on = true};
    static const struct {
        uint64_t read;
        int layer;
    } cases[] = {{0, 1}, {1 << 2, 1}, {1 << 1, 2}, {1 << 1 | 1 << 2, 3}, {1 << 1 | 1 << 2 | 1 << 3, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        need.read = cases[i].read;
        assert_true(ffn_next_fetch(&s, &need, &layer, &slot));
        assert_int_equal(layer, cases[i].layer);
    }
    s.order = FFN_PLAIN;
    need.read = 1 << 1;
    assert_true(ffn_next_fetch(&s, &need, &layer, &slot));
    assert_int_equal(layer, 1);
}

/* ---- a rank alone, whose fetches take as long as they like */

/* With so few slots products wait, but each layer comes. */
static void run_alone(const struct ffn_setup *s, const struct ffn_modes *modes, int rank, struct rng *rng)
{
    int slots[MOST_SLOTS], coming = -1;
    for (int i = 0; i < s->n_slots; i++)
        slots[i] = -1;
    for (int l = 0, waited = 0; l < 3 * s->n_layers;) {
        bool kept[MOST_SLOTS] = {false};
        int now = l % s->n_layers, here = slot_of(s, slots, now), layer, slot;
        bool fetched = s->owner[now] != rank && !ffn_is_cas(modes, now), ready = here >= 0 && here != coming;
        if (here >= 0)
            kept[here] = true;
        if (coming >= 0)
            kept[coming] = true;
        struct ffn_need need = {
            .rank = rank, .at = now - 1, .slots = slots, .kept = kept, .modes = modes, .goes_on = l < 2 * s->n_layers};
        if (coming >= 0) {
            coming = rng_below(rng, 3) ? coming : -1;
        } else if (ffn_next_fetch(s, &need, &layer, &slot)) {
            assert_false(kept[slot]);
            slots[slot] = layer;
            coming = slot;
        }
        waited++;
        if (!fetched || ready) {
            l += rng_below(rng, 2) != 0;
            waited = 0;
        }
        if (waited > 200)
            fail_msg("%d slots, order %d: layer %d never comes", s->n_slots, (int)s->order, now);
    }
}

static void no_layer_is_missing_for_ever(void **state)
{
    (void)state;
    static const enum ffn_order orders[] = {FFN_PLAIN, FFN_SHIFTED, FFN_SLICED};
    struct rng rng;
    rng_init(&rng, 11);
    for (int i = 0; i < 600; i++) {
        int d = 2 + (int)rng_below(&rng, MOST_RANKS - 1);
        struct ffn_setup s =
            make_setup(d, 1 + (int)rng_below(&rng, 40), 2 + (int)rng_below(&rng, (uint64_t)d), orders[i % 3]);
        struct ffn_modes modes = {0};
        for (int l = 0; l < s.n_layers && i % 2; l++)
            ffn_set(&modes, l, l + 1, rng_below(&rng, 3) ? FFN_WAS : FFN_CAS);
        run_alone(&s, &modes, (int)rng_below(&rng, (uint64_t)d), &rng);
    }
}

/* ---- any state at all */

struct any {
    struct ffn_setup s;
    struct ffn_modes modes;
    int slots[MOST_SLOTS];
    bool kept[MOST_SLOTS];
    struct ffn_need need;
};

static void make_any(struct any *a, struct rng *rng)
{
    memset(a, 0, sizeof *a);
    a->s = make_setup(1 + (int)rng_below(rng, MOST_RANKS), 1 + (int)rng_below(rng, 30),
                      1 + (int)rng_below(rng, MOST_SLOTS), (enum ffn_order)rng_below(rng, 3));
    for (int l = 0; l < a->s.n_layers; l++) {
        a->s.owner[l] = (uint8_t)rng_below(rng, (uint64_t)a->s.n_ranks);
        ffn_set(&a->modes, l, l + 1, rng_below(rng, 4) ? FFN_WAS : FFN_CAS);
    }
    for (int i = 0; i < a->s.n_slots; i++) {
        int l = (int)rng_below(rng, (uint64_t)a->s.n_layers + 3) - 3;
        a->slots[i] = l < 0 || slot_of(&a->s, a->slots, l) >= 0 ? -1 : l;
        a->kept[i] = a->slots[i] >= 0 && rng_below(rng, 3) == 0;
    }
    a->need = (struct ffn_need){.rank = (int)rng_below(rng, (uint64_t)a->s.n_ranks),
                                .at = (int)rng_below(rng, (uint64_t)a->s.n_layers + 1) - 1,
                                .slots = a->slots,
                                .kept = a->kept,
                                .modes = &a->modes,
                                .read = rng_below(rng, 1 << MOST_RANKS),
                                .goes_on = rng_below(rng, 2) != 0};
}

static bool is_useful(const struct any *a, int layer)
{
    return a->s.owner[layer] != a->need.rank && !ffn_is_cas(&a->modes, layer) &&
           (a->need.goes_on || layer > a->need.at);
}

static int away(const struct any *a, int layer)
{
    return ffn_distance(a->s.n_layers, a->need.at, layer);
}

/* May the layer take this slot's place? */
static bool gives_way(const struct any *a, int slot, int layer)
{
    int holds = a->slots[slot];
    return !a->kept[slot] && (holds < 0 || !is_useful(a, holds) || away(a, holds) > away(a, layer));
}

/* Of the layers that are due, in the cycle that is computed now, or for PLAIN at all, none is left out that has a
 * slot. */
static void check_nothing_left(const struct any *a)
{
    int d = a->s.n_ranks, now = (a->need.at + 1) % a->s.n_layers;
    for (int l = 0; l < a->s.n_layers; l++) {
        bool due = a->s.order != FFN_SHIFTED || (l >= now && l / d == now / d);
        for (int i = 0; i < a->s.n_slots && due && is_useful(a, l) && slot_of(&a->s, a->slots, l) < 0; i++)
            if (gives_way(a, i, l))
                fail_msg("layer %d is not fetched after layer %d of %d, and slot %d could take it", l, a->need.at,
                         a->s.n_layers, i);
    }
}

static void a_fetch_takes_no_place_of_what_is_needed_sooner(void **state)
{
    (void)state;
    struct rng rng;
    int n_found = 0;
    rng_init(&rng, 23);
    for (int i = 0; i < 200000; i++) {
        struct any a;
        int layer = -1, slot = -1;
        make_any(&a, &rng);
        if (!ffn_next_fetch(&a.s, &a.need, &layer, &slot)) {
            check_nothing_left(&a);
            continue;
        }
        n_found++;
        assert_true(layer >= 0 && layer < a.s.n_layers && slot >= 0 && slot < a.s.n_slots);
        assert_true(is_useful(&a, layer));
        assert_int_equal(slot_of(&a.s, a.slots, layer), -1);
        assert_true(gives_way(&a, slot, layer));
    }
    assert_true(n_found > 50000);
}

/* ---- modes and owners */

static void modes_are_by_layer(void **state)
{
    (void)state;
    struct ffn_modes m = {0};
    ffn_set(&m, 60, 70, FFN_CAS);
    assert_true(!ffn_is_cas(&m, 59) && ffn_is_cas(&m, 60) && ffn_is_cas(&m, 63) && ffn_is_cas(&m, 64) &&
                ffn_is_cas(&m, 69) && !ffn_is_cas(&m, 70));
    assert_int_equal(ffn_count_cas(&m, 65), 5);
    ffn_set(&m, 64, FFN_MAX_LAYERS, FFN_LOCAL);
    assert_int_equal(ffn_count_cas(&m, FFN_MAX_LAYERS), 4);
    ffn_set(&m, 0, FFN_MAX_LAYERS, FFN_CAS);
    assert_int_equal(ffn_count_cas(&m, FFN_MAX_LAYERS), FFN_MAX_LAYERS);
    ffn_set(&m, 0, FFN_MAX_LAYERS, FFN_WAS);
    assert_int_equal(ffn_count_cas(&m, FFN_MAX_LAYERS), 0);
    assert_string_equal(ffn_mode_name(FFN_LOCAL), "local");
    assert_string_equal(ffn_mode_name(FFN_CAS), "cas");
}

static void owners_come_from_a_text(void **state)
{
    (void)state;
    struct ffn_setup s = {.n_ranks = 3, .n_layers = 8};
    static const uint8_t mod[] = {0, 1, 2, 0, 1, 2, 0, 1}, runs[] = {0, 0, 0, 1, 1, 1, 2, 2},
                         listed[] = {2, 2, 0, 1, 1, 0, 0, 2};
    assert_int_equal(ffn_parse_owners(&s, "layer-mod", NULL), 0);
    assert_memory_equal(s.owner, mod, 8);
    assert_int_equal(ffn_parse_owners(&s, "contiguous", NULL), 0);
    assert_memory_equal(s.owner, runs, 8);
    assert_int_equal(ffn_owned(&s, 0), 3);
    assert_int_equal(ffn_owned(&s, 2), 2);
    assert_int_equal(ffn_parse_owners(&s, "2,2,0,1,1,0,0,2", NULL), 0);
    assert_memory_equal(s.owner, listed, 8);
}

static void groups_come_from_a_text(void **state)
{
    (void)state;
    struct ffn_setup s = {.n_ranks = 4, .n_layers = 3};
    struct buf text = {0};
    assert_int_equal(ffn_parse_owners(&s, "0+1,3,2+0+3", NULL), 0);
    assert_true(ffn_any_shares(&s) && ffn_shares(&s, 0) == 2 && ffn_shares(&s, 1) == 1 && ffn_shares(&s, 2) == 3);
    assert_true(ffn_owner(&s, 2, 0) == 2 && ffn_owner(&s, 2, 1) == 0 && ffn_owner(&s, 2, 2) == 3);
    assert_true(ffn_owned(&s, 0) == 2 && ffn_owned(&s, 1) == 1 && ffn_owned(&s, 3) == 2);
    assert_true(ffn_owns(&s, 1, 3) && !ffn_owns(&s, 0, 0));
    ffn_put_owners(&s, &text);
    assert_string_equal(text.data, "[[0,1],3,[2,0,3]]");
    buf_free(&text);
    /* A share is at hand in a layout of as many, at that place; a whole layer in any. */
    assert_true(ffn_is_local(&s, 0, 1, 2, 1) && ffn_is_local(&s, 1, 3, 2, 1) && ffn_is_local(&s, 2, 0, 3, 1));
    assert_false(ffn_is_local(&s, 0, 1, 2, 0) || ffn_is_local(&s, 0, 1, 1, 0) || ffn_is_local(&s, 0, 1, 4, 1));
    ffn_give(&s, 0, 1, 3);
    assert_true(ffn_is_local(&s, 0, 3, 2, 1) && !ffn_is_local(&s, 0, 1, 2, 1));
    assert_int_equal(ffn_parse_owners(&s, "layer-mod:2", NULL), 0);
    assert_true(ffn_owner(&s, 0, 1) == 1 && ffn_owner(&s, 1, 0) == 2 && ffn_owner(&s, 2, 1) == 1);
    assert_int_equal(ffn_parse_owners(&s, "contiguous:2", NULL), 0);
    assert_true(ffn_owner(&s, 0, 1) == 1 && ffn_owner(&s, 1, 1) == 1 && ffn_owner(&s, 2, 0) == 2);
    assert_int_equal(ffn_parse_owners(&s, "contiguous:1", NULL), 0);
    assert_false(ffn_any_shares(&s));
}

static void other_texts_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      ",",
                                      ",,,,",
                                      "0",
                                      "0,1,2",
                                      "0,1,2,0,",
                                      "0,1,2,0,1",
                                      "0,1,2,3",
                                      "0,1,-1,0",
                                      "0,1,2,0x",
                                      "0,1,0x2,0",
                                      "0;1;2;0",
                                      "0,,1,2",
                                      "layer-modulo",
                                      "layer",
                                      "Contiguous",
                                      "contiguous,0",
                                      "0,1,2,1e0",
                                      "0,1,2,99999999999999999999999999",
                                      "0,1,2,-99999999999999999999999999",
                                      "0,1,2,256",
                                      "0,1,2,4294967296",
                                      "\xff\xfe,1,2,0",
                                      "0,1,2,0\n,",
                                      "-0,%s,%n,0",
                                      "0+,1,2,0",
                                      "0+0,1,2,0",
                                      "0+3,1,2,0",
                                      "+1,1,2,0",
                                      "0+1+2+0,1,2,0",
                                      "layer-mod:",
                                      "layer-mod:0",
                                      "layer-mod:2",
                                      "layer-mod:-1",
                                      "contiguous:9",
                                      "contiguous:3x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ffn_setup s = {.n_ranks = 3, .n_layers = 4};
        struct err e = {0};
        if (ffn_parse_owners(&s, bad[i], &e) != E_INPUT || !strstr(e.text, "--pool-owner"))
            fail_msg("'%s' is taken, or the error does not name the flag: %s", bad[i], e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_advance_equally_never_read_one_owner_together),
        cmocka_unit_test(an_owner_that_somebody_reads_is_left_for_a_free_one),
        cmocka_unit_test(no_layer_is_missing_for_ever),
        cmocka_unit_test(a_fetch_takes_no_place_of_what_is_needed_sooner),
        cmocka_unit_test(modes_are_by_layer),
        cmocka_unit_test(owners_come_from_a_text),
        cmocka_unit_test(groups_come_from_a_text),
        cmocka_unit_test(other_texts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
