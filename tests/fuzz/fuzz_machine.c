/* Any bytes as a hardware file, a model file or a file of tables (the first byte says which: h, m, t). What is accepted
 * must give costs that are finite. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "kernels/sim/cost.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_tables(struct sim_machine *m, const char *text, size_t n, struct err *e)
{
    struct json *root = json_parse(text, n, NULL, e);
    int rc = root ? sim_tables_read(&m->tables, root, "tables", e) : E_INPUT;
    json_free(root);
    for (int k = 0; k < TABLE_KINDS && !rc; k++)
        if (m->tables.of[k].n_axes) {
            ASSERT(sim_table_at(&m->tables.of[k], (double[TABLE_AXES]){0}) > 0);
            ASSERT(sim_table_at(&m->tables.of[k], (double[TABLE_AXES]){1e9, 1e9, 1e9, 1e9, 1e9}) > 0);
            ASSERT(sim_table_at(&m->tables.of[k], (double[TABLE_AXES]){3, 3, 3, 3, 3}) > 0);
        }
    return rc;
}

static void check_costs(const struct sim_machine *m)
{
    struct sim_weights whole = {.shares = 1};
    struct step_size s = {.n_logits = 2};
    step_size_add(&s, 1, 1000);
    step_size_add(&s, 300, 0);
    struct step_cost c = cost_parts(m, (struct layout){1, 1, 1}, whole, &s);
    ASSERT(isfinite(c.total) && c.total >= 0);
    ASSERT(cost_weight_bytes(&m->model, whole) > 0);
    struct ffn_setup pool = {.n_ranks = 2, .n_layers = m->model.n_layers, .n_slots = 2, .order = FFN_PLAIN};
    struct err e;
    if (m->model.n_layers > FFN_MAX_LAYERS || ffn_parse_owners(&pool, "layer-mod", &e))
        return;
    s.pool_ranks = 2;
    for (s.cas_layers = 0; s.cas_layers <= pool.n_layers; s.cas_layers += pool.n_layers) {
        c = cost_parts(m, (struct layout){1, 1, 1}, (struct sim_weights){.shares = 1, .pool = &pool}, &s);
        ASSERT(isfinite(c.total) && c.wait >= 0 && c.total >= c.wait);
    }
}

/* The other half of a machine that takes every model. */
static const struct sim_hardware plain = {.devices = 1,
                                          .memory_bytes = 1e9,
                                          .memory_rate = 1e12,
                                          .bf16_peak = 1e14,
                                          .bf16_share = 1,
                                          .fp8_peak = 1e14,
                                          .fp8_share = 1,
                                          .gemm_memory_share = 1,
                                          .elementwise_share = 1,
                                          .prefill_share = 1,
                                          .kv_read_share = 1,
                                          .reduce_rate = {1e9, 1e9, 1e9},
                                          .small_rate = {1e9, 1e9, 1e9},
                                          .exchange_rate = 1e9,
                                          .link_rate = 1e9,
                                          .link_share = 1};
static const struct sim_model small = {.n_layers = 1,
                                       .hidden = 64,
                                       .n_heads = 2,
                                       .n_kv_heads = 1,
                                       .head_dim = 64,
                                       .intermediate = 128,
                                       .vocab = 100,
                                       .linear_bits = 16,
                                       .head_bits = 16,
                                       .kv_bits = 16};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sim_machine m = {.hardware = plain, .model = small};
    struct err e = {0};
    if (size == 0)
        return 0;
    char *exact = malloc(size); /* no NUL after it, so that reading past the end is seen */
    ASSERT(exact);
    memcpy(exact, data + 1, size - 1);
    int rc;
    if (data[0] == 'h')
        rc = memmem(exact, size - 1, "tables", 6) ? E_INPUT : sim_hardware_read(&m, exact, size - 1, "hardware", &e);
    else if (data[0] == 'm')
        rc = sim_model_read(&m, exact, size - 1, "model", &e);
    else
        rc = read_tables(&m, exact, size - 1, &e);
    free(exact);
    if (rc)
        ASSERT(rc == E_INPUT || rc == E_UNSUPPORTED);
    else
        check_costs(&m);
    sim_tables_free(&m.tables);
    mem_free(m.residuals);
    return 0;
}
