#include "models/load/speculator.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "models/load/checkpoint.h"

struct speculator {
    struct speculator_config config;
    struct checkpoint *files;
    struct weight_src tensors[SPEC_ROLES][SPECULATOR_HEADS][SPECULATOR_GATES];
};

/* The tensor's name without prefix. Gates have names of their own. */
static void name_of(const struct speculator_config *c, enum speculator_role role, int head, int gate, char out[64])
{
    static const char *const gates[SPECULATOR_GATES] = {"forget", "input", "output", "cell"};
    static const char *const plain[SPEC_ROLES] = {
        [SPEC_TABLE] = "emb", [SPEC_PROJ] = "proj",           [SPEC_HEAD] = "head",          [SPEC_GAIN] = "ln",
        [SPEC_BIAS] = "ln",   [SPEC_STATE_GAIN] = "state_ln", [SPEC_STATE_BIAS] = "state_ln"};
    const char *tail = role == SPEC_BIAS || role == SPEC_STATE_BIAS ? "bias" : "weight", *name = plain[role];
    bool norm = role == SPEC_GAIN || role == SPEC_BIAS;
    if (c->lstm && (role == SPEC_TABLE || role == SPEC_PROJ))
        snprintf(out, 64, "%s_%s.%d.%s", gates[gate], name, head, tail);
    else
        snprintf(out, 64, "%s%s.%d%s.%s", c->lstm && norm ? "cell_" : "", name, head,
                 c->nested && role != SPEC_HEAD ? ".0" : "", tail);
}

/* Some tools write a prefix. */
static const struct st_tensor *find(struct speculator *s, const char *name)
{
    char longer[80];
    const struct st_tensor *t = checkpoint_find(s->files, name);
    snprintf(longer, sizeof longer, "speculator.%s", name);
    return t ? t : checkpoint_find(s->files, longer);
}

static struct weight_src shape_of(const struct speculator_config *c, enum speculator_role role, int head)
{
    switch (role) {
    case SPEC_TABLE:
    case SPEC_HEAD:
        return (struct weight_src){.rows = c->vocab, .cols = c->inner};
    case SPEC_PROJ:
        return (struct weight_src){.rows = c->inner, .cols = head ? c->inner : c->hidden};
    default:
        return (struct weight_src){.rows = 1, .cols = c->inner};
    }
}

static int check(const struct st_tensor *t, const char *name, struct weight_src *shape, struct err *e)
{
    if (!t)
        return err_set(e, E_INPUT, "tensor %s is missing", name);
    bool vector = shape->rows == 1 && t->n_dims == 1;
    if (vector ? t->dims[0] != shape->cols : t->n_dims != 2 || t->dims[0] != shape->rows || t->dims[1] != shape->cols)
        return err_set(e, E_INPUT, "tensor %s is not the %d x %d that config.json makes it", name, shape->rows,
                       shape->cols);
    if (!t->known || t->type == DT_F8)
        return err_set(e, E_UNSUPPORTED, "tensor %s has type %s; F32, F16 and BF16 are supported", name, t->type_name);
    shape->type = t->type;
    shape->data = t->data;
    return 0;
}

/* Which head's tensor a tied one uses. */
static int tied_to(const struct speculator_config *c, enum speculator_role role, int head)
{
    return !c->tied ? head : role == SPEC_PROJ && head ? 1 : 0;
}

/* Files may hold the copies of what is tied, too, as long as they are copies. */
static int check_copy(struct speculator *s, const struct weight_src *own, const char *name, struct err *e)
{
    const struct st_tensor *t = find(s, name);
    if (t && (t->type != own->type || t->bytes != (size_t)own->rows * dtype_row_bytes(own->type, own->cols) ||
              memcmp(t->data, own->data, t->bytes) != 0))
        return err_set(e, E_INPUT, "tensor %s is not the one that it is tied to", name);
    return 0;
}

static int bind_role(struct speculator *s, enum speculator_role role, int head, struct err *e)
{
    const struct speculator_config *c = &s->config;
    int gates = role <= SPEC_PROJ ? speculator_gates(c) : 1, from = tied_to(c, role, head);
    char name[64];
    for (int g = 0; g < gates; g++) {
        struct weight_src *to = &s->tensors[role][head][g];
        name_of(c, role, head, g, name);
        bool one_table = role == SPEC_TABLE && c->tied_tables && c->lstm;
        if (from < head || (one_table && g)) {
            *to = s->tensors[role][from][one_table ? 0 : g];
            TRY(check_copy(s, to, name, e));
            continue;
        }
        *to = shape_of(c, role, head);
        TRY(check(find(s, name), name, to, e));
    }
    return 0;
}

static int bind(struct speculator *s, struct err *e)
{
    enum speculator_role end = s->config.lstm ? SPEC_ROLES : SPEC_STATE_GAIN;
    for (int h = 0; h < s->config.n_predict; h++)
        for (enum speculator_role r = SPEC_TABLE; r < end; r++)
            TRY(bind_role(s, r, h, e));
    const char *left = checkpoint_unseen(s->files);
    return left ? err_set(e, E_INPUT, "tensor %s is none of a speculator with this config.json", left) : 0;
}

static int open_with(struct speculator **out, struct speculator *s, struct model_text config, struct err *e)
{
    int rc = speculator_config_read(&s->config, config.text ? config.text : "", config.n, e);
    if (!rc)
        rc = bind(s, e);
    if (rc)
        speculator_close(s);
    else
        *out = s;
    return rc;
}

int speculator_open(struct speculator **out, const char *dir, struct err *e)
{
    struct speculator *s = mem_new(sizeof *s);
    struct buf config = {0};
    *out = NULL;
    int rc = checkpoint_open(&s->files, dir, &config, e);
    if (rc)
        speculator_close(s);
    else
        rc = open_with(out, s, (struct model_text){config.data, config.len}, e);
    buf_free(&config);
    return rc ? err_prefix(e, rc, "%.200s", dir) : 0;
}

int speculator_open_memory(struct speculator **out, struct model_text config, const void *file, size_t n, struct err *e)
{
    struct speculator *s = mem_new(sizeof *s);
    *out = NULL;
    int rc = checkpoint_open_memory(&s->files, file, n, e);
    if (!rc)
        return open_with(out, s, config, e);
    speculator_close(s);
    return rc;
}

void speculator_close(struct speculator *s)
{
    if (!s)
        return;
    checkpoint_close(s->files);
    mem_free(s);
}

const struct speculator_config *speculator_config(const struct speculator *s)
{
    return &s->config;
}

int speculator_fits(const struct speculator *s, const struct model_config *model, struct err *e)
{
    const struct speculator_config *c = &s->config;
    if (c->hidden != model->hidden)
        return err_set(e, E_INPUT,
                       "the draft model is for hidden states of %d elements, and those of the model have %d", c->hidden,
                       model->hidden);
    if (c->vocab != model->vocab)
        return err_set(e, E_INPUT, "the draft model has a vocabulary of %d tokens, and the model one of %d", c->vocab,
                       model->vocab);
    return 0;
}

int speculator_limit(struct speculator *s, int n, struct err *e)
{
    if (n > s->config.n_predict)
        return err_set(e, E_INPUT, "%d tokens are asked for, and the draft model guesses %d", n, s->config.n_predict);
    s->config.n_used = n;
    return 0;
}

struct weight_src speculator_tensor(const struct speculator *s, enum speculator_role role, int head, int gate)
{
    return s->tensors[role][head][gate];
}
