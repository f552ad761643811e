/* Pooled FFN weights beside weights on every rank: ranks side by side, each alone in its group, each with steps of B
 * rows, in memory of their own. For B from 1 up: a step with all weights at hand, with every layer fetched, and with
 * every layer sent to its owner; then the orders of fetching; then what the pool costs when nothing has to cross. All
 * ways take turns, the first one before and after each other one, and what is printed is the median over rounds of a
 * round's ratio, so that a slow minute of the machine is in both numbers. Core time is that of the whole program: what
 * copies cost where no device makes them. Nothing is asserted. usage: pool_bench MODEL.gguf [--what
 * ways|orders|overhead|all] [--ranks 2] [--link-gbps 0] [--rounds 9] [--largest 256] */
#include <string.h>

#include "tests/rig/pool_rig.h"

enum { MOST_ROUNDS = 101, MOST_ROWS = 256, MOST_STEPS = 32, MOST_WAYS = 4 };
static const double ENOUGH_MS = 120; /* of each measurement */

struct bench {
    struct pool_rig rig;
    int rounds, largest;
    const char *what;
    int32_t ids[MOST_ROWS], positions[MOST_ROWS], blocks[MOST_ROWS / 16];
};

/* What was measured of one way. */
struct series {
    double ms[MOST_ROUNDS], core_ms[MOST_ROUNDS], ratio[MOST_ROUNDS];
};

/* One rank's steps of `rows` rows. */
struct lane {
    struct bench *b;
    struct pool_way *w;
    int rank, rows, steps;
};

static void run_lane(void *arg)
{
    struct lane *l = arg;
    int32_t last = l->rows - 1;
    struct sample_row sample = {.how = &pool_greedy, .given = -1, .n_top = -1};
    struct sample_result result;
    struct batch_seq seq = {0, l->rows, 0, l->b->blocks, NULL};
    struct batch batch = {.n_rows = l->rows,
                          .ids = l->b->ids,
                          .positions = l->b->positions,
                          .n_seqs = 1,
                          .seqs = &seq,
                          .n_logits = 1,
                          .logit_rows = &last,
                          .samples = &sample,
                          .results = &result};
    for (int i = 0; i < l->steps; i++)
        pool_step(l->w, l->rank, &batch, &l->w->node.modes);
}

struct took {
    double ms, core_ms; /* a step, all ranks side by side */
};

static struct took measure(struct bench *b, struct pool_way *w, int rows, int steps)
{
    struct lane lanes[NODE_RANKS];
    for (int r = 0; r < b->rig.ranks; r++)
        lanes[r] = (struct lane){b, w, r, rows, steps};
    int64_t t0 = pool_now(), c0 = pool_cpu();
    pool_side_by_side(b->rig.ranks, run_lane, lanes, sizeof *lanes);
    return (struct took){(double)(pool_now() - t0) * 1e-6 / steps, (double)(pool_cpu() - c0) * 1e-6 / steps};
}

/* The first way, another one, the first, the next other one, and so on. */
static void play_round(struct bench *b, struct pool_way *ways, int n, const int rows_steps[2],
                       struct took took[2 * MOST_WAYS])
{
    for (int k = 0; k < 2 * n - 1; k++)
        took[k] = measure(b, &ways[k % 2 ? k / 2 + 1 : 0], rows_steps[0], rows_steps[1]);
}

static int enough_steps(struct bench *b, struct pool_way *w, int rows)
{
    double ms = measure(b, w, rows, 2).ms;
    return ms * 3 > ENOUGH_MS ? 3 : ms * MOST_STEPS < ENOUGH_MS ? MOST_STEPS : (int)(ENOUGH_MS / ms);
}

static void compare(struct bench *b, struct pool_way *ways, int n, int rows)
{
    static struct series s[MOST_WAYS];
    struct took took[2 * MOST_WAYS];
    int rows_steps[2] = {rows, enough_steps(b, &ways[0], rows)};
    play_round(b, ways, n, rows_steps, took); /* warms */
    for (int i = 0; i < b->rounds; i++) {
        play_round(b, ways, n, rows_steps, took);
        for (int k = 0; k < n; k++) {
            struct took mine = took[k ? 2 * k - 1 : 0];
            s[k].ms[i] = mine.ms;
            s[k].core_ms[i] = mine.core_ms;
            s[k].ratio[i] = k ? mine.ms / ((took[2 * k - 2].ms + took[2 * k].ms) / 2) : 1;
        }
    }
    printf("%5d", rows);
    for (int k = 0; k < n; k++) {
        printf("  %9.3f", pool_median(s[k].ms, b->rounds));
        printf(" %6.3f", pool_median(s[k].ratio, b->rounds));
        printf(" %8.2f", pool_median(s[k].core_ms, b->rounds));
    }
    printf("\n");
    fflush(stdout);
}

/* Steps of 1 row up to the most, each `times` the one before. */
static void compare_all(struct bench *b, const char *what, struct pool_way *ways, int n, int times)
{
    struct ffn_pool_facts facts;
    printf("\n%s: ms a step, beside the first, core ms a step\n rows", what);
    for (int k = 0; k < n; k++) {
        pool_way_open(&b->rig, &ways[k]);
        printf("  %25s", ways[k].name);
    }
    printf("\n");
    for (int rows = 1; rows <= b->largest; rows *= times)
        compare(b, ways, n, rows);
    for (int k = 0; k < n; k++) {
        if (ways[k].slots) {
            ffn_pool_look(ways[k].node.ffn_pool, &facts);
            printf("%s: at most %d readers of one owner; a step that fetches all copies %.1f MB\n", ways[k].name,
                   facts.most_readers, pool_fetch_bytes(&b->rig, &ways[k]) * 1e-6);
        }
        node_close(&ways[k].node);
    }
}

static void by_rows(struct bench *b)
{
    int d = b->rig.ranks;
    struct pool_way ways[] = {
        {.name = "local"},
        {.name = "was", .slots = d, .order = FFN_SHIFTED, .mode = FFN_WAS},
        {.name = "cas", .slots = d, .order = FFN_SHIFTED, .mode = FFN_CAS},
    };
    compare_all(b, "ways", ways, 3, 2);
}

static void by_order(struct bench *b)
{
    int d = b->rig.ranks;
    struct pool_way ways[] = {
        {.name = "plain, 2 slots", .slots = 2, .order = FFN_PLAIN, .mode = FFN_WAS},
        {.name = "sliced, 2 slots", .slots = 2, .order = FFN_SLICED, .mode = FFN_WAS},
        {.name = "plain, d slots", .slots = d, .order = FFN_PLAIN, .mode = FFN_WAS},
        {.name = "shifted, d slots", .slots = d, .order = FFN_SHIFTED, .mode = FFN_WAS},
    };
    compare_all(b, "orders of fetching", ways, 4, 8);
}

static void overhead(struct bench *b)
{
    struct pool_way ways[] = {
        {.name = "local"},
        {.name = "a slot for each layer", .slots = model_config(b->rig.model)->n_layers, .mode = FFN_WAS},
    };
    compare_all(b, "nothing has to cross", ways, 2, 16);
}

static bool set(struct bench *b, const char *name, const char *value)
{
    if (strcmp(name, "--what") == 0)
        b->what = value;
    else if (strcmp(name, "--ranks") == 0)
        b->rig.ranks = atoi(value);
    else if (strcmp(name, "--link-gbps") == 0)
        b->rig.link_gbps = atof(value);
    else if (strcmp(name, "--rounds") == 0)
        b->rounds = atoi(value);
    else if (strcmp(name, "--largest") == 0)
        b->largest = atoi(value);
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
           b->rounds <= MOST_ROUNDS && b->largest >= 1 && b->largest <= MOST_ROWS;
}

int main(int argc, char **argv)
{
    static struct bench b = {.rig = {.ranks = 2, .max_rows = MOST_ROWS, .n_blocks = MOST_ROWS / 16},
                             .rounds = 9,
                             .largest = MOST_ROWS,
                             .what = "all"};
    struct err e = {0};
    if (!read_args(&b, argc, argv)) {
        fprintf(stderr,
                "usage: pool_bench MODEL.gguf [--what ways|orders|overhead|all] [--ranks 2..%d] [--link-gbps N] "
                "[--rounds 1..%d] [--largest 1..%d]\n",
                NODE_RANKS, MOST_ROUNDS, MOST_ROWS);
        return 2;
    }
    if (model_open_gguf(&b.rig.model, argv[1], &e))
        pool_die(&e);
    for (int i = 0; i < MOST_ROWS; i++) {
        b.ids[i] = i * 37 % model_config(b.rig.model)->vocab;
        b.positions[i] = i;
        b.blocks[i / 16] = i / 16;
    }
    printf("%d ranks of one thread each, link %g GB/s, %d rounds\n", b.rig.ranks, b.rig.link_gbps, b.rounds);
    bool all = strcmp(b.what, "all") == 0;
    if (all || strcmp(b.what, "ways") == 0)
        by_rows(&b);
    if (all || strcmp(b.what, "orders") == 0)
        by_order(&b);
    if (all || strcmp(b.what, "overhead") == 0)
        overhead(&b);
    model_close(b.rig.model);
    return 0;
}
