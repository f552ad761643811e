/* What suffix decoding costs the engine's thread for a request and a step with 64k tokens of its own history and 1M
 * tokens that its tenant has said: appending the newest token and a guess, beside a cache that is emptied between the
 * calls (cold) or not; making the tree of a prompt, which another thread does; bytes a token. Text: files of this
 * repository, four bytes a token; noise: tokens by a steep distribution that repeats nothing. usage: suffix_bench */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/draft/suffix_cache.h"

enum { HISTORY = 65536, SAID = 1 << 20, CALLS = 2000, VOCAB = 49152, ROUNDS = 5 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void fill_with_noise(int32_t *text, int n)
{
    struct rng r;
    rng_init(&r, 7);
    for (int i = 0; i < n; i++) {
        double u = (double)rng_below(&r, 1 << 20) / (1 << 20);
        text[i] = (int32_t)(VOCAB * u * u * u);
    }
}

static int append_file(const char *path, int32_t *text, int at, int n)
{
    FILE *f = fopen(path, "r");
    unsigned char four[4];
    while (f && at < n && fread(four, 1, 4, f) == 4)
        text[at++] = (int32_t)((four[0] * 0x1000193u ^ four[1] * 0x811c9dc5u ^ four[2] * 31u ^ four[3]) % VOCAB);
    if (f)
        fclose(f);
    return at;
}

static void fill_with_text(int32_t *text, int n)
{
    static const char *const folders[] = {"engine",      "engine/world", "engine/exec", "models/load",
                                          "kernels/cpu", "tests/unit",   "lua",         "engine/serve/openai",
                                          "engine/lab",  "tests/layout"};
    for (int at = 0, before = -1; at < n && at != before;) {
        before = at;
        for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
            DIR *d = opendir(folders[i]);
            for (struct dirent *e; d && (e = readdir(d));) {
                char path[600];
                snprintf(path, sizeof path, "%s/%s", folders[i], e->d_name);
                if (strstr(path, ".c") || strstr(path, ".h"))
                    at = append_file(path, text, at, n);
            }
            if (d)
                closedir(d);
        }
    }
}

static void empty_caches(void)
{
    static char junk[96 << 20];
    for (size_t i = 0; i < sizeof junk; i += 64)
        junk[i]++;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One request whose history grows: the newest token goes in, and both trees are asked. */
static void measure_calls(struct suffix_cache *cache, const int32_t *text, bool cold, const char *name)
{
    struct suffix_tree *own = suffix_tree_new();
    uint32_t root = suffix_tree_root(own);
    int n = cold ? CALLS / 10 : CALLS, found = 0, matched = 0;
    double *us = mem_new_array((size_t)n, sizeof *us);
    suffix_tree_begin(own, root);
    suffix_tree_append(own, text, HISTORY);
    for (int i = 0; i < n; i++) {
        struct suffix_guess a, b;
        struct suffix_want want = {root, 16, 0.1f, 0, false};
        if (cold)
            empty_caches();
        int64_t begin = now_ns();
        suffix_tree_append(own, text + HISTORY + i, 1);
        suffix_tree_guess_own(own, &want, &a);
        want.hint = matched + 1;
        suffix_cache_guess(cache, "", text, HISTORY + i + 1, want, &b);
        us[i] = (double)(now_ns() - begin) * 1e-3;
        matched = b.match;
        found += a.n || b.n;
    }
    qsort(us, (size_t)n, sizeof *us, compare);
    printf("%-5s %s: a token and its guess %.2f us (median), %.2f (p99); a guess in %.0f%% of them\n", name,
           cold ? "cold" : "warm", us[n / 2], us[n * 99 / 100], 100.0 * found / n);
    mem_free(us);
    suffix_tree_free(own);
}

static void measure_tree(const int32_t *text, const char *name)
{
    double us[ROUNDS];
    struct suffix_stats s = {0};
    for (int i = 0; i < ROUNDS; i++) {
        struct suffix_tree *t = suffix_tree_new();
        int64_t begin = now_ns();
        suffix_tree_begin(t, suffix_tree_root(t));
        suffix_tree_append(t, text, HISTORY);
        us[i] = (double)(now_ns() - begin) * 1e-3 / HISTORY;
        s = suffix_tree_stats(t);
        suffix_tree_free(t);
    }
    qsort(us, ROUNDS, sizeof *us, compare);
    printf("%-5s a tree of %d tokens: %.2f us a token (beside the steps), %.0f bytes a token in use, %.0f held, %.2f "
           "nodes\n",
           name, HISTORY, us[ROUNDS / 2], (double)s.bytes / HISTORY, (double)s.held / HISTORY,
           (double)s.nodes / HISTORY);
}

static void measure(void (*fill)(int32_t *text, int n), const char *name)
{
    int32_t *text = mem_new_array(SAID + HISTORY + CALLS + 1, sizeof *text);
    struct suffix_cache *cache = suffix_cache_new((size_t)1 << 30);
    fill(text, SAID + HISTORY + CALLS + 1);
    for (int at = 0; at < SAID; at += 1024) {
        suffix_cache_add(cache, "", text + HISTORY + CALLS + 1 + at, 1024);
        while (suffix_cache_work(cache))
            ;
    }
    struct suffix_stats s = suffix_cache_stats(cache).tree;
    measure_tree(text, name);
    printf("%-5s what %d answers of 1024 tokens said: %.0f bytes a token in use, %.0f held\n", name, SAID / 1024,
           (double)s.bytes / (double)s.tokens, (double)s.held / (double)s.tokens);
    measure_calls(cache, text, false, name);
    measure_calls(cache, text, true, name);
    suffix_cache_free(cache);
    mem_free(text);
}

int main(void)
{
    measure(fill_with_text, "text");
    measure(fill_with_noise, "noise");
    return 0;
}
