/* A small random BERT in memory: config.json's text and a safetensors file. Tests and fuzz targets. One thread. */
#ifndef RIG_BERT_BUILD_H
#define RIG_BERT_BUILD_H

#include "models/encode/bert_config.h"
#include "tests/rig/safetensors_build.h"

struct bert_build {
    int hidden, heads, ffn, layers, vocab, positions, types, labels;
    uint64_t seed;
};

static inline float build_noise(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*seed >> 40) / (1 << 24) * 2 - 1);
}

/* rows 0: a list. Values are mean -0.3 .. mean + 0.3. */
static inline void build_floats(struct st_build *st, struct bert_build *b, const char *name, int rows, int cols,
                                float mean)
{
    struct buf data = {0};
    char shape[64];
    for (int i = 0; i < (rows ? rows : 1) * cols; i++) {
        float v = mean + 0.3f * build_noise(&b->seed);
        buf_put(&data, &v, sizeof v);
    }
    if (rows)
        snprintf(shape, sizeof shape, "[%d,%d]", rows, cols);
    else
        snprintf(shape, sizeof shape, "[%d]", cols);
    st_add(st, name, "F32", shape, data.data, data.len);
    buf_free(&data);
}

static inline void build_linear(struct st_build *st, struct bert_build *b, const char *stem, int rows, int cols)
{
    char name[160];
    snprintf(name, sizeof name, "%.140s.weight", stem);
    build_floats(st, b, name, rows, cols, 0);
    snprintf(name, sizeof name, "%.140s.bias", stem);
    build_floats(st, b, name, 0, rows, 0);
}

static inline void build_norm(struct st_build *st, struct bert_build *b, const char *stem)
{
    char name[160];
    snprintf(name, sizeof name, "%.140s.weight", stem);
    build_floats(st, b, name, 0, b->hidden, 1);
    snprintf(name, sizeof name, "%.140s.bias", stem);
    build_floats(st, b, name, 0, b->hidden, 0);
}

/* Frees with st_free. A cross-encoder's names begin with "bert.". */
static inline const struct buf *bert_file(struct st_build *st, struct bert_build b)
{
    static const char *const square[] = {"attention.self.query", "attention.self.key", "attention.self.value",
                                         "attention.output.dense"};
    const char *prefix = b.labels ? "bert." : "";
    char stem[64], name[128];
    const char *const tables[] = {"word", "position", "token_type"};
    const int rows[] = {b.vocab, b.positions, b.types};
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%sembeddings.%s_embeddings.weight", prefix, tables[i]);
        build_floats(st, &b, name, rows[i], b.hidden, 0);
    }
    snprintf(name, sizeof name, "%sembeddings.LayerNorm", prefix);
    build_norm(st, &b, name);
    for (int l = 0; l < b.layers; l++) {
        snprintf(stem, sizeof stem, "%sencoder.layer.%d.", prefix, l);
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "%s%s", stem, square[i]);
            build_linear(st, &b, name, b.hidden, b.hidden);
        }
        snprintf(name, sizeof name, "%sattention.output.LayerNorm", stem);
        build_norm(st, &b, name);
        snprintf(name, sizeof name, "%sintermediate.dense", stem);
        build_linear(st, &b, name, b.ffn, b.hidden);
        snprintf(name, sizeof name, "%soutput.dense", stem);
        build_linear(st, &b, name, b.hidden, b.ffn);
        snprintf(name, sizeof name, "%soutput.LayerNorm", stem);
        build_norm(st, &b, name);
    }
    if (b.labels) {
        build_linear(st, &b, "bert.pooler.dense", b.hidden, b.hidden);
        build_linear(st, &b, "classifier", b.labels, b.hidden);
    }
    return st_file(st);
}

/* more: further members, each with a comma before it. */
static inline void bert_config_text(struct buf *out, const struct bert_build *b, const char *more)
{
    buf_printf(out,
               "{\"architectures\":[\"%s\"],\"hidden_size\":%d,\"num_attention_heads\":%d,\"intermediate_size\":%d,"
               "\"num_hidden_layers\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,\"type_vocab_size\":%d,"
               "\"layer_norm_eps\":1e-12,\"hidden_act\":\"gelu\"",
               b->labels ? "BertForSequenceClassification" : "BertModel", b->hidden, b->heads, b->ffn, b->layers,
               b->vocab, b->positions, b->types);
    if (b->labels) {
        buf_puts(out, ",\"id2label\":{");
        for (int i = 0; i < b->labels; i++)
            buf_printf(out, "%s\"%d\":\"L%d\"", i ? "," : "", i, i);
        buf_puts(out, "}");
    }
    buf_printf(out, "%s}", more);
}

#endif
