/* What steps of a SwiftKV model cost: all rows the layers before num_key_value_layers, k and v of the later ones, and
 * logit rows all else there. The parts of a step are compared, number for number, with kernels priced one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/sim/cost.h"

enum { L = 32, N = 16, H = 4096, Q = 4096, KV = 1024, FFN = 14336, HEADS = 32, KV_HEADS = 8 };
static const struct sim_weights whole = {.shares = 1};

static struct sim_machine *open_machine(const char *model)
{
    struct sim_machine *m;
    struct err e = {0};
    char path[96];
    snprintf(path, sizeof path, "models/catalog/%s.json", model);
    if (sim_machine_open(&m, "models/hardware/h200x8-fitted.json", path, &e))
        fail_msg("%s", e.text);
    return m;
}

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.17g, not %.17g", got, want);
}

/* n decodes behind `seen` tokens, and a chunk of `rows` behind `before`. */
static struct step_size step(int n, double seen, int rows, double before, int n_logits)
{
    struct step_size s = {.n_logits = n_logits};
    for (int i = 0; i < n; i++)
        step_size_add(&s, 1, seen);
    if (rows)
        step_size_add(&s, rows, before);
    return s;
}

static double rest(const struct sim_machine *m, double rows)
{
    return cost_gemm(m, 16, rows, H, Q) + cost_gemm(m, 16, rows, 2 * FFN, H) + cost_gemm(m, 16, rows, H, FFN);
}

/* Decodes and the end of a prompt: their rows and one more go on. */
static void parts_are_those_of_their_kernels(void **state)
{
    (void)state;
    struct sim_machine *m = open_machine("llama-3.1-swiftkv-8b");
    for (int decodes = 0; decodes <= 7; decodes += 7)
        for (int last = 0; last <= 1; last++) {
            struct step_size s = step(decodes, 999, 3000, 1096, decodes + last);
            struct step_cost c = cost_parts(m, (struct layout){1, 1, 1}, whole, &s);
            double all = decodes + 3000, on = decodes + last;
            near(c.linear, N * (cost_gemm(m, 16, all, Q + 2 * KV, H) + rest(m, all)) +
                               N * cost_gemm(m, 16, all, 2 * KV, H) +
                               (on > 0 ? N * (cost_gemm(m, 16, on, Q, H) + rest(m, on)) : 0));
            double fixed = m->hardware.attention_fixed, early = fixed, late = fixed;
            early += cost_prefill_attention(m, 1, 3000, s.chunk_looked_at, HEADS, KV_HEADS);
            if (decodes)
                early += cost_decode_attention(m, decodes, decodes * 1000.0, HEADS, KV_HEADS);
            if (on > 0)
                late += cost_decode_attention(m, on, decodes * 1000.0 + last * 4096.0, HEADS, KV_HEADS);
            near(c.attention, N * early + (on > 0 ? N * late : 0));
        }
    sim_machine_close(m);
}

/* Where all rows give logits (decodes; drafts; prompt logprobs) nothing is saved, and k and v are a product apart. */
static void rows_that_all_give_logits_cost_as_ever(void **state)
{
    (void)state;
    struct sim_machine *m = open_machine("llama-3.1-swiftkv-8b"), *plain = open_machine("llama-3.1-8b");
    for (int i = 0; i < 2; i++) {
        struct step_size s = i ? step(0, 0, 512, 700, 513) : step(40, 800, 0, 0, 40);
        struct step_cost c = cost_parts(m, (struct layout){1, 1, 1}, whole, &s),
                         p = cost_parts(plain, (struct layout){1, 1, 1}, whole, &s);
        near(c.attention, p.attention);
        near(c.ffn, p.ffn);
        near(c.linear - p.linear, (L - N) * (cost_gemm(m, 16, s.rows, Q, H) + cost_gemm(m, 16, s.rows, 2 * KV, H) -
                                             cost_gemm(m, 16, s.rows, Q + 2 * KV, H)));
    }
    assert_true(cost_weight_bytes(&m->model, whole) == cost_weight_bytes(&plain->model, whole));
    sim_machine_close(m);
    sim_machine_close(plain);
}

/* A prompt costs about (N + kv) / L of the ordinary model's, in every layout, and less time. */
static void prompts_cost_what_they_should(void **state)
{
    (void)state;
    static const struct layout layouts[] = {{1, 1, 1}, {1, 8, 1}, {8, 1, 1}, {2, 4, 1},
                                            {1, 2, 4}, {2, 1, 4}, {1, 1, 3}};
    struct sim_machine *m = open_machine("llama-3.1-swiftkv-8b"), *plain = open_machine("llama-3.1-8b");
    double layer = H * (Q + 2.0 * KV) + (double)Q * H + 3.0 * H * FFN, kv = 2.0 * H * KV;
    double ratio = (N * layer + (L - N) * kv) / (L * layer);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        struct step_size s = step(0, 0, 16384, 0, 1);
        struct step_cost c = cost_parts(m, layouts[i], whole, &s), p = cost_parts(plain, layouts[i], whole, &s);
        printf("  {%d,%d,%d}: linear %.4f of the ordinary model's, FLOPs %.4f; step %.4f\n", layouts[i].sp,
               layouts[i].tp, layouts[i].pp, c.linear / p.linear, ratio, c.total / p.total);
        if (layouts[i].pp == 1) /* of several stages the parts are the slowest's, here the first, which saves nothing */
            assert_true(c.linear / p.linear > ratio * 0.98 && c.linear / p.linear < ratio + 0.12);
        assert_true(c.total < p.total);
    }
    sim_machine_close(m);
    sim_machine_close(plain);
}

/* All stages together do what one rank does, wherever the cut falls. */
static void stages_share_the_layers(void **state)
{
    (void)state;
    struct sim_machine *m = open_machine("llama-3.1-swiftkv-8b");
    struct step_size s = step(0, 0, 2048, 0, 1);
    double want = cost_parts(m, (struct layout){1, 1, 1}, whole, &s).linear;
    for (int pp = 2; pp <= 8; pp++) {
        double sum = 0;
        s.n_micro = 1;
        for (int i = 0; i < pp; i++)
            sum += cost_stage(m, (struct layout){1, 1, pp}, &s, i, 0).linear;
        near(sum, want);
    }
    sim_machine_close(m);
}

static void refuse(const char *more, const char *arch, int code)
{
    char text[700];
    struct sim_machine m = {0};
    struct err e = {0};
    snprintf(text, sizeof text,
             "{\"architectures\":[\"%s\"],\"num_hidden_layers\":4,\"hidden_size\":64,\"num_attention_heads\":4,"
             "\"num_key_value_heads\":2,\"head_dim\":16,\"intermediate_size\":64,\"vocab_size\":64,\"simulation\":"
             "{\"linear_bits\":16,\"head_bits\":16,\"kv_bits\":16,\"origin\":\"x\"},\"num_key_value_layers\":%s}",
             arch, more);
    int rc = sim_model_read(&m, text, strlen(text), "model", &e);
    if (rc != code)
        fail_msg("%s: %d %s", more, rc, e.text);
}

static void descriptions(void **state)
{
    static const char *const wrong[] = {"0", "5", "-1", "2.5", "\"2\"", "null", "1e99", "[]"};
    (void)state;
    refuse("1", "LlamaSwiftKVForCausalLM", 0);
    refuse("4", "LlamaSwiftKVForCausalLM", 0);
    refuse("4", "LlamaForCausalLM", 0);
    refuse("3", "LlamaForCausalLM", E_UNSUPPORTED);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuse(wrong[i], "LlamaSwiftKVForCausalLM", E_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_are_those_of_their_kernels),
                                       cmocka_unit_test(rows_that_all_give_logits_cost_as_ever),
                                       cmocka_unit_test(prompts_cost_what_they_should),
                                       cmocka_unit_test(stages_share_the_layers), cmocka_unit_test(descriptions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
