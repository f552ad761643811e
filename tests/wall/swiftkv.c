/* Hugging Face checkpoints of SwiftKV models: the tensors that later layers have under names of their own are all
 * there, and nothing else is, but for what such a model was distilled from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "models/load/model.h"
#include "tests/rig/safetensors_build.h"

enum { LAYERS = 3, HIDDEN = 64, KV = 32, FFN = 96, VOCAB = 40 };

/* What is otherwise in the file of a model whose layers from the second on are SwiftKV's. */
struct change {
    const char *without,
        *with; /* names of tensors; with: of HIDDEN x HIDDEN, or of HIDDEN elements when it is a norm */
    const char *renamed[2];
    int kv_layers; /* config.json; 0: 1 */
    int rc;
    const char *text;
};

static void add(struct st_build *b, const struct change *c, const char *name, int rows, int cols)
{
    char shape[32];
    if (c->without && strcmp(name, c->without) == 0)
        return;
    if (c->renamed[0] && strcmp(name, c->renamed[0]) == 0)
        name = c->renamed[1];
    snprintf(shape, sizeof shape, rows == 1 ? "[%d]" : "[%d,%d]", rows == 1 ? cols : rows, cols);
    st_add(b, name, "F32", shape, NULL, (size_t)rows * (size_t)cols * 4);
}

static void add_layer(struct st_build *b, const struct change *c, int l)
{
    const char *tail = l >= 1 ? "_swiftkv" : "";
    const struct {
        const char *name, *tail;
        int rows, cols;
    } all[] = {{"input_layernorm", "", 1, HIDDEN},         {"post_attention_layernorm", "", 1, HIDDEN},
               {"self_attn.q_proj", tail, HIDDEN, HIDDEN}, {"self_attn.k_proj", tail, KV, HIDDEN},
               {"self_attn.v_proj", tail, KV, HIDDEN},     {"self_attn.o_proj", "", HIDDEN, HIDDEN},
               {"mlp.gate_proj", "", FFN, HIDDEN},         {"mlp.up_proj", "", FFN, HIDDEN},
               {"mlp.down_proj", "", HIDDEN, FFN}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.%d.%s%s.weight", l, all[i].name, all[i].tail);
        add(b, c, name, all[i].rows, all[i].cols);
    }
}

static int open_changed(const struct change *c, struct model **m, struct err *e)
{
    char config[512];
    struct st_build b = {0};
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaSwiftKVForCausalLM\"],\"num_hidden_layers\":%d,\"num_key_value_layers\":%d,"
             "\"hidden_size\":%d,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":%d,"
             "\"vocab_size\":%d,\"max_position_embeddings\":64,\"tie_word_embeddings\":true}",
             LAYERS, c->kv_layers ? c->kv_layers : 1, HIDDEN, FFN, VOCAB);
    add(&b, c, "model.embed_tokens.weight", VOCAB, HIDDEN);
    add(&b, c, "model.norm.weight", 1, HIDDEN);
    add(&b, c, "model.norm_swiftkv.weight", 1, HIDDEN);
    for (int l = 0; l < LAYERS; l++)
        add_layer(&b, c, l);
    if (c->with)
        add(&b, &(struct change){0}, c->with, strstr(c->with, "norm") ? 1 : HIDDEN, HIDDEN);
    const struct buf *file = st_file(&b);
    *e = (struct err){0};
    int rc = model_from_hf(m, (struct model_text){config, strlen(config)}, file->data, file->len, e);
    if (!rc)
        model_close(*m);
    st_free(&b);
    return rc;
}

static void names(void **state)
{
    static const struct change changes[] = {
        {.rc = 0},
        {.without = "model.norm_swiftkv.weight", .rc = E_INPUT, .text = "model.norm_swiftkv.weight is missing"},
        {.without = "model.layers.2.self_attn.k_proj_swiftkv.weight", .rc = E_INPUT, .text = "k_proj_swiftkv"},
        {.without = "model.layers.1.self_attn.v_proj_swiftkv.weight", .rc = E_INPUT, .text = "v_proj_swiftkv"},
        {.without = "model.layers.1.self_attn.q_proj_swiftkv.weight", .rc = E_INPUT, .text = "q_proj_swiftkv"},
        {.without = "model.layers.0.self_attn.k_proj.weight",
         .rc = E_INPUT,
         .text = "layers.0.self_attn.k_proj.weight"},
        /* the ordinary name does not do for SwiftKV's, nor the other way round */
        {.renamed = {"model.layers.1.self_attn.k_proj_swiftkv.weight", "model.layers.1.self_attn.k_proj.weight"},
         .rc = E_INPUT,
         .text = "model.layers.1.self_attn.k_proj_swiftkv.weight is missing"},
        {.renamed = {"model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.k_proj_swiftkv.weight"},
         .rc = E_INPUT,
         .text = "model.layers.0.self_attn.k_proj.weight is missing"},
        /* a config.json that says another number of layers */
        {.kv_layers = 2, .rc = E_INPUT, .text = "model.layers.1.self_attn.q_proj.weight is missing"},
        {.kv_layers = 3, .rc = E_INPUT, .text = "q_proj.weight is missing"},
        /* what it was distilled from */
        {.with = "model.layers.1.self_attn.q_proj.weight", .rc = 0},
        {.with = "model.layers.2.self_attn.v_proj.weight", .rc = 0},
        {.with = "model.layers.0.self_attn.q_proj_swiftkv.weight", .rc = E_UNSUPPORTED, .text = "is not part of"},
        {.with = "model.layers.3.self_attn.q_proj.weight", .rc = E_UNSUPPORTED, .text = "is not part of"},
        {.with = "model.layers.1.self_attn.o_proj_swiftkv.weight", .rc = E_UNSUPPORTED, .text = "o_proj_swiftkv"},
        {.with = "model.layers.1.input_layernorm_swiftkv.weight", .rc = E_UNSUPPORTED, .text = "layernorm_swiftkv"},
        {.with = "model.layers..self_attn.q_proj.weight", .rc = E_UNSUPPORTED, .text = "is not part of"},
        {.with = "model.layers.99999999999999999999.self_attn.q_proj.weight", .rc = E_UNSUPPORTED, .text = "not part"},
        {.with = "model.layers.-1.self_attn.q_proj.weight", .rc = E_UNSUPPORTED, .text = "is not part of"},
        {.with = "model.layers.1.self_attn.q_proj", .rc = E_UNSUPPORTED, .text = "is not part of"},
        {.with = "model.layers.1", .rc = E_UNSUPPORTED, .text = "is not part of"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct model *m;
        struct err e;
        int rc = open_changed(&changes[i], &m, &e);
        if (rc != changes[i].rc || (rc && !strstr(e.text, changes[i].text)))
            fail_msg("change %zu: %d \"%s\" instead of %d", i, rc, e.text, changes[i].rc);
        assert_true(rc == 0 || !m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
