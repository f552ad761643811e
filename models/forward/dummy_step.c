#include "models/forward/dummy_step.h"

#include "engine/base/mem.h"

void dummy_step_init(struct dummy_step *s, const struct sampling *how, int rows)
{
    size_t n = (size_t)rows;
    *s = (struct dummy_step){.numbers = mem_new_array(n, sizeof(int32_t)),
                             .zeros = mem_new_array(n, sizeof(int32_t)),
                             .seqs = mem_new_array(n, sizeof *s->seqs),
                             .samples = mem_new_array(n, sizeof *s->samples)};
    for (int i = 0; i < rows; i++) {
        s->numbers[i] = i;
        s->seqs[i] = (struct batch_seq){.row0 = i, .n_rows = 1, .blocks = s->zeros};
        s->samples[i] = (struct sample_row){.how = how, .given = -1, .n_top = -1};
    }
    s->batch = (struct batch){.n_rows = rows,
                              .ids = s->zeros,
                              .positions = s->zeros,
                              .n_seqs = rows,
                              .seqs = s->seqs,
                              .n_logits = rows,
                              .logit_rows = s->numbers,
                              .samples = s->samples};
}

void dummy_step_free(struct dummy_step *s)
{
    mem_free(s->numbers);
    mem_free(s->zeros);
    mem_free(s->seqs);
    mem_free(s->samples);
}

void dummy_step_to_prompt(struct dummy_step *s, int max_logits)
{
    struct batch *b = &s->batch;
    int skip = b->n_rows > max_logits ? b->n_rows - max_logits : 0;
    b->positions = s->numbers;
    b->n_seqs = 1;
    s->seqs[0] = (struct batch_seq){.n_rows = b->n_rows, .blocks = s->numbers};
    b->logit_rows += skip;
    b->n_logits -= skip;
    b->results = mem_new_array((size_t)b->n_logits, sizeof *b->results);
}
