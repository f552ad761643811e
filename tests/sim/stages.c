/* Pipelines in the cost model: against the schedule of micro-batches worked out one by one, against sums by hand from
 * the cost of whole layers, and laws that any cut has to keep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/sim/cost.h"
#include "kernels/sim/stages.h"

static const struct sim_weights whole = {.shares = 1};
enum { MAX_STAGES = 8, MAX_MICRO = 64 };

#define assert_near(is, should, by) assert_true((is) > (should) - (by)-1e-9 && (is) < (should) + (by) + 1e-9)

static struct sim_machine *open_machine(const char *model)
{
    struct sim_machine *m;
    struct err e = {0};
    if (sim_machine_open(&m, "models/hardware/h200x8-fitted.json", model, &e))
        fail_msg("%s", e.text);
    return m;
}

static struct step_size mixed(int decodes, int chunks, int rows)
{
    struct step_size s = {.n_logits = decodes + chunks};
    for (int i = 0; i < decodes; i++)
        step_size_add(&s, 1, 1000 + i);
    for (int i = 0; i < chunks; i++)
        step_size_add(&s, rows, 300 * i);
    return s;
}

/* The shares of a step are the step. */
static void nothing_is_lost(void **state)
{
    (void)state;
    for (int decodes = 0; decodes < 40; decodes += 3)
        for (int chunks = 0; chunks < 4; chunks++)
            for (int n = 1; n <= 9; n++) {
                struct step_size s = mixed(decodes, chunks, 17), sum = {0};
                if (s.rows < n)
                    continue;
                for (int i = 0; i < n; i++) {
                    struct step_size p = stages_micro_batch(&s, n, i);
                    assert_true(p.rows > 0 && p.chunk_rows >= 0 && p.n_seqs > 0 && p.n_seqs <= p.rows);
                    assert_true((p.chunk_rows > 0) == (p.n_chunks > 0));
                    sum.rows += p.rows;
                    sum.n_logits += p.n_logits;
                    sum.chunk_rows += p.chunk_rows;
                    sum.n_seqs += p.n_seqs - p.n_chunks;
                    sum.looked_at += p.looked_at;
                    sum.chunk_looked_at += p.chunk_looked_at;
                }
                assert_int_equal(sum.rows, s.rows);
                assert_int_equal(sum.n_logits, s.n_logits);
                assert_int_equal(sum.chunk_rows, s.chunk_rows);
                assert_int_equal(sum.n_seqs, decodes);
                assert_near(sum.looked_at, s.looked_at, 1e-6 * s.looked_at + 1e-9);
                assert_near(sum.chunk_looked_at, s.chunk_looked_at, 1e-6 * s.chunk_looked_at + 1e-9);
            }
}

/* Each micro-batch begins at a stage when the stage before has ended it and this one has ended the one before. */
static double schedule(const struct sim_machine *m, struct layout l, const struct step_size *s)
{
    double free_at[MAX_STAGES] = {0}, end = 0;
    for (int i = 0; i < step_size_micro(s, l); i++) {
        end = 0;
        for (int k = 0; k < l.pp; k++) {
            double from = end > free_at[k] ? end : free_at[k];
            end = free_at[k] = from + cost_stage(m, l, s, k, i).total;
        }
    }
    return end;
}

static void as_scheduled(void **state)
{
    static const struct layout layouts[] = {{1, 1, 2}, {1, 1, 4}, {1, 2, 3}, {2, 2, 2}, {1, 1, 8}, {2, 1, 3}};
    struct sim_machine *m = open_machine("models/catalog/qwen3-32b.json"); /* 64 layers: 3 stages are uneven */
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int n = 0; n <= MAX_MICRO; n = n ? 2 * n : 1)
            for (int k = 0; k < 4; k++) {
                struct step_size s = k == 0   ? mixed(0, 1, 1 << 14)
                                     : k == 1 ? mixed(256, 0, 0)
                                     : k == 2 ? mixed(77, 2, 1001)
                                              : mixed(1, 0, 0);
                s.n_micro = n;
                struct step_cost c = cost_parts(m, layouts[i], whole, &s);
                double should = schedule(m, layouts[i], &s), is = c.total - c.host;
                int cuts = step_size_micro(&s, layouts[i]);
                if (s.rows % cuts == 0 && s.n_logits % cuts == 0)
                    assert_near(is, should, 1e-6 * should);
                else /* micro-batches differ, and may wait for one another elsewhere than at the slowest stage */
                    assert_true(is > 0.9 * should && is < 1.000001 * should);
                assert_true(c.bubble > 0);
            }
    sim_machine_close(m);
}

/* Stages of 20 of 80 layers: a whole model's sums in quarters, with the head at the end of the last. */
static void by_hand(void **state)
{
    struct sim_machine *m = open_machine("models/catalog/llama-3-70b.json");
    struct step_size s = mixed(512, 0, 0), quarter = stages_micro_batch(&s, 4, 0);
    struct step_cost all = cost_parts(m, (struct layout){1, 2, 1}, whole, &quarter);
    struct step_cost c = cost_parts(m, (struct layout){1, 2, 4}, whole, &s);
    double layers = (all.linear + all.attention + all.reduce + all.exchange + all.elementwise) / 4;
    double send = m->hardware.exchange_alpha +
                  128.0 * m->model.hidden * 2 / (m->hardware.link_rate * m->hardware.link_share) * 1e9;
    (void)state;
    assert_int_equal(quarter.rows, 128);
    assert_true(all.launch == 0 && all.head > send); /* then the last stage is the slowest */
    assert_near(c.bubble, 3 * (layers + send), 1);
    assert_near(c.total - c.host, 4 * (layers + all.head) + 3 * (layers + send), 1);
    assert_near(c.head, 4 * all.head, 1e-3);
    assert_near(c.send, 0, 0);
    assert_near(c.linear, all.linear, 1);
    sim_machine_close(m);
}

static void laws(void **state)
{
    static const struct layout layouts[] = {{1, 1, 2}, {1, 1, 4}, {1, 2, 4}, {2, 2, 2}};
    struct sim_machine *m = open_machine("models/catalog/qwen3-32b.json");
    (void)state;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        int64_t last = 0;
        for (int rows = 64; rows <= 65536; rows *= 2) {
            struct step_size s = mixed(0, 1, rows), past = {.n_logits = 1};
            step_size_add(&past, rows, 5000);
            s.n_micro = past.n_micro = 4;
            struct step_cost c = cost_parts(m, layouts[i], whole, &s);
            double sum = c.linear + c.attention + c.reduce + c.exchange + c.elementwise + c.head + c.launch + c.send +
                         c.bubble + c.host;
            assert_near(sum, c.total, 1e-6 * c.total);
            past.n_logits = s.n_logits;
            assert_true(cost_step(m, layouts[i], whole, &s) >= last);
            assert_true(cost_step(m, layouts[i], whole, &past) > cost_step(m, layouts[i], whole, &s));
            last = cost_step(m, layouts[i], whole, &s);
        }
    }
    for (int n = 1; n <= 16; n++) { /* one stage has no pipeline */
        struct step_size s = mixed(9, 1, 900), cut = s;
        cut.n_micro = n;
        assert_true(cost_step(m, (struct layout){1, 2, 1}, whole, &s) ==
                    cost_step(m, (struct layout){1, 2, 1}, whole, &cut));
    }
    sim_machine_close(m);
}

/* The more micro-batches, the less of the step is the way of the first one; what is left is the slowest stage. */
static void bubbles_shrink(void **state)
{
    const struct layout l = {1, 1, 4};
    struct sim_machine *m = open_machine("models/catalog/qwen3-32b.json");
    double last = 1;
    (void)state;
    for (int n = 2; n <= 1024; n *= 2) {
        struct step_size s = mixed(0, 1, 1 << 18);
        s.n_micro = n;
        s.n_logits = 0; /* all micro-batches alike */
        struct step_cost c = cost_parts(m, l, whole, &s);
        double device = c.total - c.host, share = c.bubble / device, even = 3.0 / (n + 3);
        assert_true(share < last && share > 0.8 * even && share < 1.1 * even);
        last = share;
        double first = cost_stage(m, l, &s, 0, 0).total, end = cost_stage(m, l, &s, 3, 0).total;
        assert_near(device - c.bubble, n * (first > end ? first : end), 1e-6 * device);
    }
    assert_true(last < 0.005);
    sim_machine_close(m);
}

/* What the stages hold is the model, and the first holds most. */
static void weights_by_stage(void **state)
{
    struct sim_machine *m = open_machine("models/catalog/llama-3-70b.json");
    const struct sim_model *c = &m->model;
    double all = cost_weight_bytes(c, whole), table = (double)c->vocab * c->hidden * (c->head_bits / 8);
    (void)state;
    for (int stages = 1; stages <= 8; stages *= 2)
        for (int shares = 1; shares <= 8 / stages; shares *= 2)
            assert_near(cost_weight_bytes(c, (struct sim_weights){.shares = shares, .stages = stages}),
                        stages == 1 ? all / shares : ((all - 2 * table) / stages + table) / shares, 16);
    assert_near(cost_weight_bytes(c, (struct sim_weights){.shares = 1, .stages = 3}),
                (all - 2 * table) * 27 / 80 + table, 16);
    sim_machine_close(m);
}

static void refused(void **state)
{
    struct sim_machine *m = open_machine("models/catalog/qwen3-32b.json");
    struct ffn_setup pool = {.n_ranks = 8, .n_layers = 64, .n_slots = 2};
    struct sim_step step = {{1, 4, 4}, {.shares = 1}, mixed(1, 0, 0)};
    struct err e = {0};
    double ns;
    (void)state;
    assert_int_equal(sim_machine_step(m, &step, "total", &ns, &e), E_INPUT);
    step.layout = (struct layout){1, 1, 65};
    assert_int_equal(sim_machine_step(m, &step, "total", &ns, &e), E_INPUT);
    step.layout = (struct layout){1, 2, 4};
    assert_int_equal(sim_machine_step(m, &step, "bubble", &ns, &e), 0);
    assert_true(ns > 0);
    assert_int_equal(sim_machine_step(m, &step, "send", &ns, &e), 0);
    step.weights.pool = &pool;
    assert_int_equal(sim_machine_step(m, &step, "total", &ns, &e), E_UNSUPPORTED);
    sim_machine_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost), cmocka_unit_test(as_scheduled),
        cmocka_unit_test(by_hand),         cmocka_unit_test(laws),
        cmocka_unit_test(bubbles_shrink),  cmocka_unit_test(weights_by_stage),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
