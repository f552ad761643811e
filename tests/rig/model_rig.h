/* A model on a CPU device, ready to run handmade steps: for tests and the oracle's tool. Owned by whoever opened it,
 * one thread. There is no engine, scheduler or block table here: sequence s owns blocks [s * per_seq, ...). */
#ifndef RIG_MODEL_RIG_H
#define RIG_MODEL_RIG_H

#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/exec/weights.h"
#include "models/forward/forward.h"

#define DEMO_MODEL "models/weights/SmolLM2-135M-Instruct.Q4_1.gguf"

enum { RIG_BLOCK = 16, RIG_MAX_SEQS = 8 };

struct rig_opts {
    int threads, max_rows, max_logits, n_seqs, max_len;
    const char *isa;
    bool fast;
    enum dtype kv;
};

struct rig {
    const struct backend_ops *ops;
    struct device *device;
    struct model *model; /* the caller's */
    struct weights *weights;
    struct kv_space kv;
    struct forward forward;
    struct forward_member site;
    int32_t *blocks;
    int per_seq;
};

/* Part of a sequence: tokens [pos, pos + n) of ids. */
struct rig_part {
    int seq, pos, n;
    const int32_t *ids;
};

static inline void rig_close(struct rig *r)
{
    if (r->forward.ops)
        forward_free(&r->forward);
    weights_free(r->weights);
    if (r->kv.base)
        r->ops->release(r->device, r->kv.base);
    if (r->device)
        r->ops->close(r->device);
    mem_free(r->blocks);
    memset(r, 0, sizeof *r);
}

static inline int rig_alloc_kv(struct rig *r, const struct rig_opts *o, struct err *e)
{
    const struct model_config *c = model_config(r->model);
    int n_blocks;
    r->per_seq = (o->max_len + RIG_BLOCK - 1) / RIG_BLOCK;
    n_blocks = r->per_seq * o->n_seqs;
    r->kv = (struct kv_space){.block_bytes = r->ops->kv_block_bytes(o->kv, RIG_BLOCK, c->n_kv_heads, c->head_dim),
                              .n_blocks = n_blocks,
                              .n_layers = c->n_layers,
                              .dtype = o->kv};
    r->kv.base = r->ops->alloc(r->device, (size_t)c->n_layers * (size_t)n_blocks * r->kv.block_bytes);
    r->blocks = mem_new_array((size_t)n_blocks, sizeof *r->blocks);
    for (int i = 0; i < n_blocks; i++) /* not in order: a block table that were ignored would show */
        r->blocks[i] = n_blocks - 1 - i;
    return r->kv.base ? 0 : err_set(e, E_FULL, "no memory for the KV cache");
}

static inline int rig_open(struct rig *r, struct model *m, const struct rig_opts *o, struct err *e)
{
    struct device_opts device = {
        .n_threads = o->threads, .isa = o->isa, .fast = o->fast, .max_rows = o->max_rows, .max_logits = o->max_logits};
    *r = (struct rig){.ops = backend_cpu(), .model = m};
    int rc = r->ops->open(&r->device, &device, e);
    if (!rc)
        rc = weights_load(&r->weights,
                          &(struct weights_setup){.model = m, .ops = r->ops, .device = r->device, .n_ranks = 1}, e);
    if (!rc)
        rc = rig_alloc_kv(r, o, e);
    if (!rc) {
        r->forward = (struct forward){.ops = r->ops, .device = r->device, .config = model_config(m), .kv = &r->kv};
        r->site = (struct forward_member){.weights = weights_view(r->weights, (struct layout){1, 1, 1}, 0),
                                          .tokens_per_block = RIG_BLOCK};
        rc = forward_init(&r->forward, o->max_rows, o->max_logits, 1, e);
        if (rc)
            r->forward.ops = NULL;
    }
    if (rc)
        rig_close(r);
    return rc;
}

/* Runs the parts as one step. samples and results: one for every row of the step, or NULL for no logits at all. */
static inline int rig_step(struct rig *r, const struct rig_part *parts, int n_parts, const struct sample_row *samples,
                           struct sample_result *results, struct err *e)
{
    struct batch_seq seqs[RIG_MAX_SEQS];
    int n = 0, row = 0;
    for (int i = 0; i < n_parts; i++)
        n += parts[i].n;
    int32_t *lists = mem_new_array((size_t)n * 3, sizeof *lists), *ids = lists, *positions = lists + n,
            *rows = lists + 2 * n;
    for (int i = 0; i < n_parts; i++) {
        const struct rig_part *p = &parts[i];
        seqs[i] = (struct batch_seq){row, p->n, p->pos, r->blocks + p->seq * r->per_seq, NULL};
        for (int k = 0; k < p->n; k++, row++) {
            ids[row] = p->ids[p->pos + k];
            positions[row] = p->pos + k;
            rows[row] = row;
        }
    }
    struct batch b = {.n_rows = n,
                      .ids = ids,
                      .positions = positions,
                      .n_seqs = n_parts,
                      .seqs = seqs,
                      .n_logits = samples ? n : 0,
                      .logit_rows = rows,
                      .samples = samples,
                      .results = results};
    struct step_time t;
    int rc = forward_run(&r->forward, &r->site, &b, &t, e);
    mem_free(lists);
    return rc;
}

/* Logits of the step's rows, n x vocab, when all of them were asked for at once with samples that change no logit. */
static inline int rig_logits(struct rig *r, int n, float *out)
{
    struct act a = r->forward.logits;
    for (int i = 0; i < n; i++)
        if (r->ops->download(r->device, out + (size_t)i * (size_t)a.cols,
                             (char *)a.data + (size_t)i * (size_t)a.ld * sizeof(float), (size_t)a.cols * sizeof(float)))
            return E_DEVICE;
    return 0;
}

/* Teacher forcing: results[i] scores ids[i + 1] after ids[0..i], and holds the likeliest token, for i < n - 1. */
static inline int rig_score(struct rig *r, const int32_t *ids, int n, int chunk, struct sample_result *results,
                            struct err *e)
{
    struct sample_row *rows = mem_new_array((size_t)chunk, sizeof *rows);
    int rc = 0;
    for (int at = 0; at < n - 1 && !rc; at += chunk) {
        struct rig_part p = {0, at, n - 1 - at < chunk ? n - 1 - at : chunk, ids};
        for (int i = 0; i < p.n; i++)
            rows[i] = (struct sample_row){.given = ids[at + i + 1], .n_top = 1};
        rc = rig_step(r, &p, 1, rows, results + at, e);
    }
    mem_free(rows);
    return rc;
}

/* A JSON list of token ids; NULL on failure. The caller frees it. */
static inline int32_t *rig_read_ids(const char *path, int *n, struct err *e)
{
    struct buf text = {0};
    int32_t *ids = NULL;
    *n = 0;
    if (file_read(&text, path, 1 << 20, e) == 0) {
        struct json *list = json_parse(text.data, text.len, NULL, e);
        ids = mem_new_array(json_count(list) + 1, sizeof *ids);
        for (const struct json *j = json_first(list); j; j = json_next(j))
            ids[(*n)++] = (int32_t)json_number(j);
        json_free(list);
    }
    buf_free(&text);
    return ids;
}

#endif
