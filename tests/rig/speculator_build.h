/* Small speculators in memory: config.json's text and a safetensors file, with the names that vLLM's and Arctic
 * Inference's have. Every weight is a function of its tensor's name and its place, so a reference needs no file. Tests
 * and fuzz targets. One thread. */
#ifndef RIG_SPECULATOR_BUILD_H
#define RIG_SPECULATOR_BUILD_H

#include <math.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "models/load/speculator.h"
#include "tests/rig/safetensors_build.h"

enum spec_kind { SPEC_PLAIN, SPEC_RNN, SPEC_LSTM };

struct spec_build {
    enum spec_kind kind;
    bool tied, tied_tables, scale_input;
    bool echoes; /* it always guesses the token before: PLAIN, tied */
    int n_predict, hidden, inner, vocab;
    enum dtype type;
    const char *leave, *spoil, *more; /* the tensor that is missing; all NaN; one more of this name */
    const char *prefix;
};

/* As a file of this type has it. */
static inline float spec_round(enum dtype type, double x)
{
    float f = (float)x;
    return type == DT_F16 ? f16_to_f32(f32_to_f16(f)) : type == DT_BF16 ? bf16_to_f32(f32_to_bf16(f)) : f;
}

static inline double spec_noise(const char *name, size_t i)
{
    uint64_t h = 14695981039346656037ull;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211ull;
    return (double)(rng_at(h, i) >> 11) * 0x1p-52 - 1;
}

/* An echo: the head's row of a token is the state that its embedding gives. */
static inline double spec_echo(const struct spec_build *b, size_t row, size_t col)
{
    double squares = 0, x = 0;
    for (size_t i = 0; i < (size_t)b->inner; i++) {
        double e = (double)spec_round(b->type, spec_noise("emb.0.weight", row * (size_t)b->inner + i));
        squares += e * e;
        x = i == col ? e : x;
    }
    x /= sqrt(squares / b->inner);
    return 8 * x * 0.5 * (1 + erf(x / sqrt(2)));
}

/* cols: of the matrix; 0: a vector. */
static inline float spec_weight(const struct spec_build *b, const char *name, size_t i, int cols)
{
    double u = spec_noise(name, i), x;
    bool head = strncmp(name, "head", 4) == 0, norm = strstr(name, "ln.") != NULL;
    if (b->echoes)
        x = head                  ? spec_echo(b, i / (size_t)cols, i % (size_t)cols)
            : norm                ? strstr(name, "weight") != NULL
            : strstr(name, "emb") ? u
                                  : 0;
    else if (norm)
        x = strstr(name, "weight") ? 1 + 0.3 * u : 0.2 * u;
    else
        x = u * sqrt(3.0 / cols) * (head ? 3 : 1);
    return spec_round(b->type, x);
}

static inline void spec_add(struct st_build *st, const struct spec_build *b, const char *name, int rows, int cols)
{
    char shape[64], full[96];
    size_t n = (size_t)(rows ? rows : 1) * (size_t)cols, size = b->type == DT_F32 ? 4 : 2;
    uint8_t *data = mem_new_array(n, size);
    for (size_t i = 0; i < n; i++) {
        bool bad = b->spoil && strcmp(b->spoil, name) == 0;
        float f = bad ? NAN : spec_weight(b, name, i, cols);
        uint16_t h = b->type == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
        memcpy(data + i * size, size == 4 ? (const void *)&f : &h, size);
    }
    snprintf(shape, sizeof shape, rows ? "[%d,%d]" : "[%.0d%d]", rows, cols);
    snprintf(full, sizeof full, "%s%s", b->prefix ? b->prefix : "", name);
    if (!b->leave || strcmp(b->leave, name) != 0)
        st_add(st, full, b->type == DT_F32 ? "F32" : b->type == DT_F16 ? "F16" : "BF16", shape, data, n * size);
    mem_free(data);
}

static inline void spec_add_vectors(struct st_build *st, const struct spec_build *b, const char *stem)
{
    char name[64];
    snprintf(name, sizeof name, "%.50s.weight", stem);
    spec_add(st, b, name, 0, b->inner);
    snprintf(name, sizeof name, "%.50s.bias", stem);
    spec_add(st, b, name, 0, b->inner);
}

static inline void spec_add_lstm(struct st_build *st, const struct spec_build *b)
{
    static const char *const gates[] = {"forget", "input", "output", "cell"};
    char name[64];
    for (int g = 0; g < 4; g++) {
        if (g == 0 || !b->tied_tables) {
            snprintf(name, sizeof name, "%s_emb.0.weight", gates[g]);
            spec_add(st, b, name, b->vocab, b->inner);
        }
        for (int i = 0; i < 2 && i < b->n_predict; i++) {
            snprintf(name, sizeof name, "%s_proj.%d.weight", gates[g], i);
            spec_add(st, b, name, b->inner, i ? b->inner : b->hidden);
        }
    }
    spec_add_vectors(st, b, "cell_ln.0");
    spec_add_vectors(st, b, "state_ln.0");
    spec_add(st, b, "head.0.weight", b->vocab, b->inner);
}

static inline void spec_add_mlp(struct st_build *st, const struct spec_build *b)
{
    const char *deep = b->kind == SPEC_RNN ? ".0" : "";
    char name[64];
    for (int i = 0; i < b->n_predict; i++) {
        if (i < 2 || !b->tied) {
            snprintf(name, sizeof name, "proj.%d%s.weight", i, deep);
            spec_add(st, b, name, b->inner, i ? b->inner : b->hidden);
        }
        if (i && b->tied)
            continue;
        snprintf(name, sizeof name, "emb.%d%s.weight", i, deep);
        spec_add(st, b, name, b->vocab, b->inner);
        snprintf(name, sizeof name, "ln.%d%s", i, deep);
        spec_add_vectors(st, b, name);
        snprintf(name, sizeof name, "head.%d.weight", i);
        spec_add(st, b, name, b->vocab, b->inner);
    }
}

static inline void spec_config(struct buf *out, const struct spec_build *b)
{
    const char *flags[] = {"false", "true"};
    buf_clear(out);
    buf_printf(out, "{\"architectures\":[\"%s\"],\"model_type\":\"mlp_speculator\",\"n_predict\":%d,\"vocab_size\":%d,",
               b->kind == SPEC_PLAIN ? "MLPSpeculatorPreTrainedModel" : "ArcticLSTMSpeculatorPreTrainedModel",
               b->n_predict, b->vocab);
    buf_printf(out, "\"tie_weights\":%s,\"scale_input\":%s,", flags[b->tied], flags[b->scale_input]);
    if (b->kind == SPEC_PLAIN)
        buf_printf(out, "\"emb_dim\":%d,\"inner_dim\":%d}", b->hidden, b->inner);
    else
        buf_printf(out,
                   "\"input_hidden_dim\":%d,\"inner_dim\":\"%d\",\"emb_dim\":\"%d\",\"proj_dim\":\"%d\","
                   "\"tie_lstm_embs\":%s,\"method\":\"%s\"}",
                   b->hidden, b->inner, b->inner, b->inner, flags[b->tied_tables],
                   b->kind == SPEC_LSTM ? "sum_lstm" : "sum_rnn");
}

static inline const struct buf *spec_file(struct st_build *st, const struct spec_build *b)
{
    if (b->kind == SPEC_LSTM)
        spec_add_lstm(st, b);
    else
        spec_add_mlp(st, b);
    if (b->more)
        spec_add(st, b, b->more, b->vocab, b->inner);
    return st_file(st);
}

/* What is open, and the memory under it. */
struct built_speculator {
    struct st_build st;
    struct buf config;
    struct speculator *s; /* NULL: refused */
};

static inline int spec_open(struct built_speculator *out, const struct spec_build *b, struct err *e)
{
    *out = (struct built_speculator){.s = NULL};
    spec_config(&out->config, b);
    const struct buf *file = spec_file(&out->st, b);
    return speculator_open_memory(&out->s, (struct model_text){out->config.data, out->config.len}, file->data,
                                  file->len, e);
}

static inline void spec_close(struct built_speculator *s)
{
    speculator_close(s->s);
    st_free(&s->st);
    buf_free(&s->config);
}

#endif
