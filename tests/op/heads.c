/* Draft heads: every kind of speculator against the formulas in float64; the guess of an ask does not depend on the
 * others, on who makes it, on chunks or threads; which row it goes on from. */
#include "models/forward/heads.h"
#include "kernels/draft.h"
#include "tests/rig/op_fixture.h"
#include "tests/rig/speculator_build.h"

enum { HIDDEN = 40, ASKS = 21, MOST_ROWS = 3 * ASKS };

/* ---- the formulas */

/* y = W x for the tensor of this name. */
static void product(const struct spec_build *b, const char *name, const double *x, int rows, int cols, double *y)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < cols; c++)
            y[r] += (double)spec_weight(b, name, (size_t)(r * cols + c), cols) * x[c];
    }
}

static void norm(double *x, int n)
{
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] /= sqrt(squares / n + 1e-6);
}

static void gelu_norm(const struct spec_build *b, const char *stem, double *x)
{
    char gain[64], bias[64];
    snprintf(gain, sizeof gain, "%.50s.weight", stem);
    snprintf(bias, sizeof bias, "%.50s.bias", stem);
    norm(x, b->inner);
    for (int i = 0; i < b->inner; i++) {
        double z = x[i] * (double)spec_weight(b, gain, (size_t)i, 0) + (double)spec_weight(b, bias, (size_t)i, 0);
        x[i] = z / 2 * erfc(-z / sqrt(2));
    }
}

static double emb_weight(const struct spec_build *b)
{
    double sw = pow(0.5, 0.5 / b->n_predict);
    return sqrt((1 - sw * sw) * (b->inner / 2.0)) / sw;
}

static void add_token(const struct spec_build *b, const char *name, int token, double *z)
{
    for (int i = 0; i < b->inner; i++)
        z[i] += emb_weight(b) * (double)spec_weight(b, name, (size_t)(token * b->inner + i), b->inner);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void lstm_cell(const struct spec_build *b, int head, int token, double *h, double *c)
{
    static const char *const gates[] = {"forget", "input", "output", "cell"};
    double z[4][64];
    char name[64];
    for (int g = 0; g < 4; g++) {
        snprintf(name, sizeof name, "%s_proj.%d.weight", gates[g], head > 0);
        product(b, name, h, b->inner, head ? b->inner : b->hidden, z[g]);
        snprintf(name, sizeof name, "%s_emb.0.weight", gates[b->tied_tables ? 0 : g]);
        add_token(b, name, token, z[g]);
    }
    gelu_norm(b, "cell_ln.0", z[3]);
    for (int i = 0; i < b->inner; i++)
        h[i] = c[i] = c[i] * sigmoid(z[0][i]) + z[3][i] * sigmoid(z[1][i]);
    gelu_norm(b, "state_ln.0", h);
    for (int i = 0; i < b->inner; i++)
        h[i] *= sigmoid(z[2][i]);
}

static void mlp_cell(const struct spec_build *b, int head, int token, double *h)
{
    const char *deep = b->kind == SPEC_RNN ? ".0" : "";
    int own = b->tied ? 0 : head;
    double z[64];
    char name[64];
    snprintf(name, sizeof name, "proj.%d%s.weight", b->tied && head > 1 ? 1 : head, deep);
    product(b, name, h, b->inner, head ? b->inner : b->hidden, z);
    snprintf(name, sizeof name, "emb.%d%s.weight", own, deep);
    add_token(b, name, token, z);
    snprintf(name, sizeof name, "ln.%d%s", own, deep);
    gelu_norm(b, name, z);
    memcpy(h, z, (size_t)b->inner * sizeof *h);
}

/* Compares a guess with the formulas, token by token; where two tokens are as good as equally likely, either will do.
 */
static void check(const struct spec_build *b, const float *hidden, int token, const struct draft_made *m)
{
    double h[64], c[64] = {0}, logits[256];
    for (int i = 0; i < b->hidden; i++)
        h[i] = (double)hidden[i];
    norm(h, b->scale_input ? b->hidden : 0);
    for (int i = 0; i < b->hidden && b->scale_input; i++)
        h[i] /= sqrt(2);
    assert_int_equal(m->n, b->n_predict);
    for (int i = 0; i < b->n_predict; i++) {
        char name[64];
        double most = -INFINITY, sum = 0;
        if (b->kind == SPEC_LSTM)
            lstm_cell(b, i, token, h, c);
        else
            mlp_cell(b, i, token, h);
        snprintf(name, sizeof name, "head.%d.weight", b->tied ? 0 : i);
        product(b, name, h, b->vocab, b->inner, logits);
        for (int t = 0; t < b->vocab; t++)
            most = fmax(most, logits[t]);
        for (int t = 0; t < b->vocab; t++)
            sum += exp(logits[t] - most);
        token = m->tokens[i];
        assert_in_range(token, 0, b->vocab - 1);
        if (logits[token] < most - 1e-4 || fabs((double)m->shares[i] - 1 / sum) > 1e-4)
            fail_msg("head %d says %d (%g), its logit is %g, the largest %g, its share %g", i, token,
                     (double)m->shares[i], logits[token], most, 1 / sum);
    }
}

/* ---- a step */

struct scene {
    float *hidden; /* [MOST_ROWS][HIDDEN] before the norm */
    float gain[HIDDEN];
    struct sample_result results[MOST_ROWS];
    int32_t drafts[ASKS][2];
    bool forks[ASKS];                                        /* both draft tokens stand behind the newest one */
    int first[ASKS], n[ASKS], right[ASKS], last[ASKS], rows; /* last: the row that the guess goes on from */
};

/* Asks with 0 to 2 draft tokens, some of them right, in a chain or a fork; rows of others between. */
static void set_scene(struct scene *s, int vocab)
{
    struct rng r;
    rng_init(&r, 11);
    s->hidden = random_floats(&r, MOST_ROWS * HIDDEN, 2);
    s->rows = 0;
    for (int i = 0; i < HIDDEN; i++)
        s->gain[i] = 1 + 0.2f * gaussian(&r);
    for (int i = 0; i < MOST_ROWS; i++)
        s->results[i].token = (int32_t)rng_below(&r, (uint64_t)vocab);
    for (int i = 0; i < ASKS; i++) {
        s->first[i] = s->rows;
        s->n[i] = 1 + (int)rng_below(&r, 3);
        s->right[i] = (int)rng_below(&r, (uint64_t)s->n[i]);
        for (int k = 0; k + 1 < s->n[i]; k++)
            s->drafts[i][k] = s->results[s->rows + k].token + (k == s->right[i]);
        s->last[i] = s->rows + s->right[i];
        s->forks[i] = s->n[i] == 3 && rng_below(&r, 2);
        if (s->forks[i]) { /* right: which of the two, from 1 */
            for (int k = 0; k < 2; k++)
                s->drafts[i][k] = s->results[s->rows].token + (k + 1 == s->right[i] ? 0 : k + 1);
            s->right[i] = s->right[i] > 0;
        }
        s->rows += s->n[i];
    }
}

struct way {
    int members, chunk, threads;
};

/* All members' parts, one after the other, on devices of their own. */
static const int8_t fork[] = {-1, -1};
static void make(const struct speculator *sp, struct scene *s, struct way way, struct heads_ask *asks)
{
    struct heads_asks all = {s->results, asks, ASKS};
    for (int i = 0; i < ASKS; i++)
        asks[i] = (struct heads_ask){
            .first = s->first[i], .at = -1, .drafts = {s->n[i] - 1, s->drafts[i], s->forks[i] ? fork : NULL}};
    for (int me = 0; me < way.members; me++) {
        struct device *d = open_device(NULL, way.threads);
        struct heads_weights *w;
        struct heads *h;
        struct err e = {0};
        if (heads_weights_load(&w, sp, ops, d, &e) || heads_open(&h, w, d, &e))
            fail_msg("%s", e.text);
        assert_int_equal(ops->begin(d, &(struct batch){.n_rows = 1}, NULL, &e), 0);
        for (int at = 0; at < s->rows; at += way.chunk) {
            int n = s->rows - at < way.chunk ? s->rows - at : way.chunk;
            heads_keep(h, &(struct heads_rows){.asks = &all,
                                               .me = me,
                                               .n = way.members,
                                               .first = at,
                                               .rows = n,
                                               .hidden = {s->hidden + at * HIDDEN, HIDDEN, HIDDEN},
                                               .out_norm = s->gain,
                                               .norm_eps = 1e-5f});
            if (at == 0)
                heads_guess(h, &all, me, way.members); /* as after a micro-batch */
        }
        heads_guess(h, &all, me, way.members);
        assert_int_equal(ops->finish(d, NULL, &e), 0);
        heads_close(h);
        heads_weights_free(w);
        ops->close(d);
    }
}

static void run(struct spec_build b)
{
    static struct scene s;
    struct heads_ask asks[ASKS], others[ASKS];
    struct built_speculator built;
    struct err e = {0};
    b.hidden = HIDDEN;
    if (spec_open(&built, &b, &e))
        fail_msg("%s", e.text);
    set_scene(&s, b.vocab);
    make(built.s, &s, (struct way){1, MOST_ROWS, 1}, asks);
    for (int i = 0; i < ASKS; i++) {
        float x[HIDDEN];
        double squares = 0;
        int row = s.last[i];
        for (int k = 0; k < HIDDEN; k++)
            squares += (double)s.hidden[row * HIDDEN + k] * (double)s.hidden[row * HIDDEN + k];
        for (int k = 0; k < HIDDEN; k++)
            x[k] = (float)((double)(s.hidden[row * HIDDEN + k] * s.gain[k]) / sqrt(squares / HIDDEN + 1e-5));
        assert_int_equal(asks[i].made.right, s.right[i]);
        check(&b, x, s.results[row].token, &asks[i].made);
    }
    static const struct way ways[] = {{2, 5, 2}, {3, 1, 1}, {8, 7, 3}};
    for (int k = 0; k < 3; k++) {
        make(built.s, &s, ways[k], others);
        for (int i = 0; i < ASKS; i++)
            assert_memory_equal(&asks[i].made, &others[i].made, sizeof asks[i].made);
    }
    free(s.hidden);
    spec_close(&built);
}

static void mlp(void **state)
{
    (void)state;
    run((struct spec_build){.kind = SPEC_PLAIN, .n_predict = 3, .inner = 24, .vocab = 50, .type = DT_F32});
    run((struct spec_build){.kind = SPEC_PLAIN, .n_predict = 1, .inner = 17, .vocab = 33, .type = DT_F16});
}

static void tied_mlp(void **state)
{
    (void)state;
    run((struct spec_build){.kind = SPEC_PLAIN,
                            .tied = true,
                            .scale_input = true,
                            .n_predict = 4,
                            .inner = 32,
                            .vocab = 65,
                            .type = DT_BF16});
    run((struct spec_build){.kind = SPEC_RNN,
                            .tied = true,
                            .n_predict = 3,
                            .inner = 20,
                            .vocab = 48,
                            .type = DT_F16,
                            .prefix = "speculator."});
}

static void lstm(void **state)
{
    (void)state;
    run((struct spec_build){.kind = SPEC_LSTM, .tied = true, .n_predict = 3, .inner = 24, .vocab = 50, .type = DT_F32});
    run((struct spec_build){.kind = SPEC_LSTM,
                            .tied = true,
                            .tied_tables = true,
                            .scale_input = true,
                            .n_predict = 3,
                            .inner = 33,
                            .vocab = 40,
                            .type = DT_BF16});
}

/* Weights that are no numbers guess nothing, or some token; logits without a number guess nothing. */
static void weights_of_nan(void **state)
{
    (void)state;
    static const char *const spoiled[] = {"head.0.weight", "ln.0.weight", "proj.0.weight", "emb.0.weight"};
    static struct scene s;
    struct heads_ask asks[ASKS];
    set_scene(&s, 30);
    for (int k = 0; k < 4; k++) {
        struct spec_build b = {.tied = true, .n_predict = 2, .hidden = HIDDEN, .inner = 16, .vocab = 30};
        struct built_speculator built;
        struct err e = {0};
        b.spoil = spoiled[k];
        assert_int_equal(spec_open(&built, &b, &e), 0);
        make(built.s, &s, (struct way){1, 4, 1}, asks);
        for (int i = 0; i < ASKS; i++)
            assert_int_equal(asks[i].made.n, 0);
        spec_close(&built);
    }
    free(s.hidden);
}

static void the_most_likely_token(void **state)
{
    (void)state;
    float x[4][16] = {
        {1, 3, 3, NAN}, {NAN, NAN, NAN, NAN}, {-INFINITY, 5, INFINITY, 1}, {-INFINITY, -INFINITY, 0, NAN}};
    int32_t ids[4];
    float shares[4];
    struct device *d = open_device(NULL, 2);
    assert_int_equal(ops->begin(d, &(struct batch){.n_rows = 1}, NULL, NULL), 0);
    ops->draft()->top(d, (struct act){x, 4, 16, false}, 4, 4, ids, shares);
    assert_int_equal(ids[0], 1);
    assert_true(fabsf(shares[0] - 1 / (2 + expf(-2))) < 1e-6f);
    assert_int_equal(ids[1], -1);
    assert_true(ids[2] == 2 && shares[2] == 1);
    assert_true(ids[3] == 2 && shares[3] == 1);
    assert_int_equal(ops->finish(d, NULL, NULL), 0);
    ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mlp),
        cmocka_unit_test(tied_mlp),
        cmocka_unit_test(lstm),
        cmocka_unit_test(weights_of_nan),
        cmocka_unit_test(the_most_likely_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
