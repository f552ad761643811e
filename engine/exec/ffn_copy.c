#include "engine/exec/ffn_copy.h"

struct weight_shape ffn_matrix_shape(const struct model_config *c, int matrix, const struct weight *like)
{
    if (matrix == FFN_DOWN)
        return (struct weight_shape){like, c->hidden, c->intermediate};
    return (struct weight_shape){like, c->intermediate, c->hidden};
}

static struct wview window(const struct model_config *c, int matrix, const struct weight *w, struct span part)
{
    if (matrix == FFN_DOWN)
        return (struct wview){w, 0, c->hidden, part.first, part.n};
    return (struct wview){w, part.first, part.n, 0, c->hidden};
}

/* The next tile of equal runs: some whole ones, or a part of one that is longer than a tile. */
static size_t cut(const struct weight_runs *from, const struct weight_runs *to, size_t at, size_t tile,
                  struct pull *out)
{
    size_t run = at / from->bytes, within = at % from->bytes, left = (size_t)from->runs - run;
    size_t n = tile / from->bytes < left ? tile / from->bytes : left;
    bool part = within > 0 || n == 0;
    size_t bytes = !part ? from->bytes : from->bytes - within < tile ? from->bytes - within : tile;
    *out = (struct pull){.dst = (char *)out->dst + to->at + run * to->pitch + within,
                         .src = (const char *)out->src + from->at + run * from->pitch + within,
                         .bytes = bytes,
                         .dst_pitch = to->pitch,
                         .src_pitch = from->pitch,
                         .runs = part ? 1 : (int)n};
    return bytes * (size_t)out->runs;
}

/* Runs that lie one behind the other on both sides are one, so that tiles are as large as they may be. */
static void join(struct weight_runs *from, struct weight_runs *to)
{
    if (from->pitch != from->bytes || to->pitch != to->bytes)
        return;
    from->bytes = to->bytes = from->bytes * (size_t)from->runs;
    from->pitch = to->pitch = from->bytes;
    from->runs = to->runs = from->runs > 0;
}

bool ffn_copy_next(const struct ffn_shared *f, const struct ffn_want *want, struct ffn_copy *c, struct ffn_tile *out)
{
    const struct weight *source[FFN_MATRICES], *to = want->matrices[c->matrix];
    struct weight_runs here[WEIGHT_PLANES], there[WEIGHT_PLANES];
    out->owner = f->setup.owner[want->layer];
    weights_ffn(f->weights[out->owner], want->layer, source);
    const struct weight *from = source[c->matrix];
    int planes = want->part.n ? f->ops->weight_window(window(f->config, c->matrix, from, want->part), there) : 0;
    if (planes)
        f->ops->weight_window(window(f->config, c->matrix, to, want->part), here);
    for (; c->plane < planes; c->plane++, c->at = 0) {
        struct weight_runs *src = &there[c->plane], *dst = &here[c->plane];
        join(src, dst);
        if (c->at >= src->bytes * (size_t)src->runs)
            continue;
        out->pull = (struct pull){.dst = (void *)f->ops->weight_data(to), .src = f->ops->weight_data(from)};
        out->bytes = cut(src, dst, c->at, f->setup.tile_bytes, &out->pull);
        c->at += out->bytes;
        return true;
    }
    return false;
}
