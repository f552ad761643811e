/* The kernels of the H200 description against measured times (tests/data/h200.tar.xz), on rows that were kept out of its fit (held() of models/hardware/fit_h200.py) and on
 * all rows. Mean absolute error: at most 10% for GEMM, 5% for attention, 10% for collectives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/sim/cost.h"

static struct sim_machine *machine;

struct sum {
    double errors, signs;
    int n;
};

static void put(struct sum *s, double is, double us)
{
    double e = is / 1000 / us - 1;
    s->errors += fabs(e);
    s->signs += e;
    s->n++;
}

static double tell(const char *what, const char *which, const struct sum *s)
{
    printf("  %-28s %-5s %6d rows  mean |error| %6.2f%%  mean error %+6.2f%%\n", what, which, s->n, 100 * s->errors / s->n, 100 * s->signs / s->n);
    return s->errors / s->n;
}

static FILE *open_rows(const char *name)
{
    char path[1024], line[256];
    snprintf(path, sizeof path, TEST_DATA "/h200/%s.csv", name);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(line, sizeof line, f))
        fail_msg("%s is needed", path);
    return f;
}

static uint32_t mixed(int a, int b, int c)
{
    return ((uint32_t)a * 2654435761u + (uint32_t)b * 40503u + (uint32_t)c * 97u) >> 16;
}

static void check(const char *what, const struct sum s[2], double most)
{
    tell(what, "all", &s[0]);
    assert_true(s[1].n > 20);
    if (!(tell(what, "held", &s[1]) <= most))
        fail_msg("%s: more than %g%%", what, 100 * most);
}

static void gemm_of(const char *dtype, int bits)
{
    FILE *f = open_rows("gemm");
    char line[256], type[16], what[64];
    struct sum s[2] = {{0}};
    int m, n, k;
    double us;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%15[^,],%d,%d,%d,%lf", type, &m, &n, &k, &us) == 5 && !strcmp(type, dtype)) {
            double ns = cost_gemm(machine, bits, m, n, k);
            put(&s[0], ns, us);
            if (mixed(n, k, 0) % 10 == 3)
                put(&s[1], ns, us);
        }
    fclose(f);
    snprintf(what, sizeof what, "gemm %s", dtype);
    check(what, s, 0.10);
}

static void gemm(void **state)
{
    (void)state;
    gemm_of("bfloat16", 16);
    gemm_of("fp8", 8);
}

static void attention_of(const char *file, const char *dtype, int bits, bool decode)
{
    FILE *f = open_rows(file);
    char line[256], type[16], what[64];
    struct sum s[2] = {{0}};
    int b, len, q, kv, dim;
    double us;
    machine->model.kv_bits = bits;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%15[^,],%d,%d,%d,%d,%d,%lf", type, &b, &len, &q, &kv, &dim, &us) == 7 && !strcmp(type, dtype)) {
            machine->model.head_dim = dim;
            double n = b, seen = n * len;
            double ns = decode ? cost_decode_attention(machine, n, seen, q, kv)
                               : cost_prefill_attention(machine, n, seen, seen * (len + 1) / 2, q, kv);
            put(&s[0], ns, us);
            if (mixed(q, kv, dim) % 8 == 3)
                put(&s[1], ns, us);
        }
    fclose(f);
    snprintf(what, sizeof what, "%s attention %s", decode ? "decode" : "prefill", dtype);
    check(what, s, 0.05);
}

static void attention(void **state)
{
    (void)state;
    attention_of("prefill_attention_fa3", "bfloat16", 16, false);
    attention_of("prefill_attention_fa3", "fp8", 8, false);
    attention_of("decode_attention_fa3", "bfloat16", 16, true);
    attention_of("decode_attention_fa3", "fp8", 8, true);
}

static double collective_ns(const char *op, bool graph, int g, double bytes)
{
    if (!strcmp(op, "all_reduce"))
        return cost_all_reduce(machine, g, bytes, graph);
    return !strcmp(op, "alltoall") ? cost_all_to_all(machine, g, bytes) : cost_all_gather(machine, g, bytes);
}

static void collective_of(const char *library, const char *op)
{
    FILE *f = open_rows("collectives");
    char line[256], lib[40], name[24], type[16], what[80];
    struct sum s[2] = {{0}};
    int g;
    long long bytes;
    double us;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "%39[^,],%23[^,],%15[^,],%d,%lld,%lf", lib, name, type, &g, &bytes, &us) == 6 && !strcmp(lib, library) &&
            !strcmp(name, op) && strcmp(type, "int8") != 0) {
            double ns = collective_ns(op, strstr(library, "graph") != NULL, g, (double)bytes);
            put(&s[0], ns, us);
            if ((64 - __builtin_clzll((unsigned long long)bytes)) % 4 == 1)
                put(&s[1], ns, us);
        }
    fclose(f);
    snprintf(what, sizeof what, "%s %.12s", op, library);
    tell(what, "all", &s[0]);
    tell(what, "held", &s[1]);
    assert_true(s[1].n >= 9 && s[1].errors / s[1].n <= 0.10);
}

static void collectives(void **state)
{
    (void)state;
    collective_of("vllm_0.24.0_graph", "all_reduce");
    collective_of("vllm_0.24.0_eager", "all_reduce");
    collective_of("nccl_2.29.2", "alltoall");
    collective_of("nccl_2.29.2", "all_gather");
}

static int open_machine(void **state)
{
    struct err e = {0};
    (void)state;
    if (sim_machine_open(&machine, "models/hardware/h200x8.json", "models/llama-3-70b.json", &e))
        fail_msg("%s", e.text);
    return 0;
}

static int close_machine(void **state)
{
    (void)state;
    sim_machine_close(machine);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemm), cmocka_unit_test(attention), cmocka_unit_test(collectives)};
    return cmocka_run_group_tests(tests, open_machine, close_machine);
}
