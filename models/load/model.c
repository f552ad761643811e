#include "models/load/model.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/base/check.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "models/load/checkpoint.h"
#include "models/load/config.h"
#include "models/load/dummy.h"
#include "models/load/family.h"

enum { ONCE = T_ATTN_NORM, PER_LAYER = T_COUNT - T_ATTN_NORM };
static const size_t max_config_bytes = 1 << 20;

struct model {
    struct model_config config;
    struct gguf *gguf;                  /* or */
    struct checkpoint *files;           /* or neither: dummy */
    const struct gguf_tensor **tensors; /* [ONCE + n_layers * PER_LAYER]; NULL where there is none */
    enum dtype dummy_type;
    uint64_t seed;
};

static size_t slot_of(enum tensor_role role, int layer)
{
    return tensor_per_layer(role) ? ONCE + (size_t)layer * PER_LAYER + (size_t)(role - T_ATTN_NORM) : (size_t)role;
}

/* ---- files ---- */

static int check_tensor(const struct model_config *c, enum tensor_role role, const struct gguf_tensor *t,
                        const char *name, struct err *e)
{
    int rows, cols;
    tensor_shape(c, role, &rows, &cols);
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return err_set(e, E_INPUT, "GGUF: tensor %s is %lld x %lld, but the file's numbers make it %d x %d", name,
                       (long long)t->dims[0], (long long)t->dims[1], cols, rows);
    if (tensor_is_vector(role) && t->type != DT_F32 && t->type != DT_F16 && t->type != DT_BF16)
        return err_set(e, E_UNSUPPORTED, "GGUF: tensor %s has type %s; norms and biases must be F32, F16 or BF16", name,
                       dtype_get(t->type)->name);
    if ((uintptr_t)t->data % 8)
        return err_set(e, E_INPUT,
                       "GGUF: tensor %s does not start at a multiple of 8 bytes; the file's alignment is too small",
                       name);
    return 0;
}

static int find_tensor(struct model *m, enum tensor_role role, int layer, bool *seen, struct err *e)
{
    char name[64];
    tensor_gguf_name(role, layer, name, sizeof name);
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, name);
    if (!t)
        return err_set(e, E_INPUT, "GGUF: tensor %s is missing; the file is no whole %s model", name,
                       m->config.family->gguf_arch);
    TRY(check_tensor(&m->config, role, t, name, e));
    m->tensors[slot_of(role, layer)] = t;
    seen[t - gguf_tensor_at(m->gguf, 0)] = true;
    return 0;
}

static bool ends_in(struct gguf_string s, const char *tail)
{
    size_t n = strlen(tail);
    return s.len >= n && memcmp(s.data + s.len - n, tail, n) == 0;
}

static bool is_called(struct gguf_string s, const char *name)
{
    return s.len == strlen(name) && memcmp(s.data, name, s.len) == 0;
}

/* A tensor that the forward does not use means an unknown kind of model: ignoring it would give wrong answers. */
static int check_unused(const struct model *m, const bool *seen, struct err *e)
{
    for (size_t i = 0; i < gguf_n_tensors(m->gguf); i++) {
        struct gguf_string name = gguf_tensor_at(m->gguf, i)->name;
        if (seen[i] || is_called(name, "rope_freqs.weight") || (m->config.embeds && is_called(name, "output.weight")))
            continue;
        bool experts = ends_in(name, "_exps.weight") || ends_in(name, "ffn_gate_inp.weight");
        char shown[68];
        size_t n = name.len < 64 ? name.len : 64;
        for (size_t j = 0; j < n; j++)
            shown[j] = name.data[j] >= 32 && name.data[j] < 127 ? name.data[j] : '?';
        shown[n] = 0;
        return err_set(e, E_UNSUPPORTED, "GGUF: tensor %s is not part of a %s model as this engine knows it%s", shown,
                       m->config.family->gguf_arch,
                       experts                  ? " (mixtures of experts are not supported)"
                       : ends_in(name, ".bias") ? " (biases are supported on q, k and v only)"
                                                : "");
    }
    return 0;
}

static int find_tensors(struct model *m, struct err *e)
{
    const struct model_config *c = &m->config;
    bool *seen = mem_try_array(gguf_n_tensors(m->gguf), sizeof *seen);
    m->tensors = mem_try_array(ONCE + (size_t)c->n_layers * PER_LAYER, sizeof *m->tensors);
    int rc = seen && m->tensors ? 0 : err_set(e, E_FULL, "no memory for the list of tensors");
    for (int role = 0; role < T_COUNT && !rc; role++)
        for (int l = 0; l < (tensor_per_layer(role) ? c->n_layers : 1) && !rc; l++)
            if (tensor_wanted(c, role))
                rc = find_tensor(m, role, l, seen, e);
    if (!rc)
        rc = check_unused(m, seen, e);
    mem_free(seen);
    return rc;
}

static int bind_gguf(struct model **out, struct gguf *g, const char *name, bool embeds, struct err *e)
{
    *out = NULL;
    struct model *m = mem_new(sizeof *m);
    m->gguf = g;
    int rc = embeds ? config_embedder_from_gguf(&m->config, g, e) : config_from_gguf(&m->config, g, e);
    if (!rc)
        rc = find_tensors(m, e);
    if (rc) {
        m->gguf = NULL;
        model_close(m);
        return rc;
    }
    if (!m->config.name[0])
        config_set_name(&m->config, name, strlen(name));
    *out = m;
    return 0;
}

int model_from_gguf(struct model **out, struct gguf *g, const char *name, struct err *e)
{
    return bind_gguf(out, g, name, false, e);
}

int model_embedder_from_gguf(struct model **out, struct gguf *g, const char *name, struct err *e)
{
    return bind_gguf(out, g, name, true, e);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int open_gguf(struct model **out, const char *path, bool embeds, struct err *e)
{
    struct gguf *g;
    *out = NULL;
    TRY(gguf_open(&g, path, e));
    int rc = bind_gguf(out, g, base_name(path), embeds, e);
    if (rc) {
        gguf_close(g);
        return err_prefix(e, rc, "%s", path);
    }
    return 0;
}

int model_open_gguf(struct model **out, const char *path, struct err *e)
{
    return open_gguf(out, path, false, e);
}

/* ---- Hugging Face ---- */

struct hf_files {
    struct checkpoint *files; /* bind_hf's own */
    struct model_text config;
    const char *name;
    bool embeds;
};

static int bind_hf(struct model **out, const struct hf_files *f, struct err *e)
{
    struct model *m = mem_new(sizeof *m);
    struct model_text text = f->config;
    m->files = f->files;
    int rc = f->embeds ? config_embedder_from_hf(&m->config, text.text, text.n, e)
                       : config_from_hf(&m->config, text.text, text.n, e);
    if (!rc)
        rc = checkpoint_bind(f->files, &m->config, text.text, text.n, e);
    if (rc) {
        model_close(m);
        return rc;
    }
    if (!m->config.name[0])
        config_set_name(&m->config, f->name, strlen(f->name));
    *out = m;
    return 0;
}

int model_from_hf(struct model **out, struct model_text config, const void *safetensors, size_t n, struct err *e)
{
    struct hf_files f = {.config = config, .name = "model"};
    *out = NULL;
    TRY(checkpoint_open_memory(&f.files, safetensors, n, e));
    return bind_hf(out, &f, e);
}

int model_embedder_from_hf(struct model **out, struct model_text config, const void *safetensors, size_t n,
                           struct err *e)
{
    struct hf_files f = {.config = config, .name = "model", .embeds = true};
    *out = NULL;
    TRY(checkpoint_open_memory(&f.files, safetensors, n, e));
    return bind_hf(out, &f, e);
}

static int open_hf(struct model **out, const char *dir, bool embeds, struct err *e)
{
    struct buf text = {0};
    struct hf_files f = {.name = base_name(dir), .embeds = embeds};
    *out = NULL;
    int rc = checkpoint_open(&f.files, dir, &text, e);
    f.config = (struct model_text){text.data ? text.data : "", text.len};
    if (!rc)
        rc = bind_hf(out, &f, e);
    buf_free(&text);
    return rc ? err_prefix(e, rc, "%s", dir) : 0;
}

int model_open_hf(struct model **out, const char *dir, struct err *e)
{
    return open_hf(out, dir, false, e);
}

int model_open_embedder(struct model **out, const char *path, struct err *e)
{
    struct stat st;
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? open_hf(out, path, true, e) : open_gguf(out, path, true, e);
}

/* ---- dummies ---- */

static int open_config(struct model_config *c, const char *path, struct err *e)
{
    struct buf text = {0};
    int rc = file_read(&text, path, max_config_bytes, e);
    if (!rc) {
        rc = config_from_hf(c, text.data ? text.data : "", text.len, e);
        if (rc)
            err_prefix(e, rc, "%s", path);
    }
    buf_free(&text);
    return rc;
}

static int finish_dummy(struct model **out, struct model *m, int rc, struct err *e)
{
    if (!rc)
        rc = dummy_check(&m->config, m->dummy_type, e);
    if (rc) {
        model_close(m);
        return rc;
    }
    if (!m->config.name[0])
        config_set_name(&m->config, "dummy", 5);
    *out = m;
    return 0;
}

int model_open_dummy(struct model **out, const char *hf_config_path, enum dtype type, uint64_t seed, struct err *e)
{
    struct model *m = mem_new(sizeof *m);
    *out = NULL;
    m->dummy_type = type;
    m->seed = seed;
    return finish_dummy(out, m, open_config(&m->config, hf_config_path, e), e);
}

int model_open_described(struct model **out, const char *hf_config, enum dtype type, struct err *e)
{
    struct model *m = mem_new(sizeof *m);
    *out = NULL;
    m->dummy_type = type;
    return finish_dummy(out, m, config_from_hf(&m->config, hf_config, strlen(hf_config), e), e);
}

static bool grow(void **p, size_t *cap, size_t bytes)
{
    if (*cap >= bytes)
        return true;
    mem_free(*p);
    *p = mem_try_aligned(bytes, 64);
    *cap = *p ? bytes : 0;
    return *p != NULL;
}

static int make_tensor(const struct model *m, struct tensor_room *room, enum tensor_role role, int layer,
                       struct weight_src *s, struct err *e)
{
    size_t bytes = (size_t)s->rows * dtype_row_bytes(s->type, s->cols);
    void *row = room->row;
    bool made = !m->files || s->type == DT_F8_SCALED, ok = !made || grow(&room->data, &room->data_cap, bytes);
    if (ok && !m->files)
        ok = grow(&row, &room->row_cap, (size_t)s->cols * sizeof(float));
    room->row = row;
    if (!ok)
        return err_set(e, E_FULL, "no memory for a tensor of %zu bytes", bytes);
    if (m->files)
        return checkpoint_tensor(m->files, role, layer, room->data, &s->data, e);
    dummy_fill(&m->config, role, layer, m->dummy_type, m->seed, room->data, room->row);
    s->data = room->data;
    return 0;
}

void tensor_room_free(struct tensor_room *r)
{
    mem_free(r->data);
    mem_free(r->row);
    *r = (struct tensor_room){0};
}

/* ---- both ---- */

void model_close(struct model *m)
{
    if (!m)
        return;
    gguf_close(m->gguf);
    checkpoint_close(m->files);
    mem_free(m->tensors);
    mem_free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const char *model_note(const struct model *m)
{
    return m->files ? checkpoint_note(m->files) : NULL;
}

const struct gguf *model_gguf(const struct model *m)
{
    return m->gguf;
}

int model_shape(const struct model *m, enum tensor_role role, int layer, struct weight_src *out, struct err *e)
{
    ASSERT((unsigned)role < T_COUNT && layer >= 0 && layer < m->config.n_layers);
    char name[64];
    *out = (struct weight_src){0};
    if (!tensor_wanted(&m->config, role)) {
        tensor_gguf_name(role, layer, name, sizeof name);
        return err_set(e, E_NOTFOUND, "the model has no %s", name);
    }
    tensor_shape(&m->config, role, &out->rows, &out->cols);
    if (m->gguf)
        out->type = m->tensors[slot_of(role, layer)]->type;
    else if (m->files)
        checkpoint_type(m->files, role, layer, out);
    else
        out->type = tensor_is_vector(role) ? DT_F32 : m->dummy_type;
    return 0;
}

int model_tensor(const struct model *m, struct tensor_room *room, enum tensor_role role, int layer,
                 struct weight_src *out, struct err *e)
{
    TRY(model_shape(m, role, layer, out, e));
    if (!m->gguf)
        return make_tensor(m, room, role, layer, out, e);
    out->data = m->tensors[slot_of(role, layer)]->data;
    return 0;
}

const struct file_map *model_map(const struct model *m, size_t i)
{
    if (m->gguf)
        return i == 0 ? gguf_map(m->gguf) : NULL;
    return m->files ? checkpoint_map(m->files, i) : NULL;
}

void model_loaded(const struct model *m)
{
    if (m->gguf)
        gguf_drop_pages(m->gguf);
    if (m->files)
        checkpoint_drop_pages(m->files);
}
