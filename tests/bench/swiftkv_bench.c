/* Prefill of a SwiftKV model beside the ordinary model of the same sizes (seeded random weights), one rank on the CPU:
 * rounds in alternation, each a prompt from an empty cache in steps of 1024 rows whose last row gives a token. Prints
 * the median of the ratios of single rounds beside the ratio of floating-point operations, which are counted op by op
 * in the same runs. Where others use the machine, too, the time of its cores is to be looked at, with one thread.
 *   swiftkv_bench [TOKENS] [ROUNDS] [THREADS] [SHAPE, from 0] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/exec/weights.h"
#include "models/forward/forward.h"

enum { MAX_ROWS = 1024, MAX_TOKENS = 16384, MAX_ROUNDS = 64, BLOCK = 16 };

struct shape {
    const char *name;
    int layers, kv_layers, hidden, heads, kv_heads, dim, ffn, vocab;
    enum dtype type;
};
static const struct shape shapes[] = {
    {"SmolLM2-135M's sizes, Q4_1, 15 of 30 layers", 30, 15, 576, 9, 3, 64, 1536, 49152, DT_Q4_1},
    {"SmolLM2-135M's sizes, BF16, 15 of 30 layers", 30, 15, 576, 9, 3, 64, 1536, 49152, DT_BF16},
    {"four layers of Llama-3.2-1B's sizes, Q8_0, 2 of them", 4, 2, 2048, 32, 8, 64, 8192, 32768, DT_Q8_0},
};

/* What the ops were given; one rank, one thread that calls them. */
static double flops;
static const struct batch_seq *seqs;
static int n_seqs;

static int count_begin(struct device *d, const struct batch *b, const struct rope *rope, struct err *e)
{
    seqs = b->seqs;
    n_seqs = b->n_seqs;
    return backend_cpu()->begin(d, b, rope, e);
}

static void count_begin_part(struct device *d, const struct batch_part *p)
{
    seqs = p->seqs;
    n_seqs = p->n_seqs;
    backend_cpu()->begin_part(d, p);
}

static void count_linear(struct device *d, const struct linear_args *a)
{
    for (int i = 0; i < a->n_out; i++)
        flops += 2.0 * a->rows * a->out[i].w.rows * a->out[i].w.cols;
    backend_cpu()->linear(d, a);
}

static void count_attention(struct device *d, const struct attention_args *a)
{
    for (int s = 0; s < n_seqs; s++)
        flops += 4.0 * seqs[s].n_rows * (seqs[s].pos0 + 0.5 * (seqs[s].n_rows + 1)) * a->n_heads * a->kv.head_dim;
    backend_cpu()->attention(d, a);
}

struct bench {
    struct backend_ops ops;
    struct model *model;
    struct device *device;
    struct weights *weights;
    struct forward forward;
    struct forward_member site;
    struct kv_space kv;
    int32_t blocks[MAX_TOKENS / BLOCK], ids[MAX_ROWS], positions[MAX_ROWS];
};

static int open_model(struct bench *b, const struct shape *s, int kv_layers, struct err *e)
{
    char config[700];
    snprintf(config, sizeof config,
             "{\"architectures\":[\"LlamaSwiftKVForCausalLM\"],\"num_hidden_layers\":%d,\"num_key_value_layers\":%d,"
             "\"hidden_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,"
             "\"intermediate_size\":%d,\"vocab_size\":%d,\"max_position_embeddings\":%d,\"tie_word_embeddings\":true}",
             s->layers, kv_layers, s->hidden, s->heads, s->kv_heads, s->dim, s->ffn, s->vocab, MAX_TOKENS);
    return model_open_described(&b->model, config, s->type, e);
}

static int open_bench(struct bench *b, const struct shape *s, int kv_layers, int threads, struct err *e)
{
    const struct device_opts o = {.n_threads = threads, .max_rows = MAX_ROWS, .max_logits = 8};
    b->ops = *backend_cpu();
    b->ops.begin = count_begin;
    b->ops.begin_part = count_begin_part;
    b->ops.linear = count_linear;
    b->ops.attention = count_attention;
    TRY(open_model(b, s, kv_layers, e));
    TRY(b->ops.open(&b->device, &o, e));
    TRY(weights_load(&b->weights,
                     &(struct weights_setup){.model = b->model, .ops = &b->ops, .device = b->device, .n_ranks = 1}, e));
    b->kv = (struct kv_space){.block_bytes = b->ops.kv_block_bytes(DT_F16, BLOCK, s->kv_heads, s->dim),
                              .n_blocks = MAX_TOKENS / BLOCK,
                              .n_layers = s->layers,
                              .dtype = DT_F16};
    b->kv.base = b->ops.alloc(b->device, b->kv.block_bytes * (size_t)b->kv.n_blocks * (size_t)s->layers);
    if (!b->kv.base)
        return err_set(e, E_FULL, "no memory for the KV cache");
    for (int i = 0; i < MAX_TOKENS / BLOCK; i++)
        b->blocks[i] = i;
    b->forward = (struct forward){.ops = &b->ops, .device = b->device, .config = model_config(b->model), .kv = &b->kv};
    b->site = (struct forward_member){.weights = weights_view(b->weights, (struct layout){1, 1, 1}, 0),
                                      .tokens_per_block = BLOCK};
    return forward_init(&b->forward, MAX_ROWS, 8, 1, e);
}

static void close_bench(struct bench *b)
{
    forward_free(&b->forward);
    if (b->kv.base)
        b->ops.release(b->device, b->kv.base);
    weights_free(b->weights);
    if (b->device)
        b->ops.close(b->device);
    model_close(b->model);
    mem_free(b);
}

struct spent {
    double wall, cores, work; /* seconds, seconds of cores, operations */
};

static int prefill(struct bench *b, int n, struct spent *out, struct err *e)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1};
    struct clock c;
    clock_init_real(&c);
    int64_t begun = clock_now(&c);
    clock_t cores = clock();
    flops = 0;
    for (int at = 0; at < n; at += MAX_ROWS) {
        int rows = n - at < MAX_ROWS ? n - at : MAX_ROWS;
        int32_t last = rows - 1;
        for (int i = 0; i < rows; i++) {
            b->ids[i] = (at + i) * 7919 % model_config(b->model)->vocab;
            b->positions[i] = at + i;
        }
        struct batch_seq seq = {.n_rows = rows, .pos0 = at, .blocks = b->blocks};
        struct sample_row how = {.how = &greedy, .given = -1, .n_top = -1};
        struct sample_result result;
        struct batch batch = {.n_rows = rows,
                              .ids = b->ids,
                              .positions = b->positions,
                              .n_seqs = 1,
                              .seqs = &seq,
                              .n_logits = at + rows == n,
                              .logit_rows = &last,
                              .samples = &how,
                              .results = &result};
        TRY(forward_run(&b->forward, &b->site, &batch, NULL, e));
    }
    *out = (struct spent){(double)(clock_now(&c) - begun) * 1e-9, (double)(clock() - cores) / CLOCKS_PER_SEC, flops};
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median, least and most, of the ratios of rounds. */
static void print_ratios(const char *what, double *ratios, int n, double fewer)
{
    qsort(ratios, (size_t)n, sizeof *ratios, by_value);
    printf("  %s: %.3f times as fast (%.3f to %.3f), %.3f of the ratio of operations\n", what, ratios[n / 2], ratios[0],
           ratios[n - 1], ratios[n / 2] / fewer);
}

static int compare(const struct shape *s, int tokens, int rounds, int threads, struct err *e)
{
    struct bench *all = mem_new(sizeof *all), *part = mem_new(sizeof *part);
    struct spent t[2][MAX_ROUNDS];
    double wall[MAX_ROUNDS], cores[MAX_ROUNDS];
    int rc = open_bench(all, s, s->layers, threads, e);
    rc = rc ? rc : open_bench(part, s, s->kv_layers, threads, e);
    for (int i = -1; i < rounds && !rc; i++) /* the first warms up */
        for (int k = 0; k < 2 && !rc; k++) {
            int which = (i + k) & 1;
            rc = prefill(which ? part : all, tokens, &t[which][i < 0 ? 0 : i], e);
        }
    close_bench(all);
    close_bench(part);
    if (rc)
        return rc;
    double fewer = t[0][0].work / t[1][0].work, of_cores = 0, of_cores_part = 0;
    for (int i = 0; i < rounds; i++) {
        wall[i] = t[0][i].wall / t[1][i].wall;
        cores[i] = t[0][i].cores / t[1][i].cores;
        of_cores += t[0][i].cores / rounds;
        of_cores_part += t[1][i].cores / rounds;
    }
    printf("%s, %d tokens, %d threads: ordinary %.1f GFLOP, %.2f s of cores; SwiftKV %.1f GFLOP, %.2f s; ratio %.3f\n",
           s->name, tokens, threads, t[0][0].work * 1e-9, of_cores, t[1][0].work * 1e-9, of_cores_part, fewer);
    print_ratios("by the clock", wall, rounds, fewer);
    print_ratios("by time of cores", cores, rounds, fewer);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv)
{
    int tokens = argc > 1 ? atoi(argv[1]) : 4096, rounds = argc > 2 ? atoi(argv[2]) : 7,
        threads = argc > 3 ? atoi(argv[3]) : 2, only = argc > 4 ? atoi(argv[4]) : -1;
    struct err e = {0};
    if (tokens < 1 || tokens > MAX_TOKENS || rounds < 1 || rounds > MAX_ROUNDS || threads < 1) {
        fprintf(stderr, "usage: swiftkv_bench [TOKENS to %d] [ROUNDS to %d] [THREADS] [SHAPE]\n", MAX_TOKENS,
                MAX_ROUNDS);
        return 2;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if ((only < 0 || only == (int)i) && compare(&shapes[i], tokens, rounds, threads, &e)) {
            fprintf(stderr, "swiftkv_bench: %s\n", e.text);
            return 1;
        }
    return 0;
}
