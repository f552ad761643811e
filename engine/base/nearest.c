#include "engine/base/nearest.h"

#include <stddef.h>
#include <string.h>

enum { MAX_WORD = 48 };

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Levenshtein, one row at a time. */
static int distance(const char *a, size_t n, const char *b, size_t m)
{
    int row[MAX_WORD + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int above = row[j];
            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[m];
}

const char *nearest_word(const char *word, const char *const *candidates, int n)
{
    size_t len = strlen(word);
    if (!len || len > MAX_WORD)
        return NULL;
    int best = (int)len / 3 > 2 ? (int)len / 3 : 2;
    const char *found = NULL;
    for (int i = 0; i < n; i++) {
        size_t m = strlen(candidates[i]);
        int d = m <= MAX_WORD ? distance(word, len, candidates[i], m) : MAX_WORD;
        if (d < best || (d == best && !found && d < (int)len)) {
            best = d;
            found = candidates[i];
        }
    }
    return found;
}
