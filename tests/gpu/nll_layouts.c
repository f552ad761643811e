/* The likelihood of a text in the default mode, in every layout of 1, 2, 4 and 8 ranks that share one GPU: within
 * LAYOUT_BOUND of one rank's, and that within CPU_BOUND of the CPU's, which gold_nll holds against float64; or, where
 * the mean is not known as well, within three times its error, while no token is off by SPREAD as a rule. The tokens of
 * a context are off together, since all of them see the same first ones: so there are many contexts, pieces of the text
 * that overlap, and the error of the mean is what theirs say. The text is that of gold_nll, its first tokens over the
 * emulator; without a model a dummy one reads it. One rank's other ways (plain kernels, steps of so few rows that all
 * between ops is f32) are printed for comparison, to say where a loss comes from. tests/gpu.sh runs it. usage:
 * nll_layouts [--ranks MOST] [--cpu-said NLL | --cpu] [MODEL.gguf]
 *   --cpu: prints the CPU's alone; --cpu-said: the CPU here must say that, too, as its bits are the same everywhere */
#include <math.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "tests/rig/layout_subject.h"

/* Tokens of a step, of one of few rows; of a context, of which another begins every APART. */
enum { CHUNK = 256, FEW = 64, BLOCK = 32 };
#if defined(EMULATED)
enum { MOST_TOKENS = 26, MOST_RANKS = 4, CONTEXT = 12, APART = 6 };
#else
enum { MOST_TOKENS = 2400, MOST_RANKS = 8, CONTEXT = 384, APART = 64 };
#endif
static const double CPU_BOUND = 0.005, LAYOUT_BOUND = 0.002, PRINTED = 0.00001, SPREAD = 0.3;

struct wish {
    const char *model; /* NULL: a dummy one */
    int ranks;
    bool cpu_only;
    double cpu_said; /* 0: nothing was said */
};

struct text {
    int32_t *ids;
    int n, contexts;
};

/* A model whose tokens were cut reads what is left of the text; a dummy one has few, and they mean nothing. */
static struct text read_text(int vocab, bool dummy)
{
    struct text t = {.n = 0};
    struct buf file = {0};
    struct err e = {0};
    if (file_read(&file, "tests/data/nll_tokens.json", 1 << 20, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return t;
    }
    struct json *list = json_parse(file.data, file.len, NULL, &e);
    t.ids = mem_new_array(json_count(list) + 1, sizeof *t.ids);
    for (const struct json *j = json_first(list); j && t.n < MOST_TOKENS; j = json_next(j)) {
        int id = (int)json_number(j);
        if (dummy || id < vocab)
            t.ids[t.n++] = id % vocab;
    }
    json_free(list);
    buf_free(&file);
    t.contexts = t.n > CONTEXT ? (t.n - 1 - CONTEXT) / APART + 1 : 0;
    return t;
}

struct scoring {
    struct node node;
    struct place place;
    struct layout layout;
    const int32_t *ids; /* of the context, and one more */
    double *nll;        /* [CONTEXT] of each token after the first */
};

/* Rows [first, first + n) of the context; each scores the token after it. */
static int score_chunk(struct scoring *s, int first, int n, struct err *e)
{
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct node_part parts[NODE_RANKS];
    struct sample_row rows[CHUNK];
    struct sample_result results[CHUNK];
    int32_t wanted[CHUNK];
    struct node_seq seq = {0, first, n, s->ids};
    for (int i = 0; i < n; i++) {
        wanted[i] = i;
        rows[i] = (struct sample_row){.how = &greedy, .given = s->ids[first + i + 1], .n_top = 0};
    }
    struct node_step step = {.place = &s->place,
                             .layout = s->layout,
                             .seqs = &seq,
                             .n_seqs = 1,
                             .n_logits = n,
                             .logit_rows = wanted,
                             .samples = rows,
                             .results = results};
    int rc = node_run(&s->node, &step, parts);
    for (int i = 0; i < s->place.n && rc; i++)
        if (parts[i].rc == rc)
            return err_set(e, rc, "%s", parts[i].err.text);
    for (int i = 0; i < n; i++)
        s->nll[first + i] = -(double)results[i].logprob;
    return 0;
}

/* How the text is read. */
struct reading {
    const struct backend_ops *ops;
    struct layout layout;
    int chunk;
    bool plain;
};

static int score(struct model *m, const struct reading *r, const struct text *t, double *nll, struct err *e)
{
    const struct backend_ops *ops = r->ops;
    struct layout l = r->layout;
    struct scoring s = {.layout = l};
    int ranks = l.sp * l.tp;
    bool cpu = ops == backend_cpu();
    struct node_opts o = {.ops = ops,
                          .n_ranks = ranks,
                          .threads = cpu ? thread_cores() : 1,
                          .max_rows = CHUNK,
                          .max_logits = 64,
                          .block_tokens = BLOCK,
                          .kv = DT_F16,
                          .fast = true,
                          .plain_kernels = r->plain,
                          .n_blocks = NODE_SEQS * ((CONTEXT + BLOCK - 1) / BLOCK)};
    TRY(node_open(&s.node, m, &o, e));
    place_make(&s.place, (struct layout){ranks, 1, 1}, node_tokens_per_block(&s.node, ranks), CONTEXT, 0);
    int rc = 0;
    for (int i = 0; i < t->contexts; i++) {
        s.ids = t->ids + (size_t)i * APART;
        s.nll = nll + (size_t)i * CONTEXT;
        for (int at = 0; at < CONTEXT && !rc; at += r->chunk)
            rc = score_chunk(&s, at, CONTEXT - at < r->chunk ? CONTEXT - at : r->chunk, e);
    }
    place_free(&s.place);
    node_close(&s.node);
    return rc;
}

static double mean(const double *v, const double *less, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += v[i] - (less ? less[i] : 0);
    return sum / n;
}

/* Of single tokens' differences. */
static double spread(const double *v, const double *from, int n)
{
    double middle = mean(v, from, n), sum = 0;
    for (int i = 0; i < n; i++)
        sum += (v[i] - from[i] - middle) * (v[i] - from[i] - middle);
    return sqrt(sum / n);
}

/* Of the mean of v - from, by how contexts' means differ. */
static double error_of_mean(const double *v, const double *from, int contexts)
{
    double middle = mean(v, from, contexts * CONTEXT), sum = 0;
    for (int i = 0; i < contexts; i++) {
        double off = mean(v + (size_t)i * CONTEXT, from + (size_t)i * CONTEXT, CONTEXT) - middle;
        sum += off * off;
    }
    return sqrt(sum / fmax(1, contexts - 1) / contexts);
}

/* Prints how it went; false: off, or not run. */
static bool check_layout(struct model *m, struct layout l, const struct text *t, const double *one, double bound)
{
    int n = t->contexts * CONTEXT;
    struct err e = {0};
    double *nll = mem_new_array((size_t)n, sizeof *nll);
    int rc = score(m, &(struct reading){backend_cuda(), l, CHUNK, false}, t, nll, &e);
    double off = mean(nll, one, n), of_one = spread(nll, one, n), error = error_of_mean(nll, one, t->contexts);
    bound = fmax(bound, 3 * error);
    bool good = !rc && fabs(off) <= bound && of_one <= SPREAD;
    if (rc)
        printf("{sp %d, tp %d}: %s\n", l.sp, l.tp, e.text);
    else
        printf("%s {sp %d, tp %d}: NLL %.5f, off by %.5f +- %.5f (bound %.4f), single tokens by %.3f (bound %.1f)\n",
               good ? "ok    " : "FAILED", l.sp, l.tp, mean(nll, NULL, n), off, error, bound, of_one, SPREAD);
    fflush(stdout);
    mem_free(nll);
    return good;
}

static void print_other(struct model *m, const struct reading *r, const char *name, const struct text *t,
                        const double *cpu)
{
    int n = t->contexts * CONTEXT;
    struct err e = {0};
    double *nll = mem_new_array((size_t)n, sizeof *nll);
    if (score(m, r, t, nll, &e))
        printf("   one rank, %s: %s\n", name, e.text);
    else
        printf("   one rank, %s: off by %.5f +- %.5f, single tokens by %.3f\n", name, mean(nll, cpu, n),
               error_of_mean(nll, cpu, t->contexts), spread(nll, cpu, n));
    fflush(stdout);
    mem_free(nll);
}

static bool cpu_says(double cpu, const struct wish *w)
{
    bool same = w->cpu_said == 0 || fabs(cpu - w->cpu_said) <= PRINTED;
    if (!same)
        printf("FAILED: the CPU said %.5f where this was packed\n", w->cpu_said);
    return same;
}

static int check_all(struct model *m, const struct text *t, const struct wish *w)
{
    struct err e = {0};
    struct layout layouts[16];
    int passed = 0, failed = 0, n = t->contexts * CONTEXT;
    double *cpu = mem_new_array((size_t)n, sizeof *cpu), *one = mem_new_array((size_t)n, sizeof *one);
    const struct layout alone = {1, 1, 1};
    int rc = score(m, &(struct reading){backend_cpu(), alone, CHUNK, false}, t, cpu, &e);
    if (!rc) {
        printf("NLL of %d tokens in %d contexts: CPU %.5f\n", n, t->contexts, mean(cpu, NULL, n));
        fflush(stdout);
    }
    if (rc || (!w->cpu_only && score(m, &(struct reading){backend_cuda(), alone, CHUNK, false}, t, one, &e))) {
        printf("%s\n0 passed, 1 failed\n", e.text);
        failed = 1;
    } else if (!w->cpu_only) {
        *(cpu_says(mean(cpu, NULL, n), w) ? &passed : &failed) += 1;
        *(check_layout(m, alone, t, cpu, CPU_BOUND) ? &passed : &failed) += 1;
        print_other(m, &(struct reading){backend_cuda(), alone, CHUNK, true}, "plain kernels", t, cpu);
        print_other(m, &(struct reading){backend_cuda(), alone, FEW, false}, "few rows a step", t, cpu);
        for (int ranks = 2; ranks <= w->ranks; ranks *= 2)
            for (int i = 0, all = layouts_of(model_config(m), ranks, layouts); i < all; i++)
                *(check_layout(m, layouts[i], t, one, LAYOUT_BOUND) ? &passed : &failed) += 1;
        printf("%d passed, %d failed\n", passed, failed);
    }
    mem_free(cpu);
    mem_free(one);
    return failed != 0;
}

static struct wish read_wish(int argc, char **argv)
{
    struct wish w = {.ranks = MOST_RANKS};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "0";
        if (!strcmp(argv[i], "--ranks"))
            w.ranks = atoi(value), i++;
        else if (!strcmp(argv[i], "--cpu-said"))
            w.cpu_said = atof(value), i++;
        else if (!strcmp(argv[i], "--cpu"))
            w.cpu_only = true;
        else
            w.model = argv[i];
    }
    w.ranks = w.ranks < MOST_RANKS ? w.ranks : MOST_RANKS;
    return w;
}

int main(int argc, char **argv)
{
    struct model *m;
    struct err e = {0};
    struct wish w = read_wish(argc, argv);
    if (!w.cpu_only && backend_cuda()->n_devices() == 0) {
        printf("no GPU here: SKIPPED\n");
        return 1;
    }
    int rc = w.model ? model_open_gguf(&m, w.model, &e)
                     : model_open_dummy(&m, "tests/data/layout_9_3.json", DT_BF16, 11, &e);
    if (rc) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    struct text t = read_text(model_config(m)->vocab, !w.model);
    rc = t.contexts ? check_all(m, &t, &w) : 1;
    mem_free(t.ids);
    model_close(m);
    return rc;
}
