/* Decoders as encoders: the vector of a sequence is the same bits in whatever it is packed with, for every number of
 * threads and every instruction set, also where a call is more steps than one. What it should be is asked of float64 in
 * tests/oracle/decoder_oracle.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/backend.h"
#include "models/encode/decoder.h"
#include "tests/rig/decoder_build.h"
#include "tests/rig/isas.h"
#include "tests/rig/slow.h"

enum { N_SEQS = 12, MOST = 300, HIDDEN = 48, VOCAB = 50 };

struct subject {
    struct decoder *decoder;
    int32_t ids[N_SEQS][MOST];
    int n[N_SEQS];
    float want[N_SEQS][HIDDEN]; /* one at a time, one thread */
};

static void run(const struct subject *s, const struct encoder_seq *seqs, int n, int rows, int threads, const char *isa)
{
    struct decoder_run *r;
    struct err e = {0};
    assert_int_equal(decoder_run_open(&r, s->decoder, threads, rows, isa, &e), 0);
    assert_int_equal(decoder_run(r, seqs, n, &e), 0);
    assert_int_equal(decoder_run(r, seqs, n, &e), 0); /* nothing is left of the run before */
    decoder_run_close(r);
}

static struct subject *open_subject(enum encoder_pooling pooling, const char *more)
{
    static const int lengths[N_SEQS] = {1, 2, 15, 16, 17, 33, 300, 64, 5, 29, 48, 257};
    static const struct decoder_build build = {.hidden = HIDDEN,
                                               .heads = 4,
                                               .kv_heads = 2,
                                               .dim = 16,
                                               .ffn = 80,
                                               .layers = 2,
                                               .vocab = VOCAB,
                                               .positions = MOST,
                                               .prefix = "model.",
                                               .seed = 3};
    struct subject *s = mem_new(sizeof *s);
    struct st_build st = {0};
    struct buf config = {0};
    struct model *m;
    struct err e = {0};
    const struct buf *file = decoder_file(&st, &build);
    decoder_config_text(&config, &build, more);
    if (model_embedder_from_hf(&m, (struct model_text){config.data, config.len}, file->data, file->len, &e))
        fail_msg("%s", e.text);
    const struct encoder_card card = {.pooling = pooling, .named = true, .normalised = true};
    assert_int_equal(decoder_open(&s->decoder, m, &card, &e), 0);
    model_close(m);
    st_free(&st);
    buf_free(&config);
    for (int i = 0; i < N_SEQS; i++) {
        s->n[i] = lengths[i];
        for (int k = 0; k < s->n[i]; k++)
            s->ids[i][k] = (int32_t)((unsigned)(i * 31 + k * 17 + k * k) % VOCAB);
        struct encoder_seq seq = {s->ids[i], s->n[i], s->n[i], s->want[i]};
        run(s, &seq, 1, s->n[i], 1, "portable");
    }
    return s;
}

static void close_subject(struct subject *s)
{
    decoder_close(s->decoder);
    mem_free(s);
}

static void check_packings(const struct subject *s)
{
    static const int factors[] = {5, 7}; /* neither has a factor of N_SEQS */
    for (int set = 0; set < N_ISAS; set++) {
        struct device *d;
        if (backend_cpu()->open(&d, &(struct device_opts){.n_threads = 1, .isa = isas[set]}, NULL))
            continue;
        backend_cpu()->close(d);
        for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
            struct encoder_seq seqs[N_SEQS];
            float got[N_SEQS][HIDDEN];
            int rows = 0;
            for (int i = 0; i < N_SEQS; i++) {
                int k = i * factors[f] % N_SEQS;
                seqs[i] = (struct encoder_seq){s->ids[k], s->n[k], s->n[k], got[k]};
                rows += s->n[k];
            }
            run(s, seqs, N_SEQS, rows, 1 + (int)f, isas[set]);
            for (int i = 0; i < N_SEQS; i++)
                if (memcmp(got[i], s->want[i], sizeof got[i]) != 0)
                    fail_msg("sequence %d differs: %s, packed by %d", i, isas[set], factors[f]);
        }
    }
}

static void vectors_depend_on_their_tokens_alone(void **state)
{
    static const enum encoder_pooling poolings[] = {POOL_LAST, POOL_MEAN, POOL_CLS};
    (void)state;
    for (size_t i = 0; i < sizeof poolings / sizeof *poolings; i += rig_slow() ? 2 : 1) {
        struct subject *s = open_subject(poolings[i], "");
        check_packings(s);
        close_subject(s);
    }
    struct subject *s = open_subject(POOL_LAST, ",\"sliding_window\":20,\"use_sliding_window\":true");
    check_packings(s);
    close_subject(s);
}

/* Each of them needs a block of its own, and there are not as many blocks as rows. */
static void many_short_texts_take_more_steps(void **state)
{
    enum { MANY = 2000 };
    struct subject *s = open_subject(POOL_LAST, "");
    float(*got)[HIDDEN] = mem_new_array(MANY, sizeof *got);
    struct encoder_seq *seqs = mem_new_array(MANY, sizeof *seqs);
    (void)state;
    for (int i = 0; i < MANY; i++)
        seqs[i] = (struct encoder_seq){s->ids[i % 2], s->n[i % 2], s->n[i % 2], got[i]};
    run(s, seqs, MANY, MANY * 2, 2, "auto");
    for (int i = 0; i < MANY; i++)
        assert_memory_equal(got[i], s->want[i % 2], sizeof got[i]);
    mem_free(got);
    mem_free(seqs);
    close_subject(s);
}

/* The last token has seen all, the first one only itself, the mean is of all. */
static void each_pooling_has_its_rows(void **state)
{
    struct subject *last = open_subject(POOL_LAST, ""), *first = open_subject(POOL_CLS, ""),
                   *mean = open_subject(POOL_MEAN, "");
    float one[HIDDEN];
    (void)state;
    struct encoder_seq seq = {last->ids[5], 1, 1, one};
    run(last, &seq, 1, 1, 1, "auto");
    assert_memory_equal(one, first->want[5], sizeof one);
    assert_memory_not_equal(one, last->want[5], sizeof one);
    double dot = 0, square = 0;
    for (int k = 0; k < HIDDEN; k++) {
        dot += (double)mean->want[5][k] * (double)last->want[5][k];
        square += (double)mean->want[5][k] * (double)mean->want[5][k];
    }
    assert_true(fabs(square - 1) < 1e-5 && dot < 0.9999);
    close_subject(last);
    close_subject(first);
    close_subject(mean);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_depend_on_their_tokens_alone),
        cmocka_unit_test(many_short_texts_take_more_steps),
        cmocka_unit_test(each_pooling_has_its_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
