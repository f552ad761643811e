#include "engine/world/tenants.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"
#include "engine/base/seen.h"

/* Where the name stands, or would. */
static int place_of(const struct tenants *t, const char *name, bool *there)
{
    int lo = 0, hi = t->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (strcmp(t->items[mid]->name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    *there = lo < t->n && !strcmp(t->items[lo]->name, name);
    return lo;
}

struct tenant *tenants_enter(struct tenants *t, const char *name)
{
    bool there;
    int i = place_of(t, name, &there);
    if (there)
        return t->items[i];
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 16;
        t->items = seen_resize(t->items, (size_t)t->cap, sizeof *t->items);
    }
    memmove(t->items + i + 1, t->items + i, (size_t)(t->n - i) * sizeof *t->items);
    t->n++;
    t->items[i] = seen_new(sizeof *t->items[i]);
    snprintf(t->items[i]->name, sizeof t->items[i]->name, "%s", name);
    return t->items[i];
}

void tenants_leave(struct tenants *t, struct tenant *x)
{
    bool there;
    if (x->n_waiting || x->n_running)
        return;
    int i = place_of(t, x->name, &there);
    ASSERT(there && t->items[i] == x && !x->waiting_tokens);
    t->n--;
    memmove(t->items + i, t->items + i + 1, (size_t)(t->n - i) * sizeof *t->items);
    mem_free(x);
}

const struct tenant *tenants_find(const struct tenants *t, const char *name)
{
    bool there;
    int i = place_of(t, name, &there);
    return there ? t->items[i] : NULL;
}

void tenants_free(struct tenants *t)
{
    for (int i = 0; i < t->n; i++)
        mem_free(t->items[i]);
    mem_free(t->items);
    *t = (struct tenants){0};
}
