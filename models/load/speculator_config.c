/* The config.json of a speculator: vLLM's mlp_speculator, and Arctic Inference's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json.h"
#include "models/load/speculator.h"

enum { MOST_DIM = 1 << 16, MOST_VOCAB = 1 << 21 };

static const struct json *get(const struct json *j, const char *key)
{
    const struct json *v = json_find(j, key);
    return json_type(v) == JSON_NULL ? NULL : v; /* absent and null mean the same */
}

static int read_count(const struct json *j, const char *key, int most, int *out, struct err *e)
{
    int64_t v;
    if (!json_i64(get(j, key), &v) || v < 1 || v > most)
        return err_set(e, E_INPUT, "config.json: %s is not a number from 1 to %d", key, most);
    *out = (int)v;
    return 0;
}

/* Arctic writes sizes as texts of numbers with dots between, one for each layer. */
static int read_size(const struct json *j, const char *key, int *out, struct err *e)
{
    const char *text = json_text(get(j, key));
    char *end;
    if (!text)
        return read_count(j, key, MOST_DIM, out, e);
    if (strchr(text, '.'))
        return err_set(e, E_UNSUPPORTED, "config.json: %s is \"%.40s\"; heads of one layer are supported", key, text);
    long v = text[0] >= '0' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
    if (v < 1 || v > MOST_DIM || *end)
        return err_set(e, E_INPUT, "config.json: %s is not a number from 1 to %d", key, MOST_DIM);
    *out = (int)v;
    return 0;
}

static int read_flag(const struct json *j, const char *key, bool *out, struct err *e)
{
    const struct json *v = get(j, key);
    if (v && json_type(v) != JSON_BOOL)
        return err_set(e, E_INPUT, "config.json: %s is %s, not true or false", key, json_type_name(v));
    *out = v && json_true(v);
    return 0;
}

/* vLLM's: the state of every head has inner_dim, by default that of the model. */
static int read_plain(struct speculator_config *c, const struct json *j, struct err *e)
{
    int64_t inner = 0;
    TRY(read_size(j, "emb_dim", &c->hidden, e));
    if (!get(j, "inner_dim") || (json_i64(get(j, "inner_dim"), &inner) && inner == 0))
        c->inner = c->hidden;
    else
        TRY(read_size(j, "inner_dim", &c->inner, e));
    return 0;
}

static int read_method(struct speculator_config *c, const struct json *j, struct err *e)
{
    const struct json *method = get(j, "method");
    const char *name = method ? json_text(method) : "sum_rnn";
    c->lstm = name && strcmp(name, "sum_lstm") == 0;
    c->nested = !c->lstm;
    if (!name || (!c->lstm && strcmp(name, "sum_rnn") != 0))
        return err_set(e, E_UNSUPPORTED, "config.json: the method is %.40s; sum_rnn and sum_lstm are supported",
                       name ? name : "no text");
    TRY(read_flag(j, "tie_lstm_embs", &c->tied_tables, e));
    if (c->lstm && !c->tied)
        return err_set(e, E_UNSUPPORTED, "config.json: heads of the method sum_lstm have tie_weights true");
    return 0;
}

/* Arctic's: the token's embedding, the product and the state could each have a size of its own. */
static int read_arctic(struct speculator_config *c, const struct json *j, struct err *e)
{
    int emb, proj;
    TRY(read_method(c, j, e));
    TRY(read_size(j, "input_hidden_dim", &c->hidden, e));
    TRY(read_size(j, "inner_dim", &c->inner, e));
    TRY(read_size(j, "emb_dim", &emb, e));
    TRY(read_size(j, "proj_dim", &proj, e));
    if (emb != c->inner || proj != c->inner)
        return err_set(e, E_INPUT, "config.json: emb_dim %d, proj_dim %d and inner_dim %d have to be the same", emb,
                       proj, c->inner);
    return 0;
}

static int read_all(struct speculator_config *c, const struct json *j, struct err *e)
{
    static const struct {
        const char *name;
        int (*read)(struct speculator_config *, const struct json *, struct err *);
    } kinds[] = {{"MLPSpeculatorPreTrainedModel", read_plain},
                 {"ArcticMLPSpeculatorPreTrainedModel", read_plain},
                 {"ArcticLSTMSpeculatorPreTrainedModel", read_arctic},
                 {"MLPVariantSpeculatorPreTrainedModel", read_arctic}};
    const char *arch = json_text(json_first(get(j, "architectures")));
    TRY(read_flag(j, "tie_weights", &c->tied, e));
    TRY(read_flag(j, "scale_input", &c->scale_input, e));
    TRY(read_count(j, "n_predict", SPECULATOR_HEADS, &c->n_predict, e));
    c->n_used = c->n_predict;
    TRY(read_count(j, "vocab_size", MOST_VOCAB, &c->vocab, e));
    for (size_t i = 0; arch && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(arch, kinds[i].name) == 0)
            return kinds[i].read(c, j, e);
    return err_set(e, E_UNSUPPORTED,
                   "config.json: %.60s is no speculator that is run here; MLPSpeculatorPreTrainedModel, "
                   "ArcticMLPSpeculatorPreTrainedModel and ArcticLSTMSpeculatorPreTrainedModel are",
                   arch ? arch : "a model without architectures");
}

int speculator_config_read(struct speculator_config *out, const char *json, size_t n, struct err *e)
{
    *out = (struct speculator_config){0};
    struct json *j = json_parse(json, n, NULL, e);
    if (!j)
        return err_prefix(e, E_INPUT, "config.json");
    int rc = read_all(out, j, e);
    json_free(j);
    return rc;
}

float speculator_emb_weight(const struct speculator_config *c)
{
    double state = pow(0.5, 0.5 / c->n_predict), emb = sqrt((1 - state * state) * c->inner / 2);
    return (float)(emb / state);
}
