/* Whole models on the first GPU: decode and prefill steps through models/forward in the default mode, beside what the
 * same run measures of the GPU (probe.h). Weights and caches are random, every layer has its own memory and the bytes
 * of a real model lie there, so no cache answers for it; layers repeat each other's values, not their addresses. Ways
 * of products are tried first, as a server does when it starts.
 * Ratios: bytes that a step must read (weights, and the cache of its sequences) over the bandwidth of the reading
 * probe; operations that it must do over the rate of a large product. Prints goals of GPUs (G1 to G4, G8, part of G11)
 * as "G4 0.81 (goal 0.78) ...". Asserts nothing about time. usage: models_bench [--seconds S] [--dry]
 * [--profile] [--untuned] [--only MODEL] [--decodes] [--no-early-launch] [--tuning FOLDER]   (dry: small sizes, for the
 * emulator; profile: one step of one model between cudaProfilerStart and Stop; tuning: where ways are kept) */
#include <cuda_profiler_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "models/load/config.h"
#include "models/forward/forward.h"
#include "kernels/tuning.h"
#include "tests/bench/gpu/probe.h"

/* Reading is probed several times, and copying is its least: an H100 reads 2,570 GB/s or 3,050, by where the memory
 * lies, the same each time in some processes. */
enum {
    PROBE_READS = 4,
    BLOCK = 16,
    MAX_ROWS = 8192,
    MAX_SEQS = 64,
    STEPS = 15,
    WARM = 3,
    NOISE_MIB = 64,
    HOST8_SHIFTS = 1024
};

struct shape {
    const char *name, *arch;
    int layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied;
    enum dtype type; /* of the layers' matrices; tables are bf16 */
};

/* By importance: the run may be cut. */
static const struct shape shapes[] = {
    {"Llama-3.1-8B", "LlamaForCausalLM", 32, 4096, 32, 8, 128, 14336, 128256, false, DT_BF16},
    {"Llama-3.1-8B-fp8", "LlamaForCausalLM", 32, 4096, 32, 8, 128, 14336, 128256, false, DT_F8_SCALED},
    {"Qwen3-0.6B", "Qwen3ForCausalLM", 28, 1024, 16, 8, 128, 3072, 151936, true, DT_BF16},
    {"Qwen3-8B", "Qwen3ForCausalLM", 36, 4096, 32, 8, 128, 12288, 151936, false, DT_BF16},
    {"SmolLM2-135M", "LlamaForCausalLM", 30, 576, 9, 3, 64, 1536, 49152, true, DT_BF16},
    {"Qwen3-32B", "Qwen3ForCausalLM", 64, 5120, 64, 8, 128, 25600, 151936, false, DT_BF16},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* n sequences, rows new tokens of each, the last of which is at position length - 1. */
struct step_case {
    int n, rows, length;
};
static const struct step_case cases[] = {{1, 1, 1024},    {32, 1, 1024}, {64, 1, 1024}, {8, 1, 1024}, {1, 2048, 2048},
                                         {1, 8192, 8192}, {1, 1, 8192},  {32, 1, 8192}, {8, 1, 8192}, {64, 1, 8192}};
enum { N_CASES = sizeof cases / sizeof *cases };

/* What the goals are about; the worst of all cases that count. 0: not measured. */
struct verdicts {
    double small_decode, large_decode, fp8_decode, batched, prefill, prefill_of_best, fp8_prefill, load, recording;
};

struct bench {
    const struct backend_ops *ops;
    struct device *device;
    struct tuning *tuning; /* of the model's device */
    struct probe probe;
    struct clock clock;
    double read_gbs, copy_gbs, pinned_gbs, tflops, tflops8,
        deadline;       /* tflops: of a large product in bf16; in fp8 (0: there is none) */
    char *host, *host8; /* noise to load weights from; the same as blocks of fp8 */
    size_t host_bytes;
    struct verdicts v;
    bool dry, profile, untuned, decodes, no_early;
    int n_cases;
    const char *only, *folder; /* or NULL */
    size_t free_bytes;
};

struct subject {
    struct shape shape;
    struct model_config config;
    struct weight **loaded;
    int n_loaded;
    struct layer_weights *layers;
    struct wview *products; /* o and down of each layer */
    struct weight *embed, *head;
    float *ones;
    struct model_weights weights;
    struct forward forward;
    struct kv_space kv;
    double weight_bytes, products_per_row; /* read by a step; multiplied and added for each row, without the head */
    double load_s;
};

static void worst(double *of, double ratio)
{
    if (*of == 0 || ratio < *of)
        *of = ratio;
}

static void worst_of(double *of, double seconds)
{
    *of = seconds > *of ? seconds : *of;
}

static double now(const struct bench *b)
{
    return (double)clock_now(&b->clock) * 1e-9;
}

static void check(int rc, const struct err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "models_bench: %s\n", e->text);
    exit(1);
}

/* ---- models */

static struct shape scaled(struct shape s, bool dry)
{
    if (!dry)
        return s;
    s.layers = 2, s.hidden = s.hidden >= 1024 ? 128 : 64, s.heads = 4, s.kv_heads = 2, s.head_dim = 64, s.ffn = 192,
    s.vocab = 512;
    return s;
}

static int read_config(struct model_config *c, const struct shape *s, struct err *e)
{
    char text[700];
    int n = snprintf(text, sizeof text,
                     "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"hidden_act\":\"silu\",\"max_position_"
                     "embeddings\":32768,\"rms_norm_eps\":1e-5,"
                     "\"rope_theta\":500000.0,\"num_hidden_layers\":%d,\"hidden_size\":%d,\"num_attention_heads\":%d,"
                     "\"num_key_value_heads\":%d,\"head_"
                     "dim\":%d,"
                     "\"intermediate_size\":%d,\"vocab_size\":%d,\"tie_word_embeddings\":%s}",
                     s->arch, strncmp(s->arch, "Qwen3", 5) ? "llama" : "qwen3", s->layers, s->hidden, s->heads,
                     s->kv_heads, s->head_dim, s->ffn, s->vocab, s->tied ? "true" : "false");
    return config_from_hf(c, text, (size_t)n, e);
}

/* Host noise is made once and repeated; where a matrix begins in it differs. */
static void make_host(struct bench *b)
{
    size_t most = 0, first = b->dry ? 1 << 20 : (size_t)NOISE_MIB << 20;
    for (int i = 0; i < N_SHAPES; i++) {
        struct shape s = scaled(shapes[i], b->dry);
        size_t table = (size_t)s.vocab * (size_t)s.hidden * 2, ffn = (size_t)s.ffn * (size_t)s.hidden * 2;
        most = table > most ? table : most;
        most = ffn > most ? ffn : most;
    }
    b->host_bytes = most + first;
    b->host = mem_new(b->host_bytes);
    char *dev = NULL;
    probe_check(cudaMalloc((void **)&dev, first), "memory");
    probe_check(launch_noise(b->probe.stream, dev, first / 16, 5), "noise");
    probe_check(cudaMemcpyAsync(b->host, dev, first, cudaMemcpyDeviceToHost, b->probe.stream), "noise");
    probe_check(cudaStreamSynchronize(b->probe.stream), "noise");
    cudaFree(dev);
    for (size_t done = first; done < b->host_bytes; done += first)
        memcpy(b->host + done, b->host, b->host_bytes - done < first ? b->host_bytes - done : first);
}

/* Scales of 0.01, codes below 2: values like those of the bf16 noise. */
static void make_host8(struct bench *b)
{
    size_t most = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        struct shape s = scaled(shapes[i], b->dry);
        size_t ffn = (size_t)s.ffn * dtype_row_bytes(DT_F8_SCALED, s.hidden);
        if (s.type == DT_F8_SCALED && ffn > most)
            most = ffn;
    }
    size_t block = (size_t)dtype_get(DT_F8_SCALED)->bytes, n = most / block + HOST8_SHIFTS;
    const float scale = 0.01f;
    struct rng r;
    rng_init(&r, 8);
    b->host8 = mem_new(n * block);
    for (size_t i = 0; i < n; i++) {
        memcpy(b->host8 + i * block, &scale, sizeof scale);
        for (size_t k = sizeof scale; k < block; k += 4) {
            uint32_t codes = (uint32_t)rng_next(&r) & 0xbfbfbfbfu;
            memcpy(b->host8 + i * block + k, &codes, 4);
        }
    }
}

static struct weight *load(struct bench *b, struct subject *s, enum dtype type, int rows, int cols)
{
    struct err e = {0};
    size_t at = ((size_t)s->n_loaded * 4099 * 64) % ((size_t)1 << 20) / 2 * 2,
           at8 = (size_t)s->n_loaded * 37 % HOST8_SHIFTS;
    const char *from = type == DT_BF16 ? b->host + at : b->host8 + at8 * (size_t)dtype_get(type)->bytes;
    struct weight_src src = {type, rows, cols, .data = from,
                             .scales = F8_BY_ROW}; /* the scales of make_host8 are all the same */
    check(b->ops->weight_load(b->device, &s->loaded[s->n_loaded], &src, &e), &e);
    return s->loaded[s->n_loaded++];
}

static struct wview whole(struct weight *w, int rows, int cols)
{
    return (struct wview){w, 0, rows, 0, cols};
}

static void load_layer(struct bench *b, struct subject *s, int l)
{
    const struct shape *h = &s->shape;
    int q = h->heads * h->head_dim, kv = h->kv_heads * h->head_dim;
    bool norms = s->config.qk_norm;
    enum dtype t = h->type;
    s->products[2 * l] = whole(load(b, s, t, h->hidden, q), h->hidden, q);
    s->products[2 * l + 1] = whole(load(b, s, t, h->hidden, h->ffn), h->hidden, h->ffn);
    s->layers[l] = (struct layer_weights){.q = whole(load(b, s, t, q, h->hidden), q, h->hidden),
                                          .k = whole(load(b, s, t, kv, h->hidden), kv, h->hidden),
                                          .v = whole(load(b, s, t, kv, h->hidden), kv, h->hidden),
                                          .gate = whole(load(b, s, t, h->ffn, h->hidden), h->ffn, h->hidden),
                                          .up = whole(load(b, s, t, h->ffn, h->hidden), h->ffn, h->hidden),
                                          .o = &s->products[2 * l],
                                          .down = &s->products[2 * l + 1],
                                          .attn_norm = s->ones,
                                          .ffn_norm = s->ones,
                                          .q_norm = norms ? s->ones : NULL,
                                          .k_norm = norms ? s->ones : NULL};
}

/* Norms of one: few bytes, one copy of them for all layers. The upload waits for what is under way. */
static void upload_ones(struct bench *b, struct subject *s)
{
    int n = s->shape.hidden > s->shape.head_dim ? s->shape.hidden : s->shape.head_dim;
    float *host = mem_new_array((size_t)n, sizeof *host);
    struct err e = {E_FULL, "no memory for the norms"};
    for (int i = 0; i < n; i++)
        host[i] = 1;
    s->ones = s->ones ? s->ones : b->ops->alloc(b->device, (size_t)n * sizeof(float));
    check(s->ones ? b->ops->upload(b->device, s->ones, host, (size_t)n * sizeof(float)) : E_FULL, &e);
    mem_free(host);
}

static double sizes_of(struct subject *s)
{
    const struct shape *h = &s->shape;
    double q = (double)h->heads * h->head_dim, kv = (double)h->kv_heads * h->head_dim;
    s->products_per_row = h->layers * (double)h->hidden * (2 * q + 2 * kv + 3.0 * h->ffn);
    s->weight_bytes =
        (h->type == DT_BF16 ? 2 : 1) * s->products_per_row + 2.0 * h->vocab * h->hidden; /* scales of fp8 not counted */
    return s->weight_bytes * (h->type == DT_BF16 ? 1 : 1.07) + (h->tied ? 0 : 2.0 * h->vocab * h->hidden);
}

static double kv_bytes_per_token(const struct shape *h)
{
    return 4.0 * h->layers * h->kv_heads * h->head_dim;
}

/* False: there is no room for it. */
static bool open_subject(struct bench *b, struct subject *s, const struct shape *shape)
{
    struct err e = {0};
    *s = (struct subject){.shape = scaled(*shape, b->dry)};
    check(read_config(&s->config, &s->shape, &e), &e);
    double bytes = sizes_of(s);
    size_t scratch = forward_scratch_bytes(&s->config, b->dry ? 64 : MAX_ROWS, MAX_SEQS, 1, sizeof(float));
    if (bytes + (double)scratch + kv_bytes_per_token(&s->shape) * 2048 > (double)b->free_bytes) {
        printf("%s: %.0f GB do not fit on this GPU: not run\n", shape->name, bytes * 1e-9);
        return false;
    }
    s->loaded = mem_new_array((size_t)s->shape.layers * 7 + 2, sizeof(struct weight *));
    s->layers = mem_new_array((size_t)s->shape.layers, sizeof *s->layers);
    s->products = mem_new_array((size_t)s->shape.layers * 2, sizeof *s->products);
    upload_ones(b, s);
    double begun = now(b);
    s->embed = load(b, s, DT_BF16, s->shape.vocab, s->shape.hidden);
    for (int l = 0; l < s->shape.layers; l++)
        load_layer(b, s, l);
    s->head = s->shape.tied ? s->embed : load(b, s, DT_BF16, s->shape.vocab, s->shape.hidden);
    upload_ones(b, s);
    s->load_s = now(b) - begun;
    struct wview table = whole(s->embed, s->shape.vocab, s->shape.hidden),
                 head = whole(s->head, s->shape.vocab, s->shape.hidden);
    s->weights = (struct model_weights){.shard = shard_of(&s->config, (struct layout){1, 1, 1}, 0),
                                        .embed = table,
                                        .head = head,
                                        .out_norm = s->ones,
                                        .layers = s->layers,
                                        .n_o = 1,
                                        .n_down = 1};
    s->forward = (struct forward){.ops = b->ops, .device = b->device, .config = &s->config, .kv = &s->kv};
    check(forward_init(&s->forward, b->dry ? 64 : MAX_ROWS, MAX_SEQS, 1, &e), &e);
    double gbs = bytes / s->load_s * 1e-9;
    printf("%s: %.2f GB loaded in %.2f s, %.1f GB/s (%.2f of the link)\n", shape->name, bytes * 1e-9, s->load_s, gbs,
           gbs / b->pinned_gbs);
    if (b->v.load == 0)
        b->v.load = gbs / b->pinned_gbs;
    return true;
}

static void close_subject(struct bench *b, struct subject *s)
{
    if (s->forward.ops)
        forward_free(&s->forward);
    for (int i = 0; i < s->n_loaded; i++)
        b->ops->weight_free(b->device, s->loaded[i]);
    if (s->ones)
        b->ops->release(b->device, s->ones);
    mem_free(s->loaded);
    mem_free(s->layers);
    mem_free(s->products);
}

/* ---- steps */

static struct step_case shrunk(struct step_case c, bool dry)
{
    if (dry)
        c.n = c.n < 4 ? c.n : 4, c.length = c.length > 2048 ? 48 : 24, c.rows = c.rows > 1 ? c.length : 1;
    return c;
}

/* Of a step: from the end of one to the end of the next, as they follow each other; on the device. */
struct timing {
    double wall, device;
    bool graph;
};

struct feed {
    struct batch batch;
    struct batch_seq seqs[MAX_SEQS];
    struct sample_row samples[MAX_SEQS];
    struct sample_result results[MAX_SEQS];
    struct sampling greedy;
    int32_t *ids, *positions, *blocks, logit_rows[MAX_SEQS];
};

/* Blocks of a sequence lie apart, as they do in a cache that has been in use. */
static struct feed *feed_new(const struct step_case *c, int vocab)
{
    struct feed *f = mem_new(sizeof *f);
    int rows = c->n * c->rows, each = (c->length + BLOCK - 1) / BLOCK;
    f->ids = mem_new_array((size_t)rows, sizeof *f->ids);
    f->positions = mem_new_array((size_t)rows, sizeof *f->positions);
    f->blocks = mem_new_array((size_t)(each * c->n), sizeof *f->blocks);
    f->greedy = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    for (int s = 0; s < c->n; s++) {
        f->seqs[s] = (struct batch_seq){s * c->rows, c->rows, c->length - c->rows, f->blocks + s * each, NULL};
        for (int i = 0; i < each; i++)
            f->blocks[s * each + i] = i * c->n + s;
        for (int i = 0; i < c->rows; i++) {
            f->ids[s * c->rows + i] = (int32_t)(((int64_t)s * 7919 + (int64_t)i * 104729) % vocab);
            f->positions[s * c->rows + i] = c->length - c->rows + i;
        }
        f->logit_rows[s] = (s + 1) * c->rows - 1;
        f->samples[s] = (struct sample_row){.how = &f->greedy, .given = -1, .n_top = -1};
    }
    f->batch = (struct batch){.n_rows = rows,
                              .ids = f->ids,
                              .positions = f->positions,
                              .n_seqs = c->n,
                              .seqs = f->seqs,
                              .n_logits = c->n,
                              .logit_rows = f->logit_rows,
                              .samples = f->samples,
                              .results = f->results};
    return f;
}

static void feed_free(struct feed *f)
{
    mem_free(f->ids);
    mem_free(f->positions);
    mem_free(f->blocks);
    mem_free(f);
}

static void run_one(struct bench *b, struct subject *s, const struct forward_member *site, const struct batch *batch,
                    struct step_time *t)
{
    struct err e = {0};
    if (b->profile)
        cudaProfilerStart();
    check(forward_run(&s->forward, site, batch, t, &e), &e);
    if (b->profile)
        cudaProfilerStop();
}

/* Steps one by one. */
static struct timing time_single(struct bench *b, struct subject *s, const struct forward_member *site, struct feed *f,
                                 int steps)
{
    double wall[STEPS], device[STEPS];
    int warm = b->dry ? 1 : WARM;
    bool profile = b->profile;
    for (int i = -warm; i < steps; i++) {
        struct step_time t = {0};
        double begun = now(b);
        b->profile = profile && i == 0;
        run_one(b, s, site, &f->batch, &t);
        if (i >= 0)
            wall[i] = now(b) - begun, device[i] = (double)t.ns * 1e-9;
    }
    b->profile = profile;
    return (struct timing){median(wall, steps), median(device, steps), false};
}

/* Captured steps posted two deep, each fed by the one before it, as the engine runs decodes. */
static struct timing time_posted(struct bench *b, struct subject *s, const struct forward_member *site, struct feed *f,
                                 int steps)
{
    double wall[STEPS], device[STEPS], last = 0;
    struct err e = {0};
    bool posted;
    check(forward_post(&s->forward, site, &f->batch, &posted, &e), &e);
    for (int i = -1; i < steps && posted; i++) { /* the first warms up */
        struct step_time t = {0};
        f->batch.fed = true;
        if (i + 1 < steps)
            check(forward_post(&s->forward, site, &f->batch, &posted, &e), &e);
        check(forward_wait(&s->forward, site, &t, &e), &e);
        double ended = now(b);
        if (i >= 0)
            wall[i] = ended - last, device[i] = (double)t.ns * 1e-9;
        last = ended;
    }
    f->batch.fed = false;
    return posted ? (struct timing){median(wall, steps), median(device, steps), true} : (struct timing){0};
}

static struct timing time_steps(struct bench *b, struct subject *s, const struct step_case *c)
{
    struct forward_member site = {.weights = &s->weights, .tokens_per_block = BLOCK};
    struct feed *f = feed_new(c, s->shape.vocab);
    int steps = b->dry ? 2 : c->rows > 1 ? 5 : STEPS;
    struct timing t = time_single(b, s, &site, f, steps);
    if (c->rows == 1 && !b->profile) {
        struct timing posted = time_posted(b, s, &site, f, steps);
        t = posted.graph ? posted : t;
    }
    feed_free(f);
    return t;
}

/* Until each way of each product has been tried often enough, by decodes and by prompts, as engine/exec/prepare.c. */
static void tune(struct bench *b, struct subject *s)
{
    enum { TURNS = 9 };
    const struct tuning_ops *t = b->ops->tuning();
    struct forward_member site = {.weights = &s->weights, .tokens_per_block = BLOCK};
    struct tuning_report found;
    double begun = now(b);
    t->begin(b->tuning);
    for (int i = 0; i < TUNING_ROWS && tuning_rows[i] <= (b->dry ? 4 : MAX_ROWS); i++) {
        bool decodes = tuning_rows[i] <= MAX_SEQS;
        struct step_case c = {decodes ? tuning_rows[i] : 1, decodes ? 1 : tuning_rows[i],
                              decodes ? 64 : tuning_rows[i]};
        struct feed *f = feed_new(&c, s->shape.vocab);
        struct err e = {0};
        for (int turn = 0; turn < TURNS && (turn == 0 || t->wants(b->tuning)); turn++)
            check(forward_run(&s->forward, &site, &f->batch, &(struct step_time){0}, &e), &e);
        feed_free(f);
    }
    t->settle(b->tuning, &found);
    printf("%s: %d of %d products take another way than they would untried; %.2f s\n", s->shape.name, found.n_other,
           found.n_products, now(b) - begun);
}

/* Graphs for all batches of the cases. */
static void record(struct bench *b, struct subject *s)
{
    struct forward_member site = {.weights = &s->weights, .tokens_per_block = BLOCK};
    double begun = now(b);
    int n = 0;
    for (int rows = b->dry ? 4 : MAX_SEQS; rows > 0; rows /= 2, n++) {
        struct err e = {0};
        if (forward_capture(&s->forward, &site, rows, &e)) {
            printf("%s: no graph of %d rows: %s\n", s->shape.name, rows, e.text);
            return;
        }
    }
    printf("%s: %d graphs recorded in %.2f s\n", s->shape.name, n, now(b) - begun);
    worst_of(&b->v.recording, now(b) - begun);
}

/* What the step cannot go without: bytes, operations. */
static void least_of(const struct subject *s, const struct step_case *c, double *bytes, double *flops)
{
    const struct shape *h = &s->shape;
    double rows = (double)c->n * c->rows, before = c->length - c->rows,
           pairs = c->n * (c->rows * before + c->rows * (c->rows + 1.0) / 2);
    *bytes = s->weight_bytes + kv_bytes_per_token(h) * c->n * c->length;
    *flops = 2 * s->products_per_row * rows + 2.0 * h->vocab * h->hidden * c->n +
             4.0 * h->heads * h->head_dim * h->layers * pairs;
}

static void judge(struct bench *b, const struct shape *shape, const struct step_case *c, double of_read, double of_roof,
                  double tflops)
{
    bool eight = strstr(shape->name, "8B") != NULL && shape->type == DT_BF16, fp8 = shape->type == DT_F8_SCALED;
    if (eight && c->rows == 1 && c->n == 1 && c->length <= 1024)
        worst(&b->v.large_decode, of_read);
    if (!strcmp(shape->name, "Qwen3-0.6B") && c->rows == 1 && c->n == 1 && c->length <= 1024)
        worst(&b->v.small_decode, of_read);
    if (eight && c->rows == 1 && c->n >= (b->dry ? 4 : 32))
        worst(&b->v.batched, of_roof);
    if (fp8 && c->rows == 1 && c->n == 1 && c->length <= 1024)
        worst(&b->v.fp8_decode, of_read);
    if (fp8 && c->rows > 1)
        worst(&b->v.fp8_prefill, tflops / 1979);
    if (eight && c->rows > 1) {
        worst(&b->v.prefill, tflops / 989);
        worst(&b->v.prefill_of_best, b->tflops > 0 ? tflops / b->tflops : 0);
    }
}

static void run_case(struct bench *b, struct subject *s, const struct shape *shape, const struct step_case *c)
{
    double bytes, flops;
    struct timing t = time_steps(b, s, c);
    least_of(s, c, &bytes, &flops);
    double best = shape->type == DT_F8_SCALED && b->tflops8 > 0 ? b->tflops8 : b->tflops;
    double read_s = bytes / (b->read_gbs * 1e9), sum_s = best > 0 ? flops / (best * 1e12) : 0,
           roof = read_s > sum_s ? read_s : sum_s;
    double rate = flops / t.wall * 1e-12;
    if (c->rows == 1)
        printf("decode  %-16s batch %2d context %4d  %8.3f ms (device %8.3f)  %8.0f tok/s  %5.0f GB/s = %.2f of "
               "reading, %.2f of copying  "
               "roof %.2f%s\n",
               shape->name, c->n, c->length, t.wall * 1e3, t.device * 1e3, c->n / t.wall, bytes / t.wall * 1e-9,
               read_s / t.wall, bytes / t.wall * 1e-9 / b->copy_gbs, roof / t.wall, t.graph ? "" : "  (no graph)");
    else
        printf("prefill %-16s tokens %5d          %8.3f ms (device %8.3f)  %8.0f tok/s  %5.1f TFLOPS = %.2f of the "
               "large product  roof %.2f\n",
               shape->name, c->rows, t.wall * 1e3, t.device * 1e3, c->rows / t.wall, rate, best > 0 ? rate / best : 0,
               roof / t.wall);
    judge(b, shape, c, read_s / t.wall, roof / t.wall, rate);
    fflush(stdout);
}

/* Blocks that all cases of the list need which fit. */
static int blocks_of(const struct step_case *c)
{
    return c->n * ((c->length + BLOCK - 1) / BLOCK);
}

static bool open_cache(struct bench *b, struct subject *s)
{
    const struct shape *h = &s->shape;
    size_t block = b->ops->kv_block_bytes(DT_BF16, BLOCK, h->kv_heads, h->head_dim) * (size_t)h->layers;
    double used =
        sizes_of(s) + (double)forward_scratch_bytes(&s->config, b->dry ? 64 : MAX_ROWS, MAX_SEQS, 1, sizeof(float));
    double room = ((double)b->free_bytes - used) / (double)block;
    int most = 0;
    for (int i = 0; i < N_CASES; i++) {
        struct step_case c = shrunk(cases[i], b->dry);
        if (blocks_of(&c) > most && blocks_of(&c) < room)
            most = blocks_of(&c);
    }
    s->kv = (struct kv_space){
        .block_bytes = block / (size_t)h->layers, .n_blocks = most, .n_layers = h->layers, .dtype = DT_BF16};
    s->kv.base = most ? b->ops->alloc(b->device, block * (size_t)most) : NULL;
    if (!s->kv.base) {
        printf("%s: no room for a cache: not run\n", h->name);
        return false;
    }
    probe_check(launch_noise(b->probe.stream, s->kv.base, block * (size_t)most / 16, 9), "noise");
    probe_check(cudaStreamSynchronize(b->probe.stream), "noise");
    return true;
}

static void run_cases(struct bench *b, struct subject *s, const struct shape *shape)
{
    for (int i = 0; i < (b->profile ? 1 : b->n_cases); i++) {
        struct step_case c = shrunk(cases[i], b->dry);
        if (b->decodes && c.rows > 1)
            continue;
        if (blocks_of(&c) > s->kv.n_blocks)
            printf("%s: %d sequences at %d: no room for their cache on this GPU\n", shape->name, c.n, c.length);
        else if (now(b) > b->deadline)
            printf("%s: %d sequences, %d rows at %d: not run, the time is over\n", shape->name, c.n, c.rows, c.length);
        else
            run_case(b, s, shape, &c);
    }
}

/* Each on a device of its own: graphs stay as long as the device does. */
static void open_device(struct bench *b)
{
    struct err e = {0};
    struct device_facts f;
    check(b->ops->open(&b->device,
                       &(struct device_opts){.max_rows = MAX_ROWS,
                                             .max_logits = MAX_SEQS,
                                             .graph_rows = MAX_SEQS,
                                             .no_early_launch = b->no_early,
                                             .tuning = b->tuning},
                       &e),
          &e);
    b->ops->facts(b->device, &f);
    b->free_bytes = (size_t)((double)f.memory_bytes * 0.93);
}

static void run_model(struct bench *b, const struct shape *shape)
{
    struct subject s;
    if (now(b) > b->deadline) {
        printf("%s: not run, the time is over\n", shape->name);
        return;
    }
    b->tuning = b->ops->tuning()->open(b->folder, "bench");
    open_device(b);
    if (open_subject(b, &s, shape)) {
        if (open_cache(b, &s)) {
            if (!b->untuned)
                tune(b, &s);
            record(b, &s);
            run_cases(b, &s, shape);
            b->ops->release(b->device, s.kv.base);
        }
        double again = probe_read(&b->probe), moved = again / b->read_gbs - 1;
        if (moved > 0.1 || moved < -0.2)
            printf("%s: the reading probe moved by %.0f %% (%.0f GB/s): do not trust these ratios\n", shape->name,
                   moved * 100, again);
    }
    close_subject(b, &s);
    b->ops->close(b->device);
    b->ops->tuning()->close(b->tuning);
    b->tuning = NULL;
}

static void goal(const struct bench *b, const char *name, double value, double wanted, const char *what)
{
    if (value > 0)
        printf("%s %.2f (goal %.2f) %s%s\n", name, value, wanted, what, b->dry ? " [dry run: means nothing]" : "");
    else
        printf("%s not measured: %s\n", name, what);
}

static void print_goals(const struct bench *b)
{
    goal(b, "G1", b->v.large_decode, 0.80,
         "decode, batch 1, 8B bf16, context 1k, of the reading probe; the worse of two models");
    goal(b, "G2", b->v.fp8_decode, 0.65,
         "decode, batch 1, 8B with fp8 layers (a byte a weight, bf16 table and cache), context 1k, of the reading "
         "probe");
    goal(b, "G3", b->v.small_decode, 0.60, "decode, batch 1, 0.6B bf16, of the reading probe");
    goal(b, "G4", b->v.batched, 0.78, "decode, batch 32 and 64, 8B bf16, of the higher roof; the worst of the cases");
    goal(b, "G8", b->v.prefill, 0.70, "prefill, 8B bf16, of 989 TFLOPS; the worst of the cases");
    goal(b, "G8b", b->v.prefill_of_best, 0.90, "the same of the large product of this run (either is enough)");
    goal(b, "G8c", b->v.fp8_prefill, 0.55,
         "prefill, 8B with fp8 layers (a scale a row, inputs rounded to fp8), of 1979 TFLOPS; the worst of the cases");
    if (b->v.recording > 0)
        printf("G11a %.2f s (goal at most 2 s) graphs of 7 sizes recorded, one layout; the slowest model%s\n",
               b->v.recording, b->dry ? " [dry run: means nothing]" : "");
    goal(b, "G11b", b->v.load, 0.80, "loading weights from memory, of the link from pinned memory; the first model");
}

static void measure_probes(struct bench *b)
{
    b->copy_gbs = b->read_gbs = probe_copy(&b->probe); /* reading is no slower */
    for (int i = 0; i < PROBE_READS; i++) {
        double read = probe_read(&b->probe);
        b->read_gbs = read > b->read_gbs ? read : b->read_gbs;
    }
    b->pinned_gbs = probe_pinned(&b->probe);
    b->tflops = b->profile ? 0 : probe_rate(&b->probe, PROBE_BF16);
    b->tflops8 = b->profile ? 0 : probe_rate(&b->probe, PROBE_F8_ROWS);
    printf("probes: copy %.0f GB/s (read and write), read %.0f GB/s, link %.1f GB/s, large product in bf16 %.0f "
           "TFLOPS, in fp8 %.0f%s\n",
           b->copy_gbs, b->read_gbs, b->pinned_gbs, b->tflops, b->tflops8, b->probe.lt ? "" : " (no cuBLASLt here)");
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = backend_cuda(), .n_cases = N_CASES};
    struct device_facts f;
    double budget = 120;
    for (int i = 1; i < argc; i++) {
        b.dry = b.dry || !strcmp(argv[i], "--dry");
        b.profile = b.profile || !strcmp(argv[i], "--profile");
        b.untuned = b.untuned || !strcmp(argv[i], "--untuned");
        b.decodes = b.decodes || !strcmp(argv[i], "--decodes");
        b.no_early = b.no_early || !strcmp(argv[i], "--no-early-launch");
        if (!strcmp(argv[i], "--only") && i + 1 < argc)
            b.only = argv[++i];
        if (!strcmp(argv[i], "--cases") && i + 1 < argc)
            b.n_cases = atoi(argv[++i]);
        if (!strcmp(argv[i], "--tuning") && i + 1 < argc)
            b.folder = argv[++i];
        if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            budget = atof(argv[++i]);
    }
    if (b.ops->n_devices() == 0) {
        printf("no GPU here: nothing was measured\n");
        return 0;
    }
    clock_init_real(&b.clock);
    b.deadline = now(&b) + budget;
    open_device(&b);
    b.ops->facts(b.device, &f);
    b.ops->close(b.device);
    probe_open(&b.probe, b.dry);
    printf("%s%s\n", f.name, b.dry ? " (dry run: sizes are small, times mean nothing)" : "");
    measure_probes(&b);
    make_host(&b);
    make_host8(&b);
    for (int i = 0; i < (b.profile ? 1 : N_SHAPES); i++)
        if (!b.only || !strcmp(b.only, shapes[i].name))
            run_model(&b, &shapes[i]);
    if (!b.profile)
        print_goals(&b);
    probe_close(&b.probe);
    mem_free(b.host);
    mem_free(b.host8);
    return 0;
}
