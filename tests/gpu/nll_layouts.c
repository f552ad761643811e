/* The likelihood of a text in the default mode, in every layout of 1, 2, 4 and 8 ranks that share one GPU: within
 * LAYOUT_BOUND of one rank's, and that within CPU_BOUND of the CPU's, which gold_nll holds against float64. The text is
 * that of gold_nll, its first tokens over the emulator; without a model a dummy one reads it. tests/gpu.sh runs it.
 * usage: nll_layouts [--ranks MOST] [--cpu-said NLL | --cpu] [MODEL.gguf]
 *   --cpu: prints the CPU's alone; --cpu-said: the CPU here must say that, too, as its bits are the same everywhere */
#include <math.h>
#include <stdlib.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "tests/rig/layout_subject.h"

enum { CHUNK = 256, BLOCK = 32 };
#if defined(EMULATED)
enum { MOST_TOKENS = 24, MOST_RANKS = 4 };
#else
enum { MOST_TOKENS = 1500, MOST_RANKS = 8 };
#endif
/* Of means over MEANT tokens; those of fewer move more. */
static const double CPU_BOUND = 0.005, LAYOUT_BOUND = 0.002, PRINTED = 0.00001, MEANT = 1499;

struct wish {
    const char *model; /* NULL: a dummy one */
    int ranks;
    bool cpu_only;
    double cpu_said; /* 0: nothing was said */
};

struct text {
    int32_t *ids;
    int n;
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
    return t;
}

struct scoring {
    struct node node;
    struct place place;
    struct layout layout;
    const struct text *text;
    double nll;
};

/* Rows [first, first + n) of the text; each scores the token after it. */
static int score_chunk(struct scoring *s, int first, int n, struct err *e)
{
    const struct text *t = s->text;
    static const struct sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    struct node_part parts[NODE_RANKS];
    struct sample_row rows[CHUNK];
    struct sample_result results[CHUNK];
    int32_t wanted[CHUNK];
    struct node_seq seq = {0, first, n, t->ids};
    for (int i = 0; i < n; i++) {
        wanted[i] = i;
        rows[i] = (struct sample_row){.how = &greedy, .given = t->ids[first + i + 1], .n_top = 0};
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
        s->nll -= (double)results[i].logprob / (t->n - 1);
    return 0;
}

static int score(struct model *m, const struct backend_ops *ops, struct layout l, const struct text *t, double *nll,
                 struct err *e)
{
    struct scoring s = {.layout = l, .text = t};
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
                          .n_blocks = NODE_SEQS * ((t->n + BLOCK - 1) / BLOCK)};
    TRY(node_open(&s.node, m, &o, e));
    place_make(&s.place, (struct layout){ranks, 1, 1}, node_tokens_per_block(&s.node, ranks), t->n, 0);
    int rc = 0;
    for (int at = 0; at < t->n - 1 && !rc; at += CHUNK)
        rc = score_chunk(&s, at, t->n - 1 - at < CHUNK ? t->n - 1 - at : CHUNK, e);
    *nll = s.nll;
    place_free(&s.place);
    node_close(&s.node);
    return rc;
}

/* Prints how it went; false: off, or not run. */
static bool check_layout(struct model *m, struct layout l, const struct text *t, double one, double bound)
{
    bound *= sqrt(fmax(1, MEANT / (t->n - 1)));
    struct err e = {0};
    double nll;
    int rc = score(m, backend_cuda(), l, t, &nll, &e);
    bool good = !rc && fabs(nll - one) <= bound;
    if (rc)
        printf("{sp %d, tp %d}: %s\n", l.sp, l.tp, e.text);
    else
        printf("%s {sp %d, tp %d}: NLL %.5f, off by %.5f (bound %.3f)\n", good ? "ok    " : "FAILED", l.sp, l.tp, nll,
               nll - one, bound);
    fflush(stdout);
    return good;
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
    double cpu, one;
    int passed = 0, failed = 0;
    int rc = score(m, backend_cpu(), (struct layout){1, 1, 1}, t, &cpu, &e);
    if (!rc) {
        printf("NLL of %d tokens: CPU %.5f\n", t->n - 1, cpu);
        fflush(stdout);
    }
    if (!rc && w->cpu_only)
        return 0;
    if (rc || score(m, backend_cuda(), (struct layout){1, 1, 1}, t, &one, &e)) {
        printf("%s\n0 passed, 1 failed\n", e.text);
        return 1;
    }
    *(cpu_says(cpu, w) ? &passed : &failed) += 1;
    *(check_layout(m, (struct layout){1, 1, 1}, t, cpu, CPU_BOUND) ? &passed : &failed) += 1;
    for (int ranks = 2; ranks <= w->ranks; ranks *= 2)
        for (int i = 0, n = layouts_of(model_config(m), ranks, layouts); i < n; i++)
            *(check_layout(m, layouts[i], t, one, LAYOUT_BOUND) ? &passed : &failed) += 1;
    printf("%d passed, %d failed\n", passed, failed);
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
    rc = t.n > 1 ? check_all(m, &t, &w) : 1;
    mem_free(t.ids);
    model_close(m);
    return rc;
}
