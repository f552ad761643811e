#include "models/load/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "models/load/family.h"
#include "models/load/quant_config.h"
#include "models/load/safetensors.h"

enum { MAX_FILES = 2048, MAX_PATH = 4096, F8_BLOCK = 64, F8_BYTES = 68 };
static const size_t max_index_bytes = 64 << 20, max_config_bytes = 1 << 20;

/* How the scales of an fp8 matrix are laid out. */
enum scale_form { SCALE_NONE, SCALE_TENSOR, SCALE_ROW, SCALE_BLOCKS };

struct bound {
    const struct st_tensor *weight, *scale;
    enum scale_form form;
    int rows, cols;
};

struct checkpoint {
    struct safetensors **files;
    bool **seen; /* [n_files][its tensors] */
    size_t n_files;
    struct quant_config quant;
    struct bound *slots; /* [T_COUNT][n_layers] */
    int n_layers;
    bool input_scales; /* there are scales for activations, which are not used */
};

/* ---- the files */

static int add_file(struct checkpoint *c, const char *dir, const char *name, struct err *e)
{
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (c->n_files == MAX_FILES)
        return err_set(e, E_INPUT, "%s: more than %d files", dir, MAX_FILES);
    c->files = mem_resize(c->files, c->n_files + 1, sizeof *c->files);
    TRY(safetensors_open(&c->files[c->n_files], path, e));
    c->n_files++;
    return 0;
}

static bool is_file_name(const char *s)
{
    size_t n = s ? strlen(s) : 0;
    return n >= 1 && n < 256 && s[0] != '.' && !strchr(s, '/');
}

/* Each file that "weight_map" names, once: files of a model come in runs, so the last ones are looked at first. */
static int add_indexed(struct checkpoint *c, const char *dir, const struct json *index, struct err *e)
{
    const struct json *map = json_find(index, "weight_map");
    const char **names = mem_new_array(MAX_FILES, sizeof *names);
    size_t n = 0;
    int rc = json_type(map) == JSON_OBJECT && json_count(map)
                 ? 0
                 : err_set(e, E_INPUT, "model.safetensors.index.json has no weight_map");
    for (const struct json *m = json_first(map); m && !rc; m = json_next(m)) {
        const char *name = json_text(m);
        size_t i = n;
        if (!is_file_name(name)) {
            rc = err_set(e, E_INPUT, "model.safetensors.index.json: weight_map names no file of this folder");
            break;
        }
        while (i > 0 && strcmp(names[i - 1], name) != 0)
            i--;
        if (i > 0)
            continue;
        rc = add_file(c, dir, name, e);
        if (!rc)
            names[n++] = name;
    }
    mem_free(names);
    return rc;
}

static int add_files(struct checkpoint *c, const char *dir, struct err *e)
{
    char path[MAX_PATH];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    if (access(path, F_OK) != 0)
        return add_file(c, dir, "model.safetensors", e);
    int rc = file_read(&text, path, max_index_bytes, e);
    struct json *index = rc ? NULL : json_parse(text.data ? text.data : "", text.len, NULL, e);
    if (!rc)
        rc = index ? add_indexed(c, dir, index, e) : err_prefix(e, E_INPUT, "%s", path);
    json_free(index);
    buf_free(&text);
    return rc;
}

static int finish_open(struct checkpoint **out, struct checkpoint *c, int rc)
{
    if (rc) {
        checkpoint_close(c);
        return rc;
    }
    c->seen = mem_new_array(c->n_files, sizeof *c->seen);
    for (size_t i = 0; i < c->n_files; i++)
        c->seen[i] = mem_new_array(safetensors_n(c->files[i]) + 1, sizeof **c->seen);
    *out = c;
    return 0;
}

int checkpoint_open(struct checkpoint **out, const char *dir, struct buf *config, struct err *e)
{
    struct checkpoint *c = mem_new(sizeof *c);
    char path[MAX_PATH];
    *out = NULL;
    snprintf(path, sizeof path, "%s/config.json", dir);
    int rc = file_read(config, path, max_config_bytes, e);
    if (!rc)
        rc = add_files(c, dir, e);
    return finish_open(out, c, rc);
}

int checkpoint_open_memory(struct checkpoint **out, const void *data, size_t n, struct err *e)
{
    struct checkpoint *c = mem_new(sizeof *c);
    *out = NULL;
    c->files = mem_new_array(1, sizeof *c->files);
    int rc = safetensors_open_memory(&c->files[0], data, n, e);
    c->n_files = rc ? 0 : 1;
    return finish_open(out, c, rc);
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_files; i++) {
        safetensors_close(c->files[i]);
        if (c->seen)
            mem_free(c->seen[i]);
    }
    mem_free(c->files);
    mem_free(c->seen);
    mem_free(c->slots);
    mem_free(c);
}

/* ---- tensors */

/* NULL: absent. If several files have it, the first one's; the second is then left over and refused as unknown. */
const struct st_tensor *checkpoint_find(struct checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->n_files; i++) {
        const struct st_tensor *t = safetensors_find(c->files[i], name);
        if (t) {
            c->seen[i][t - safetensors_at(c->files[i], 0)] = true;
            return t;
        }
    }
    return NULL;
}

const char *checkpoint_unseen(const struct checkpoint *c)
{
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < safetensors_n(c->files[f]); i++)
            if (!c->seen[f][i])
                return safetensors_at(c->files[f], i)->name;
    return NULL;
}

static int check_weight(const struct st_tensor *t, const struct bound *b, bool vector, struct err *e)
{
    bool shape = vector ? t->n_dims == 1 && t->dims[0] == b->cols
                        : t->n_dims == 2 && t->dims[0] == b->rows && t->dims[1] == b->cols;
    if (!shape && vector)
        return err_set(e, E_INPUT, "tensor %s is not the list of %d that config.json makes it", t->name, b->cols);
    if (!shape)
        return err_set(e, E_INPUT, "tensor %s is not the %d x %d matrix that config.json makes it", t->name, b->rows,
                       b->cols);
    if (strcmp(t->type_name, "F8_E5M2") == 0)
        return err_set(e, E_UNSUPPORTED,
                       "tensor %s has type F8_E5M2; of the two kinds of fp8 weights F8_E4M3 is supported", t->name);
    if (!t->known || (vector && t->type == DT_F8))
        return err_set(e, E_UNSUPPORTED, "tensor %s has type %s; %s are supported", t->name, t->type_name,
                       vector ? "F32, F16 and BF16" : "F32, F16, BF16 and F8_E4M3");
    return 0;
}

static float scale_at(const struct st_tensor *t, int64_t i)
{
    float f;
    uint16_t h;
    if (t->type == DT_F32) {
        memcpy(&f, t->data + 4 * i, 4);
        return f;
    }
    memcpy(&h, t->data + 2 * i, 2);
    return t->type == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static int64_t blocks_of(int n)
{
    return (n + F8_SCALE_BLOCK - 1) / F8_SCALE_BLOCK;
}

/* Which form the shape has. */
static int find_form(const struct checkpoint *c, struct bound *b, struct err *e)
{
    const struct st_tensor *s = b->scale;
    bool block = s->n_dims == 2 && s->dims[0] == blocks_of(b->rows) && s->dims[1] == blocks_of(b->cols);
    bool row = s->count == b->rows && s->n_dims >= 1 && s->n_dims <= 2 && s->dims[0] == b->rows;
    if (c->quant.blocks && !block)
        return err_set(e, E_INPUT, "tensor %s is not %lld x %lld, one scale for each 128 x 128 weights", s->name,
                       (long long)blocks_of(b->rows), (long long)blocks_of(b->cols));
    if (!c->quant.blocks && s->count != 1 && !row)
        return err_set(e, E_INPUT, "tensor %s has %lld scales; one, or one for each of the %d rows, would fit%s",
                       s->name, (long long)s->count, b->rows, block ? " (config.json says nothing of blocks)" : "");
    b->form = c->quant.blocks ? SCALE_BLOCKS : s->count == 1 ? SCALE_TENSOR : SCALE_ROW;
    return 0;
}

static int check_scales(const struct checkpoint *c, struct bound *b, struct err *e)
{
    const struct st_tensor *s = b->scale;
    if (!s->known || s->type == DT_F8)
        return err_set(e, E_UNSUPPORTED, "tensor %s has type %s; scales of F32, F16 and BF16 are supported", s->name,
                       s->type_name);
    TRY(find_form(c, b, e));
    for (int64_t i = 0; i < s->count; i++) {
        float d = scale_at(s, i);
        if (!(d > 0) || !isfinite(d * 448))
            return err_set(e, E_INPUT, "tensor %s: scale %lld is %g; a scale is a finite number above 0", s->name,
                           (long long)i, (double)d);
    }
    return 0;
}

/* name: of the weight. */
static int bind_scales(struct checkpoint *c, const char *name, struct bound *b, struct err *e)
{
    char plain[80], inverse[80];
    snprintf(plain, sizeof plain, "%s_scale", name);
    snprintf(inverse, sizeof inverse, "%s_scale_inv", name); /* DeepSeek's name; it is a factor like the other */
    const struct st_tensor *a = checkpoint_find(c, plain), *i = checkpoint_find(c, inverse);
    if (!c->quant.fp8)
        return err_set(e, E_INPUT,
                       "tensor %s is fp8, and config.json has no quantization_config that says how it is scaled", name);
    if (a && i)
        return err_set(e, E_INPUT, "tensor %s has both %s and %s", name, plain, inverse);
    b->scale = a ? a : i;
    if (!b->scale)
        return err_set(e, E_INPUT, "tensor %s is fp8 and has no %s", name, c->quant.blocks ? inverse : plain);
    if (b->cols % F8_BLOCK)
        return err_set(e, E_UNSUPPORTED, "tensor %s: fp8 weights need columns in multiples of %d, not %d", name,
                       F8_BLOCK, b->cols);
    return check_scales(c, b, e);
}

static struct bound *slot_at(const struct checkpoint *c, enum tensor_role role, int layer)
{
    return &c->slots[(size_t)role * (size_t)c->n_layers + (size_t)(tensor_per_layer(role) ? layer : 0)];
}

static int bind_tensor(struct checkpoint *c, const struct model_config *config, enum tensor_role role, int layer,
                       struct err *e)
{
    static const char base[] = "model."; /* a class without a head is written without it */
    char name[64];
    struct bound *b = slot_at(c, role, layer);
    tensor_hf_name(config, role, layer, name, sizeof name);
    tensor_shape(config, role, &b->rows, &b->cols);
    b->weight = checkpoint_find(c, name);
    if (!b->weight && config->embeds && strncmp(name, base, sizeof base - 1) == 0) {
        memmove(name, name + sizeof base - 1, strlen(name + sizeof base - 1) + 1);
        b->weight = checkpoint_find(c, name);
    }
    if (!b->weight)
        return err_set(e, E_INPUT, "tensor %s is missing; the files are no whole %s", name, config->family->hf_arch);
    TRY(check_weight(b->weight, b, tensor_is_vector(role), e));
    return b->weight->type == DT_F8 ? bind_scales(c, name, b, e) : 0;
}

/* What may be there and is not used: scales for quantised activations and caches, frequencies, a head that is the
 * embedding, and what a model was distilled from. */
static bool may_stay(const char *name, const struct model_config *config)
{
    static const char *const tails[] = {".input_scale", ".output_scale",       ".k_scale", ".v_scale", ".kv_scale",
                                        ".q_scale",     ".rotary_emb.inv_freq"};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        size_t tail = strlen(tails[i]);
        if (n > tail && strcmp(name + n - tail, tails[i]) == 0)
            return true;
    }
    return ((config->tied || config->embeds) && strcmp(name, "lm_head.weight") == 0) ||
           tensor_is_left_over(config, name);
}

/* A tensor that the forward does not use means an unknown kind of model: ignoring it would give wrong answers. */
static int check_unused(struct checkpoint *c, const struct model_config *config, struct err *e)
{
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < safetensors_n(c->files[f]); i++) {
            const char *name = safetensors_at(c->files[f], i)->name;
            if (!c->seen[f][i] && !may_stay(name, config))
                return err_set(e, E_UNSUPPORTED,
                               "tensor %s is not part of a %s as this engine knows it, or is there twice", name,
                               config->family->hf_arch);
            c->input_scales |= strstr(name, ".input_scale") != NULL;
        }
    return 0;
}

int checkpoint_bind(struct checkpoint *c, const struct model_config *config, const char *text, size_t n, struct err *e)
{
    TRY(quant_config_read(&c->quant, text, n, e));
    c->n_layers = config->n_layers;
    c->slots = mem_try_array((size_t)T_COUNT * (size_t)config->n_layers, sizeof *c->slots);
    if (!c->slots)
        return err_set(e, E_FULL, "no memory for the list of tensors");
    for (int role = 0; role < T_COUNT; role++)
        for (int l = 0; l < (tensor_per_layer(role) ? config->n_layers : 1); l++)
            if (tensor_wanted(config, role))
                TRY(bind_tensor(c, config, role, l, e));
    return check_unused(c, config, e);
}

const char *checkpoint_note(const struct checkpoint *c)
{
    if (c->input_scales)
        return "fp8 weights: where activations are rounded to fp8, too, they get scales of their own; those that the "
               "files have for them are not used";
    return c->quant.fp8
               ? "fp8 weights: activations stay 16 bit or more, but in prompts on Hopper GPUs without --invariant"
               : NULL;
}

void checkpoint_type(const struct checkpoint *c, enum tensor_role role, int layer, struct weight_src *out)
{
    const struct bound *b = slot_at(c, role, layer);
    bool fp8 = b->weight->type == DT_F8;
    out->type = fp8 ? DT_F8_SCALED : b->weight->type;
    out->scales = !fp8 ? F8_BY_64 : b->form == SCALE_BLOCKS ? F8_BY_BLOCK : F8_BY_ROW;
}

/* ---- fp8 */

static float scale_of(const struct bound *b, int row, int col)
{
    if (b->form == SCALE_TENSOR)
        return scale_at(b->scale, 0);
    if (b->form == SCALE_ROW)
        return scale_at(b->scale, row);
    return scale_at(b->scale, row / F8_SCALE_BLOCK * blocks_of(b->cols) + col / F8_SCALE_BLOCK);
}

/* False: there is a NaN. */
static bool put_row(const struct bound *b, int row, uint8_t *to)
{
    const uint8_t *from = b->weight->data + (size_t)row * (size_t)b->cols;
    bool nan = false;
    for (int col = 0; col < b->cols; col += F8_BLOCK, to += F8_BYTES) {
        float d = scale_of(b, row, col);
        memcpy(to, &d, sizeof d);
        for (int i = 0; i < F8_BLOCK; i++) {
            nan |= (from[col + i] & 0x7f) == 0x7f;
            to[4 + i] = from[col + i];
        }
    }
    return !nan;
}

int checkpoint_tensor(const struct checkpoint *c, enum tensor_role role, int layer, void *room, const void **out,
                      struct err *e)
{
    const struct bound *b = slot_at(c, role, layer);
    *out = b->weight->data;
    if (b->weight->type != DT_F8)
        return 0;
    *out = room;
    for (int row = 0; row < b->rows; row++)
        if (!put_row(b, row, (uint8_t *)room + (size_t)row * dtype_row_bytes(DT_F8_SCALED, b->cols)))
            return err_set(e, E_INPUT, "tensor %s holds NaN in row %d", b->weight->name, row);
    return 0;
}

const struct file_map *checkpoint_map(const struct checkpoint *c, size_t i)
{
    return i < c->n_files ? safetensors_map(c->files[i]) : NULL;
}

void checkpoint_drop_pages(const struct checkpoint *c)
{
    for (size_t i = 0; i < c->n_files; i++)
        safetensors_drop_pages(c->files[i]);
}
