/* Pooled FFN weights beside weights on every rank: ranks side by side, each alone in its group, each with steps of B
 * rows, in memory of their own. For B from 1 to 256: a step with all weights at hand, with every layer fetched, and
 * with every layer sent to its owner; then the orders of fetching on a bounded link, and what the pool costs when
 * nothing has to cross. Medians of rounds in which all ways take turns; nothing is asserted. usage: pool_bench
 * MODEL.gguf [--ranks 2] [--link-gbps 0] [--rounds 9] [--largest 256] */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tests/rig/layout_rig.h"

enum { MOST_ROUNDS = 101, MOST_ROWS = 256, STEPS = 3 };

struct bench {
    struct model *model;
    int ranks, rounds, largest;
    double link_gbps;
    int32_t ids[MOST_ROWS];
};

/* One way to run: a node of its own. */
struct way {
    const char *name;
    struct ffn_setup ffn;
    struct node node;
    struct place places[NODE_RANKS];
    double ms[MOST_ROUNDS];
};

static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};

/* slots 0: all weights on every rank, each in memory of its own */
static void open_way(struct bench *b, struct way *w, int slots, enum ffn_order order, enum ffn_mode mode)
{
    struct err e = {0};
    struct node_opts o = {.n_ranks = b->ranks,
                          .threads = 1,
                          .max_rows = MOST_ROWS,
                          .max_logits = 1,
                          .block_tokens = 16,
                          .kv = DT_F16,
                          .n_blocks = NODE_SEQS * MOST_ROWS / 16};
    w->ffn = (struct ffn_setup){.n_ranks = b->ranks,
                                .n_layers = model_config(b->model)->n_layers,
                                .n_slots = slots,
                                .order = order,
                                .tile_bytes = 1 << 20,
                                .link_gbps = b->link_gbps};
    o.own_weights = !slots;
    if (slots && ffn_parse_owners(&w->ffn, "layer-mod", &e) == 0)
        o.ffn = &w->ffn;
    if (node_open(&w->node, b->model, &o, &e)) {
        fprintf(stderr, "%s\n", e.text);
        exit(1);
    }
    ffn_set(&w->node.modes, 0, w->ffn.n_layers, mode);
    for (int r = 0; r < b->ranks; r++) {
        place_make(&w->places[r], (struct layout){1, 1, 1}, 16, MOST_ROWS, 0);
        w->places[r].ranks[0] = r;
    }
}

static void close_way(struct bench *b, struct way *w)
{
    for (int r = 0; r < b->ranks; r++)
        place_free(&w->places[r]);
    node_close(&w->node);
}

/* One rank's steps of `rows` rows. */
struct lane {
    struct bench *b;
    struct way *w;
    int rank, rows;
    struct thread *thread;
};

static void run_lane(void *arg)
{
    struct lane *l = arg;
    int32_t last = l->rows - 1;
    struct sample_row sample = {.how = &greedy, .given = -1, .n_top = -1};
    struct sample_result result;
    struct node_seq seq = {0, 0, l->rows, l->b->ids};
    struct node_step s = {.place = &l->w->places[l->rank],
                          .layout = {1, 1, 1},
                          .seqs = &seq,
                          .n_seqs = 1,
                          .n_logits = 1,
                          .logit_rows = &last,
                          .samples = &sample,
                          .results = &result};
    struct node_part parts[NODE_RANKS];
    for (int i = 0; i < STEPS; i++)
        if (node_run(&l->w->node, &s, parts)) {
            fprintf(stderr, "%s\n", parts[0].err.text);
            exit(1);
        }
}

/* ms a step, all ranks side by side. */
static double measure(struct bench *b, struct way *w, int rows)
{
    struct lane lanes[NODE_RANKS];
    struct clock clock;
    struct err e = {0};
    clock_init_real(&clock);
    int64_t t0 = clock_now(&clock);
    for (int r = 0; r < b->ranks; r++) {
        lanes[r] = (struct lane){.b = b, .w = w, .rank = r, .rows = rows};
        if (thread_start(&lanes[r].thread, "lane", run_lane, &lanes[r], &e))
            exit(1);
    }
    for (int r = 0; r < b->ranks; r++)
        thread_join(lanes[r].thread);
    return (double)(clock_now(&clock) - t0) * 1e-6 / STEPS;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct way *w, int n)
{
    qsort(w->ms, (size_t)n, sizeof *w->ms, by_size);
    return w->ms[n / 2];
}

/* All ways in turn, round after round; the first round only warms. */
static void compare(struct bench *b, struct way *ways, int n, int rows)
{
    for (int i = -1; i < b->rounds; i++)
        for (int k = 0; k < n; k++)
            ways[k].ms[i < 0 ? 0 : i] = measure(b, &ways[k], rows);
    double first = median(&ways[0], b->rounds);
    printf("%5d", rows);
    for (int k = 0; k < n; k++) {
        double ms = k ? median(&ways[k], b->rounds) : first;
        printf("  %9.3f %6.3f", ms, ms / first);
    }
    printf("\n");
    fflush(stdout);
}

static void head(const char *what, const struct way *ways, int n)
{
    printf("\n%s: ms a step, and beside the first\n rows", what);
    for (int k = 0; k < n; k++)
        printf("  %16s", ways[k].name);
    printf("\n");
}

static void by_rows(struct bench *b)
{
    struct way ways[] = {{.name = "local"}, {.name = "was"}, {.name = "cas"}};
    open_way(b, &ways[0], 0, FFN_PLAIN, FFN_WAS);
    open_way(b, &ways[1], 2, FFN_SLICED, FFN_WAS);
    open_way(b, &ways[2], 2, FFN_SLICED, FFN_CAS);
    head("ways", ways, 3);
    for (int rows = 1; rows <= b->largest; rows *= 2)
        compare(b, ways, 3, rows);
    for (int k = 0; k < 3; k++)
        close_way(b, &ways[k]);
}

static void by_order(struct bench *b)
{
    struct way ways[] = {{.name = "plain, 2 slots"}, {.name = "sliced, 2 slots"}, {.name = "shifted, d slots"}};
    open_way(b, &ways[0], 2, FFN_PLAIN, FFN_WAS);
    open_way(b, &ways[1], 2, FFN_SLICED, FFN_WAS);
    open_way(b, &ways[2], b->ranks > 2 ? b->ranks : 2, FFN_SHIFTED, FFN_WAS);
    head("orders of fetching", ways, 3);
    for (int rows = b->largest / 4 > 0 ? b->largest / 4 : 1; rows <= b->largest; rows *= 4)
        compare(b, ways, 3, rows);
    for (int k = 0; k < 3; k++)
        close_way(b, &ways[k]);
}

static void overhead(struct bench *b)
{
    struct way ways[] = {{.name = "local"}, {.name = "a slot for each"}};
    open_way(b, &ways[0], 0, FFN_PLAIN, FFN_WAS);
    open_way(b, &ways[1], model_config(b->model)->n_layers, FFN_PLAIN, FFN_WAS);
    head("nothing has to cross", ways, 2);
    for (int rows = 1; rows <= b->largest; rows *= 16)
        compare(b, ways, 2, rows);
    for (int k = 0; k < 2; k++)
        close_way(b, &ways[k]);
}

int main(int argc, char **argv)
{
    struct bench b = {.ranks = 2, .rounds = 9, .largest = MOST_ROWS};
    struct err e = {0};
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--ranks") == 0)
            b.ranks = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--link-gbps") == 0)
            b.link_gbps = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--rounds") == 0)
            b.rounds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--largest") == 0)
            b.largest = atoi(argv[i + 1]);
    }
    if (argc < 2 || argc % 2 || b.ranks < 2 || b.ranks > NODE_RANKS || b.rounds < 1 || b.rounds > MOST_ROUNDS ||
        b.largest < 1 || b.largest > MOST_ROWS) {
        fprintf(stderr,
                "usage: pool_bench MODEL.gguf [--ranks 2..8] [--link-gbps N] [--rounds 1..%d] [--largest 1..%d]\n",
                MOST_ROUNDS, MOST_ROWS);
        return 2;
    }
    if (model_open_gguf(&b.model, argv[1], &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    for (int i = 0; i < MOST_ROWS; i++)
        b.ids[i] = i * 37 % model_config(b.model)->vocab;
    printf("%d ranks of one thread each, link %g GB/s, %d rounds of %d steps\n", b.ranks, b.link_gbps, b.rounds, STEPS);
    by_rows(&b);
    by_order(&b);
    overhead(&b);
    model_close(b.model);
    return 0;
}
