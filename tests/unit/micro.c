/* Micro-batches have all rows and results of a batch, in order, each once, with their sequences cut at the right place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/exec/micro.h"

enum { ROWS = 70, SEQS = 12 };

struct made {
    int32_t ids[ROWS], positions[ROWS], logit_rows[2 * ROWS], blocks[SEQS][4];
    struct batch_seq seqs[SEQS];
    struct sample_row samples[2 * ROWS];
    struct sample_result results[2 * ROWS];
    struct batch batch;
};

static void make(struct made *m, struct rng *rng)
{
    int n_seqs = 1 + (int)rng_below(rng, SEQS), row = 0, logits = 0;
    for (int i = 0; i < n_seqs; i++) {
        int n = 1 + (int)rng_below(rng, rng_below(rng, 2) ? 1 : ROWS / SEQS), pos = (int)rng_below(rng, 100);
        m->seqs[i] = (struct batch_seq){row, n, pos, m->blocks[i], NULL};
        for (int k = 0; k < n; k++, row++) {
            m->ids[row] = (int32_t)rng_below(rng, 1000);
            m->positions[row] = pos + k;
            for (int r = (int)rng_below(rng, 3); r > 0; r--)
                m->logit_rows[logits++] = row; /* none, one or two of a row */
        }
    }
    m->batch = (struct batch){.n_rows = row,
                              .ids = m->ids,
                              .positions = m->positions,
                              .n_seqs = n_seqs,
                              .seqs = m->seqs,
                              .n_logits = logits,
                              .logit_rows = m->logit_rows,
                              .samples = m->samples,
                              .results = m->results};
}

static void check_rows(const struct batch *whole, const struct batch *m, int row)
{
    for (int s = 0, at = 0; s < m->n_seqs; s++) {
        const struct batch_seq *q = &m->seqs[s], *of = whole->seqs;
        while (row + at >= of->row0 + of->n_rows)
            of++;
        assert_int_equal(q->row0, at);
        assert_ptr_equal(q->blocks, of->blocks);
        assert_int_equal(q->pos0, of->pos0 + row + at - of->row0);
        assert_true(q->n_rows >= 1);
        for (int i = 0; i < q->n_rows; i++, at++) {
            assert_int_equal(m->ids[at], whole->ids[row + at]);
            assert_int_equal(m->positions[at], q->pos0 + i);
            assert_true(row + at < of->row0 + of->n_rows);
        }
        assert_true(s < m->n_seqs - 1 || at == m->n_rows);
    }
}

static void all_rows_once_and_in_order(void **state)
{
    (void)state;
    static struct made made;
    struct rng rng;
    rng_init(&rng, 7);
    for (int k = 0; k < 2000; k++) {
        struct arena a;
        arena_init(&a);
        make(&made, &rng);
        const struct batch *whole = &made.batch;
        int n = 1 + (int)rng_below(&rng, (uint64_t)whole->n_rows), row = 0, logit = 0;
        const struct batch *m = micro_split(&a, whole, n);
        for (int i = 0; i < n; i++) {
            assert_in_range(m[i].n_rows, whole->n_rows / n, (whole->n_rows + n - 1) / n);
            check_rows(whole, &m[i], row);
            assert_ptr_equal(m[i].results, whole->results + logit);
            assert_ptr_equal(m[i].samples, whole->samples + logit);
            for (int l = 0; l < m[i].n_logits; l++, logit++)
                assert_int_equal(row + m[i].logit_rows[l], whole->logit_rows[logit]);
            row += m[i].n_rows;
        }
        assert_int_equal(row, whole->n_rows);
        assert_int_equal(logit, whole->n_logits);
        arena_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_rows_once_and_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
