/* Suffix trees beside a naive one, which is a list of all suffixes that are in: the same counts of every string, the
 * invariants, and guesses that are what stood there; while sequences come, grow, end and are taken out at random, in
 * trees that share their memory. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/rng.h"
#include "engine/draft/suffix_tree.h"

enum { SEQS = 12, LONGEST = 400, ROOTS = 2, NONE = -1, GUESS = 24, VOCAB = 50 };

struct naive_seq {
    uint32_t handle;       /* 0: free */
    int root, n, from, to; /* tokens; suffixes [from, to) are in */
    int32_t text[LONGEST];
};

struct naive {
    struct suffix_tree *tree;
    uint32_t roots[ROOTS];
    struct naive_seq seqs[SEQS];
    int open;   /* NONE: none */
    bool ended; /* some sequence has: its end goes on nowhere */
};

/* How many suffixes that are in begin with this string. */
static int naive_count(const struct naive *v, int root, const int32_t *string, int n)
{
    int found = 0;
    for (const struct naive_seq *s = v->seqs; s < v->seqs + SEQS; s++)
        for (int i = s->from; s->handle && s->root == root && i < s->to && i + n <= s->n; i++)
            found += memcmp(s->text + i, string, (size_t)n * sizeof *string) == 0;
    return found;
}

static void naive_settle(struct naive *v, bool all, int most)
{
    struct naive_seq *s = &v->seqs[v->open];
    for (; s->to < s->n && most > 0; s->to++, most--) {
        int n = s->n - s->to;
        if (!all && n < SUFFIX_DEPTH && naive_count(v, s->root, s->text + s->to, n) > 0)
            return;
    }
}

static void compare_counts(const struct naive *v, struct rng *r)
{
    for (int i = 0; i < 40; i++) {
        const struct naive_seq *s = &v->seqs[rng_below(r, SEQS)];
        int32_t string[SUFFIX_DEPTH];
        if (!s->n)
            continue;
        int at = (int)rng_below(r, (uint64_t)s->n), most = s->n - at < SUFFIX_DEPTH ? s->n - at : SUFFIX_DEPTH,
            n = 1 + (int)rng_below(r, (uint64_t)most);
        memcpy(string, s->text + at, (size_t)n * sizeof *string);
        if (rng_below(r, 4) == 0)
            string[n - 1]++;
        for (int root = 0; root < ROOTS; root++)
            assert_int_equal(suffix_tree_count(v->tree, v->roots[root], string, n), naive_count(v, root, string, n));
    }
    const char *wrong = suffix_tree_check(v->tree, v->roots, ROOTS);
    if (wrong)
        fail_msg("%s", wrong);
}

/* Are suffixes due that stand nowhere else? */
static bool is_behind(const struct naive *v)
{
    const struct naive_seq *s = &v->seqs[v->open];
    int n = s->n - s->to;
    return n >= SUFFIX_DEPTH || (n > 0 && !naive_count(v, s->root, s->text + s->to, n));
}

/* The longest end of the context that is followed by anything. */
static int naive_match(const struct naive *v, int root, const int32_t *context, int n)
{
    for (int m = n < SUFFIX_MATCH ? n : SUFFIX_MATCH; m > 0; m--)
        for (const struct naive_seq *s = v->seqs; s < v->seqs + SEQS; s++)
            for (int i = s->from; s->handle && s->root == root && i < s->to && i + m < s->n; i++)
                if (memcmp(s->text + i, context + n - m, (size_t)m * sizeof *context) == 0)
                    return m;
    return 0;
}

/* Each token is as frequent as any behind what is before it; where the tree ends, the text of a sequence goes on. */
static void check_guess(const struct naive *v, int root, const int32_t *context, int n)
{
    struct suffix_guess g;
    int32_t string[2 * SUFFIX_DEPTH + 1];
    int got = suffix_tree_guess(v->tree, &(struct suffix_want){v->roots[root], 24, 0, 0, false}, context, n, &g),
        match = naive_match(v, root, context, n);
    if (v->open != NONE && is_behind(v)) { /* a longer one may stand there when a shorter one does not yet */
        assert_true(g.match <= match);
        match = g.match;
    }
    assert_int_equal(got > 0, match > 0);
    assert_int_equal(g.match, match);
    for (int hint = 1; hint < 40; hint += 7) { /* what is looked at first makes no difference */
        struct suffix_guess h;
        suffix_tree_guess(v->tree, &(struct suffix_want){v->roots[root], 24, 0, hint, false}, context, n, &h);
        assert_true(
            (v->open != NONE && is_behind(v)) ||
            (h.match == g.match && h.n == g.n && memcmp(h.tokens, g.tokens, (size_t)g.n * sizeof *g.tokens) == 0));
    }
    assert_true(g.score <= (float)got + 0.01f && g.score >= 0);
    memcpy(string, context + n - match, (size_t)match * sizeof *string);
    memcpy(string + match, g.tokens, (size_t)got * sizeof *string);
    for (int i = 0; i < got && match + i < SUFFIX_DEPTH; i++) {
        int best = naive_count(v, root, string, match + i + 1);
        if (best == 0) /* beyond the end of the open sequence */
            break;
        for (int other = 0; other < 4; other++) {
            int32_t said = string[match + i];
            string[match + i] = other;
            assert_true(naive_count(v, root, string, match + i + 1) <= best);
            string[match + i] = said;
        }
    }
}

/* Of the open sequence what stands in the tree is known without a search, unless suffixes are due. */
static void check_own_guess(const struct naive *v)
{
    const struct naive_seq *s = &v->seqs[v->open];
    struct suffix_guess own, g;
    struct suffix_want w = {v->roots[s->root], 24, 0, 0, false};
    suffix_tree_guess_own(v->tree, &w, &own);
    int match = s->n - s->to;
    if (is_behind(v)) {
        assert_true(own.match <= naive_match(v, s->root, s->text + s->to, match));
        match = own.match;
    }
    if (own.match != match) /* it was looked for: what goes on, of SUFFIX_MATCH tokens at the most */
        assert_int_equal(own.match, naive_match(v, s->root, s->text + s->to, match));
    if (match > SUFFIX_MATCH || s->n == 0 || v->ended || is_behind(v))
        return;
    suffix_tree_guess(v->tree, &w, s->text, s->n, &g);
    assert_int_equal(g.match, match);
    assert_int_equal(g.n, own.n);
    assert_memory_equal(g.tokens, own.tokens, (size_t)g.n * sizeof *g.tokens);
}

/* A node of the naive tree: what stands there from the match on, and how often. */
struct naive_node {
    int32_t said[GUESS + 1];
    int n, count;
};

/* What stands behind a string, each token with how often it does; returns how many there are. */
static int naive_children(const struct naive *v, int root, const int32_t *string, int n, struct naive_node *out)
{
    int found = 0;
    for (const struct naive_seq *s = v->seqs; s < v->seqs + SEQS; s++)
        for (int i = s->from; s->handle && s->root == root && i < s->to && i + n < s->n; i++) {
            int k = 0;
            if (memcmp(s->text + i, string, (size_t)n * sizeof *string) != 0)
                continue;
            while (k < found && out[k].said[0] != s->text[i + n])
                k++;
            found += k == found;
            out[k].said[0] = s->text[i + n];
            out[k].count++;
        }
    return found;
}

/* The counts of the most frequent strings behind the match, summed. *n: how many there are, up to GUESS. */
static int64_t naive_best(const struct naive *v, int root, const int32_t *match, int n_match, int *n)
{
    static struct naive_node front[GUESS * VOCAB + VOCAB], children[VOCAB];
    int32_t string[SUFFIX_MATCH + GUESS + 1];
    struct naive_node at = {.n = 0};
    int64_t sum = 0;
    int n_front = 0;
    for (*n = 0; *n < GUESS; ++*n) {
        memcpy(string, match, (size_t)n_match * sizeof *string);
        memcpy(string + n_match, at.said, (size_t)at.n * sizeof *string);
        memset(children, 0, sizeof children);
        int more = naive_children(v, root, string, n_match + at.n, children), best = 0;
        for (int i = 0; i < more; i++) {
            struct naive_node child = at;
            child.said[child.n++] = children[i].said[0];
            child.count = children[i].count;
            front[n_front++] = child;
        }
        for (int i = 1; i < n_front; i++)
            best = front[i].count > front[best].count ? i : best;
        if (!n_front)
            break;
        at = front[best];
        sum += at.count;
        front[best] = front[--n_front];
    }
    return sum;
}

/* A tree, whose tokens have the largest shares that there are. */
static void check_tree_guess(const struct naive *v, int root, const int32_t *context, int n)
{
    struct suffix_guess g, chain;
    struct suffix_want w = {v->roots[root], GUESS, 0, 0, false};
    suffix_tree_guess(v->tree, &w, context, n, &chain);
    w.tree = true;
    suffix_tree_guess(v->tree, &w, context, n, &g);
    assert_int_equal(g.match, chain.match);
    assert_true(g.n >= chain.n && g.score >= chain.score - 1e-4f && g.score <= (float)g.n + 1e-4f);
    int32_t string[SUFFIX_MATCH + GUESS];
    memcpy(string, context + n - g.match, (size_t)g.match * sizeof *string);
    int64_t all = g.match ? naive_count(v, root, string, g.match) : 0, sum = 0;
    for (int i = 0; i < g.n; i++) {
        int depth = 0;
        assert_true(g.parents[i] >= -1 && g.parents[i] < i);
        for (int k = 0; k < i; k++)
            assert_false(g.parents[k] == g.parents[i] && g.tokens[k] == g.tokens[i]);
        for (int k = i; k >= 0; k = g.parents[k])
            depth++;
        for (int k = i, at = g.match + depth; k >= 0; k = g.parents[k])
            string[--at] = g.tokens[k];
        sum += naive_count(v, root, string, g.match + depth);
    }
    if (v->open != NONE && v->seqs[v->open].root == root)
        return; /* it goes on where its text ends */
    int most = 0;
    assert_int_equal(sum, g.match ? naive_best(v, root, context + n - g.match, g.match, &most) : 0);
    assert_int_equal(g.n, most);
    assert_true(!g.n || (g.score - (float)sum / (float)all < 1e-3f && (float)sum / (float)all - g.score < 1e-3f));
}

static void open_one(struct naive *v, struct rng *r)
{
    for (int i = 0; i < SEQS && v->open == NONE; i++)
        if (!v->seqs[i].handle) {
            struct naive_seq *s = &v->seqs[v->open = i];
            memset(s, 0, sizeof *s);
            s->root = (int)rng_below(r, ROOTS);
            s->handle = suffix_tree_begin(v->tree, v->roots[s->root]);
        }
}

/* A few tokens, new ones or those of some other place. */
static void append(struct naive *v, struct rng *r, int vocab)
{
    struct naive_seq *s = &v->seqs[v->open];
    const struct naive_seq *from = &v->seqs[rng_below(r, SEQS)];
    int32_t tokens[100];
    int n = 1 + (int)rng_below(r, 99), at = from->n ? (int)rng_below(r, (uint64_t)from->n) : 0;
    bool copies = from->n && rng_below(r, 2);
    n = s->n + n > LONGEST ? LONGEST - s->n : n;
    for (int i = 0; i < n; i++)
        tokens[i] = copies && at + i < from->n ? from->text[at + i] : (int32_t)rng_below(r, (uint64_t)vocab);
    int most = rng_below(r, 2) ? INT_MAX : (int)rng_below(r, 60);
    suffix_tree_append_some(v->tree, tokens, n, most);
    memcpy(s->text + s->n, tokens, (size_t)n * sizeof *tokens);
    s->n += n;
    naive_settle(v, false, most);
}

static void end_it(struct naive *v)
{
    suffix_tree_end(v->tree);
    v->ended = true;
    naive_settle(v, true, INT_MAX);
    if (!v->seqs[v->open].n) /* nothing was in it */
        v->seqs[v->open].handle = suffix_tree_remove(v->tree, v->seqs[v->open].handle, 1) ? 0 : 99;
    v->open = NONE;
}

static void take_out(struct naive *v, struct rng *r)
{
    int i = (int)rng_below(r, SEQS), n = 1 + (int)rng_below(r, 300);
    struct naive_seq *s = &v->seqs[i];
    if (!s->handle || i == v->open)
        return;
    int32_t left[LONGEST];
    assert_int_equal(suffix_tree_n_tokens(v->tree, s->handle), s->n - s->from);
    suffix_tree_tokens(v->tree, s->handle, left);
    assert_memory_equal(left, s->text + s->from, (size_t)(s->n - s->from) * sizeof *left);
    s->from = s->from + n < s->n ? s->from + n : s->n;
    bool gone = suffix_tree_remove(v->tree, s->handle, n);
    assert_int_equal(gone, s->from == s->n);
    if (gone)
        memset(s, 0, sizeof *s);
    if (v->open != NONE)
        naive_settle(v, false, INT_MAX);
}

static void act(struct naive *v, struct rng *r, int vocab)
{
    int what = (int)rng_below(r, 8);
    if (v->open == NONE && what < 6)
        open_one(v, r);
    else if (v->open != NONE && what < 5)
        append(v, r, vocab);
    else if (v->open != NONE && what == 5)
        end_it(v);
    else
        take_out(v, r);
}

static void random_rounds(uint64_t seed, int rounds)
{
    for (int round = 0; round < rounds; round++) {
        struct naive v = {.tree = suffix_tree_new(), .open = NONE};
        struct rng r;
        rng_init(&r, seed + (uint64_t)round);
        int vocab = round % 3 == 0 ? 2 : round % 3 == 1 ? 4 : 50;
        for (int i = 0; i < ROOTS; i++)
            v.roots[i] = suffix_tree_root(v.tree);
        for (int i = 0; i < 60; i++) {
            act(&v, &r, vocab);
            compare_counts(&v, &r);
            if (v.open != NONE)
                check_own_guess(&v);
            const struct naive_seq *s = &v.seqs[rng_below(&r, SEQS)];
            if (s->n)
                check_guess(&v, (int)rng_below(&r, ROOTS), s->text, 1 + (int)rng_below(&r, (uint64_t)s->n));
            if (s->n && i % 4 == 0)
                check_tree_guess(&v, (int)rng_below(&r, ROOTS), s->text, 1 + (int)rng_below(&r, (uint64_t)s->n));
        }
        suffix_tree_free(v.tree);
    }
}

static void counts_what_a_naive_one_counts(void **state)
{
    (void)state;
    const char *n = getenv("MOONSHIFT_TEST_ROUNDS"), *seed = getenv("MOONSHIFT_TEST_SEED");
    random_rounds(seed ? strtoull(seed, NULL, 10) : 1, n ? atoi(n) : 60);
}

/* All that came is gone again: nothing is left but what was there at the start. */
static void what_is_taken_out_leaves_nothing(void **state)
{
    (void)state;
    struct suffix_tree *t = suffix_tree_new();
    uint32_t root = suffix_tree_root(t), seqs[20];
    size_t empty = suffix_tree_stats(t).bytes;
    int32_t text[500];
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < 500; k++)
            text[k] = (int32_t)rng_below(&r, 5);
        seqs[i] = suffix_tree_begin(t, root);
        suffix_tree_append(t, text, 500);
        suffix_tree_end(t);
    }
    struct suffix_stats full = suffix_tree_stats(t);
    assert_int_equal(full.tokens, 20 * 500);
    assert_true(full.bytes <= 10000 * 200 && full.held >= full.bytes);
    for (int i = 0; i < 20; i++) {
        uint32_t seq = seqs[(i * 7) % 20];
        while (!suffix_tree_remove(t, seq, 33))
            ;
    }
    struct suffix_stats left = suffix_tree_stats(t);
    assert_int_equal(left.nodes, 1);
    assert_int_equal(left.tokens, 0);
    assert_true(left.bytes <= full.bytes && empty <= left.bytes); /* the table of children keeps its size */
    suffix_tree_drop_root(t, root);
    suffix_tree_free(t);
}

/* A text that repeats itself is guessed beyond its end, as long as one likes. */
static void an_open_text_goes_on_with_itself(void **state)
{
    (void)state;
    struct suffix_tree *t = suffix_tree_new();
    uint32_t root = suffix_tree_root(t);
    int32_t text[] = {1, 2, 3, 4, 1, 2, 3, 4, 1, 2};
    struct suffix_guess g;
    suffix_tree_begin(t, root);
    suffix_tree_append(t, text, 10);
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 20, 0.1f, 0, false}, text, 10, &g), 20);
    for (int i = 0; i < 20; i++)
        assert_int_equal(g.tokens[i], 1 + (i + 2) % 4);
    assert_int_equal(g.match, 6);
    assert_true(g.score > 19.9f);
    suffix_tree_free(t);
}

/* The share of the most frequent continuation says where a guess ends. */
static void a_guess_ends_where_it_is_unlikely(void **state)
{
    (void)state;
    struct suffix_tree *t = suffix_tree_new();
    uint32_t root = suffix_tree_root(t);
    struct suffix_guess g;
    for (int i = 0; i < 10; i++) { /* 1 2 is followed by 3 seven times, and that by another token each time */
        int32_t text[] = {1, 2, i < 7 ? 3 : 4, 10 + i, 20 + i};
        suffix_tree_begin(t, root);
        suffix_tree_append(t, text, 5);
        suffix_tree_end(t);
    }
    int32_t context[] = {9, 1, 2};
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 8, 0.5f, 0, false}, context, 3, &g), 1);
    assert_int_equal(g.tokens[0], 3);
    assert_int_equal(g.match, 2);
    assert_true(g.score > 0.69f && g.score < 0.71f);
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 8, 0.75f, 0, false}, context, 3, &g), 0);
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 8, 0.05f, 0, false}, context, 3, &g), 3);
    assert_true(g.score > 0.89f && g.score < 0.91f); /* 0.7 + 0.7 / 7 + 0.7 / 7 */
    suffix_tree_free(t);
}

/* Of sequences that say the same, the latest one is named. */
static void the_latest_is_named(void **state)
{
    (void)state;
    struct suffix_tree *t = suffix_tree_new();
    uint32_t root = suffix_tree_root(t), last = 0;
    int32_t text[] = {5, 6, 7, 8};
    struct suffix_guess g;
    for (int i = 0; i < 3; i++) {
        last = suffix_tree_begin(t, root);
        suffix_tree_append(t, text, 4);
        suffix_tree_end(t);
    }
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 8, 0, 0, false}, text, 2, &g), 2);
    assert_int_equal(g.seq, last);
    assert_true(suffix_tree_remove(t, last, 9));
    assert_int_equal(suffix_tree_guess(t, &(struct suffix_want){root, 8, 0, 0, false}, text, 2, &g), 2);
    assert_int_not_equal(g.seq, last);
    suffix_tree_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_what_a_naive_one_counts),
        cmocka_unit_test(what_is_taken_out_leaves_nothing),
        cmocka_unit_test(an_open_text_goes_on_with_itself),
        cmocka_unit_test(a_guess_ends_where_it_is_unlikely),
        cmocka_unit_test(the_latest_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
