#include "models/guide/forced.h"

#include <string.h>

enum { MOST_BYTES = 256, LOOK_BACK = 512, MOST_WORK = 20000 };

struct walk {
    struct guide *guide;
    int32_t state;
    char text[LOOK_BACK + MOST_BYTES]; /* what stood before, then what has to come */
    size_t n, first;                   /* first: where that begins */
};

static bool is_space(int b)
{
    return b == ' ' || b == '\n' || b == '\r' || b == '\t';
}

static bool has(const struct grammar_set *s, int b)
{
    return grammar_set_has(s, (unsigned char)b);
}

/* false: it may not come, or there is no room. */
static bool say(struct walk *w, char b)
{
    int32_t next = guide_step(w->guide, w->state, (unsigned char)b);
    if (next < 0 || w->n - w->first == MOST_BYTES)
        return false;
    w->state = next;
    w->text[w->n++] = b;
    return true;
}

/* The white space that stood behind the last byte when it came before; n bytes of text. */
static size_t space_before(const struct walk *w, const char **text)
{
    int b = w->n ? w->text[w->n - 1] : 0;
    for (size_t i = w->n - 1; w->n && i-- > 0;) {
        size_t end = i + 1;
        while (w->text[i] == b && end < w->n && is_space(w->text[end]))
            end++;
        if (w->text[i] == b && end < w->n) {
            *text = w->text + i + 1;
            return end - i - 1;
        }
    }
    *text = " ";
    return b == ':' || b == ',';
}

/* The only byte that may come, or the only one that is no white space; -1: there is a choice. */
static int only_byte(const struct grammar_set *s, bool *or_space)
{
    int n = 0, found = -1;
    *or_space = has(s, ' ') || has(s, '\n') || has(s, '\r') || has(s, '\t');
    for (int k = 0; k < 4; k++)
        n += __builtin_popcountll(s->bits[k]);
    for (int b = 0; b < 256; b++)
        if (has(s, b) && (n == 1 || !is_space(b))) {
            if (found >= 0)
                return -1;
            found = b;
        }
    *or_space = *or_space && n > 1;
    return found;
}

/* One byte more, behind the white space that is guessed. */
static bool go_on(struct walk *w)
{
    struct grammar_set may = guide_bytes(w->guide, w->state);
    bool or_space;
    int only = guide_may_end(w->guide, w->state) ? -1 : only_byte(&may, &or_space);
    if (only < 0)
        return false;
    const char *space;
    size_t n = or_space && !(w->n && is_space(w->text[w->n - 1])) ? space_before(w, &space) : 0;
    for (size_t i = 0; i < n && say(w, space[i]);)
        i++;
    return say(w, (char)only);
}

int guide_forced(struct guide *g, int32_t state, const struct buf *before, int32_t *to, int most)
{
    struct walk w = {.guide = g, .state = state};
    w.first = w.n = before->len < LOOK_BACK ? before->len : LOOK_BACK;
    if (w.n)
        memcpy(w.text, before->data + before->len - w.n, w.n);
    int64_t until = guide_work(g) + MOST_WORK;
    for (bool more = state >= 0; more && guide_work(g) < until;)
        more = go_on(&w);
    return w.n == w.first ? 0 : guide_tokens_spell(guide_tokens_of(g), w.text + w.first, w.n - w.first, to, most);
}
