#include "engine/serve/openai/stop.h"

#include <string.h>

#include "engine/base/mem.h"

void stops_add(struct stops *s, const char *text, size_t n)
{
    s->items = mem_resize(s->items, (size_t)s->n + 1, sizeof *s->items);
    struct stop_string *p = &s->items[s->n++];
    *p = (struct stop_string){mem_strndup(text, n), (int)n, mem_new_array(n, sizeof(int))};
    for (int i = 1, k = 0; i < p->n; i++) {
        while (k && p->text[i] != p->text[k])
            k = p->border[k - 1];
        k += p->text[i] == p->text[k];
        p->border[i] = k;
    }
}

void stops_free(struct stops *s)
{
    for (int i = 0; i < s->n; i++) {
        mem_free(s->items[i].text);
        mem_free(s->items[i].border);
    }
    mem_free(s->items);
    *s = (struct stops){0};
}

void stop_scan_init(struct stop_scan *c, const struct stops *s)
{
    *c = (struct stop_scan){.stops = s, .found = -1};
    if (s->n)
        c->state = mem_new_array((size_t)s->n, sizeof *c->state);
}

void stop_scan_free(struct stop_scan *c)
{
    mem_free(c->state);
    c->state = NULL;
}

void stop_scan_reset(struct stop_scan *c)
{
    if (c->state)
        memset(c->state, 0, (size_t)c->stops->n * sizeof *c->state);
}

static bool feed(const struct stop_string *p, int *state, char b)
{
    int k = *state;
    while (k && (k == p->n || p->text[k] != b))
        k = p->border[k - 1];
    k += p->text[k] == b;
    *state = k;
    return k == p->n;
}

size_t stop_scan_read(struct stop_scan *c, const char *text, size_t n)
{
    if (!c->state)
        return n;
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < c->stops->n; k++) {
            bool hit = feed(&c->stops->items[k], &c->state[k], text[i]);
            if (hit && (c->found < 0 || c->stops->items[k].n > c->stops->items[c->found].n))
                c->found = k;
        }
        if (c->found >= 0)
            return i + 1;
    }
    return n;
}

size_t stop_scan_held(const struct stop_scan *c)
{
    int most = 0;
    for (int k = 0; c->state && k < c->stops->n; k++)
        most = c->state[k] > most ? c->state[k] : most;
    return (size_t)most;
}
