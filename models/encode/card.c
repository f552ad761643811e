#include "models/encode/card.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "models/load/family.h"

static const char *const file_names[CARD_FILES] = {"config.json", "modules.json", "1_Pooling/config.json",
                                                   "sentence_bert_config.json"};

const char *card_file_name(enum card_file f)
{
    return file_names[f];
}

static const struct json *get(const struct json *j, const char *key)
{
    const struct json *v = json_find(j, key);
    return json_type(v) == JSON_NULL ? NULL : v; /* absent and null mean the same */
}

/* ---- families ---- */

/* Beginnings of the names of architectures of encoders, so that those that are not run are refused as such. */
static const char *const encoders[] = {"Bert",       "Roberta",  "XLMRoberta", "Camembert", "DistilBert", "MPNet",
                                       "Albert",     "Electra",  "Deberta",    "NomicBert", "ModernBert", "JinaBert",
                                       "GteModel",   "NewModel", "NewForSequ", "Ernie",     "MegatronB",  "MobileBert",
                                       "SqueezeBer", "XLNet",    "FlauBert",   "EuroBert",  "T5Encoder",  "NeoBERT"};

static const char *first_architecture(const struct json *config)
{
    return json_text(json_first(get(config, "architectures")));
}

static bool begins_with_one(const char *s, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(s, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool is_generating(const char *arch)
{
    return strstr(arch, "ForCausalLM") || strstr(arch, "LMHeadModel") || strstr(arch, "ConditionalGeneration");
}

bool card_is_encoder(const char *config, size_t n, bool modules)
{
    struct json *j = json_parse(config, n, NULL, NULL);
    const char *arch = first_architecture(j);
    bool yes =
        arch &&
        (modules || (!is_generating(arch) && (begins_with_one(arch, encoders, sizeof encoders / sizeof *encoders))));
    json_free(j);
    return yes;
}

bool card_is_decoder(const char *config, size_t n)
{
    struct json *j = json_parse(config, n, NULL, NULL);
    const char *arch = first_architecture(j);
    bool yes = arch && (family_find_hf(arch) || family_find_hf_base(arch));
    json_free(j);
    return yes;
}

static bool gguf_pooling(const struct gguf *g, uint64_t *out)
{
    struct gguf_string arch;
    char key[96];
    if (!gguf_string(g, "general.architecture", &arch) || arch.len > 64)
        return false;
    snprintf(key, sizeof key, "%.*s.pooling_type", (int)arch.len, arch.data);
    return gguf_u64(g, key, out);
}

bool card_gguf_is_encoder(const struct gguf *g)
{
    struct gguf_string arch;
    uint64_t pooling = 0;
    if (!gguf_string(g, "general.architecture", &arch) || arch.len > 64)
        return false;
    return memmem(arch.data, arch.len, "bert", 4) || (gguf_pooling(g, &pooling) && pooling != 0);
}

bool card_gguf_is_decoder(const struct gguf *g)
{
    struct gguf_string arch;
    return gguf_string(g, "general.architecture", &arch) && family_find_gguf(arch.data, arch.len);
}

/* ---- a folder's files ---- */

/* Lengths to which a vector may be cut: those that are listed, or any. The names are vLLM's. */
static int read_cuts(struct encoder_card *c, const struct json *j, struct err *e)
{
    const struct json *list = get(j, "matryoshka_dimensions");
    if (!list) {
        c->cuts.any = json_true(get(j, "is_matryoshka"));
        return 0;
    }
    if (json_type(list) != JSON_ARRAY || !json_first(list) || json_count(list) > ENCODER_MOST_CUTS)
        return err_set(e, E_INPUT, "config.json: matryoshka_dimensions is no list of 1 to %d lengths",
                       ENCODER_MOST_CUTS);
    for (const struct json *v = json_first(list); v; v = json_next(v)) {
        int64_t n;
        if (!json_i64(v, &n) || n < 1 || n > INT32_MAX)
            return err_set(e, E_INPUT, "config.json: matryoshka_dimensions has something that is no length");
        c->cuts.at[c->cuts.n++] = (int)n;
    }
    return 0;
}

static int read_pooling(struct encoder_card *c, const struct json *j, struct err *e)
{
    static const struct {
        const char *key;
        int pooling; /* -1: not supported */
    } modes[] = {
        {"pooling_mode_cls_token", POOL_CLS},      {"pooling_mode_mean_tokens", POOL_MEAN},
        {"pooling_mode_lasttoken", POOL_LAST},     {"pooling_mode_max_tokens", -1},
        {"pooling_mode_mean_sqrt_len_tokens", -1}, {"pooling_mode_weightedmean_tokens", -1},
    };
    int n = 0;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (!json_true(get(j, modes[i].key)))
            continue;
        if (modes[i].pooling < 0 || ++n > 1)
            return err_set(e, E_UNSUPPORTED, "1_Pooling/config.json: %s%s; one of cls, mean and last is supported",
                           modes[i].key, n > 1 ? " beside another" : "");
        c->pooling = (enum encoder_pooling)modes[i].pooling;
    }
    c->named = n == 1;
    return n ? 0 : err_set(e, E_INPUT, "1_Pooling/config.json: it names no pooling");
}

/* The last part of a Python name: "sentence_transformers.models.Pooling" -> "Pooling". */
static const char *last_part(const char *name)
{
    const char *dot = name ? strrchr(name, '.') : NULL;
    return dot ? dot + 1 : name;
}

/* A list of modules: the transformer, the pooling, and perhaps the normalisation. */
static int read_modules(struct encoder_card *c, const struct json *j, struct err *e)
{
    static const char *const known[] = {"Transformer", "Pooling", "Normalize"};
    size_t at = 0;
    if (json_type(j) != JSON_ARRAY)
        return err_set(e, E_INPUT, "modules.json is %s, not an array", json_type_name(j));
    for (const struct json *m = json_first(j); m; m = json_next(m), at++) {
        const char *type = last_part(json_text(get(m, "type")));
        if (!type || at >= 3 || strcmp(type, known[at]) != 0)
            return err_set(
                e, E_UNSUPPORTED,
                "modules.json: the module %.40s; Transformer, Pooling and Normalize are known, in this order",
                type ? type : "without a type");
    }
    c->normalised = at == 3;
    return 0;
}

static int read_sentence(struct encoder_card *c, const struct json *j, struct err *e)
{
    int64_t n;
    if (!get(j, "max_seq_length"))
        return 0;
    if (!json_i64(get(j, "max_seq_length"), &n) || n < 1)
        return err_set(e, E_INPUT, "sentence_bert_config.json: max_seq_length is not a number above 0");
    c->max_tokens = n < INT32_MAX ? (int)n : INT32_MAX;
    return 0;
}

int card_read(struct encoder_card *c, const struct card_text files[CARD_FILES], struct err *e)
{
    static int (*const readers[CARD_FILES])(struct encoder_card *, const struct json *,
                                            struct err *) = {read_cuts, read_modules, read_pooling, read_sentence};
    int rc = 0;
    *c = (struct encoder_card){.pooling = POOL_MEAN};
    for (int i = 0; i < CARD_FILES && !rc; i++) {
        if (!files[i].data)
            continue;
        struct json *j = json_parse(files[i].data, files[i].n, NULL, e);
        rc = j ? readers[i](c, j, e) : err_prefix(e, E_INPUT, "%s", file_names[i]);
        json_free(j);
    }
    return rc;
}

/* ---- GGUF ---- */

enum { GGUF_NONE, GGUF_MEAN, GGUF_CLS, GGUF_LAST, GGUF_RANK };

int card_from_gguf(struct encoder_card *c, const struct gguf *g, struct err *e)
{
    uint64_t pooling = GGUF_NONE;
    *c = (struct encoder_card){.pooling = POOL_MEAN};
    c->named = gguf_pooling(g, &pooling) && pooling != GGUF_NONE;
    if (pooling > GGUF_RANK)
        return err_set(e, E_UNSUPPORTED, "GGUF: pooling_type is %llu; 0 to 4 are known", (unsigned long long)pooling);
    c->scores = pooling == GGUF_RANK;
    c->normalised = !c->scores;
    if (pooling == GGUF_CLS || pooling == GGUF_RANK)
        c->pooling = POOL_CLS;
    else if (pooling == GGUF_LAST)
        c->pooling = POOL_LAST;
    return 0;
}
