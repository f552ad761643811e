/* The end of an offline batch on ranks whose FFN weights are pooled: each rank decodes its sequences, of random lengths
 * from a fixed seed, until all have ended, while steps get smaller and the link does not. Three ways: every layer is
 * always fetched; every layer's rows always go to its owner; or each rank takes for each step what took less time so
 * far with as many sequences (to the power of two), after each way was tried twice. Printed: the whole batch, and its
 * last tenth, which begins when nine tenths of the tokens are there. Medians of rounds in which the ways take turns;
 * nothing is asserted. usage: drain_bench MODEL.gguf [--ranks 2] [--link-gbps 0] [--rounds 3] [--seqs 32] [--mean 48]
 */
#include <math.h>
#include <string.h>

#include "engine/base/rng.h"
#include "tests/rig/pool_rig.h"

enum { MOST_SEQS = 64, MOST_LENGTH = 192, SEQ_BLOCKS = MOST_LENGTH / 16, MOST_ROUNDS = 31, SIZES = 7, TRIES = 2 };
enum way { FETCH, SEND, MEASURED, WAYS };
static const char *const way_names[] = {"fetched only", "sent only", "by measured time"};

struct bench {
    struct pool_rig rig;
    struct pool_way way; /* the node */
    int rounds, seqs, mean;
    int lengths[NODE_RANKS][MOST_SEQS];
    int32_t blocks[MOST_SEQS][SEQ_BLOCKS]; /* the same on every rank */
    int total;                             /* tokens of the batch */
};

/* What steps of a size took one way and the other, as an average. */
struct seen {
    double ms[2]; /* by enum way */
    int n[2];
};

struct lane {
    struct bench *b;
    enum way way;
    int rank, n_steps;
    struct ffn_modes sends;
    struct seen seen[SIZES];
    int64_t ends[MOST_LENGTH]; /* of each step */
    int tokens[MOST_LENGTH], n_sent;
};

/* The batch of a step in which every sequence that goes on decodes its token at `at`. */
struct decode {
    int32_t ids[MOST_SEQS], positions[MOST_SEQS], rows[MOST_SEQS];
    struct batch_seq seqs[MOST_SEQS];
    struct sample_row samples[MOST_SEQS];
    struct sample_result results[MOST_SEQS];
    struct batch batch;
};

static void make_decode(const struct lane *l, int at, struct decode *d)
{
    int n = 0, vocab = model_config(l->b->rig.model)->vocab;
    for (int q = 0; q < l->b->seqs; q++) {
        if (l->b->lengths[l->rank][q] <= at)
            continue;
        d->ids[n] = (q * 37 + at * 11) % vocab;
        d->positions[n] = at;
        d->rows[n] = n;
        d->seqs[n] = (struct batch_seq){n, 1, at, l->b->blocks[q], NULL};
        d->samples[n] = (struct sample_row){.how = &pool_greedy, .given = -1, .n_top = -1};
        n++;
    }
    d->batch = (struct batch){.n_rows = n,
                              .ids = d->ids,
                              .positions = d->positions,
                              .n_seqs = n,
                              .seqs = d->seqs,
                              .n_logits = n,
                              .logit_rows = d->rows,
                              .samples = d->samples,
                              .results = d->results};
}

static enum way choose(const struct lane *l, const struct seen *s)
{
    if (l->way != MEASURED)
        return l->way;
    for (int k = 0; k < 2; k++)
        if (s->n[k] < TRIES)
            return (enum way)k;
    return s->ms[SEND] < s->ms[FETCH] ? SEND : FETCH;
}

static void note(struct seen *s, enum way way, double ms)
{
    s->ms[way] += (ms - s->ms[way]) / ++s->n[way];
}

static void run_lane(void *arg)
{
    struct lane *l = arg;
    static const struct ffn_modes fetches;
    struct decode d;
    for (make_decode(l, 0, &d); d.batch.n_rows; make_decode(l, l->n_steps, &d)) {
        struct seen *s = &l->seen[(int)log2(d.batch.n_rows)];
        enum way way = choose(l, s);
        int64_t t0 = pool_now();
        pool_step(&l->b->way, l->rank, &d.batch, way == SEND ? &l->sends : &fetches);
        l->ends[l->n_steps] = pool_now();
        l->tokens[l->n_steps] = d.batch.n_rows;
        note(s, way, (double)(l->ends[l->n_steps++] - t0) * 1e-6);
        l->n_sent += way == SEND;
    }
}

/* When so many tokens were there, on all ranks together. */
static int64_t time_of(const struct lane *lanes, int n_ranks, int tokens)
{
    int at[NODE_RANKS] = {0};
    for (;;) {
        int first = -1;
        for (int r = 0; r < n_ranks; r++)
            if (at[r] < lanes[r].n_steps && (first < 0 || lanes[r].ends[at[r]] < lanes[first].ends[at[first]]))
                first = r;
        tokens -= lanes[first].tokens[at[first]];
        if (tokens <= 0)
            return lanes[first].ends[at[first]];
        at[first]++;
    }
}

struct took {
    double all_ms, tail_ms;
    int steps, sent;
};

static struct took drain(struct bench *b, enum way way)
{
    static struct lane lanes[NODE_RANKS];
    struct took t = {0};
    memset(lanes, 0, sizeof lanes);
    for (int r = 0; r < b->rig.ranks; r++) {
        lanes[r].b = b;
        lanes[r].way = way;
        lanes[r].rank = r;
        ffn_set(&lanes[r].sends, 0, b->way.ffn.n_layers, FFN_CAS);
    }
    int64_t t0 = pool_now();
    pool_side_by_side(b->rig.ranks, run_lane, lanes, sizeof *lanes);
    int64_t end = time_of(lanes, b->rig.ranks, b->total);
    t.all_ms = (double)(end - t0) * 1e-6;
    t.tail_ms = (double)(end - time_of(lanes, b->rig.ranks, b->total - b->total / 10)) * 1e-6;
    for (int r = 0; r < b->rig.ranks; r++) {
        t.steps += lanes[r].n_steps;
        t.sent += lanes[r].n_sent;
    }
    return t;
}

static void run(struct bench *b)
{
    static double all[WAYS][MOST_ROUNDS], tail[WAYS][MOST_ROUNDS];
    struct took t[WAYS];
    for (int i = 0; i < b->rounds; i++)
        for (int w = 0; w < WAYS; w++) {
            t[w] = drain(b, (enum way)w);
            all[w][i] = t[w].all_ms;
            tail[w][i] = t[w].tail_ms;
        }
    double first[2] = {pool_median(all[FETCH], b->rounds), pool_median(tail[FETCH], b->rounds)};
    printf("%16s %10s %6s %13s %6s   steps that sent\n", "", "batch, s", "times", "last tenth, s", "times");
    for (int w = 0; w < WAYS; w++) {
        double whole = w ? pool_median(all[w], b->rounds) : first[0];
        double end = w ? pool_median(tail[w], b->rounds) : first[1];
        printf("%16s %10.2f %6.2f %13.2f %6.2f   %d of %d\n", way_names[w], whole * 1e-3, first[0] / whole, end * 1e-3,
               first[1] / end, t[w].sent, t[w].steps);
    }
}

/* Lengths with a long tail: exponential, and cut off. */
static void make_batch(struct bench *b)
{
    struct rng rng;
    rng_init(&rng, 7);
    for (int r = 0; r < b->rig.ranks; r++)
        for (int q = 0; q < b->seqs; q++) {
            double x = -log(1 - rng_unit(&rng)) * b->mean;
            b->lengths[r][q] = x < 1 ? 1 : x < MOST_LENGTH ? (int)x : MOST_LENGTH;
            b->total += b->lengths[r][q];
        }
    for (int q = 0; q < b->seqs; q++)
        for (int i = 0; i < SEQ_BLOCKS; i++)
            b->blocks[q][i] = q * SEQ_BLOCKS + i;
}

static bool set(struct bench *b, const char *name, const char *value)
{
    if (strcmp(name, "--ranks") == 0)
        b->rig.ranks = atoi(value);
    else if (strcmp(name, "--link-gbps") == 0)
        b->rig.link_gbps = atof(value);
    else if (strcmp(name, "--rounds") == 0)
        b->rounds = atoi(value);
    else if (strcmp(name, "--seqs") == 0)
        b->seqs = atoi(value);
    else if (strcmp(name, "--mean") == 0)
        b->mean = atoi(value);
    else
        return false;
    return true;
}

static bool read_args(struct bench *b, int argc, char **argv)
{
    for (int i = 2; i + 1 < argc; i += 2)
        if (!set(b, argv[i], argv[i + 1]))
            return false;
    return argc >= 2 && argc % 2 == 0 && b->rig.ranks >= 2 && b->rig.ranks <= NODE_RANKS && b->rounds >= 1 &&
           b->rounds <= MOST_ROUNDS && b->seqs >= 1 && b->seqs <= MOST_SEQS && b->mean >= 1 && b->mean <= MOST_LENGTH;
}

int main(int argc, char **argv)
{
    static struct bench b = {.rig = {.ranks = 2, .max_rows = MOST_SEQS}, .rounds = 3, .seqs = 32, .mean = 48};
    struct err e = {0};
    if (!read_args(&b, argc, argv)) {
        fprintf(stderr,
                "usage: drain_bench MODEL.gguf [--ranks 2..%d] [--link-gbps N] [--rounds 1..%d] [--seqs 1..%d] "
                "[--mean 1..%d]\n",
                NODE_RANKS, MOST_ROUNDS, MOST_SEQS, MOST_LENGTH);
        return 2;
    }
    if (model_open_gguf(&b.rig.model, argv[1], &e))
        pool_die(&e);
    make_batch(&b);
    b.rig.n_blocks = b.seqs * SEQ_BLOCKS;
    b.way = (struct pool_way){.name = "pooled", .slots = b.rig.ranks, .order = FFN_SHIFTED, .mode = FFN_WAS};
    pool_way_open(&b.rig, &b.way);
    printf(
        "%d ranks of one thread each, link %g GB/s; %d sequences of a rank, %d tokens in all; a step that fetches all "
        "copies %.1f MB; %d rounds\n",
        b.rig.ranks, b.rig.link_gbps, b.seqs, b.total, pool_fetch_bytes(&b.rig, &b.way) * 1e-6, b.rounds);
    run(&b);
    node_close(&b.way.node);
    model_close(b.rig.model);
    return 0;
}
