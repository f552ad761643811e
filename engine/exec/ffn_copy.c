#include "engine/exec/ffn_copy.h"

#include "engine/base/check.h"

static bool piece(const struct ffn_shared *f, int layer, const struct ffn_copy *c, struct ffn_piece *out)
{
    struct ffn_hold hold = {layer, c->share, ffn_shares(&f->setup, layer)};
    const struct weights *w = f->weights[ffn_owner(&f->setup, layer, c->share)];
    return weights_piece(w, &hold, (enum ffn_matrix)c->matrix, c->piece, out);
}

struct weight_shape ffn_copy_shape(const struct ffn_shared *f, int layer, int matrix)
{
    struct ffn_piece like = {0};
    bool any = piece(f, layer, &(struct ffn_copy){.matrix = matrix}, &like);
    ASSERT(any && like.w);
    if (matrix == FFN_DOWN)
        return (struct weight_shape){like.w, f->config->hidden, f->config->intermediate};
    return (struct weight_shape){like.w, f->config->intermediate, f->config->hidden};
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

static struct span overlap(struct span a, struct span b)
{
    int first = a.first > b.first ? a.first : b.first,
        end = a.first + a.n < b.first + b.n ? a.first + a.n : b.first + b.n;
    return (struct span){first, end > first ? end - first : 0};
}

/* The next tile of what one piece has of the part. */
static bool next_of_piece(const struct ffn_shared *f, const struct ffn_want *want, const struct ffn_piece *from,
                          struct ffn_copy *c, struct ffn_tile *out)
{
    struct span both = overlap(from->part, want->part), there = {both.first - from->part.first, both.n};
    const struct weight *to = want->matrices[c->matrix];
    struct weight_runs src[WEIGHT_PLANES], dst[WEIGHT_PLANES];
    int planes = both.n ? f->ops->weight_window(window(f->config, c->matrix, from->w, there), src) : 0;
    if (planes)
        f->ops->weight_window(window(f->config, c->matrix, to, both), dst);
    for (; c->plane < planes; c->plane++, c->at = 0) {
        join(&src[c->plane], &dst[c->plane]);
        if (c->at >= src[c->plane].bytes * (size_t)src[c->plane].runs)
            continue;
        out->pull = (struct pull){.dst = (void *)f->ops->weight_data(to), .src = f->ops->weight_data(from->w)};
        out->bytes = cut(&src[c->plane], &dst[c->plane], c->at, f->setup.tile_bytes, &out->pull);
        c->at += out->bytes;
        return true;
    }
    return false;
}

bool ffn_copy_next(const struct ffn_shared *f, const struct ffn_want *want, struct ffn_copy *c, struct ffn_tile *out)
{
    for (; c->share < ffn_shares(&f->setup, want->layer); c->share++, c->piece = 0) {
        struct ffn_piece from;
        out->owner = ffn_owner(&f->setup, want->layer, c->share);
        for (; piece(f, want->layer, c, &from); c->piece++, c->plane = 0)
            if (next_of_piece(f, want, &from, c, out))
                return true;
    }
    return false;
}
