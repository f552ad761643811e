/* Hugging Face checkpoints in fp8: what is right is read, in all three forms of scales, and what is missing, misshapen
 * or no number is refused with its name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/exec/weights.h"
#include "models/load/model.h"
#include "models/load/read_ahead.h"
#include "models/load/safetensors.h"
#include "tests/rig/safetensors_build.h"

enum { HIDDEN = 192, Q = 256, KV = 128, FFN = 320, VOCAB = 40 };

enum form { TENSOR, ROWS, BLOCKS };
static const char *const quantised[] = {
    "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}",
    "{\"quant_method\":\"compressed-tensors\",\"format\":\"float-quantized\",\"config_groups\":{\"group_0\":{"
    "\"weights\":"
    "{\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true}}}}",
    "{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"weight_block_size\":[128,128]}",
};

/* One thing that is otherwise in the k projection, whose matrix is KV x HIDDEN. */
struct change {
    enum form form;
    const char *config;                           /* quantization_config, NULL: as the form has it; "": none */
    const char *weight, *shape;                   /* type and shape of the weight */
    const char *scale, *scale_type, *scale_shape; /* its tail; "": none */
    const float *scales;
    const char *extra; /* one more tensor of an f32 */
    bool nan;
    int hidden;
    int rc;
    const char *text;
};

static void put_config(struct buf *out, const char *quant, int hidden)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":%d,\"num_attention_"
             "heads\":4,\"num_key_value_heads\":2,"
             "\"head_dim\":64,\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":64,\"tie_word_"
             "embeddings\":true",
             hidden, FFN, VOCAB);
    buf_puts(out, text);
    if (quant[0]) {
        buf_puts(out, ",\"quantization_config\":");
        buf_puts(out, quant);
    }
    buf_puts(out, "}");
}

static int blocks(int n)
{
    return (n + 127) / 128;
}

/* Scale i of every matrix. */
static float scale_at(int i)
{
    return 0.001f * (float)(i % 11 + 1);
}

static void add_scale(struct st_build *b, const char *name, const struct change *c, const int size[2], bool changed)
{
    float s[512];
    char full[96], shape[64];
    bool is_block = c->form == BLOCKS;
    int n = c->form == TENSOR ? 1 : c->form == ROWS ? size[0] : blocks(size[0]) * blocks(size[1]);
    const char *type = changed && c->scale_type ? c->scale_type : "F32";
    snprintf(full, sizeof full, "%s%s", name, changed && c->scale ? c->scale : is_block ? "_scale_inv" : "_scale");
    if (changed && c->scale && !c->scale[0])
        return;
    for (int i = 0; i < n; i++)
        s[i] = changed && c->scales ? c->scales[i % 2] : scale_at(i);
    if (c->form == TENSOR)
        snprintf(shape, sizeof shape, "[]");
    else if (c->form == ROWS)
        snprintf(shape, sizeof shape, "[%d,1]", size[0]);
    else
        snprintf(shape, sizeof shape, "[%d,%d]", blocks(size[0]), blocks(size[1]));
    if (changed && c->scale_shape) {
        int rows = 1, cols = 1;
        snprintf(shape, sizeof shape, "%s", c->scale_shape);
        sscanf(shape, "[%d,%d]", &rows, &cols);
        n = rows * cols;
    }
    st_add(b, full, type, shape, strcmp(type, "F32") ? NULL : s, (size_t)n * (strcmp(type, "F32") ? 8 : 4));
}

static void add_matrix(struct st_build *b, const char *name, const struct change *c, const int size[2])
{
    char full[80], shape[64];
    bool changed = strcmp(name, "self_attn.k_proj") == 0;
    snprintf(full, sizeof full, "model.layers.0.%s.weight", name);
    snprintf(shape, sizeof shape, "[%d,%d]", size[0], size[1]);
    size_t at = b->body.len;
    st_add(b, full, changed && c->weight ? c->weight : "F8_E4M3", changed && c->shape ? c->shape : shape, NULL,
           (size_t)size[0] * (size_t)size[1]);
    if (changed && c->nan)
        b->body.data[at + (size_t)size[1] + 5] = (char)0xff;
    add_scale(b, full, c, size, changed);
}

static void add_plain(struct st_build *b, const char *name, const char *shape, int n)
{
    uint16_t *x = mem_new_array((size_t)n, sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = f32_to_bf16((float)(i % 13 - 6) * 0.1f);
    st_add(b, name, "BF16", shape, x, (size_t)n * sizeof *x);
    mem_free(x);
}

static void build(struct st_build *b, struct buf *config, const struct change *c)
{
    int hidden = c->hidden ? c->hidden : HIDDEN;
    char wide[32], list[32];
    const int q[] = {Q, hidden}, kv[] = {KV, hidden}, o[] = {hidden, Q}, up[] = {FFN, hidden}, down[] = {hidden, FFN};
    put_config(config, c->config ? c->config : quantised[c->form], hidden);
    snprintf(wide, sizeof wide, "[%d,%d]", VOCAB, hidden);
    snprintf(list, sizeof list, "[%d]", hidden);
    *b = (struct st_build){0};
    add_plain(b, "model.embed_tokens.weight", wide, VOCAB * hidden);
    add_plain(b, "model.norm.weight", list, hidden);
    add_plain(b, "model.layers.0.input_layernorm.weight", list, hidden);
    add_plain(b, "model.layers.0.post_attention_layernorm.weight", list, hidden);
    add_matrix(b, "self_attn.q_proj", c, q);
    add_matrix(b, "self_attn.k_proj", c, kv);
    add_matrix(b, "self_attn.v_proj", c, kv);
    add_matrix(b, "self_attn.o_proj", c, o);
    add_matrix(b, "mlp.gate_proj", c, up);
    add_matrix(b, "mlp.up_proj", c, up);
    add_matrix(b, "mlp.down_proj", c, down);
    if (c->extra)
        st_add(b, c->extra, "F32", "[1]", NULL, 4);
}

static int open_built(struct model **m, struct st_build *b, const struct change *c, struct err *e)
{
    struct buf config = {0};
    build(b, &config, c);
    const struct buf *file = st_file(b);
    int rc = model_from_hf(m, (struct model_text){config.data, config.len}, file->data, file->len, e);
    buf_free(&config);
    return rc;
}

static void every_form_is_read(void **state)
{
    (void)state;
    for (enum form f = TENSOR; f <= BLOCKS; f++) {
        struct st_build b;
        struct model *m;
        struct err e = {0};
        struct weight_src s;
        struct tensor_room room = {0};
        float row[FFN];
        if (open_built(
                &m, &b,
                &(struct change){.form = f, .extra = f == TENSOR ? "model.layers.0.mlp.up_proj.input_scale" : NULL},
                &e))
            fail_msg("%s", e.text);
        assert_non_null(model_note(m));
        assert_true((strstr(model_note(m), "scales") != NULL) == (f == TENSOR));
        assert_int_equal(model_tensor(m, &room, T_DOWN, 0, &s, &e), 0);
        assert_true(s.type == DT_F8_SCALED && s.rows == HIDDEN && s.cols == FFN &&
                    s.scales == (f == BLOCKS ? F8_BY_BLOCK : F8_BY_ROW));
        for (int r = 0; r < HIDDEN; r++) {
            dtype_to_f32(s.type, (const char *)s.data + (size_t)r * dtype_row_bytes(s.type, FFN), row, FFN);
            for (int c = 0; c < FFN; c++) {
                int at = f == TENSOR ? 0 : f == ROWS ? r : r / 128 * blocks(FFN) + c / 128;
                assert_true(row[c] == scale_at(at) * f8_to_f32((uint8_t)((r * FFN + c) * 7 % 0x7f)));
            }
        }
        assert_int_equal(model_tensor(m, &room, T_EMBED, 0, &s, &e), 0);
        assert_true(s.type == DT_BF16 && s.rows == VOCAB && s.scales == F8_BY_64);
        assert_int_equal(model_shape(m, T_HEAD, 0, &s, &e), E_NOTFOUND);
        model_loaded(m);
        tensor_room_free(&room);
        model_close(m);
        st_free(&b);
    }
}

/* ---- files are read while they are loaded */

static void write_folder(const char *folder, char path[100])
{
    struct st_build b;
    struct buf config = {0};
    struct err e = {0};
    build(&b, &config, &(struct change){.form = ROWS});
    const struct buf *file = st_file(&b);
    snprintf(path, 100, "%s/config.json", folder);
    assert_int_equal(file_replace(path, config.data, config.len, &e), 0);
    snprintf(path, 100, "%s/model.safetensors", folder);
    assert_int_equal(file_replace(path, file->data, file->len, &e), 0);
    buf_free(&config);
    st_free(&b);
}

/* However soon it is over: nothing is left that reads (ASan says so), and the weights are what they were. */
static void reading_ahead_ends(void **state)
{
    char folder[] = "/tmp/wall_checkpoint-XXXXXX", path[100], config[100];
    struct tensor_room room = {0};
    struct weight_src s;
    struct model *m;
    struct err e = {0};
    (void)state;
    assert_non_null(mkdtemp(folder));
    write_folder(folder, path);
    if (model_open_hf(&m, folder, &e))
        fail_msg("%s", e.text);
    assert_true(model_map(m, 0)->size > 0);
    assert_null(model_map(m, 1));
    for (int i = 0; i < 50; i++) {
        struct read_ahead *r = read_ahead_start(m);
        assert_non_null(r);
        if (i % 2)
            assert_int_equal(model_tensor(m, &room, T_DOWN, 0, &s, &e), 0);
        read_ahead_end(r);
    }
    tensor_room_free(&room);
    model_close(m);
    snprintf(config, sizeof config, "%s/config.json", folder);
    assert_int_equal(model_open_dummy(&m, config, DT_BF16, 1, &e), 0);
    assert_null(read_ahead_start(m)); /* there is no file */
    read_ahead_end(NULL);
    model_close(m);
    unlink(config), unlink(path), rmdir(folder);
}

/* ---- what is said of scales, also of the pieces of a sharded copy */

static struct {
    int promises[F8_BY_BLOCK + 1];
} loaded;

static float scale_of(const struct weight_src *s, int row, int col)
{
    float d;
    memcpy(&d, (const char *)s->data + (size_t)row * weight_src_pitch(s) + (size_t)(col / 64) * 68, sizeof d);
    return d;
}

static int checking_load(struct device *d, struct weight **out, const struct weight_src *s, struct err *e)
{
    for (int row = 0; row < s->rows && s->type == DT_F8_SCALED; row++)
        for (int col = 0; col < s->cols; col += 64) {
            bool same = s->scales == F8_BY_ROW ? scale_of(s, row, col) == scale_of(s, row, 0)
                        : s->scales == F8_BY_BLOCK
                            ? scale_of(s, row, col) == scale_of(s, row / 128 * 128, col / 128 * 128)
                            : true;
            if (!same)
                fail_msg("a matrix of %d x %d: promise %d is broken at %d, %d", s->rows, s->cols, (int)s->scales, row,
                         col);
        }
    loaded.promises[s->scales] += s->type == DT_F8_SCALED;
    return backend_cpu()->weight_load(d, out, s, e);
}

static void what_is_said_of_scales_holds(void **state)
{
    struct backend_ops ops = *backend_cpu();
    struct device *d;
    struct err e = {0};
    (void)state;
    ops.weight_load = checking_load;
    assert_int_equal(ops.open(&d, &(struct device_opts){.n_threads = 1, .max_rows = 8, .max_logits = 8}, &e), 0);
    for (enum form f = TENSOR; f <= BLOCKS; f++) {
        struct st_build b;
        struct model *m;
        struct weights *w;
        memset(&loaded, 0, sizeof loaded);
        assert_int_equal(open_built(&m, &b, &(struct change){.form = f}, &e), 0);
        if (weights_load(
                &w, &(struct weights_setup){.model = m, .ops = &ops, .device = d, .n_ranks = 2, .copy_shards = true},
                &e))
            fail_msg("%s", e.text);
        /* seven matrices and two pieces or more of each; blocks of scales that a cut divides are none */
        int by_row = loaded.promises[F8_BY_ROW], by_block = loaded.promises[F8_BY_BLOCK],
            none = loaded.promises[F8_BY_64];
        assert_true(f == BLOCKS ? by_row == 0 && by_block > 7 + 5 && none > 0
                                : by_row >= 7 + 14 && by_block == 0 && none == 0);
        weights_free(w);
        model_close(m);
        st_free(&b);
    }
    ops.close(d);
}

static const float zero[] = {0.5f, 0}, negative[] = {-1, 1}, bad[] = {0.5f, NAN}, infinite[] = {INFINITY, 1},
                   huge[] = {3e38f, 1};

static const struct change changes[] = {
    {.form = TENSOR, .scale = "", .rc = E_INPUT, .text = "has no model.layers.0.self_attn.k_proj.weight_scale"},
    {.form = BLOCKS, .scale = "", .rc = E_INPUT, .text = "has no model.layers.0.self_attn.k_proj.weight_scale_inv"},
    {.form = ROWS, .scale_shape = "[64,1]", .rc = E_INPUT, .text = "64 scales"},
    {.form = ROWS, .scale_shape = "[1,128]", .rc = E_INPUT, .text = "one for each of the 128 rows"},
    {.form = TENSOR, .scale_shape = "[1,2]", .rc = E_INPUT, .text = "2 scales"},
    {.form = BLOCKS, .scale_shape = "[2,1]", .rc = E_INPUT, .text = "1 x 2"},
    {.form = BLOCKS, .scale_shape = "[1,1]", .rc = E_INPUT, .text = "128 x 128"},
    {.form = ROWS, .config = "{\"quant_method\":\"fp8\"}", .scale_shape = "[0,1]", .rc = E_INPUT, .text = "0 scales"},
    {.form = ROWS, .scales = zero, .rc = E_INPUT, .text = "scale 1 is 0"},
    {.form = ROWS, .scales = negative, .rc = E_INPUT, .text = "scale 0 is -1"},
    {.form = ROWS, .scales = bad, .rc = E_INPUT, .text = "scale 1 is nan"},
    {.form = TENSOR, .scales = infinite, .rc = E_INPUT, .text = "scale 0 is inf"},
    {.form = TENSOR, .scales = huge, .rc = E_INPUT, .text = "finite number above 0"},
    {.form = TENSOR, .scale_type = "I64", .rc = E_UNSUPPORTED, .text = "type I64"},
    {.form = TENSOR, .weight = "F8_E5M2", .rc = E_UNSUPPORTED, .text = "F8_E5M2"},
    {.form = TENSOR, .weight = "I8", .rc = E_UNSUPPORTED, .text = "type I8"},
    {.form = TENSOR, .shape = "[192,128]", .rc = E_INPUT, .text = "not the 128 x 192 matrix"},
    {.form = TENSOR, .shape = "[24576]", .rc = E_INPUT, .text = "not the 128 x 192 matrix"},
    {.form = TENSOR, .config = "", .rc = E_INPUT, .text = "no quantization_config"},
    {.form = TENSOR, .config = "[]", .rc = E_INPUT, .text = "must be an object"},
    {.form = TENSOR, .config = "{\"quant_method\":\"awq\"}", .rc = E_UNSUPPORTED, .text = "\"awq\""},
    {.form = TENSOR, .config = "{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}", .rc = E_UNSUPPORTED, .text = "e4m3 is"},
    {.form = TENSOR,
     .config = "{\"quant_method\":\"fp8\",\"activation_scheme\":\"x\"}",
     .rc = E_UNSUPPORTED,
     .text = "activation_scheme"},
    {.form = BLOCKS,
     .config = "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}",
     .rc = E_UNSUPPORTED,
     .text = "64 x 64"},
    {.form = BLOCKS,
     .config = "{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}",
     .rc = E_INPUT,
     .text = "two whole numbers"},
    {.form = BLOCKS, .config = "{\"quant_method\":\"fp8\"}", .rc = E_INPUT, .text = "says nothing of blocks"},
    {.form = ROWS,
     .config = "{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}",
     .rc = E_UNSUPPORTED,
     .text = "pack-quantized"},
    {.form = ROWS,
     .config = "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{}}",
     .rc = E_INPUT,
     .text = "config_groups"},
    {.form = ROWS,
     .config = "{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8,"
               "\"type\":\"int\"}}}}",
     .rc = E_UNSUPPORTED,
     .text = "\"int\""},
    {.form = ROWS,
     .config = "{\"quant_method\":\"compressed-tensors\",\"transform_config\":{\"a\":1},\"config_groups\":{\"g\":{"
               "\"weights\":{\"num_bits\":8,"
               "\"type\":\"float\"}}}}",
     .rc = E_UNSUPPORTED,
     .text = "transform_config"},
    {.form = TENSOR, .extra = "model.layers.0.self_attn.k_proj.weight_scale_inv", .rc = E_INPUT, .text = "has both"},
    {.form = TENSOR,
     .extra = "model.layers.0.mlp.experts.0.up_proj.weight",
     .rc = E_UNSUPPORTED,
     .text = "not part of"},
    {.form = TENSOR, .extra = "model.norm.weight", .rc = E_INPUT, .text = "not the list of 192"},
    {.form = TENSOR, .hidden = 160, .rc = E_UNSUPPORTED, .text = "multiples of 64"},
};

static void what_is_wrong_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct st_build b;
        struct model *m;
        struct err e = {0};
        int rc = open_built(&m, &b, &changes[i], &e);
        if (rc != changes[i].rc || !strstr(e.text, changes[i].text))
            fail_msg("case %zu: %d \"%s\", not %d \"%s\"", i, rc, e.text, changes[i].rc, changes[i].text);
        assert_null(m);
        st_free(&b);
    }
}

static void weights_that_are_no_numbers(void **state)
{
    (void)state;
    struct st_build b;
    struct model *m;
    struct err e = {0};
    struct weight_src s;
    struct tensor_room room = {0};
    assert_int_equal(open_built(&m, &b, &(struct change){.form = ROWS, .nan = true}, &e), 0);
    assert_int_equal(model_tensor(m, &room, T_Q, 0, &s, &e), 0);
    assert_int_equal(model_tensor(m, &room, T_K, 0, &s, &e), E_INPUT);
    assert_non_null(strstr(e.text, "NaN in row 1"));
    tensor_room_free(&room);
    model_close(m);
    st_free(&b);
}

/* A file that ends anywhere, and headers that lie. */
static void damaged_files(void **state)
{
    (void)state;
    static const char *const headers[] = {
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,16]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}",
        "{\"a\":7}",
        "{\"a b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}",
        "[]",
        "{",
    };
    struct safetensors *s;
    struct err e = {0};
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        uint8_t file[256] = {0};
        uint64_t n = strlen(headers[i]);
        memcpy(file, &n, 8);
        memcpy(file + 8, headers[i], n);
        e = (struct err){0};
        int rc = safetensors_open_memory(&s, file, 8 + n + 8, &e);
        if (rc == 0 || !e.text[0])
            fail_msg("header %s was taken", headers[i]);
        assert_null(s);
    }
    struct st_build b = {0};
    st_add(&b, "a", "F16", "[2,3]", NULL, 12);
    st_add(&b, "b", "F8_E4M3", "[]", NULL, 1);
    const struct buf *file = st_file(&b);
    for (size_t n = 0; n < file->len; n++)
        assert_true(safetensors_open_memory(&s, file->data, n, &e) != 0);
    assert_int_equal(safetensors_open_memory(&s, file->data, file->len, &e), 0);
    assert_int_equal(safetensors_n(s), 2);
    assert_true(safetensors_find(s, "a")->dims[1] == 3 && safetensors_find(s, "b")->count == 1 &&
                !safetensors_find(s, "c"));
    safetensors_close(s);
    st_free(&b);
}

static void put_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[256];
    struct err e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (file_replace(path, data, n, &e))
        fail_msg("%s", e.text);
}

static void folders(void **state)
{
    (void)state;
    static const char *const indices[] = {
        "{\"weight_map\":{\"model.norm.weight\":\"m-1.safetensors\",\"model.embed_tokens.weight\":\"m-1.safetensors\"}"
        "}",
        "{\"weight_map\":{\"model.norm.weight\":\"../m-1.safetensors\"}}",
        "{\"weight_map\":{\"model.norm.weight\":3}}",
        "{\"weight_map\":{}}",
        "{}",
        "[",
        "{\"weight_map\":{\"model.norm.weight\":\"m-2.safetensors\"}}",
    };
    char dir[] = "/tmp/moonshift_wall_XXXXXX", path[128];
    static const char *const names[] = {"config.json", "model.safetensors.index.json", "m-1.safetensors"};
    assert_non_null(mkdtemp(dir));
    struct st_build b;
    struct buf config = {0};
    struct model *m;
    struct err e = {0};
    build(&b, &config, &(struct change){.form = BLOCKS});
    const struct buf *file = st_file(&b);
    assert_true(model_open_hf(&m, dir, &e) != 0 && strstr(e.text, "config.json"));
    put_file(dir, names[0], config.data, config.len);
    assert_true(model_open_hf(&m, dir, &e) != 0 && strstr(e.text, "model.safetensors"));
    put_file(dir, names[2], file->data, file->len);
    for (size_t i = 0; i < sizeof indices / sizeof *indices; i++) {
        put_file(dir, names[1], indices[i], strlen(indices[i]));
        e = (struct err){0};
        int rc = model_open_hf(&m, dir, &e);
        if ((rc == 0) != (i == 0) || (rc && !strstr(e.text, dir)))
            fail_msg("index %zu: %d %s", i, rc, e.text);
        model_close(m);
    }
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    buf_free(&config);
    st_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_is_read),
        cmocka_unit_test(reading_ahead_ends),
        cmocka_unit_test(what_is_said_of_scales_holds),
        cmocka_unit_test(what_is_wrong_is_refused),
        cmocka_unit_test(weights_that_are_no_numbers),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
