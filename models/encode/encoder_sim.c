/* The encoder of the device "sim": no weights, no time; a vector is noise that its tokens alone decide. */
#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "models/encode/encoder_inner.h"

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void fill(const struct encoder_facts *facts, const struct encoder_seq *s)
{
    uint64_t h = mix((uint64_t)s->n << 32 | (uint32_t)s->n_first);
    double square = 0;
    for (int i = 0; i < s->n; i++)
        h = mix(h ^ (uint32_t)s->ids[i]);
    for (int i = 0; i < facts->dim; i++) {
        h += 0x9e3779b97f4a7c15u;
        s->out[i] = (float)((double)(mix(h) >> 40) / (1 << 24)); /* 0 to 1: a score */
        if (!facts->n_labels)
            s->out[i] = 2 * s->out[i] - 1;
        square += (double)s->out[i] * (double)s->out[i];
    }
    float scale = facts->normalised && square > 0 ? (float)(1 / sqrt(square)) : 1;
    for (int i = 0; i < facts->dim; i++)
        s->out[i] *= scale;
}

static int sim_run(struct encoder_replica *r, const struct encoder_seq *seqs, int n, struct err *e)
{
    (void)e;
    for (int i = 0; i < n; i++)
        fill(&r->encoder->facts, &seqs[i]);
    return 0;
}

static int sim_replica(struct encoder_replica **out, const struct encoder *c, int n_threads, int max_rows,
                       struct err *e)
{
    (void)c, (void)n_threads, (void)max_rows, (void)e;
    *out = mem_new(sizeof **out);
    return 0;
}

static void sim_replica_free(struct encoder_replica *r)
{
    mem_free(r);
}

static void sim_close(struct encoder *c)
{
    mem_free(c);
}

int encoder_open_sim(struct encoder **out, const struct encoder_files *files, struct err *e)
{
    static const struct encoder_ops ops = {.close = sim_close,
                                           .tokenize = encoder_tokenize_pair,
                                           .replica_new = sim_replica,
                                           .replica_free = sim_replica_free,
                                           .replica_run = sim_run};
    (void)files, (void)e;
    *out = mem_new(sizeof **out);
    (*out)->ops = &ops;
    return 0;
}
