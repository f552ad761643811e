#include "kernels/sim/stages.h"

/* Sequences that are cut in two count in both. */
struct step_size stages_micro_batch(const struct step_size *s, int n, int i)
{
    if (n == 1)
        return *s;
    struct step_size part = *s;
    int decodes = s->n_seqs - s->n_chunks, mine = stages_share(decodes, n, i), chunks = (s->n_chunks + n - 1) / n;
    part.rows = stages_share(s->rows, n, i);
    part.chunk_rows = part.rows - mine;
    part.n_chunks = chunks < part.chunk_rows ? chunks : part.chunk_rows;
    part.n_seqs = mine + part.n_chunks;
    part.n_logits = stages_share(s->n_logits, n, i);
    part.chunk_looked_at = s->chunk_rows ? s->chunk_looked_at * part.chunk_rows / s->chunk_rows : 0;
    part.looked_at = part.chunk_looked_at;
    if (decodes)
        part.looked_at += (s->looked_at - s->chunk_looked_at) * mine / decodes;
    part.n_micro = 1;
    return part;
}
