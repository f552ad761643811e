/* What was predicted on this server of swaps from one policy to another (whatif/foretell.h), to be taken along when
 * exactly that swap is ordered: the same two texts, with the same params. The newest of a swap counts, for an hour, and
 * the last few are kept. A value of whoever keeps policies; front thread. Invariant: nothing that went wrong in its
 * simulation predicts anything. */
#ifndef SERVE_PREDICTIONS_H
#define SERVE_PREDICTIONS_H

#include "engine/base/err.h"
#include "engine/base/hash.h"
#include "engine/prediction.h"

enum { PREDICTIONS_KEPT = 16, PREDICTION_HOLDS_S = 3600 };

/* A policy as it decides. */
struct predicted_policy {
    const char *sha256;
    const char *params; /* those that were set, JSON; NULL or {}: none */
};

struct predictions {
    struct predicted_swap {
        struct sha256 key; /* of both policies */
        int64_t at_ns;     /* 0: none */
        struct prediction it;
    } kept[PREDICTIONS_KEPT];
};

/* it: is_made false where the simulation had problems; then an older one of the same swap does not count any more. */
void predictions_add(struct predictions *p, struct predicted_policy live, struct predicted_policy other,
                     const struct prediction *it, int64_t now_ns);
/* E_NOTFOUND: nothing was predicted of this swap, or too long ago, and *out is untouched; e says what to do. */
int predictions_find(const struct predictions *p, struct predicted_policy live, struct predicted_policy other,
                     int64_t now_ns, struct prediction *out, struct err *e);

#endif
