/* The encoder at a pipe, for the oracle and the benchmark in Python.
 *   encode_vectors MODEL DEVICE THREADS MAX_ROWS
 * stdin: calls, each u32 count of sequences, then for each sequence i32 n, i32 n_first and its ids. stdout: the vectors
 * of a call, f32. Count 0xFFFFFFFF: a time: f64 seconds, u32 count and sequences follow; stdout: f64 seconds of the
 * fastest run of the call within that time, and f64 CPU seconds, all threads, of the run that took the fewest. The
 * facts are a line on standard error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "models/encode/encoder.h"

enum { TIMED = -1 };

struct call {
    struct encoder_seq *seqs;
    int32_t *ids;
    float *vectors;
    int n;
};

static bool get(void *p, size_t size, size_t n)
{
    return fread(p, size, n, stdin) == n;
}

static bool read_call(struct call *c, int n, int dim)
{
    size_t cap = 0, len = 0;
    *c = (struct call){.n = n, .seqs = mem_new_array((size_t)n, sizeof *c->seqs)};
    c->vectors = mem_new_array((size_t)n * (size_t)dim, sizeof *c->vectors);
    for (int i = 0; i < n; i++) {
        struct encoder_seq *s = &c->seqs[i];
        if (!get(&s->n, 4, 1) || !get(&s->n_first, 4, 1) || s->n < 0)
            return false;
        while (cap < len + (size_t)s->n)
            c->ids = mem_resize(c->ids, cap = cap * 2 + 1024, sizeof *c->ids);
        if (!get(c->ids + len, 4, (size_t)s->n))
            return false;
        len += (size_t)s->n;
        s->out = c->vectors + (size_t)i * (size_t)dim;
    }
    len = 0;
    for (int i = 0; i < n; i++) {
        c->seqs[i].ids = c->ids + len;
        len += (size_t)c->seqs[i].n;
    }
    return true;
}

static void free_call(struct call *c)
{
    mem_free(c->seqs);
    mem_free(c->ids);
    mem_free(c->vectors);
}

static int time_call(struct encoder_replica *r, const struct call *c, double seconds, struct err *e)
{
    struct clock real;
    clock_init_real(&real);
    int64_t begin = clock_now(&real), now;
    double of[2] = {1e9, 1e9};
    do {
        int64_t start = clock_now(&real);
        clock_t spent = clock();
        TRY(encoder_replica_run(r, c->seqs, c->n, e));
        now = clock_now(&real);
        of[0] = (double)(now - start) * 1e-9 < of[0] ? (double)(now - start) * 1e-9 : of[0];
        spent = clock() - spent;
        of[1] = (double)spent / CLOCKS_PER_SEC < of[1] ? (double)spent / CLOCKS_PER_SEC : of[1];
    } while ((double)(now - begin) * 1e-9 < seconds);
    fwrite(of, sizeof *of, 2, stdout);
    return 0;
}

static int serve(struct encoder_replica *r, int dim, struct err *e)
{
    int32_t n;
    while (get(&n, 4, 1)) {
        struct call c = {0};
        double seconds = 0;
        bool timed = n == TIMED;
        if ((timed && (!get(&seconds, 8, 1) || !get(&n, 4, 1))) || n < 0 || !read_call(&c, n, dim))
            return err_set(e, E_INPUT, "the input is cut");
        int rc = timed ? time_call(r, &c, seconds, e) : encoder_replica_run(r, c.seqs, c.n, e);
        if (!rc && !timed)
            fwrite(c.vectors, sizeof(float), (size_t)n * (size_t)dim, stdout);
        free_call(&c);
        TRY(rc);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct encoder *c = NULL;
    struct encoder_replica *r = NULL;
    if (argc != 5)
        return fprintf(stderr, "usage: %s MODEL cpu|sim THREADS MAX_ROWS\n", argv[0]), 2;
    int rc = encoder_open(&c, argv[1], argv[2], &e);
    if (!rc)
        rc = encoder_replica_new(&r, c, atoi(argv[3]), atoi(argv[4]), &e);
    if (!rc) {
        const struct encoder_facts *f = encoder_facts(c);
        fprintf(stderr, "%s: dim %d, max_tokens %d, n_labels %d, pooling %d, normalised %d\n", f->name, f->dim,
                f->max_tokens, f->n_labels, f->pooling, f->normalised);
        rc = serve(r, f->dim, &e);
    }
    if (rc)
        fprintf(stderr, "%s\n", e.text);
    encoder_replica_free(r);
    encoder_close(c);
    return rc ? 1 : 0;
}
