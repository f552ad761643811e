/* A step whose tokens do not matter, to warm a device up and to record graphs: `rows` sequences that decode one token
 * each, or a prompt of as many tokens. The caller's, from dummy_step_init to dummy_step_free; any thread. */
#ifndef MODELS_FORWARD_DUMMY_STEP_H
#define MODELS_FORWARD_DUMMY_STEP_H

#include "kernels/backend.h"

struct dummy_step {
    struct batch batch;
    int32_t *numbers, *zeros;
    struct batch_seq *seqs;
    struct sample_row *samples;
};

/* rows decodes, of the first block each; how: borrowed. */
void dummy_step_init(struct dummy_step *s, const struct sampling *how, int rows);
/* Makes the rows one prompt, of which the last max_logits rows want logits. The results are the caller's to free. */
void dummy_step_to_prompt(struct dummy_step *s, int max_logits);
void dummy_step_free(struct dummy_step *s);

#endif
