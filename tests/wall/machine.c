/* The files of a simulated machine as a wall: what is wrong is named by line or field, what is unknown is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <glob.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "kernels/sim/describe.h"
#include "models/load/model.h"

static const char hardware[] = "models/hardware/h200x8-fitted.json", model[] = "models/catalog/llama-3.3-70b-fp8.json";

/* The file's text with one change; the first occurrence of `from`. */
static char *changed(const char *path, const char *from, const char *to)
{
    struct buf text = {0}, out = {0};
    assert_int_equal(file_read(&text, path, 1 << 20, NULL), 0);
    buf_putc(&text, 0);
    const char *at = strstr(text.data, from);
    assert_non_null(at);
    buf_printf(&out, "%.*s%s%s", (int)(at - text.data), text.data, to, at + strlen(from));
    buf_free(&text);
    return buf_take(&out);
}

struct change {
    const char *from, *to, *says;
};

typedef int reader(struct sim_machine *m, const char *text, size_t n, const char *name, struct err *e);

static void refuse(reader *read, const char *path, const struct change *c)
{
    struct sim_machine m = {0};
    struct err e = {0};
    char *text = changed(path, c->from, c->to);
    int rc = read(&m, text, strlen(text), "the/file", &e);
    if (rc != E_INPUT && rc != E_UNSUPPORTED)
        fail_msg("\"%s\" for \"%s\" was taken", c->to, c->from);
    if (!strstr(e.text, c->says) || !strstr(e.text, "the/file"))
        fail_msg("says \"%s\", not \"%s\"", e.text, c->says);
    sim_tables_free(&m.tables);
    mem_free(m.residuals);
    mem_free(text);
}

static void hardware_refusals(void **state)
{
    static const struct change changes[] = {
        {"\"switch_ns\"", "\"swich_ns\"", "swich_ns"},
        {"\"v\": 8,", "\"v\": 0,", "devices"},
        {"\"v\": 8,", "\"v\": 7.5,", "devices"},
        {"\"v\": 8,", "\"v\": \"8\",", "devices"},
        {"\"v\": 4800000000000.0, ", "", "memory_bytes_per_s"},
        {"\"v\": 0.583", "\"v\": 1.5", "fp8_share"},
        {"[309000000000.0, 345000000000.0, 381000000000.0]", "[309000000000.0]", "all_reduce_bytes_per_s"},
        {"\"origin\": \"data sheet\"", "\"because\": 1", "memory_bytes_per_s"},
        {"\"name\": \"h200x8-fitted\"", "\"name\": 3", "\"name\""},
        {"  \"doc\"", "  \"tables\": \"../x\",\n  \"doc\"", "tables"},
        {"\"twin\": \"h200x8\"", "\"twin\": 8", "twin"},
        {"\"twin\": \"h200x8\"", "\"twin\": \"h200x8-fitted\"", "twin"},
        {"\"twin\": \"h200x8\"", "\"twin\": \"\"", "twin"},
        {"\n  }\n}", "\n  }, \"residuals\": 1\n}", "residuals"},
        {"    \"origin\": \"measured over", "    \"source\": \"measured over", "origin"},
        {"\"gemm_fp8\"", "\"gemm_fp6\"", "gemm_fp6"},
        {"\"gemm_bf16\": {\"rows\": ", "\"gemm_bf16\": {\"rows\": -", "\"rows\""},
        {"\"gemm_bf16\": {", "\"gemm_bf16\": {\"sd\": 1, ", "\"sd\""},
        {"\"gemm_bf16\": {", "\"gemm_bf16\": [], \"x\": {", "gemm_bf16"},
        {"\"doublings\": [", "\"doublings\": [1, ", "doublings"},
        {"\"doublings\": [", "\"doublings\": [-", "doublings"},
        {"\"doublings\": [", "\"doublings\": [9", "doublings"},
        {"\"doublings\": [3.0", "\"doublings\": [1e-9", "doublings"},
        {"\"along\": \"rows\"", "\"along\": \"bytes\"", "along"},
        {"\"along\": \"rows\"", "\"along\": 2", "along"},
        {"\"at\": [2, 64", "\"at\": [2, 1", "\"at\""},
        {"\"at\": [2, 64", "\"at\": [0, 64", "\"at\""},
        {"\"at\": [2, 64, ", "\"at\": [2, ", "quantiles"},
        {"\"median\": [", "\"median\": 1, \"at\": [", "median"},
        {"\"quantiles\": [[", "\"quantiles\": [[0.001, ", "quantiles"},
        {"\"quantiles\": [[", "\"quantiles\": [[7", "quantiles"},
        {"\"quantiles\": [[", "\"quantiles\": [[-", "quantiles"},
        {"\"quantiles\": [[", "\"quantiles\": [[\"", "line"},
        {"\"quantiles\": [[", "\"quantiles\": [[], [", "quantiles"},
        {"{", "{,", "line 1"},
        {"\"devices\": {", "\"devices\": {{", "line 5"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        refuse(sim_hardware_read, hardware, &changes[i]);
}

static void model_refusals(void **state)
{
    static const struct change changes[] = {
        {"\"hidden_size\"", "\"sliding_window\"", "sliding_window"},
        {"\"hidden_size\": 8192,", "", "hidden_size"},
        {"\"hidden_size\": 8192", "\"hidden_size\": 0", "hidden_size"},
        {"\"linear_bits\": 8", "\"linear_bits\": 4", "linear_bits"},
        {"\"linear_bits\": 8", "\"linear_bits\": 12", "8 and 16 bits"},
        {"\"kv_bits\": 16,", "", "kv_bits"},
        {"\"kv_bits\"", "\"experts\": 8, \"kv_bits\"", "experts"},
        {"\"origin\"", "\"odd\"", "odd"},
        {"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "evenly"},
        {"\"simulation\": {", "\"simulation\": 1, \"hidden_act\": {", "simulation"},
        {"80,", "80,,", "line 7"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++)
        refuse(sim_model_read, model, &changes[i]);
}

/* Every description that is shipped opens, and the engine's own reader takes its model to be the same. */
static void shipped(void **state)
{
    glob_t hw, mo;
    (void)state;
    assert_int_equal(glob("models/hardware/*x[0-9]*.json", 0, NULL, &hw), 0);
    assert_int_equal(glob("models/catalog/*.json", 0, NULL, &mo), 0);
    for (size_t i = 0; i < hw.gl_pathc; i++)
        for (size_t k = 0; k < mo.gl_pathc; k++) {
            struct sim_machine *m;
            struct model *own;
            struct err e = {0};
            int rc = sim_machine_open(&m, hw.gl_pathv[i], mo.gl_pathv[k], &e);
            if (rc == E_UNSUPPORTED && strstr(e.text, "FP8"))
                continue;
            if (rc || model_open_dummy(&own, sim_machine_config(m), DT_BF16, 1, &e))
                fail_msg("%s", e.text);
            const struct model_config *c = model_config(own);
            assert_int_equal(c->n_layers, m->model.n_layers);
            assert_int_equal(c->hidden, m->model.hidden);
            assert_int_equal(c->head_dim, m->model.head_dim);
            assert_int_equal(c->qk_norm, m->model.qk_norm);
            assert_int_equal(c->tied, m->model.tied);
            model_close(own);
            sim_machine_close(m);
        }
    globfree(&hw);
    globfree(&mo);
}

static void absent(void **state)
{
    struct sim_machine *m = NULL;
    struct err e = {0};
    (void)state;
    assert_int_not_equal(sim_machine_open(&m, "models/hardware/none.json", model, &e), 0);
    assert_non_null(strstr(e.text, "none.json"));
    assert_null(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(hardware_refusals), cmocka_unit_test(model_refusals),
                                       cmocka_unit_test(shipped), cmocka_unit_test(absent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
