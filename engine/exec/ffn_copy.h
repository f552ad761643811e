/* Which bytes of a layer's FFN matrices go into a slot, and in what pieces: a rank of a layout with tp above 1
 * multiplies with its share of them, which is a window of rows of gate and up and one of columns of down. Pure
 * arithmetic over what the backend says of windows (kernels/backend.h); the fetcher calls it with its lock held.
 * Invariant: a slot is laid out like the whole matrices, so that a view into it is the same whatever part has come, and
 * the tiles of a matrix are the bytes of the part, each once. */
#ifndef EXEC_FFN_COPY_H
#define EXEC_FFN_COPY_H

#include "engine/exec/ffn_shared.h"

struct ffn_want {
    int layer;
    struct span part;                     /* of the intermediate features: rows of gate and up, columns of down */
    const struct weight *const *matrices; /* [FFN_MATRICES] where to: whole ones */
};

/* How far the copy of a matrix is. All 0: nothing has been copied. */
struct ffn_copy {
    int matrix, share, piece, plane; /* share: of the layer's owners */
    size_t at;                       /* bytes of the plane */
};

struct ffn_tile {
    struct pull pull;
    size_t bytes;
    int owner;
};

/* The tile that follows, and c moves behind it. False: the matrix is complete. */
bool ffn_copy_next(const struct ffn_shared *f, const struct ffn_want *want, struct ffn_copy *c, struct ffn_tile *out);
/* The whole matrix, as it will lie in a slot. */
struct weight_shape ffn_copy_shape(const struct ffn_shared *f, int layer, int matrix);
/* Is the one in the other? */
static inline bool span_covers(struct span all, struct span part)
{
    return part.n == 0 || (all.first <= part.first && all.first + all.n >= part.first + part.n);
}

#endif
