#include "engine/cli/model_files.h"

#include <string.h>
#include <sys/stat.h>

#include "engine/base/log.h"
#include "models/load/identity.h"
#include "models/tokenizer/hf_words.h"

static int find_type(const char *name, enum dtype *out, struct err *e)
{
    static const struct {
        const char *name;
        enum dtype type;
    } names[] = {{"f32", DT_F32},       {"float32", DT_F32},   {"f16", DT_F16},   {"float16", DT_F16},
                 {"bf16", DT_BF16},     {"bfloat16", DT_BF16}, {"q4_0", DT_Q4_0}, {"q4_1", DT_Q4_1},
                 {"q5_0", DT_Q5_0},     {"q5_1", DT_Q5_1},     {"q8_0", DT_Q8_0}, {"fp8", DT_F8},
                 {"iq4_nl", DT_IQ4_NL}, {"iq4_xs", DT_IQ4_XS}, {"q2_k", DT_Q2_K}, {"q3_k", DT_Q3_K},
                 {"q4_k", DT_Q4_K},     {"q5_k", DT_Q5_K},     {"q6_k", DT_Q6_K}, {"fp8_e4m3", DT_F8},
                 {"int8", DT_I8}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i].name, name)) {
            *out = names[i].type;
            return 0;
        }
    return err_set(e, E_INPUT, "there is no element type '%s'", name);
}

int opts_cache_type(const char *name, bool halves, enum dtype *out, struct err *e)
{
    if (strcmp(name, "auto") != 0)
        return find_type(name, out, e);
    *out = halves ? DT_BF16 : DT_F16;
    return 0;
}

int opts_matrix_type(const char *name, enum dtype *out, struct err *e)
{
    TRY(find_type(name, out, e));
    *out = *out == DT_F8 ? DT_F8_SCALED : *out;
    return 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int open_folder(struct model_files *f, const char *dir, struct err *e)
{
    int rc = hf_words_open(&f->tokenizer_gguf, dir, e);
    if (rc != E_NOTFOUND && rc != E_UNSUPPORTED)
        return rc;
    struct err why = *e;
    return err_set(e, rc, "%.240s; name a GGUF file of the same model, of any quantisation: --tokenizer FILE.gguf",
                   why.text);
}

/* Whose tokenizer and chat template: what --tokenizer names, else the model's file or folder. */
static int open_words(struct model_files *f, const struct opts *o, struct err *e)
{
    const char *from = o->tokenizer ? o->tokenizer : o->model;
    if (is_folder(from))
        TRY(open_folder(f, from, e));
    else if (o->tokenizer)
        TRY(gguf_open(&f->tokenizer_gguf, o->tokenizer, e));
    TRY(tokenizer_from_gguf(&f->tokenizer, f->tokenizer_gguf ? f->tokenizer_gguf : model_gguf(f->model), e));
    int n = tokenizer_n_vocab(f->tokenizer), vocab = model_config(f->model)->vocab;
    return n > vocab ? err_set(e, E_INPUT, "%s: the tokenizer has %d tokens and the model %d: it is another model's",
                               from, n, vocab)
                     : 0;
}

static int open_files(struct model_files *f, const struct opts *o, struct err *e)
{
    bool folder =
        strcmp(o->load_format, "safetensors") == 0 || (strcmp(o->load_format, "auto") == 0 && is_folder(o->model));
    TRY(folder ? model_open_hf(&f->model, o->model, e) : model_open_gguf(&f->model, o->model, e));
    if (model_note(f->model))
        log_info("main", "%s", model_note(f->model));
    return open_words(f, o, e);
}

int model_files_open(struct model_files *f, const struct opts *o, struct err *e)
{
    if (strcmp(o->load_format, "dummy") != 0)
        return open_files(f, o, e);
    enum dtype type;
    TRY(opts_matrix_type(o->dummy_dtype, &type, e));
    TRY(model_open_dummy(&f->model, o->hf_config, type, o->seed, e));
    return tokenizer_bytes(&f->tokenizer, model_config(f->model)->vocab, e);
}

int model_files_identity(const struct opts *o, const struct model *m, struct sha256 *out, struct err *e)
{
    struct buf text = {0};
    bool dummy = !strcmp(o->load_format, "dummy");
    identity_of_tensors(&text, m);
    if (dummy)
        buf_printf(&text, "seed %llu\n", (unsigned long long)o->seed);
    int rc = identity_of_files(&text, dummy ? o->hf_config : o->model, e);
    *out = hash_sha256(text.data, text.len);
    buf_free(&text);
    return rc;
}
