/* What a change of the partition costs, on the real engine with ranks that compute: the engine's cut-over, the wait for
 * the running step, bytes copied, the worst gap between two tokens of a stream; and the time per token in a layout that
 * was switched to beside the same layout from the start. Nothing is asserted. usage: switch_bench MODEL.gguf [--ranks
 * 2] [--rounds 12]   (also: --estimate, the cost of one view.estimate) */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/thread.h"
#include "engine/engine.h"

enum { MAX_SAMPLES = 4096, PROMPT = 64 };

struct bench {
    struct clock clock;
    struct model *model;
    struct engine *engine;
    struct thread *thread;
    int ranks, n_replies;
    uint64_t tag, n_tokens;
    char *state;
};

/* Binds the whole node, or each rank alone, when it goes live; decodes and prefills like fcfs, tensor parallel. */
struct turn {
    uint64_t masks[MAX_RANKS];
    int n;
    enum kv_fate fate;
};

static enum verdict turn_start(void *ctx, const struct node_facts *node, const struct view *v, struct plan *p,
                               struct err *e)
{
    const struct turn *t = ctx;
    (void)node;
    (void)v;
    (void)e;
    for (int i = 0; i < t->n; i++) {
        int n = __builtin_popcountll(t->masks[i]);
        plan_switch(p,
                    &(struct switch_order){.mask = t->masks[i], .base = {n, 1, 1}, .fate = t->fate, .reason = "bench"});
    }
    return VERDICT_OK;
}

static enum verdict turn_step(void *ctx, const struct view *v, struct plan *p, struct err *e)
{
    (void)ctx;
    (void)e;
    for (int i = 0; i < v->n_idle; i++) {
        struct plan_batch *b = plan_batch(p, v->idle[i]);
        if (!b)
            continue;
        plan_decodes(b);
        plan_prefill(b, NULL, 0, 512);
        if (b->n_tokens)
            plan_forward(b, (struct layout){1, b->group->n_ranks, 1});
    }
    return VERDICT_OK;
}

static void turn_destroy(void *ctx)
{
    mem_free(ctx);
}

static struct policy make_turn(const struct turn *t)
{
    static const struct policy_ops ops = {.start = turn_start, .step = turn_step, .destroy = turn_destroy};
    struct turn *copy = mem_new(sizeof *copy);
    *copy = *t;
    struct policy p = {.ops = &ops, .ctx = copy};
    snprintf(p.name, sizeof p.name, "turn");
    snprintf(p.sha256, sizeof p.sha256, "bench");
    return p;
}

static struct turn whole(int ranks, enum kv_fate fate)
{
    return (struct turn){.masks = {rank_range(0, ranks)}, .n = 1, .fate = fate};
}

static struct turn singles(int ranks, enum kv_fate fate)
{
    struct turn t = {.n = ranks, .fate = fate};
    for (int i = 0; i < ranks; i++)
        t.masks[i] = 1ull << i;
    return t;
}

static void send(struct bench *b, enum engine_in kind, uint64_t tag, void *payload)
{
    queue_post(engine_inbox(b->engine),
               &(struct engine_message){.kind = kind, .tag = tag, .code = END_ABORT, .payload = payload});
}

static void listen_to(struct bench *b, int64_t wait_ns)
{
    struct engine_event ev;
    queue_wait(engine_outbox(b->engine), wait_ns);
    while (queue_take(engine_outbox(b->engine), &ev)) {
        b->n_tokens += ev.kind == EV_TOKEN;
        if (ev.kind == EV_REPLY) {
            b->n_replies++;
            mem_free(b->state);
            b->state = ev.payload;
            ev.payload = NULL;
        }
        mem_free(ev.payload);
    }
}

static void ask(struct bench *b, enum engine_in kind, void *payload)
{
    int before = b->n_replies;
    send(b, kind, 0, payload);
    while (b->n_replies == before)
        listen_to(b, 100000000);
}

static void go_live(struct bench *b, struct turn t)
{
    struct policy *p = mem_new(sizeof *p);
    *p = make_turn(&t);
    ask(b, IN_POLICY, p);
    do
        ask(b, IN_STATE, NULL);
    while (!strstr(b->state, "\"pending\":[]")); /* the next order would take the place of one that waits */
}

static int open_bench(struct bench *b, struct turn t, struct err *e)
{
    struct engine_setup s = {.ops = backend_cpu(),
                             .device = {.n_threads = thread_cores()},
                             .model = b->model,
                             .limits = {.max_num_seqs = 256, .max_num_batched_tokens = 2048, .max_model_len = 2048},
                             .kv_dtype = DT_F16,
                             .kv_bytes = (size_t)384 << 20,
                             .block_size = 16,
                             .clock = &b->clock,
                             .threaded = true,
                             .quiet = true,
                             .n_ranks = b->ranks,
                             .policy = make_turn(&t)};
    clock_init_real(&b->clock);
    TRY(engine_create(&b->engine, &s, e));
    return thread_start(&b->thread, "engine", engine_run, b->engine, e);
}

static void close_bench(struct bench *b)
{
    send(b, IN_STOP, 0, NULL);
    thread_join(b->thread);
    engine_destroy(b->engine);
    mem_free(b->state);
    b->state = NULL;
}

static void submit(struct bench *b, int max_tokens)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = ++b->tag;
    s->arrival_ns = clock_now(&b->clock);
    s->n_prompt = PROMPT;
    s->max_tokens = max_tokens;
    s->prompt = mem_new_array(PROMPT, sizeof(int32_t));
    for (int i = 0; i < PROMPT; i++)
        s->prompt[i] = (int32_t)((b->tag * 131 + (uint64_t)i * 7) % 40000);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    send(b, IN_SUBMIT, 0, s);
}

static void wait_tokens(struct bench *b, uint64_t n)
{
    uint64_t until = b->n_tokens + n;
    while (b->n_tokens < until)
        listen_to(b, 100000000);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_size);
    return n ? v[n / 2] : 0;
}

/* n sequences in flight; the partition flips every few tokens. */
static int flip(struct bench *b, int n, enum kv_fate fate, int rounds)
{
    struct err e = {0};
    double cut[MAX_SAMPLES], wait[MAX_SAMPLES], stall[MAX_SAMPLES], bytes = 0;
    int k = 0;
    if (open_bench(b, singles(b->ranks, fate), &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    for (int i = 0; i < n; i++)
        submit(b, 1900);
    if (n)
        wait_tokens(b, 4 * (uint64_t)n);
    for (int i = 0; i < rounds; i++) {
        go_live(b, i % 2 ? singles(b->ranks, fate) : whole(b->ranks, fate));
        if (fate != FATE_PARK || i % 2) /* parked requests say nothing until their own ranks are groups again */
            wait_tokens(b, 4 * (uint64_t)n);
    }
    send(b, IN_STOP, 0, NULL);
    thread_join(b->thread);
    b->thread = NULL;
    const struct partition *p = &engine_world(b->engine)->partition;
    for (int i = 0; i < SWITCH_EVENTS; i++) {
        const struct switch_event *ev = &p->events[i];
        if (!ev->serial || ev->superseded || strcmp(ev->order.reason, "bench") || ev->asked_ns == ev->done_ns)
            continue;
        cut[k] = (double)ev->cutover_ns * 1e-3;
        wait[k] = (double)(ev->done_ns - ev->asked_ns) * 1e-6;
        stall[k] = (double)ev->worst_stall_ns * 1e-6;
        bytes += (double)ev->bytes;
        k++;
    }
    double step = 0;
    for (int i = 0; i < p->n_groups; i++)
        step = (double)p->groups[p->order[i]].last_step_ns * 1e-6;
    printf("%2d sequences, %-9s: %2d switches, cut-over %7.1f us, wait %7.3f ms (a step: %.1f ms), worst stall %7.1f "
           "ms, %.1f MiB copied each\n",
           n, kv_fate_name(fate), k, median(cut, k), median(wait, k), step, median(stall, k),
           k ? bytes / k / (1 << 20) : 0);
    engine_destroy(b->engine);
    mem_free(b->state);
    b->state = NULL;
    return 0;
}

/* Milliseconds per token of 8 streams in the whole node's layout, begun in it or switched to it. */
static double tpot(struct bench *b, bool switched)
{
    struct err e = {0};
    if (open_bench(b, switched ? singles(b->ranks, FATE_MIGRATE) : whole(b->ranks, FATE_MIGRATE), &e))
        return 0;
    for (int i = 0; i < 8; i++)
        submit(b, 1900);
    wait_tokens(b, 64);
    if (switched)
        go_live(b, whole(b->ranks, FATE_MIGRATE));
    wait_tokens(b, 8 * 8);
    int64_t t0 = clock_now(&b->clock);
    wait_tokens(b, 8 * 64);
    double ms = (double)(clock_now(&b->clock) - t0) * 1e-6 / 64;
    close_bench(b);
    return ms;
}

static void estimate(void)
{
    struct estimator e;
    struct clock c;
    double sum = 0;
    enum { N = 1000000 };
    clock_init_real(&c);
    estimator_init(&e);
    for (int tp = 1; tp <= 8; tp++)
        for (int i = 0; i < 20; i++)
            estimator_learn(&e, (struct layout){8 / tp ? 8 / tp : 1, tp, 1},
                            (struct step_size){.rows = i * 10 + 1, .looked_at = i * 100}, 1e6 + i * 1e5);
    int64_t t0 = clock_now(&c);
    for (int i = 0; i < N; i++)
        sum += estimator_ns(&e, (struct layout){1, 1 + i % 8, 1},
                            (struct step_size){.rows = i % 512 + 1, .looked_at = i % 4096}, NULL);
    printf("estimator_ns: %.1f ns a call (checksum %.3g)\n", (double)(clock_now(&c) - t0) / N, sum);
}

int main(int argc, char **argv)
{
    struct bench b = {.ranks = 2};
    struct err e = {0};
    int rounds = 8;
    if (argc < 2)
        return fprintf(stderr, "usage: switch_bench MODEL.gguf [--ranks N] [--rounds N]\n"), 2;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--ranks"))
            b.ranks = atoi(argv[i + 1]);
        if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(argv[i + 1]);
    }
    estimate();
    if (model_open_gguf(&b.model, argv[1], &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    static const int in_flight[] = {0, 8, 64};
    for (size_t i = 0; i < sizeof in_flight / sizeof *in_flight; i++) {
        if (flip(&b, in_flight[i], FATE_MIGRATE, rounds) || (in_flight[i] && flip(&b, in_flight[i], FATE_PARK, rounds)))
            return 1;
    }
    double ratio[3];
    for (int i = 0; i < 3; i++) {
        double s = tpot(&b, false), w = tpot(&b, true);
        ratio[i] = w / s;
        printf("8 streams on %d ranks: %.2f ms per token from the start, %.2f ms switched to: ratio %.3f\n", b.ranks, s,
               w, w / s);
    }
    printf("median ratio %.3f\n", median(ratio, 3));
    model_close(b.model);
    return 0;
}
