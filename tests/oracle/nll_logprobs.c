/* The engine's own logprobs for the oracle in Python.
 *   nll_logprobs MODEL.gguf IDS.json [CHUNK [THREADS [f16|f32 [high|fast]]]]
 * prints, for every id after the first, its logprob and the likeliest token at its place. */
#include <stdlib.h>

#include "tests/rig/model_rig.h"

static int run(struct model *m, const int32_t *ids, int n, const struct rig_opts *o, struct err *e)
{
    struct rig r;
    int rc = rig_open(&r, m, o, e);
    if (rc)
        return rc;
    model_loaded(m);
    struct sample_result *results = mem_new_array((size_t)n, sizeof *results);
    rc = rig_score(&r, ids, n, o->max_rows, results, e);
    for (int i = 0; i < n - 1 && !rc; i++)
        printf("%.9g %d\n", (double)results[i].logprob, results[i].top_ids[0]);
    mem_free(results);
    rig_close(&r);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct model *m = NULL;
    int n;
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.gguf IDS.json [CHUNK [THREADS [f16|f32 [high|fast]]]]\n", argv[0]);
        return 2;
    }
    int32_t *ids = rig_read_ids(argv[2], &n, &e);
    int chunk = argc > 3 ? atoi(argv[3]) : 256;
    struct rig_opts o = {.threads = argc > 4 ? atoi(argv[4]) : 0,
                         .max_rows = chunk,
                         .max_logits = 64,
                         .n_seqs = 1,
                         .max_len = n,
                         .kv = argc > 5 && strcmp(argv[5], "f32") == 0 ? DT_F32 : DT_F16,
                         .fast = argc > 6 && strcmp(argv[6], "fast") == 0};
    int rc = !ids || n < 2 || chunk < 1 ? err_set(&e, E_INPUT, "no ids in %s, or a bad chunk", argv[2])
                                        : model_open_gguf(&m, argv[1], &e);
    if (!rc)
        rc = run(m, ids, n, &o, &e);
    if (rc)
        fprintf(stderr, "%s\n", e.text);
    model_close(m);
    mem_free(ids);
    return rc ? 1 : 0;
}
