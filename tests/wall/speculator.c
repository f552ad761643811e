/* What the files of a speculator may say and what is refused; files in a folder, whole or in parts; which model it is
 * for. What its weights are does not matter here: op_heads has those of NaN. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "models/load/speculator.h"
#include "tests/rig/speculator_build.h"

static const struct spec_build mlp = {.n_predict = 3, .hidden = 12, .inner = 8, .vocab = 10};
static const struct spec_build tied = {.tied = true, .n_predict = 3, .hidden = 12, .inner = 8, .vocab = 10};
static const struct spec_build lstm = {
    .kind = SPEC_LSTM, .tied = true, .n_predict = 3, .hidden = 12, .inner = 8, .vocab = 10};

/* ---- config.json */

static void config(const char *text, int rc, const char *why)
{
    struct speculator_config c;
    struct err e = {0};
    int got = speculator_config_read(&c, text, strlen(text), &e);
    if (got != rc || (why && !strstr(e.text, why)))
        fail_msg("%s: %d %s", text, got, e.text);
}

#define ARCH(name) "{\"architectures\":[\"" name "\"],"
#define PLAIN ARCH("MLPSpeculatorPreTrainedModel")
#define ARCTIC ARCH("ArcticLSTMSpeculatorPreTrainedModel") "\"n_predict\":3,\"vocab_size\":9,\"tie_weights\":true,"

static void configs(void **state)
{
    (void)state;
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":8}", 0, NULL);
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":8,\"inner_dim\":0,\"tie_weights\":null}", 0, NULL);
    config(ARCH("ArcticMLPSpeculatorPreTrainedModel") "\"n_predict\":1,\"vocab_size\":9,\"emb_dim\":\"8\"}", 0, NULL);
    config(ARCTIC "\"input_hidden_dim\":8,\"inner_dim\":\"4\",\"emb_dim\":\"4\",\"proj_dim\":4}", 0, NULL);
    config("{", E_INPUT, "config.json");
    config("[]", E_INPUT, "n_predict");
    config(ARCH("EagleLlamaForCausalLM") "\"n_predict\":3,\"vocab_size\":9}", E_UNSUPPORTED, "EagleLlama");
    config(PLAIN "\"vocab_size\":9,\"emb_dim\":8}", E_INPUT, "n_predict");
    config(PLAIN "\"n_predict\":17,\"vocab_size\":9,\"emb_dim\":8}", E_INPUT, "n_predict is not a number from 1 to 16");
    config(PLAIN "\"n_predict\":3,\"vocab_size\":1e15,\"emb_dim\":8}", E_INPUT, "vocab_size");
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":-8}", E_INPUT, "emb_dim");
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":8,\"inner_dim\":\"8x\"}", E_INPUT, "inner_dim");
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":8,\"inner_dim\":\"\"}", E_INPUT, "inner_dim");
    config(PLAIN "\"n_predict\":3,\"vocab_size\":9,\"emb_dim\":8,\"tie_weights\":1}", E_INPUT,
           "tie_weights is a number");
    config(ARCTIC "\"input_hidden_dim\":8,\"inner_dim\":\"4.4\",\"emb_dim\":\"4\",\"proj_dim\":4}", E_UNSUPPORTED,
           "heads of one layer");
    config(ARCTIC "\"input_hidden_dim\":8,\"inner_dim\":\"4\",\"emb_dim\":\"5\",\"proj_dim\":4}", E_INPUT, "emb_dim 5");
    config(ARCTIC "\"method\":\"sum_gru\"}", E_UNSUPPORTED, "sum_gru");
    config(ARCTIC "\"method\":7}", E_UNSUPPORTED, "no text");
    config(ARCH("ArcticLSTMSpeculatorPreTrainedModel") "\"n_predict\":3,\"vocab_size\":9,\"method\":\"sum_lstm\"}",
           E_UNSUPPORTED, "tie_weights");
}

/* ---- tensors */

/* why NULL: it is taken. */
static void tensors(struct spec_build b, int rc, const char *why)
{
    struct built_speculator s;
    struct err e = {0};
    int got = spec_open(&s, &b, &e);
    if (got != rc || (s.s == NULL) != (rc != 0) || (why && !strstr(e.text, why)))
        fail_msg("%d %s, not %s", got, e.text, why ? why : "taken");
    spec_close(&s);
}

static struct spec_build without(struct spec_build b, const char *name)
{
    b.leave = name;
    return b;
}

static struct spec_build with(struct spec_build b, const char *name)
{
    b.more = name;
    return b;
}

static void what_is_missing_or_too_much(void **state)
{
    (void)state;
    tensors(mlp, 0, NULL);
    tensors(lstm, 0, NULL);
    tensors(without(mlp, "ln.2.bias"), E_INPUT, "tensor ln.2.bias is missing");
    tensors(without(mlp, "head.0.weight"), E_INPUT, "tensor head.0.weight is missing");
    tensors(without(lstm, "cell_proj.1.weight"), E_INPUT, "tensor cell_proj.1.weight is missing");
    tensors(without(lstm, "output_emb.0.weight"), E_INPUT, "tensor output_emb.0.weight is missing");
    tensors(with(mlp, "emb.3.weight"), E_INPUT, "tensor emb.3.weight is none");
    tensors(with(lstm, "memory.weight"), E_INPUT, "tensor memory.weight is none");
    struct spec_build b = lstm;
    b.tied_tables = true;
    tensors(b, 0, NULL);
    b.prefix = "speculator.";
    tensors(b, 0, NULL);
    b.prefix = "model.";
    tensors(b, E_INPUT, "is missing");
}

/* A copy of what is tied may be there, if it is one. Of these weights every name has its own. */
static void copies_of_tied_tensors(void **state)
{
    (void)state;
    tensors(tied, 0, NULL);
    tensors(with(tied, "head.1.weight"), E_INPUT, "head.1.weight is not the one that it is tied to");
    struct spec_build b = with(tied, "head.2.weight");
    b.spoil = "head.0.weight";
    tensors(b, E_INPUT, "head.2.weight");
    struct st_build st = {0};
    struct buf text = {0};
    struct speculator *s;
    spec_add_mlp(&st, &tied);
    float copy[10 * 8];
    for (size_t i = 0; i < 80; i++)
        copy[i] = spec_weight(&tied, "head.0.weight", i, 8);
    st_add(&st, "head.2.weight", "F32", "[10,8]", copy, sizeof copy);
    const struct buf *file = st_file(&st);
    spec_config(&text, &tied);
    assert_int_equal(speculator_open_memory(&s, (struct model_text){text.data, text.len}, file->data, file->len, NULL),
                     0);
    assert_ptr_equal(speculator_tensor(s, SPEC_HEAD, 2, 0).data, speculator_tensor(s, SPEC_HEAD, 0, 0).data);
    speculator_close(s);
    buf_free(&text);
    st_free(&st);
}

/* The file is one of another size, or type, than config.json says. */
static void shapes_and_types(void **state)
{
    (void)state;
    static const char *const types[] = {"F8_E4M3", "I64"};
    struct err e = {0};
    struct speculator *s;
    for (int k = 0; k < 3; k++) {
        struct st_build st = {0};
        struct buf text = {0};
        struct spec_build b = mlp, said = mlp;
        said.hidden += k == 0;
        said.inner += k == 1;
        said.vocab += k == 2;
        const struct buf *file = spec_file(&st, &b);
        spec_config(&text, &said);
        assert_int_equal(
            speculator_open_memory(&s, (struct model_text){text.data, text.len}, file->data, file->len, &e), E_INPUT);
        assert_non_null(strstr(e.text, "that config.json makes it"));
        st_free(&st);
        buf_free(&text);
    }
    for (int k = 0; k < 2; k++) {
        struct st_build st = {0};
        struct spec_build b = without(mlp, "emb.0.weight");
        struct buf text = {0};
        spec_config(&text, &b);
        st_add(&st, "emb.0.weight", types[k], "[10,8]", NULL, k ? 640 : 80);
        const struct buf *file = spec_file(&st, &b);
        assert_int_equal(
            speculator_open_memory(&s, (struct model_text){text.data, text.len}, file->data, file->len, &e),
            E_UNSUPPORTED);
        assert_non_null(strstr(e.text, types[k]));
        st_free(&st);
        buf_free(&text);
    }
}

/* ---- folders, models */

static void put(const char *dir, const char *name, const void *data, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(file_replace(path, data, n, NULL), 0);
}

static void a_folder(void **state)
{
    (void)state;
    char dir[] = "/tmp/moonshift-speculator-XXXXXX", path[160];
    struct st_build st = {0};
    struct buf text = {0};
    struct speculator *s;
    struct err e = {0};
    assert_non_null(mkdtemp(dir));
    assert_int_equal(speculator_open(&s, dir, &e), E_NOTFOUND);
    assert_non_null(strstr(e.text, "config.json"));
    spec_config(&text, &lstm);
    put(dir, "config.json", text.data, text.len);
    assert_true(speculator_open(&s, dir, &e) != 0 && strstr(e.text, "model.safetensors"));
    const struct buf *file = spec_file(&st, &lstm);
    put(dir, "model.safetensors", file->data, file->len);
    assert_int_equal(speculator_open(&s, dir, &e), 0);
    const struct speculator_config *c = speculator_config(s);
    assert_true(c->lstm && c->tied && c->n_predict == 3 && c->n_used == 3 && c->inner == 8 && c->vocab == 10);
    struct model_config model = {.hidden = 12, .vocab = 10};
    assert_int_equal(speculator_fits(s, &model, &e), 0);
    model.vocab = 11;
    assert_int_equal(speculator_fits(s, &model, &e), E_INPUT);
    assert_non_null(strstr(e.text, "vocabulary of 10 tokens, and the model one of 11"));
    model.hidden = 13;
    assert_int_equal(speculator_fits(s, &model, &e), E_INPUT);
    assert_non_null(strstr(e.text, "hidden states of 12 elements, and those of the model have 13"));
    assert_int_equal(speculator_limit(s, 4, &e), E_INPUT);
    assert_non_null(strstr(e.text, "4 tokens are asked for, and the draft model guesses 3"));
    assert_int_equal(speculator_limit(s, 2, &e), 0);
    assert_int_equal(c->n_used, 2);
    speculator_close(s);
    st_free(&st);
    buf_free(&text);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "config.json" : "model.safetensors");
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs),
        cmocka_unit_test(what_is_missing_or_too_much),
        cmocka_unit_test(copies_of_tied_tensors),
        cmocka_unit_test(shapes_and_types),
        cmocka_unit_test(a_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
