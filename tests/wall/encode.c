/* What an encoder's files may say and what is refused; texts and pairs of texts; limits. */
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
#include "engine/base/mem.h"
#include "models/encode/encoder.h"
#include "tests/rig/bert_build.h"
#include "tests/rig/gguf_build.h"

static const struct bert_build small = {
    .hidden = 32, .heads = 2, .ffn = 48, .layers = 1, .vocab = 20, .positions = 24, .types = 2};

static const char tokenizer[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"[PAD]\",\"special\":true},{\"id\":1,\"content\":\"[UNK]\",\"special\":"
    "true},{\"id\":2,\"content\":\"[CLS]\",\"special\":true},{\"id\":3,\"content\":\"[SEP]\",\"special\":true}],"
    "\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,\"handle_chinese_chars\":true,"
    "\"strip_accents\":null,\"lowercase\":true},\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},"
    "\"post_processor\":{\"type\":\"BertProcessing\",\"sep\":[\"[SEP]\",3],\"cls\":[\"[CLS]\",2]},"
    "\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\",\"continuing_subword_prefix\":\"##\","
    "\"max_input_chars_per_word\":100,\"vocab\":{\"[PAD]\":0,\"[UNK]\":1,\"[CLS]\":2,\"[SEP]\":3,\"hello\":4,"
    "\"he\":5,\"##llo\":6,\"##l\":7,\"world\":8,\"!\":9,\"##o\":10,\"e\":11}}}";

/* ---- a folder ---- */

struct site {
    char dir[64];
};

static void put(const struct site *s, const char *name, const void *data, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    assert_int_equal(file_replace(path, data, n, NULL), 0);
}

static struct site site_open(struct bert_build b)
{
    struct site s;
    struct st_build st = {0};
    struct buf config = {0};
    char path[128];
    strcpy(s.dir, "/tmp/moonshift-encode-XXXXXX");
    assert_non_null(mkdtemp(s.dir));
    snprintf(path, sizeof path, "%s/1_Pooling", s.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    const struct buf *file = bert_file(&st, b);
    bert_config_text(&config, &b, "");
    put(&s, "config.json", config.data, config.len);
    put(&s, "model.safetensors", file->data, file->len);
    put(&s, "tokenizer.json", tokenizer, strlen(tokenizer));
    st_free(&st);
    buf_free(&config);
    return s;
}

static void site_close(const struct site *s)
{
    static const char *const names[] = {"config.json",  "model.safetensors",     "tokenizer.json",
                                        "modules.json", "1_Pooling/config.json", "sentence_bert_config.json",
                                        "m.gguf"};
    char path[160];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", s->dir, names[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/1_Pooling", s->dir);
    rmdir(path);
    assert_int_equal(rmdir(s->dir), 0);
}

static void put_text(const struct site *s, const char *name, const char *text)
{
    put(s, name, text, strlen(text));
}

/* ---- cases ---- */

static void a_folder_opens(void **state)
{
    static const char *const devices[] = {"cpu", "sim"};
    struct site s = site_open(small);
    (void)state;
    put_text(
        &s, "modules.json",
        "[{\"type\":\"sentence_transformers.models.Transformer\"},{\"type\":\"sentence_transformers.models.Pooling\"}"
        ",{\"type\":\"sentence_transformers.models.Normalize\"}]");
    put_text(&s, "1_Pooling/config.json", "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":false}");
    put_text(&s, "sentence_bert_config.json", "{\"max_seq_length\":16}");
    assert_true(encoder_is(s.dir));
    for (int i = 0; i < 2; i++) {
        struct encoder *c;
        struct encoder_replica *r;
        struct err e = {0};
        float v[3][32];
        const int32_t ids[] = {2, 4, 8, 3};
        assert_int_equal(encoder_open(&c, s.dir, devices[i], &e), 0);
        const struct encoder_facts *f = encoder_facts(c);
        assert_true(f->dim == 32 && f->max_tokens == 16 && f->n_positions == 24 && f->n_vocab == 20);
        assert_true(f->pooling == POOL_CLS && f->normalised && f->n_labels == 0);
        assert_non_null(strstr(s.dir, f->name));
        /* [3 * 32][32], [32][32], [48][32], [32][48 as 64], two bytes each */
        assert_int_equal(f->matrix_bytes, i == 0 ? 15360 : 0);
        assert_true((f->matrix_type != NULL) == (i == 0));
        assert_int_equal(encoder_replica_new(&r, c, 2, 8, &e), 0);
        struct encoder_seq seqs[] = {{ids, 4, 4, v[0]}, {ids, 3, 3, v[1]}};
        assert_int_equal(encoder_replica_run(r, seqs, 2, &e), 0);
        struct encoder_seq alone = {ids, 4, 4, v[2]};
        assert_int_equal(encoder_replica_run(r, &alone, 1, &e), 0);
        assert_memory_equal(v[0], v[2], sizeof v[0]);
        assert_memory_not_equal(v[0], v[1], sizeof v[0]);
        double square = 0;
        for (int k = 0; k < 32; k++)
            square += (double)v[0][k] * (double)v[0][k];
        assert_true(fabs(square - 1) < 1e-5);
        encoder_replica_free(r);
        encoder_close(c);
    }
    site_close(&s);
}

static void runs_have_limits(void **state)
{
    static const int32_t ids[30] = {0}, bad[] = {20}, negative[] = {-1};
    float v[32];
    const struct {
        struct encoder_seq seq;
        int rc;
    } cases[] = {
        {{ids, 0, 0, v}, E_INPUT},
        {{ids, 25, 25, v}, E_INPUT},
        {{bad, 1, 1, v}, E_INPUT},
        {{ids, 4, 5, v}, E_INPUT},
        {{negative, 1, 1, v}, E_INPUT},
        {{ids, 4, -1, v}, E_INPUT},
        {{ids, 9, 9, v}, E_FULL},
        {{ids, 8, 0, v}, 0},
        {{ids, 1, 1, v}, 0},
    };
    struct site s = site_open(small);
    struct encoder *c;
    struct encoder_replica *r;
    struct err e;
    (void)state;
    assert_int_equal(encoder_open(&c, s.dir, "cpu", &e), 0);
    assert_int_equal(encoder_replica_new(&r, c, 1, 8, &e), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(encoder_replica_run(r, &cases[i].seq, 1, &e), cases[i].rc);
    assert_int_equal(encoder_replica_run(r, NULL, 0, &e), 0);
    encoder_replica_free(r);
    assert_int_equal(encoder_replica_new(&r, c, 0, 8, &e), E_INPUT);
    assert_null(r);
    assert_int_equal(encoder_replica_new(&r, c, 1, 0, &e), E_INPUT);
    encoder_close(c);
    site_close(&s);
}

static void check_ids(const struct encoder *c, const char *text, const char *pair, size_t max, const char *want,
                      int want_first)
{
    struct encoder_text t = {text, pair, strlen(text), pair ? strlen(pair) : 0};
    struct tokens ids = {0};
    struct buf got = {0};
    struct err e = {0};
    int first = -1;
    tokens_put(&ids, 77);
    int rc = encoder_tokenize(c, &t, (struct tokenize_how){.max_tokens = max}, &ids, &first, &e);
    for (size_t i = 1; i < ids.len; i++)
        buf_printf(&got, "%s%d", i > 1 ? " " : "", ids.ids[i]);
    if (!want) {
        assert_int_equal(rc, E_INPUT);
        assert_non_null(strstr(e.text, "longer than"));
        assert_true(ids.len == 1 && ids.ids[0] == 77);
    } else {
        assert_int_equal(rc, 0);
        assert_string_equal(got.data ? got.data : "", want);
        assert_int_equal(first, want_first);
    }
    tokens_free(&ids);
    buf_free(&got);
}

static void texts_and_pairs(void **state)
{
    struct site s = site_open(small);
    struct encoder *c;
    struct err e;
    (void)state;
    assert_int_equal(encoder_open(&c, s.dir, "sim", &e), 0);
    check_ids(c, "Hello w\xC3\xB3rld!", NULL, 0, "2 4 8 9 3", 5);
    check_ids(c, "hell\xC3\xB4 hexagon", NULL, 0, "2 4 1 3", 4);
    check_ids(c, "hel helo", NULL, 0, "2 5 7 5 7 10 3", 7);
    check_ids(c, "", NULL, 0, "2 3", 2);
    check_ids(c, "hello", "world !", 0, "2 4 3 8 9 3", 3);
    check_ids(c, "", "", 0, "2 3 3", 2);
    check_ids(c, "hello", "world", 5, "2 4 3 8 3", 3);
    check_ids(c, "hello", "world", 4, NULL, 0);
    check_ids(c, "hello", "world", 3, NULL, 0);
    check_ids(c, "hello", "", 4, "2 4 3 3", 3);
    check_ids(c, "hello", NULL, 3, "2 4 3", 3);
    check_ids(c, "hello", NULL, 2, NULL, 0);
    check_ids(c, "[CLS] e\xFF", NULL, 0, "2 1 1 1 11 3", 6); /* a control token is text, unless it is asked for */
    encoder_close(c);
    site_close(&s);
}

static void refused(struct bert_build b, const char *file, const char *text, int rc, const char *why)
{
    struct site s = site_open(b);
    struct encoder *c;
    struct err e = {0};
    put_text(&s, file, text);
    int got = encoder_open(&c, s.dir, "cpu", &e);
    if (got != rc || !strstr(e.text, why))
        fail_msg("%s: %d \"%s\", not %d \"%s\"", text, got, e.text, rc, why);
    assert_null(c);
    site_close(&s);
}

static void foreign_configs_are_refused(void **state)
{
    static const struct {
        const char *more; /* after the members of `small`: the last of two counts */
        int rc;
        const char *why;
    } cases[] = {
        {",\"architectures\":[\"RobertaModel\"]", E_UNSUPPORTED, "RobertaModel"},
        {",\"architectures\":[\"Gemma3ForCausalLM\"]", E_UNSUPPORTED, "Gemma3ForCausalLM"},
        {",\"architectures\":[]", E_UNSUPPORTED, "without architectures"},
        {",\"hidden_act\":\"relu\"", E_UNSUPPORTED, "relu"},
        {",\"position_embedding_type\":\"relative_key\"", E_UNSUPPORTED, "position_embedding_type"},
        {",\"is_decoder\":true", E_UNSUPPORTED, "decoder"},
        {",\"quantization_config\":{}", E_UNSUPPORTED, "quantised"},
        {",\"hidden_size\":0", E_INPUT, "hidden_size"},
        {",\"hidden_size\":1e9", E_INPUT, "hidden_size"},
        {",\"hidden_size\":31", E_INPUT, "heads"},
        {",\"hidden_size\":\"32\"", E_INPUT, "hidden_size"},
        {",\"num_hidden_layers\":2", E_INPUT, "missing"},
        {",\"intermediate_size\":49", E_INPUT, "intermediate"},
        {",\"vocab_size\":19", E_INPUT, "word_embeddings"},
        {",\"layer_norm_eps\":-1", E_INPUT, "epsilon"},
        {",\"type_vocab_size\":1", E_INPUT, "token_type"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf config = {0};
        bert_config_text(&config, &small, cases[i].more);
        refused(small, "config.json", config.data, cases[i].rc, cases[i].why);
        buf_free(&config);
    }
    refused(small, "config.json", "{", E_INPUT, "config.json");
}

static void foreign_cards_are_refused(void **state)
{
    (void)state;
    refused(small, "1_Pooling/config.json", "{\"pooling_mode_max_tokens\":true}", E_UNSUPPORTED, "max_tokens");
    refused(small, "1_Pooling/config.json", "{\"pooling_mode_cls_token\":true,\"pooling_mode_mean_tokens\":true}",
            E_UNSUPPORTED, "beside another");
    refused(small, "1_Pooling/config.json", "{}", E_INPUT, "no pooling");
    refused(small, "modules.json", "{}", E_INPUT, "not an array");
    refused(small, "modules.json", "[{\"type\":\"a.Transformer\"},{\"type\":\"a.Pooling\"},{\"type\":\"a.Dense\"}]",
            E_UNSUPPORTED, "Dense");
    refused(small, "sentence_bert_config.json", "{\"max_seq_length\":0}", E_INPUT, "max_seq_length");
    struct bert_build labels = small;
    struct buf config = {0};
    labels.labels = 1;
    bert_config_text(&config, &labels, ",\"sentence_transformers\":{\"activation_fn\":\"torch.nn.Softmax\"}");
    refused(labels, "config.json", config.data, E_UNSUPPORTED, "Softmax");
    buf_free(&config);
}

/* A tensor that is left over, one that is not finite, a file that is cut. */
static void foreign_weights_are_refused(void **state)
{
    const float nan = NAN;
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct site s = site_open(small);
        struct st_build st = {0};
        struct encoder *c;
        struct err e = {0};
        if (i == 0)
            st_add(&st, "embeddings.extra.weight", "F32", "[32]", NULL, 128);
        const struct buf *file = bert_file(&st, small);
        if (i == 1)
            memcpy(file->data + file->len - sizeof nan, &nan, sizeof nan);
        put(&s, "model.safetensors", file->data, file->len - (i == 2 ? 64 : 0));
        int rc = encoder_open(&c, s.dir, "cpu", &e);
        assert_int_equal(rc, i == 0 ? E_UNSUPPORTED : E_INPUT);
        assert_null(c);
        st_free(&st);
        site_close(&s);
    }
}

static void scores_of_pairs(void **state)
{
    struct bert_build b = small;
    struct encoder *c;
    struct encoder_replica *r;
    struct err e;
    const int32_t ids[] = {2, 4, 3, 8, 3};
    float v[3];
    (void)state;
    b.labels = 1;
    struct site s = site_open(b);
    assert_true(encoder_is(s.dir));
    assert_int_equal(encoder_open(&c, s.dir, "cpu", &e), 0);
    assert_true(encoder_facts(c)->dim == 1 && encoder_facts(c)->n_labels == 1);
    assert_int_equal(encoder_replica_new(&r, c, 1, 15, &e), 0);
    struct encoder_seq seqs[] = {{ids, 5, 3, v}, {ids, 5, 5, v + 1}, {ids, 5, 3, v + 2}};
    assert_int_equal(encoder_replica_run(r, seqs, 3, &e), 0);
    assert_true(v[0] > 0 && v[0] < 1 && v[0] == v[2] && v[0] != v[1]); /* a sigmoid; segments count */
    encoder_replica_free(r);
    encoder_close(c);
    site_close(&s);
}

static void what_is_an_encoder(void **state)
{
    static const struct {
        const char *config;
        bool is;
    } cases[] = {
        {"{\"architectures\":[\"LlamaForCausalLM\"]}", false},
        {"{\"architectures\":[\"RobertaModel\"]}", true},
        {"{\"architectures\":[\"BertLMHeadModel\"]}", false},
        {"{\"architectures\":[\"ResNet\"]}", false},
        {"{}", false},
        {"[", false},
    };
    struct site s = site_open(small);
    struct encoder *c;
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text(&s, "config.json", cases[i].config);
        assert_true(encoder_is(s.dir) == cases[i].is);
    }
    put_text(&s, "config.json", "{\"architectures\":[\"Gemma3ForCausalLM\"]}");
    put_text(&s, "modules.json", "[]");
    assert_true(encoder_is(s.dir)); /* a model for embeddings by its card, and refused by name */
    assert_int_equal(encoder_open(&c, s.dir, "cpu", &e), E_UNSUPPORTED);
    assert_int_equal(encoder_check(s.dir, &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "Gemma3ForCausalLM"));
    assert_false(encoder_is("/tmp/there-is-no-such-file"));
    assert_int_equal(encoder_open(&c, s.dir, "cuda:0", &e), E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "cuda:0"));
    site_close(&s);
}

static void foreign_gguf_files(void **state)
{
    static const char *const archs[] = {"gemma3", "nomic-bert", "bert"};
    struct site s = site_open(small);
    char path[128];
    (void)state;
    snprintf(path, sizeof path, "%s/m.gguf", s.dir);
    for (int i = 0; i < 3; i++) {
        struct gguf_build b = {0};
        struct buf file = {0};
        struct encoder *c;
        struct err e = {0};
        build_string(&b, "general.architecture", archs[i]);
        build_finish(&b, 3, 0, &file);
        put(&s, "m.gguf", file.data, file.len);
        assert_true(encoder_is(path) == (i > 0));
        assert_int_equal(encoder_open(&c, path, "cpu", &e), i < 2 ? E_UNSUPPORTED : E_INPUT);
        assert_non_null(strstr(e.text, i < 2 ? archs[i] : "bert.embedding_length"));
        buf_free(&file);
    }
    site_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_opens),
        cmocka_unit_test(runs_have_limits),
        cmocka_unit_test(texts_and_pairs),
        cmocka_unit_test(foreign_configs_are_refused),
        cmocka_unit_test(foreign_cards_are_refused),
        cmocka_unit_test(foreign_weights_are_refused),
        cmocka_unit_test(scores_of_pairs),
        cmocka_unit_test(what_is_an_encoder),
        cmocka_unit_test(foreign_gguf_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
