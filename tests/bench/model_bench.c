/* Our side of the model benchmark: loads a GGUF file, then obeys one command a line and answers each with one line. It
 * drives the forward through the backend, as a rank does, without queues or policies.
 *
 *   prefill N        a prompt of N tokens from an empty cache: seconds
 *   decode S D N     N steps of S sequences, each with D tokens in its cache: seconds
 *   verify R D N     N steps of R rows of one sequence with D tokens in its cache, each with logits, as a chain of
 *                    draft tokens is verified: seconds
 *   bandwidth        bytes per second that THREADS threads read from memory
 *
 *
 * usage: model_bench MODEL THREADS [ISA [high|fast [profile]]]
 *   profile  all steps by op, on standard error at the end; those that fill a cache are among them */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "engine/exec/weights.h"
#include "engine/profile_report.h"
#include "kernels/cpu/probe.h"
#include "models/forward/forward.h"

enum {
    MAX_ROWS = 1024,
    MAX_LOGITS = 64,
    MAX_SEQS = 16,
    SEQ_TOKENS = 4608,
    BLOCK = 16,
    SEQ_BLOCKS = SEQ_TOKENS / BLOCK
};
enum { PROBE_MIB = 512 };

struct bench {
    const struct backend_ops *ops;
    struct backend_ops watched;
    struct model *model;
    struct device *device;
    struct weights *weights;
    struct forward forward;
    struct forward_member site;
    struct kv_space kv;
    struct clock clock;
    int n_threads;
    int depth[MAX_SEQS]; /* tokens in the cache of each sequence */
    int32_t blocks[MAX_SEQS][SEQ_BLOCKS];
    int32_t ids[MAX_ROWS], positions[MAX_ROWS], logit_rows[MAX_LOGITS], last[MAX_SEQS];
    struct batch_seq seqs[MAX_SEQS];
    struct sample_row samples[MAX_LOGITS];
    struct sample_result results[MAX_LOGITS];
    struct sampling greedy;
    struct rng rng;
};

static void watch_ops(struct bench *b)
{
    b->watched = *b->ops;
    b->ops->watch(&b->watched);
    b->ops = &b->watched;
}

static void say_profile(struct bench *b)
{
    struct profile p = {0};
    struct buf table = {0};
    b->ops->add_profile(b->device, &p);
    profile_table(&p, &table);
    fprintf(stderr, "%s", table.data);
    buf_free(&table);
}

/* The words of the command line. */
static int open_bench(struct bench *b, int argc, char **argv, struct err *e)
{
    bool profile = argc > 5 && strcmp(argv[5], "profile") == 0;
    const struct device_opts o = {.n_threads = b->n_threads,
                                  .isa = argc > 3 ? argv[3] : "auto",
                                  .fast = argc > 4 && strcmp(argv[4], "fast") == 0,
                                  .max_rows = MAX_ROWS,
                                  .max_logits = MAX_LOGITS};
    b->ops = backend_cpu();
    if (profile)
        watch_ops(b);
    TRY(model_open_gguf(&b->model, argv[1], e));
    TRY(b->ops->open(&b->device, &o, e));
    if (profile)
        b->ops->probe(b->device);
    TRY(weights_load(&b->weights,
                     &(struct weights_setup){.model = b->model, .ops = b->ops, .device = b->device, .n_ranks = 1}, e));
    model_loaded(b->model);
    const struct model_config *c = model_config(b->model);
    enum dtype type = o.fast ? DT_BF16 : DT_F16; /* what --kv-cache-dtype auto is */
    b->kv = (struct kv_space){.block_bytes = b->ops->kv_block_bytes(type, BLOCK, c->n_kv_heads, c->head_dim),
                              .n_blocks = MAX_SEQS * SEQ_BLOCKS,
                              .n_layers = c->n_layers,
                              .dtype = type};
    b->kv.base = b->ops->alloc(b->device, b->kv.block_bytes * (size_t)b->kv.n_blocks * (size_t)c->n_layers);
    if (!b->kv.base)
        return err_set(e, E_FULL, "no memory for the KV cache");
    b->forward = (struct forward){.ops = b->ops, .device = b->device, .config = c, .kv = &b->kv};
    b->site = (struct forward_member){.weights = weights_view(b->weights, (struct layout){1, 1, 1}, 0),
                                      .tokens_per_block = BLOCK};
    for (int s = 0; s < MAX_SEQS; s++)
        for (int i = 0; i < SEQ_BLOCKS; i++)
            b->blocks[s][i] = s * SEQ_BLOCKS + i;
    b->greedy = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    return forward_init(&b->forward, MAX_ROWS, MAX_LOGITS, 1, e);
}

static int32_t any_token(struct bench *b)
{
    return (int32_t)rng_below(&b->rng, (uint64_t)model_config(b->model)->vocab);
}

/* Runs the step of b->seqs with these rows; each of b->logit_rows chooses a token. */
static int run_step(struct bench *b, int rows, int n_seqs, int n_logits, struct err *e)
{
    for (int i = 0; i < n_logits; i++)
        b->samples[i] = (struct sample_row){.how = &b->greedy, .given = -1, .n_top = -1};
    const struct batch batch = {.n_rows = rows,
                                .ids = b->ids,
                                .positions = b->positions,
                                .n_seqs = n_seqs,
                                .seqs = b->seqs,
                                .n_logits = n_logits,
                                .logit_rows = b->logit_rows,
                                .samples = b->samples,
                                .results = b->results};
    struct step_time t;
    return forward_run(&b->forward, &b->site, &batch, &t, e);
}

/* One step: n rows of each of the sequences first .. first+n_seqs-1; the last row of each chooses its next token. */
static int step(struct bench *b, int first, int n_seqs, int n, struct err *e)
{
    int rows = 0;
    for (int i = 0; i < n_seqs; i++) {
        int s = first + i;
        b->seqs[i] = (struct batch_seq){.row0 = rows, .n_rows = n, .pos0 = b->depth[s], .blocks = b->blocks[s]};
        for (int k = 0; k < n; k++, rows++) {
            b->ids[rows] = n == 1 ? b->last[s] : any_token(b);
            b->positions[rows] = b->depth[s] + k;
        }
        b->logit_rows[i] = rows - 1;
        b->depth[s] += n;
    }
    TRY(run_step(b, rows, n_seqs, n_seqs, e));
    for (int i = 0; i < n_seqs; i++)
        b->last[first + i] = b->results[i].token;
    return 0;
}

static double seconds(struct bench *b)
{
    return (double)clock_now(&b->clock) * 1e-9;
}

static int prefill(struct bench *b, int n, double *took, struct err *e)
{
    double t = seconds(b);
    b->depth[0] = 0;
    while (b->depth[0] < n)
        TRY(step(b, 0, 1, n - b->depth[0] < MAX_ROWS ? n - b->depth[0] : MAX_ROWS, e));
    *took = seconds(b) - t;
    return 0;
}

/* Sequence s with so many tokens in its cache. */
static int fill(struct bench *b, int s, int depth, struct err *e)
{
    if (b->depth[s] < depth) {
        b->depth[s] = 0;
        while (b->depth[s] < depth)
            TRY(step(b, s, 1, depth - b->depth[s] < MAX_ROWS ? depth - b->depth[s] : MAX_ROWS, e));
    }
    b->depth[s] = depth; /* what an earlier run wrote past it is written over */
    b->last[s] = any_token(b);
    return 0;
}

static int verify(struct bench *b, int rows, int depth, int n, double *took, struct err *e)
{
    TRY(fill(b, 0, depth, e));
    double t = seconds(b);
    for (int i = 0; i < n; i++) {
        b->seqs[0] = (struct batch_seq){.n_rows = rows, .pos0 = depth, .blocks = b->blocks[0]};
        for (int k = 0; k < rows; k++) {
            b->ids[k] = any_token(b);
            b->positions[k] = depth + k;
            b->logit_rows[k] = k;
        }
        TRY(run_step(b, rows, 1, rows, e));
    }
    *took = seconds(b) - t;
    return 0;
}

static int decode(struct bench *b, int n_seqs, int depth, int n, double *took, struct err *e)
{
    for (int s = 0; s < n_seqs; s++)
        TRY(fill(b, s, depth, e));
    double t = seconds(b);
    for (int i = 0; i < n; i++)
        TRY(step(b, 0, n_seqs, 1, e));
    *took = seconds(b) - t;
    return 0;
}

static int bandwidth(struct bench *b, double *bytes_s, struct err *e)
{
    struct pool *pool;
    struct probe *p;
    TRY(pool_open(&pool, b->n_threads, e));
    int rc = probe_open(&p, pool, "", PROBE_MIB, e);
    if (!rc)
        *bytes_s = probe_rate(p, PROBE_READ);
    if (!rc)
        probe_close(p);
    pool_close(pool);
    return rc;
}

static int obey(struct bench *b, const char *line, double *answer, struct err *e)
{
    int v[3] = {0};
    char verb[16] = "";
    int n = sscanf(line, "%15s %d %d %d", verb, &v[0], &v[1], &v[2]);
    if (n == 2 && !strcmp(verb, "prefill") && v[0] > 0 && v[0] <= SEQ_TOKENS)
        return prefill(b, v[0], answer, e);
    if (n == 4 && !strcmp(verb, "decode") && v[0] > 0 && v[0] <= MAX_SEQS && v[1] >= 0 && v[2] > 0 &&
        v[1] + v[2] <= SEQ_TOKENS)
        return decode(b, v[0], v[1], v[2], answer, e);
    if (n == 4 && !strcmp(verb, "verify") && v[0] > 0 && v[0] <= MAX_LOGITS && v[1] >= 0 && v[2] > 0 &&
        v[1] + v[0] <= SEQ_TOKENS)
        return verify(b, v[0], v[1], v[2], answer, e);
    if (n == 1 && !strcmp(verb, "bandwidth"))
        return bandwidth(b, answer, e);
    return err_set(e, E_INPUT, "what is '%.60s'?", line);
}

int main(int argc, char **argv)
{
    struct bench *b = mem_new(sizeof *b);
    struct err e = {0};
    char line[100];
    double answer = 0;
    if (argc < 3) {
        fprintf(stderr, "usage: model_bench MODEL THREADS [ISA [high|fast [profile]]]\n");
        return 2;
    }
    log_setup(&(struct log_opts){.level = LOG_WARN});
    clock_init_real(&b->clock);
    rng_init(&b->rng, 1);
    b->n_threads = atoi(argv[2]);
    if (b->n_threads < 1)
        b->n_threads = thread_cores();
    int rc = open_bench(b, argc, argv, &e);
    if (!rc) {
        struct device_facts f;
        b->ops->facts(b->device, &f);
        printf("ready %s\n", f.name);
        fflush(stdout);
    }
    while (!rc && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        rc = obey(b, line, &answer, &e);
        printf("%.9g\n", answer);
        fflush(stdout);
    }
    if (rc)
        fprintf(stderr, "model_bench: %s\n", e.text);
    else if (b->ops == &b->watched)
        say_profile(b);
    forward_free(&b->forward);
    if (b->kv.base)
        b->ops->release(b->device, b->kv.base);
    weights_free(b->weights);
    if (b->device)
        b->ops->close(b->device);
    model_close(b->model);
    mem_free(b);
    return rc ? 1 : 0;
}
