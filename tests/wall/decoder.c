/* What the files of a decoder for embeddings may say and what is refused by name; its texts, with the token that ends
 * them; the lengths to which its vectors may be cut. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "models/encode/decoder.h"
#include "tests/rig/decoder_build.h"
#include "tests/rig/gguf_build.h"

static const struct decoder_build small = {.hidden = 32,
                                           .heads = 2,
                                           .kv_heads = 1,
                                           .dim = 16,
                                           .ffn = 48,
                                           .layers = 1,
                                           .vocab = 260,
                                           .positions = 64,
                                           .prefix = ""};

/* Byte-level words, one merge; `end` is put behind a text, and <|im_end|> is the eos_token. A byte's id is the byte. */
static void write_tokenizer(struct buf *to, const char *end)
{
    buf_puts(to, "{\"added_tokens\":[{\"id\":257,\"content\":\"<|end|>\",\"special\":true},{\"id\":258,\"content\":"
                 "\"<|im_end|>\",\"special\":true}],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
                 "\"add_prefix_space\":false},\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":"
                 "\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},");
    buf_printf(to, "{\"SpecialToken\":{\"id\":\"%s\"}}]}]},\"model\":{\"type\":\"BPE\",\"vocab\":{", end);
    for (int b = 0, other = 256; b < 256; b++) {
        bool own = (b >= 33 && b < 127) || (b >= 161 && b != 173);
        buf_printf(to, "\"\\u%04x\":%d,", own ? b : other++, b);
    }
    buf_puts(to, "\"he\":256},\"merges\":[\"h e\"]}}");
}

static const char modules[] = "[{\"type\":\"sentence_transformers.models.Transformer\"},{\"type\":"
                              "\"sentence_transformers.models.Pooling\"},{\"type\":"
                              "\"sentence_transformers.models.Normalize\"}]";
static const char pooling[] = "{\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":false}";

struct site {
    char dir[64];
};

static const char *const names[] = {
    "config.json",  "model.safetensors",     "tokenizer.json",           "tokenizer_config.json",
    "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"};

static void put(const struct site *s, const char *name, const void *data, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    assert_int_equal(file_replace(path, data, n, NULL), 0);
}

static void put_text(const struct site *s, const char *name, const char *text)
{
    put(s, name, text, strlen(text));
}

/* more: of config.json; end: the token behind a text. */
static struct site site_open(const struct decoder_build *b, const char *more, const char *end)
{
    struct site s;
    struct st_build st = {0};
    struct buf config = {0}, words = {0};
    char path[128];
    strcpy(s.dir, "/tmp/moonshift-decoder-XXXXXX");
    assert_non_null(mkdtemp(s.dir));
    snprintf(path, sizeof path, "%s/1_Pooling", s.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    const struct buf *file = decoder_file(&st, b);
    decoder_config_text(&config, b, more);
    write_tokenizer(&words, end);
    put(&s, "config.json", config.data, config.len);
    put(&s, "model.safetensors", file->data, file->len);
    put(&s, "tokenizer.json", words.data, words.len);
    put_text(&s, "tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}");
    put_text(&s, "modules.json", modules);
    put_text(&s, "1_Pooling/config.json", pooling);
    st_free(&st);
    buf_free(&config);
    buf_free(&words);
    return s;
}

static void site_close(const struct site *s)
{
    char path[160];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/1_Pooling", s->dir);
    rmdir(path);
    assert_int_equal(rmdir(s->dir), 0);
}

static void a_folder_opens(void **state)
{
    static const char *const devices[] = {"cpu", "sim"}, *const prefixes[] = {"", "model."};
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct decoder_build b = small;
        b.prefix = prefixes[i / 2];
        struct site s = site_open(&b, ",\"matryoshka_dimensions\":[8,16]", "<|end|>");
        struct encoder *c;
        struct encoder_replica *r;
        struct err e = {0};
        float v[2][32];
        const int32_t ids[] = {2, 4, 8, 3};
        put_text(&s, "sentence_bert_config.json", "{\"max_seq_length\":40}");
        assert_true(encoder_is(s.dir));
        assert_int_equal(encoder_check(s.dir, &e), 0);
        assert_int_equal(encoder_open(&c, s.dir, devices[i % 2], &e), 0);
        const struct encoder_facts *f = encoder_facts(c);
        assert_true(f->dim == 32 && f->max_tokens == 40 && f->n_positions == 64 && f->n_vocab == 260 && f->decoder);
        assert_true(f->pooling == POOL_LAST && f->normalised && f->n_labels == 0);
        assert_true(f->cuts.n == 2 && f->cuts.at[0] == 8 && f->cuts.at[1] == 16 && !f->cuts.any);
        assert_int_equal(encoder_replica_new(&r, c, 2, 8, &e), 0);
        struct encoder_seq seqs[] = {{ids, 4, 4, v[0]}, {ids, 3, 3, v[1]}};
        assert_int_equal(encoder_replica_run(r, seqs, 2, &e), 0);
        assert_memory_not_equal(v[0], v[1], sizeof v[0]);
        seqs[0].n = 65;
        assert_int_equal(encoder_replica_run(r, seqs, 1, &e), E_INPUT);
        encoder_replica_free(r);
        encoder_close(c);
        site_close(&s);
    }
}

static void check_ids(const struct encoder *c, const char *text, const char *want)
{
    struct encoder_text t = {text, NULL, strlen(text), 0};
    struct tokens ids = {0};
    struct buf got = {0};
    struct err e = {0};
    int first = -1;
    assert_int_equal(encoder_tokenize(c, &t, (struct tokenize_how){0}, &ids, &first, &e), 0);
    for (size_t i = 0; i < ids.len; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids.ids[i]);
    assert_string_equal(got.data, want);
    assert_int_equal(first, (int)ids.len);
    tokens_free(&ids);
    buf_free(&got);
}

static void texts_end_with_their_token(void **state)
{
    static const char *const ends[] = {"<|end|>", "<|im_end|>"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct site s = site_open(&small, "", ends[i]);
        struct encoder *c;
        struct err e = {0};
        assert_int_equal(encoder_open(&c, s.dir, "sim", &e), 0);
        check_ids(c, "hello he", i ? "256 108 108 111 32 256 258" : "256 108 108 111 32 256 257");
        check_ids(c, "", i ? "258" : "257");
        check_ids(c, "<|end|>", i ? "60 124 101 110 100 124 62 258" : "60 124 101 110 100 124 62 257"); /* a text */
        encoder_close(c);
        site_close(&s);
    }
}

static void refused(const char *more, const char *file, const char *text, int rc, const char *why)
{
    struct site s = site_open(&small, more, "<|end|>");
    struct encoder *c;
    struct err e = {0};
    if (file && text)
        put_text(&s, file, text);
    else if (file) {
        char path[160];
        snprintf(path, sizeof path, "%s/%s", s.dir, file);
        unlink(path);
    }
    int got = encoder_open(&c, s.dir, "cpu", &e);
    if (got != rc || !strstr(e.text, why))
        fail_msg("%s %s: %d \"%s\", not %d \"%s\"", more, file ? file : "", got, e.text, rc, why);
    assert_null(c);
    site_close(&s);
}

static void what_is_not_run_is_refused(void **state)
{
    (void)state;
    refused(",\"auto_map\":{\"AutoModel\":\"modeling_qwen.Qwen2Model\"}", NULL, NULL, E_UNSUPPORTED, "auto_map");
    refused(",\"is_causal\":false", NULL, NULL, E_UNSUPPORTED, "is_causal");
    refused(",\"use_bidirectional_attention\":true", NULL, NULL, E_UNSUPPORTED, "use_bidirectional_attention");
    refused(",\"use_bidirectional_attention\":1", NULL, NULL, E_INPUT, "use_bidirectional_attention");
    refused(",\"architectures\":[\"Qwen3ForSequenceClassification\"]", NULL, NULL, E_UNSUPPORTED,
            "Qwen3ForSequenceClassification");
    refused(",\"architectures\":[\"LlamaSwiftKVForCausalLM\"],\"num_hidden_layers\":2,\"num_key_value_layers\":1", NULL,
            NULL, E_UNSUPPORTED, "SwiftKV");
    refused(",\"hidden_act\":\"gelu\"", NULL, NULL, E_UNSUPPORTED, "gelu");
    refused(",\"num_hidden_layers\":2", NULL, NULL, E_INPUT, "layers.1");
    refused(",\"intermediate_size\":49", NULL, NULL, E_INPUT, "49");
    refused(",\"vocab_size\":258", NULL, NULL, E_INPUT, "tokenizer has 259");
    refused(",\"matryoshka_dimensions\":[]", NULL, NULL, E_INPUT, "matryoshka_dimensions");
    refused(",\"matryoshka_dimensions\":[8,\"x\"]", NULL, NULL, E_INPUT, "matryoshka_dimensions");
    refused(",\"matryoshka_dimensions\":[33]", NULL, NULL, E_INPUT, "33");
    refused("", "1_Pooling/config.json", NULL, E_INPUT, "1_Pooling");
    refused("", "1_Pooling/config.json", "{\"pooling_mode_weightedmean_tokens\":true}", E_UNSUPPORTED, "weightedmean");
    refused("", "modules.json", "[{\"type\":\"a.Transformer\"},{\"type\":\"a.Pooling\"},{\"type\":\"a.Dense\"}]",
            E_UNSUPPORTED, "Dense");
    refused("", "model.safetensors", "x", E_INPUT, "safetensors");
}

/* A head that nobody uses may be there, under its own name; nothing else may. */
static void a_head_is_left_alone(void **state)
{
    static const char *const extras[] = {"lm_head.weight", "score.weight"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct site s = site_open(&small, "", "<|end|>");
        struct st_build st = {0};
        struct encoder *c;
        struct err e = {0};
        st_add(&st, extras[i], "F32", "[260,32]", NULL, (size_t)260 * 32 * 4);
        const struct buf *file = decoder_file(&st, &small);
        put(&s, "model.safetensors", file->data, file->len);
        assert_int_equal(encoder_open(&c, s.dir, "cpu", &e), i ? E_UNSUPPORTED : 0);
        if (i)
            assert_non_null(strstr(e.text, "score.weight"));
        encoder_close(c);
        st_free(&st);
        site_close(&s);
    }
}

static void any_length_may_be_cut(void **state)
{
    struct site s = site_open(&small, ",\"is_matryoshka\":true", "<|end|>");
    struct encoder *c;
    struct err e = {0};
    (void)state;
    assert_int_equal(encoder_open(&c, s.dir, "sim", &e), 0);
    assert_true(encoder_facts(c)->cuts.any && encoder_facts(c)->cuts.n == 0);
    encoder_close(c);
    site_close(&s);
}

/* GGUF: llama.cpp's numbers of poolings. */
static void poolings_of_gguf_files(void **state)
{
    static const struct {
        uint32_t number;
        int rc;
        enum encoder_pooling pooling;
    } cases[] = {{1, 0, POOL_MEAN}, {2, 0, POOL_CLS},      {3, 0, POOL_LAST},
                 {0, E_INPUT, 0},   {4, E_UNSUPPORTED, 0}, {5, E_UNSUPPORTED, 0}};
    const struct model_config model = {.n_layers = 1};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct gguf_build b = {0};
        struct buf file = {0};
        struct gguf *g;
        struct encoder_card card;
        struct err e = {0};
        build_string(&b, "general.architecture", "qwen3");
        build_u32(&b, "qwen3.pooling_type", cases[i].number);
        build_finish(&b, 3, 0, &file);
        assert_int_equal(gguf_open_memory(&g, file.data, file.len, &e), 0);
        assert_true(card_gguf_is_decoder(g));
        assert_true(card_gguf_is_encoder(g) == (cases[i].number != 0));
        int rc = card_from_gguf(&card, g, &e);
        if (!rc)
            rc = decoder_check(&model, &card, &e);
        assert_int_equal(rc, cases[i].rc);
        if (!rc)
            assert_true(card.pooling == cases[i].pooling && card.normalised);
        gguf_close(g);
        buf_free(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_opens),
        cmocka_unit_test(texts_end_with_their_token),
        cmocka_unit_test(what_is_not_run_is_refused),
        cmocka_unit_test(a_head_is_left_alone),
        cmocka_unit_test(any_length_may_be_cut),
        cmocka_unit_test(poolings_of_gguf_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
