/* The input arrays of a captured step. They lie at fixed addresses, in one of two pieces of pinned memory, from which
 * the step's first kernel fetches them into a mirror on the device; its sampling kernel writes the results into pinned
 * memory, too. So a step is one graph launch and no copy. Row i is sequence i, which decodes one token. Rows past the
 * batch's are padding: they write no cache, attend to nothing, and their samples are dropped. Owned by the device,
 * used by the rank's thread; graphs of all sizes share the arrays. Invariant: the arrays keep their addresses as long
 * as the device is open. */
#ifndef CUDA_FRAME_H
#define CUDA_FRAME_H

#include "kernels/cuda/fast.h"
#include "kernels/cuda/flash_plan.h"

struct device;
struct sampled;

struct frame {
    int most_rows, most_items; /* 0 rows: no graphs */
    char *host, *dev;          /* host: one of the two below, alternately: while one step runs, the next is filled in */
    char *hosts[FLIGHTS];
    struct frame_turn *turn; /* on the device */
    uint32_t last_turn;      /* of the step that was filled in last */
    size_t ids, feeds, positions, logit_rows, row_seq, seqs, inv_freq, params, cuts, counts, items,
        words;                                           /* where each begins */
    struct sample_out *results, *results_hosts[FLIGHTS]; /* [most_rows] */
    int32_t *fed; /* [most_rows] on the device: the tokens that the rows of the last graph sampled, at any member */
};

/* The properties of a graph that decide how the frame is filled. */
struct frame_shape {
    int rows; /* of the graph */
    int tokens_per_block, vocab;
    const struct flash_shape *flash; /* NULL: invariant attention */
    const struct sampled *sampled;   /* [n_sampled] the rows that this rank samples */
    int n_sampled;
};

/* Room for steps of up to most_rows rows; false, with the device's error, when there is none. */
bool frame_open(struct device *d, int most_rows);
void frame_close(struct device *d);
/* Sets the model's RoPE frequencies. False: there are more than there is room for. */
bool frame_set_angles(struct device *d, const struct rope *rope);
struct step_view frame_view(const struct frame *f, int rows);
/* Does the batch only decode, and do its lists fit? The answer is the same at all members of a group. */
bool frame_fits(const struct frame *f, const struct batch *b);
/* Fills the host's frame from the device's batch: the next launch takes it. False: no memory, with the device's error.
 */
bool frame_fill(struct device *d, const struct frame_shape *s);
/* What fetches the frame of a graph of so many rows. */
struct frame_job frame_fetch(const struct frame *f, int rows);
/* The most items that attention of so many rows is cut into; parts and slots likewise. */
void frame_plan(struct flash_plan *p, const struct flash_shape *s, int rows);

static inline const void *frame_at(const struct frame *f, size_t where)
{
    return f->dev + where;
}

#endif
