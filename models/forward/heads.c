#include "models/forward/heads.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/draft.h"

enum { AT_ONCE = 16 /* asks whose products are one */, ALIGN = 16 };
static const float eps = 1e-6f; /* of the norms: fixed by vLLM */

/* What the bytes of a tied tensor were loaded to before. */
struct loaded {
    const void *data;
    struct weight *weight;
    void *memory;
};

enum { MOST_LOADED = SPEC_ROLES * SPECULATOR_HEADS * SPECULATOR_GATES };

struct heads_weights {
    const struct backend_ops *ops;
    struct device *device;
    struct speculator_config config;
    size_t bytes;
    const float *input_gain; /* [hidden] 1 / sqrt 2; NULL: not scaled */
    struct head {
        struct weight *proj[SPECULATOR_GATES], *out;
        const void *tables[SPECULATOR_GATES];
        enum dtype types[SPECULATOR_GATES];
        struct draft_gain norm, state_norm;
    } heads[SPECULATOR_HEADS];
    struct loaded loaded[MOST_LOADED];
    int n_loaded;
};

struct heads {
    const struct heads_weights *w;
    struct device *device;
    float *slab;
    size_t bytes;
    struct act kept; /* [MOST_ASKS, hidden] normed; member me of n has ask me + k n in row k */
    struct act h, c, z[SPECULATOR_GATES], logits;
};

/* ---- weights */

static void *take_memory(struct heads_weights *w, const void *data, size_t bytes, struct err *e)
{
    void *to = w->ops->alloc(w->device, bytes);
    if (!to) {
        err_set(e, E_FULL, "no memory for a table of the draft model, %zu bytes", bytes);
        return NULL;
    }
    w->loaded[w->n_loaded++].memory = to;
    w->bytes += bytes;
    if (w->ops->upload(w->device, to, data, bytes)) {
        err_set(e, E_DEVICE, "the draft model cannot be copied to the device");
        return NULL;
    }
    return to;
}

static struct loaded *loaded_before(struct heads_weights *w, const void *data, bool matrix)
{
    for (int i = 0; i < w->n_loaded; i++)
        if (w->loaded[i].data == data && (w->loaded[i].weight != NULL) == matrix)
            return &w->loaded[i];
    return NULL;
}

static int load_matrix(struct heads_weights *w, const struct weight_src *src, struct weight **out, struct err *e)
{
    struct loaded *l = loaded_before(w, src->data, true);
    if (!l) {
        l = &w->loaded[w->n_loaded];
        TRY(w->ops->weight_load(w->device, &l->weight, src, e));
        l->data = src->data;
        w->bytes += w->ops->weight_bytes(l->weight);
        w->n_loaded++;
    }
    *out = l->weight;
    return 0;
}

static int load_table(struct heads_weights *w, const struct weight_src *src, const void **out, struct err *e)
{
    const struct loaded *l = loaded_before(w, src->data, false);
    *out = l ? l->memory : take_memory(w, src->data, (size_t)src->rows * dtype_row_bytes(src->type, src->cols), e);
    if (!*out)
        return E_FULL;
    w->loaded[l ? l - w->loaded : w->n_loaded - 1].data = src->data;
    return 0;
}

static int load_vector(struct heads_weights *w, const struct weight_src *src, const float **out, struct err *e)
{
    float *wide = mem_try_array((size_t)src->cols, sizeof *wide);
    void *room = mem_try_array((size_t)src->cols, sizeof *wide);
    if (wide && room) {
        memcpy(room, src->data, dtype_row_bytes(src->type, src->cols)); /* whose alignment is the file's */
        dtype_to_f32(src->type, room, wide, src->cols);
        *out = take_memory(w, wide, (size_t)src->cols * sizeof *wide, e);
    }
    mem_free(room);
    mem_free(wide);
    return *out ? 0 : E_FULL;
}

/* Scaled inputs: h / rms(h) is an input norm of this gain. */
static int load_input_gain(struct heads_weights *w, struct err *e)
{
    struct weight_src src = {.type = DT_F32, .rows = 1, .cols = w->config.hidden};
    float *gain = mem_try_array((size_t)src.cols, sizeof *gain);
    const float *out = NULL;
    for (int i = 0; gain && i < src.cols; i++)
        gain[i] = (float)sqrt(0.5);
    src.data = gain;
    int rc = gain ? load_vector(w, &src, &out, e) : E_FULL;
    mem_free(gain);
    w->input_gain = out;
    return rc;
}

static int load_head(struct heads_weights *w, const struct speculator *s, int i, struct err *e)
{
    struct head *h = &w->heads[i];
    struct weight_src src[SPEC_ROLES];
    for (int g = 0; g < speculator_gates(&w->config); g++) {
        src[SPEC_TABLE] = speculator_tensor(s, SPEC_TABLE, i, g);
        src[SPEC_PROJ] = speculator_tensor(s, SPEC_PROJ, i, g);
        h->types[g] = src[SPEC_TABLE].type;
        TRY(load_table(w, &src[SPEC_TABLE], &h->tables[g], e));
        TRY(load_matrix(w, &src[SPEC_PROJ], &h->proj[g], e));
    }
    for (int r = SPEC_HEAD; r < SPEC_ROLES; r++)
        src[r] = speculator_tensor(s, (enum speculator_role)r, i, 0);
    TRY(load_matrix(w, &src[SPEC_HEAD], &h->out, e));
    TRY(load_vector(w, &src[SPEC_GAIN], &h->norm.gain, e));
    TRY(load_vector(w, &src[SPEC_BIAS], &h->norm.bias, e));
    if (!w->config.lstm)
        return 0;
    TRY(load_vector(w, &src[SPEC_STATE_GAIN], &h->state_norm.gain, e));
    return load_vector(w, &src[SPEC_STATE_BIAS], &h->state_norm.bias, e);
}

int heads_weights_load(struct heads_weights **out, const struct speculator *s, const struct backend_ops *ops,
                       struct device *d, struct err *e)
{
    *out = NULL;
    if (!ops->draft)
        return err_set(e, E_UNSUPPORTED, "--draft-model is for --device cpu; %s runs no draft heads", ops->name);
    struct heads_weights *w = mem_new(sizeof *w);
    w->ops = ops;
    w->device = d;
    w->config = *speculator_config(s);
    struct err why = {.text = "no memory"};
    int rc = w->config.scale_input ? load_input_gain(w, &why) : 0;
    for (int i = 0; i < w->config.n_used && !rc; i++)
        rc = load_head(w, s, i, &why);
    if (rc) {
        heads_weights_free(w);
        return err_set(e, rc, "the draft model: %s", why.text);
    }
    *out = w;
    return 0;
}

void heads_weights_free(struct heads_weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_loaded; i++) {
        if (w->loaded[i].weight)
            w->ops->weight_free(w->device, w->loaded[i].weight);
        if (w->loaded[i].memory)
            w->ops->release(w->device, w->loaded[i].memory);
    }
    mem_free(w);
}

size_t heads_weights_bytes(const struct heads_weights *w)
{
    return w->bytes;
}

/* ---- working memory */

static struct act take(struct heads *h, int rows, int cols)
{
    int ld = (cols + ALIGN - 1) / ALIGN * ALIGN;
    struct act a = {h->slab ? h->slab + h->bytes / sizeof(float) : NULL, cols, ld, false};
    h->bytes += (size_t)rows * (size_t)ld * sizeof(float);
    return a;
}

static void lay_out(struct heads *h)
{
    const struct speculator_config *c = &h->w->config;
    h->bytes = 0;
    h->kept = take(h, MOST_ASKS, c->hidden);
    h->h = take(h, AT_ONCE, c->inner);
    h->c = take(h, AT_ONCE, c->inner);
    for (int g = 0; g < speculator_gates(c); g++)
        h->z[g] = take(h, AT_ONCE, c->inner);
    h->logits = take(h, AT_ONCE, c->vocab);
}

int heads_open(struct heads **out, const struct heads_weights *w, struct device *d, struct err *e)
{
    struct heads *h = mem_new(sizeof *h);
    *out = NULL;
    h->w = w;
    h->device = d;
    lay_out(h);
    h->slab = w->ops->alloc(d, h->bytes);
    if (!h->slab) {
        err_set(e, E_FULL, "no memory for the activations of the draft model, %zu bytes", h->bytes);
        mem_free(h);
        return E_FULL;
    }
    lay_out(h);
    *out = h;
    return 0;
}

void heads_close(struct heads *h)
{
    if (!h)
        return;
    h->w->ops->release(h->device, h->slab);
    mem_free(h);
}

size_t heads_bytes(const struct heads *h)
{
    return h->bytes;
}

/* ---- the step */

static struct act row_of(struct act a, int row)
{
    a.data = (float *)a.data + (size_t)row * (size_t)a.ld;
    return a;
}

/* Goes on through the rows up to `end` that count. Returns the last of them as a logit row of the step, or -1: there is
 * no new one. */
static int follow(struct heads_ask *a, const struct sample_result *results, int end)
{
    int last = -1;
    while (!a->ready && a->first + 1 + a->at < end) {
        last = a->first + 1 + a->at;
        int next = drafts_next(&a->drafts, a->at, results[last].token);
        a->ready = next < 0;
        a->at = a->ready ? a->at : next;
        a->made.right += !a->ready;
    }
    return last;
}

void heads_keep(struct heads *h, const struct heads_rows *r)
{
    const struct draft_ops *ops = h->w->ops->draft();
    if (!ops->well(h->device))
        return;
    for (int i = r->me, slot = 0; i < r->asks->n; i += r->n, slot++) {
        int row = follow(&r->asks->items[i], r->asks->results, r->first + r->rows);
        if (row >= r->first)
            ops->norm(h->device, row_of(r->hidden, row - r->first), r->out_norm, r->norm_eps, row_of(h->kept, slot), 1);
    }
}

/* Asks whose rows are multiplied together: n of them from kept row `row` on. */
struct bunch {
    struct heads_ask *asks[AT_ONCE];
    int n, row;
    int32_t ids[AT_ONCE];
    float shares[AT_ONCE];
};

static void multiply(const struct heads *h, const struct head *head, struct act x, bool first, int rows)
{
    const struct heads_weights *w = h->w;
    for (int g = 0; g < speculator_gates(&w->config); g++) {
        struct linear_args a = {.in = first && w->input_gain ? LINEAR_NORM : LINEAR_PLAIN,
                                .place = LINEAR_DRAFT,
                                .x = x,
                                .gain = w->input_gain,
                                .eps = eps,
                                .rows = rows,
                                .n_out = 1,
                                .out = {{{head->proj[g], 0, w->config.inner, 0, x.cols}, NULL, h->z[g]}}};
        w->ops->linear(h->device, &a);
    }
}

static void run_head(struct heads *h, int i, struct bunch *b)
{
    const struct heads_weights *w = h->w;
    const struct speculator_config *c = &w->config;
    const struct head *head = &w->heads[i];
    struct draft_cell_args cell = {.rows = b->n,
                                   .n = c->inner,
                                   .n_gates = speculator_gates(c),
                                   .ids = b->ids,
                                   .weight = speculator_emb_weight(c),
                                   .eps = eps,
                                   .norm = head->norm,
                                   .state_norm = head->state_norm,
                                   .c = h->c,
                                   .h = h->h};
    struct linear_args out = {.in = LINEAR_PLAIN,
                              .place = LINEAR_DRAFT,
                              .x = h->h,
                              .rows = b->n,
                              .n_out = 1,
                              .out = {{{head->out, 0, c->vocab, 0, c->inner}, NULL, h->logits}}};
    for (int g = 0; g < cell.n_gates; g++) {
        cell.z[g] = h->z[g];
        cell.tables[g] = head->tables[g];
        cell.types[g] = head->types[g];
    }
    multiply(h, head, i ? h->h : row_of(h->kept, b->row), i == 0, b->n);
    w->ops->draft()->cell(h->device, &cell);
    w->ops->linear(h->device, &out);
    w->ops->draft()->top(h->device, h->logits, c->vocab, b->n, b->ids, b->shares);
}

/* Who has no idea what comes says nothing more. */
static void note(struct bunch *b, int head)
{
    for (int k = 0; k < b->n; k++) {
        struct draft_made *m = &b->asks[k]->made;
        if (b->ids[k] >= 0 && m->n == head) {
            m->tokens[m->n] = b->ids[k];
            m->shares[m->n++] = b->shares[k];
        }
        b->ids[k] = b->ids[k] < 0 ? 0 : b->ids[k];
    }
}

static void guess(struct heads *h, const struct sample_result *results, struct bunch *b)
{
    const struct draft_ops *ops = h->w->ops->draft();
    if (!b->n || !ops->well(h->device))
        return;
    for (int k = 0; k < b->n; k++)
        b->ids[k] = results[b->asks[k]->first + 1 + b->asks[k]->at].token;
    memset(h->c.data, 0, (size_t)AT_ONCE * (size_t)h->c.ld * sizeof(float));
    for (int i = 0; i < h->w->config.n_used; i++) {
        run_head(h, i, b);
        if (!ops->well(h->device))
            return;
        note(b, i);
    }
}

void heads_guess(struct heads *h, struct heads_asks *asks, int me, int n)
{
    struct bunch b = {.n = 0};
    for (int i = me, slot = 0; i < asks->n; i += n, slot++) {
        struct heads_ask *a = &asks->items[i];
        if (!a->ready || a->passed)
            continue;
        a->passed = true;
        b.row = b.n ? b.row : slot;
        b.asks[b.n++] = a;
        if (b.n == AT_ONCE) {
            guess(h, asks->results, &b);
            b.n = 0;
        }
    }
    guess(h, asks->results, &b);
}
