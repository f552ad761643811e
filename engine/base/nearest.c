#include "engine/base/nearest.h"

#include <stddef.h>
#include <string.h>

enum { MAX_WORD = 48 };

static int least(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Letters put in, left out, replaced, or changed with their neighbour; three rows of the table at a time. */
static int distance(const char *a, size_t n, const char *b, size_t m)
{
    int rows[3][MAX_WORD + 1];
    for (size_t j = 0; j <= m; j++)
        rows[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            now[j] = least(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return rows[n % 3][m];
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
