/* The tokenizer at a pipe, for the oracle and the benchmark in Python.
 * MODEL: a GGUF file, or a folder with a tokenizer.json.
 *   tokenizer_ids MODEL ids|special|bos   stdin: u32 length and bytes, repeated. stdout: one line of ids for
 * each tokenizer_ids MODEL text              stdin: u32 count and i32 ids, repeated. stdout: u32 length and
 * text, each streamed by id tokenizer_ids MODEL time FILE SECONDS stdout: ids, bytes and seconds of the
 * fastest pass over the file */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "models/tokenizer/hf_words.h"
#include "models/tokenizer/tokenizer.h"

static bool read_block(struct buf *b, size_t unit)
{
    uint32_t n;
    buf_clear(b);
    if (fread(&n, 4, 1, stdin) != 1)
        return false;
    buf_reserve(b, n * unit);
    b->len = n * unit;
    return fread(b->data, unit, n, stdin) == n;
}

static int print_ids(const struct tokenizer *t, int flags)
{
    struct buf text = {0};
    struct tokens ids = {0};
    struct err e;
    while (read_block(&text, 1)) {
        ids.len = 0;
        if (tokenizer_encode(t, text.data, text.len, (struct tokenize_how){.flags = flags}, &ids, &e))
            printf("error: %s", e.text);
        for (size_t i = 0; i < ids.len; i++)
            printf(i ? " %d" : "%d", ids.ids[i]);
        putchar('\n');
    }
    tokens_free(&ids);
    buf_free(&text);
    return 0;
}

static int print_texts(const struct tokenizer *t)
{
    struct buf ids = {0}, text = {0};
    while (read_block(&ids, 4)) {
        struct detok d;
        buf_clear(&text);
        detok_init(&d, t, false);
        for (size_t i = 0; i < ids.len; i += 4) {
            int32_t id;
            memcpy(&id, ids.data + i, 4);
            detok_put(&d, id, &text);
        }
        detok_flush(&d, &text);
        uint32_t n = (uint32_t)text.len;
        fwrite(&n, 4, 1, stdout);
        fwrite(text.data, 1, text.len, stdout);
    }
    buf_free(&ids);
    buf_free(&text);
    return 0;
}

static int print_time(const struct tokenizer *t, const char *path, double seconds)
{
    struct buf text = {0};
    struct tokens ids = {0};
    struct clock clock;
    struct err e;
    clock_init_real(&clock);
    if (file_read(&text, path, (size_t)1 << 30, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    double best = 0;
    int64_t begin = clock_now(&clock);
    do {
        int64_t start = clock_now(&clock);
        ids.len = 0;
        if (tokenizer_encode(t, text.data, text.len, (struct tokenize_how){0}, &ids, &e))
            return fprintf(stderr, "%s\n", e.text), 1;
        double s = (double)(clock_now(&clock) - start) * 1e-9;
        best = best == 0 || s < best ? s : best;
    } while ((double)(clock_now(&clock) - begin) * 1e-9 < seconds);
    printf("%zu %zu %.9f\n", ids.len, text.len, best);
    tokens_free(&ids);
    buf_free(&text);
    return 0;
}

static int run(const struct tokenizer *t, int argc, char **argv)
{
    if (strcmp(argv[2], "ids") == 0)
        return print_ids(t, 0);
    if (strcmp(argv[2], "special") == 0)
        return print_ids(t, TOKENIZE_SPECIAL);
    if (strcmp(argv[2], "bos") == 0)
        return print_ids(t, TOKENIZE_SPECIAL | TOKENIZE_BOS);
    if (strcmp(argv[2], "text") == 0)
        return print_texts(t);
    if (strcmp(argv[2], "time") == 0 && argc == 5)
        return print_time(t, argv[3], atof(argv[4]));
    return fprintf(stderr, "unknown mode %s\n", argv[2]), 2;
}

int main(int argc, char **argv)
{
    struct gguf *g;
    struct tokenizer *t;
    struct err e;
    if (argc < 3)
        return fprintf(stderr, "usage: tokenizer_ids MODEL ids|special|bos|text|time ...\n"), 2;
    struct stat st;
    bool folder = stat(argv[1], &st) == 0 && S_ISDIR(st.st_mode);
    if ((folder ? hf_words_open(&g, argv[1], &e) : gguf_open(&g, argv[1], &e)) || tokenizer_from_gguf(&t, g, &e))
        return fprintf(stderr, "%s\n", e.text), 1;
    gguf_close(g);
    int rc = run(t, argc, argv);
    tokenizer_free(t);
    return rc;
}
