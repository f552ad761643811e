#include "engine/cuts.h"

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"

/* Tensor parallel over all ranks, or as wide as the model's heads allow. */
static struct layout widest(const struct heads *h, int n)
{
    for (int tp = n; tp > 1; tp--)
        if (n % tp == 0 && !layout_refusal(h, (struct layout){n / tp, tp, 1}))
            return (struct layout){n / tp, tp, 1};
    return (struct layout){n, 1, 1};
}

static struct layout start_of(const struct heads *h, const struct engine_setup *s)
{
    struct layout l = s->start;
    if (!l.sp && !l.tp)
        return l.pp > 1 ? (struct layout){1, s->n_ranks / l.pp > 0 ? s->n_ranks / l.pp : 1, l.pp}
                        : widest(h, s->n_ranks);
    return (struct layout){l.sp ? l.sp : 1, l.tp ? l.tp : 1, l.pp ? l.pp : 1};
}

int cuts_begin(struct node *n, const struct engine_setup *s, struct err *e)
{
    const struct model_config *c = model_config(s->model);
    struct heads h = shard_heads(c);
    const struct residency_facts *recorded = s->play ? s->play->facts->residency : NULL;
    struct layout l = recorded ? recorded->start : start_of(&h, s);
    int size = layout_size(l);
    if (!s->sharded)
        return 0;
    if (!s->ops->loads_beside)
        return err_set(e, E_UNSUPPORTED,
                       "--weights sharded is not offered with --device %s: its weights cannot be loaded beside its "
                       "steps; use --weights replicated",
                       s->ops->name);
    if (size > s->n_ranks || l.pp > c->n_layers || layout_refusal(&h, layout_of_stage(l)))
        return err_set(e, E_INPUT, "--weights sharded: sp %d, tp %d, pp %d cannot be the layout of %d ranks%s%s", l.sp,
                       l.tp, l.pp, s->n_ranks, layout_refusal(&h, layout_of_stage(l)) ? ": " : "",
                       layout_refusal(&h, layout_of_stage(l)) ? layout_refusal(&h, layout_of_stage(l)) : "");
    n->measured.start = l;
    for (int first = 0; first + size <= s->n_ranks; first += size)
        for (int i = 0; i < size; i++)
            n->cuts[first + i] = cut_of(l, i);
    return 0;
}

/* ---- sizes */

/* Bytes in memory for a byte as stored. */
static double ratio(const struct node *n, const struct engine_setup *s)
{
    const struct weights *w = rank_weights(n->ranks[0]);
    struct cut all = {.layout = {1, 1, 1}};
    struct layer_span here = cut_layers(&n->cuts[0], n->measured.n_layers);
    double stored = 0, loaded = (double)weights_layers_bytes(w);
    size_t described = rank_facts(n->ranks[0])->budget.layers;
    for (int l = 0; l < n->measured.n_layers; l++)
        if (described || (l >= here.first && l < here.first + here.n))
            stored += weights_cut_bytes(w, s->model, described ? &all : &n->cuts[0], l);
    return (described ? (double)described : loaded) / stored;
}

static void add_size(struct node *n, const struct engine_setup *s, struct layout l, double scale)
{
    struct residency_facts *f = &n->measured;
    for (int t = 0; t < l.tp; t++) {
        struct cut c = cut_of(l, t * l.sp);
        f->sizes = seen_resize(f->sizes, (size_t)f->n_sizes + 1, sizeof *f->sizes);
        struct cut_size *to = &f->sizes[f->n_sizes++];
        *to = (struct cut_size){c.layout.sp, l.tp, t, seen_new_array((size_t)f->n_layers, sizeof *to->layers)};
        for (int i = 0; i < f->n_layers; i++)
            to->layers[i] = (size_t)(weights_cut_bytes(rank_weights(n->ranks[0]), s->model, &c, i) * scale);
    }
}

/* The largest of a layout's. */
static size_t largest(const struct residency_facts *f, struct layout l)
{
    size_t most = 0;
    for (int i = 0; i < layout_size(l); i++) {
        struct cut c = cut_of(l, i);
        size_t bytes = residency_bytes(f, &c);
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Old and new at once, for the start and for what cuts the layers into as many parts as there are ranks in a group. */
static size_t usual_room(const struct residency_facts *f, const struct heads *h)
{
    size_t most = largest(f, f->start);
    int n = layout_size(f->start);
    for (int pp = 1; pp <= n && pp <= f->n_layers; pp++) {
        struct layout l = {1, n / pp, pp};
        size_t bytes = n % pp || layout_refusal(h, layout_of_stage(l)) ? 0 : largest(f, l);
        most = bytes > most ? bytes : most;
    }
    return 2 * most;
}

/* A machine that only says what things cost has loaded nothing: what its clock says would be another each time. */
static double load_rate(const struct node *n, const struct backend_ops *ops, size_t bytes)
{
    int64_t ns = n->load_ns;
    if (!ops->computes)
        ns = ops->host_copy_ns ? ops->host_copy_ns(rank_device(n->ranks[0]), bytes) : 0;
    return bytes ? (double)ns / (double)bytes : 0;
}

int cuts_measure(struct node *n, const struct engine_setup *s, struct err *e)
{
    struct residency_facts *f = &n->measured;
    struct heads h = shard_heads(model_config(s->model));
    if (!s->sharded)
        return 0;
    f->n_layers = model_config(s->model)->n_layers;
    double scale = ratio(n, s);
    for (int sp = 1; sp <= n->n_ranks; sp++)
        for (int tp = 1; sp * tp <= n->n_ranks; tp++)
            if (!layout_refusal(&h, (struct layout){sp, tp, 1}) && (tp > 1 || sp == 1))
                add_size(n, s, (struct layout){sp, tp, 1}, scale);
    f->load_ns_per_byte = load_rate(n, s->ops, residency_bytes(f, &n->cuts[0]));
    n->residency = f;
    size_t least = largest(f, f->start);
    f->room = s->shard_memory ? s->shard_memory : usual_room(f, &h);
    if (f->room < least)
        return err_set(
            e, E_FULL,
            "--shard-memory %zu: a rank of the layout to start with (sp %d, tp %d, pp %d) holds %zu bytes of "
            "the layers",
            f->room, f->start.sp, f->start.tp, f->start.pp, least);
    return 0;
}

void cuts_free(struct node *n)
{
    for (int i = 0; i < n->measured.n_sizes; i++)
        mem_free(n->measured.sizes[i].layers);
    mem_free(n->measured.sizes);
}
