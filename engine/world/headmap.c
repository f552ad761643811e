#include "engine/world/headmap.h"

#include <stddef.h>

#include "engine/base/check.h"

/* Columns of a leaf of the fixed sums (kernels/backend.h): a tp share of the output projection has to end on one. */
enum { LEAF_COLUMNS = 64 };

static int first_head(int n_q, int n, int share)
{
    int each = n_q / n, more = n_q % n;
    return share * each + (share < more ? share : more);
}

struct head_span head_span(const struct heads *h, int n, int first, int count)
{
    ASSERT(n > 0 && first >= 0 && count > 0 && first + count <= n);
    int q0 = first_head(h->n_q, n, first), q1 = first_head(h->n_q, n, first + count);
    int per_kv = h->n_q / h->n_kv;
    if (q1 == q0) /* more shares than heads: layout_refusal says so */
        return (struct head_span){q0, 0, q0 / per_kv, 0};
    return (struct head_span){q0, q1 - q0, q0 / per_kv, (q1 - 1) / per_kv - q0 / per_kv + 1};
}

int head_max_kv(const struct heads *h, int n)
{
    int most = 0;
    for (int i = 0; i < n; i++) {
        int n_kv = head_span(h, n, i, 1).n_kv;
        most = n_kv > most ? n_kv : most;
    }
    return most;
}

void share_order(struct layout base, int *share_of)
{
    int width = base.sp * base.tp;
    for (int stage = 0; stage < base.pp; stage++)
        for (int s = 0; s < base.sp; s++)
            for (int t = 0; t < base.tp; t++)
                share_of[stage * width + s * base.tp + t] = stage * width + t * base.sp + s;
}

struct layer_span stage_layers(int n_layers, int pp, int stage)
{
    ASSERT(pp >= 1 && pp <= n_layers && stage >= 0 && stage < pp);
    int each = n_layers / pp, more = n_layers % pp;
    return (struct layer_span){stage * each + (stage < more ? stage : more), each + (stage < more)};
}

int stage_pieces(int n_layers, int pp)
{
    return n_layers / stage_layers(n_layers, pp, 0).n;
}

void row_slice(int n_rows, int sp, int s, int *row0, int *n)
{
    int each = (n_rows + sp - 1) / sp, end;
    *row0 = s * each < n_rows ? s * each : n_rows;
    end = *row0 + each < n_rows ? *row0 + each : n_rows;
    *n = end - *row0;
}

const char *layout_refusal(const struct heads *h, struct layout l)
{
    if (l.sp < 1 || l.tp < 1 || l.pp < 1)
        return "sp, tp and pp are at least 1";
    if (l.sp > MAX_RANKS || l.tp > MAX_RANKS || l.pp > MAX_RANKS || l.sp * l.tp * l.pp > MAX_RANKS)
        return "a group has at most 64 ranks";
    if (l.sp * l.tp > h->n_q)
        return "the model has fewer query heads than the group (or a stage of it) has ranks: use a smaller group";
    if (l.tp > 1 && h->head_dim % LEAF_COLUMNS)
        return "the heads of this model are no multiple of 64 wide, so tensor parallelism would change its sums: use "
               "tp = 1 (sp works)";
    return NULL;
}
