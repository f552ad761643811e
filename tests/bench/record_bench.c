/* What --record costs the engine's thread, what the window of --what-if-memory does, and what stories of requests and
 * the decision log do (--request-history,
 * --decision-log-memory): the real loop on the simulated device in virtual time, decodes of so many requests (with
 * prompts of 500 tokens that begin now and then), alone and with others waiting for a seat, with and without, in turn.
 * A step's time is the thread's own for the whole turn: ingest, decide, check, post, absorb. usage: record_bench */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/lab/recording/record.h"

enum { ROUNDS = 7, STEPS = 6000 };

static struct request_spec *spec_new(uint64_t tag, int64_t now)
{
    struct request_spec *s = mem_new(sizeof *s);
    s->tag = tag;
    s->arrival_ns = now;
    s->n_prompt = 500;
    s->max_tokens = 200 + (int)(tag * 37 % 200);
    s->prompt = mem_new_array((size_t)s->n_prompt, sizeof *s->prompt);
    for (int i = 0; i < s->n_prompt; i++)
        s->prompt[i] = (int32_t)((tag * 131 + (uint64_t)i) % 1000);
    snprintf(s->name, sizeof s->name, "cmpl-%032llx", (unsigned long long)tag * 0x9e3779b97f4a7c15u);
    s->sampling = (struct sampling){.top_p = 1, .repetition_penalty = 1, .n_logprobs = -1, .n_prompt_logprobs = -1};
    return s;
}

/* Of this thread: what else the machine does counts for little. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct cost {
    double us, bytes; /* of a step */
};

/* As many requests as `live` all the time: who ends is replaced. */
static void run_steps(struct engine *engine, struct clock *clock, int live)
{
    struct engine_event ev;
    uint64_t tag = 0, until = engine_world(engine)->step + STEPS;
    int missing = live;
    while (engine_world(engine)->step < until) {
        for (; missing; missing--)
            queue_post(engine_inbox(engine),
                       &(struct engine_message){.kind = IN_SUBMIT, .payload = spec_new(++tag, clock_now(clock))});
        while (engine_turn(engine))
            ;
        while (queue_take(engine_outbox(engine), &ev)) {
            missing += ev.kind == EV_END;
            mem_free(ev.payload);
        }
        if (engine_next_ns(engine) > clock_now(clock))
            clock_advance_to(clock, engine_next_ns(engine));
    }
}

enum what { NOTHING, RECORD, WINDOW, HISTORY };
static const char *const names[] = {"nothing", "record", "window", "history"};

/* live run, and `waiting` more wait for a seat. */
static struct cost measure(int live, int waiting, enum what what, struct err *e)
{
    char path[] = "/tmp/record_bench-XXXXXX";
    struct clock clock;
    struct model *model = NULL;
    struct engine *engine = NULL;
    struct recorder *rec = NULL;
    struct record_window *window = what == WINDOW ? record_window_new(16 << 20) : NULL;
    clock_init_virtual(&clock, 1000000000);
    close(mkstemp(path));
    unlink(path);
    if (model_open_dummy(&model, "tests/data/sim_model.json", DT_BF16, 1, e) ||
        ((what == RECORD || what == WINDOW) && recorder_open(&rec, window ? NULL : path, window, e)))
        return (struct cost){0};
    struct engine_setup s = {
        .ops = backend_sim(),
        .device = {.sim_step_ns = 1000000, .sim_row_ns = 1000},
        .model = model,
        .limits = {.max_num_seqs = live, .max_num_batched_tokens = 8192, .max_model_len = 4096, .prefix_caching = true},
        .kv_dtype = DT_F16,
        .kv_bytes = (size_t)1 << 30,
        .block_size = 16,
        .clock = &clock,
        .quiet = true,
        .story_keep = what == HISTORY ? 2000 : 0,
        .decision_bytes = what == HISTORY ? 4 << 20 : 0,
        .witness = rec ? recorder_witness(rec) : NULL};
    if (engine_create(&engine, &s, e))
        return (struct cost){0};
    recorder_begin(rec,
                   &(struct recorder_start){engine_node(engine), model_config(model), s.start, s.block_size, "bench"},
                   engine);
    int64_t t = cpu_ns();
    run_steps(engine, &clock, live + waiting);
    struct cost c = {.us = (double)(cpu_ns() - t) * 1e-3 / STEPS,
                     .bytes = rec ? (double)recorder_bytes(rec) / STEPS : 0};
    queue_post(engine_inbox(engine), &(struct engine_message){.kind = IN_STOP});
    for (int i = 0; i < 4 && engine_world(engine)->requests.n_live; i++) {
        while (engine_turn(engine))
            ;
        if (engine_next_ns(engine) != INT64_MAX)
            clock_advance_to(&clock, engine_next_ns(engine));
    }
    engine_destroy(engine);
    recorder_close(rec);
    record_window_free(window);
    model_close(model);
    unlink(path);
    return c;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One line: the medians of several rounds, with and without in turn. */
static int compare_with(enum what what, int live, int waiting)
{
    double without[ROUNDS], more[ROUNDS], bytes = 0;
    for (int k = 0; k < ROUNDS; k++) {
        struct err e = {0};
        struct cost a = measure(live, waiting, NOTHING, &e), b = measure(live, waiting, what, &e);
        if (e.code) {
            fprintf(stderr, "record_bench: %s\n", e.text);
            return 1;
        }
        without[k] = a.us;
        more[k] = b.us - a.us;
        bytes = b.bytes;
    }
    qsort(without, ROUNDS, sizeof *without, compare);
    qsort(more, ROUNDS, sizeof *more, compare);
    printf("%-8s %8d %8d %8.2f %8.2f %13.0f\n", names[what], live, waiting, without[ROUNDS / 2], more[ROUNDS / 2],
           bytes);
    return 0;
}

int main(void)
{
    static const int lives[] = {8, 64, 512}, waits[] = {0, 64, 1000};
    printf("what      running  waiting  step us  more us  bytes a step\n");
    for (size_t i = 0; i < 3; i++)
        if (compare_with(RECORD, lives[i], 0) || compare_with(WINDOW, lives[i], 0))
            return 1;
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < 3; k++)
            if (compare_with(HISTORY, lives[i], waits[k]))
                return 1;
    return 0;
}
