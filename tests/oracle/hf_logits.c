/* The engine's own logits of a Hugging Face folder, for the oracle in Python.
 *   hf_logits FOLDER IDS.json [f16|f32|fp8]
 * writes the logits of every id as f32, [ids][vocab], to standard output; the last word is the cache's type (default
 * f32). */
#include <stdlib.h>

#include "tests/rig/model_rig.h"

static int run(struct model *m, const int32_t *ids, int n, enum dtype kv, struct err *e)
{
    struct rig r;
    struct rig_opts o = {.threads = 1, .max_rows = n, .max_logits = n, .n_seqs = 1, .max_len = n, .kv = kv};
    struct sample_row *rows = mem_new_array((size_t)n, sizeof *rows);
    struct sample_result *results = mem_new_array((size_t)n, sizeof *results);
    size_t count = (size_t)n * (size_t)model_config(m)->vocab;
    float *logits = mem_new_array(count, sizeof *logits);
    struct rig_part all = {0, 0, n, ids};
    for (int i = 0; i < n; i++)
        rows[i] = (struct sample_row){.given = 0, .n_top = -1};
    int rc = rig_open(&r, m, &o, e);
    if (!rc) {
        model_loaded(m);
        rc = rig_step(&r, &all, 1, rows, results, e);
        rc = rc ? rc : rig_logits(&r, n, logits);
        rig_close(&r);
    }
    if (!rc && fwrite(logits, sizeof *logits, count, stdout) != count)
        rc = err_set(e, E_SYS, "standard output is closed");
    mem_free(rows);
    mem_free(results);
    mem_free(logits);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct model *m = NULL;
    int n;
    if (argc < 3) {
        fprintf(stderr, "usage: %s FOLDER IDS.json [f16|f32|fp8]\n", argv[0]);
        return 2;
    }
    const char *cache = argc > 3 ? argv[3] : "f32";
    int32_t *ids = rig_read_ids(argv[2], &n, &e);
    int rc = !ids || n < 1 ? err_set(&e, E_INPUT, "no ids in %s", argv[2]) : model_open_hf(&m, argv[1], &e);
    if (!rc)
        rc = run(m, ids, n, strcmp(cache, "f16") == 0 ? DT_F16 : strcmp(cache, "fp8") == 0 ? DT_F8 : DT_F32, &e);
    if (rc)
        fprintf(stderr, "%s\n", e.text);
    model_close(m);
    mem_free(ids);
    return rc ? 1 : 0;
}
