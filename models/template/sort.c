/* Stable sorting by Python's order of keys. */
#include <string.h>

#include "models/template/run.h"

struct sortee {
    struct value key, item;
};

/* Merges two sorted runs. In reverse the larger comes first; equal ones keep their order in both. */
static void merge(struct run *r, struct sortee *to, const struct sortee *a, size_t n, const struct sortee *b, size_t m,
                  bool reverse)
{
    size_t i = 0, k = 0;
    while ((i < n || k < m) && !j_failed(r)) {
        bool take_b = i == n;
        if (i < n && k < m)
            take_b = reverse ? j_less(r, a[i].key, b[k].key, false) : j_less(r, b[k].key, a[i].key, false);
        *to++ = take_b ? b[k++] : a[i++];
    }
}

struct value j_sorted_by(struct run *r, struct value list, const struct value *keys, bool reverse)
{
    size_t n = list.u.list->n;
    struct sortee *from = j_alloc_array(r, n, sizeof *from), *to = j_alloc_array(r, n, sizeof *to);
    struct value out = j_array(r, J_LIST, n);
    if (j_failed(r))
        return j_of(J_UNDEFINED);
    for (size_t i = 0; i < n; i++)
        from[i] = (struct sortee){keys[i], list.u.list->items[i]};
    for (size_t width = 1; width < n && !j_failed(r); width *= 2) {
        for (size_t at = 0; at < n; at += 2 * width) {
            size_t left = n - at < width ? n - at : width, right = n - at - left < width ? n - at - left : width;
            merge(r, to + at, from + at, left, from + at + left, right, reverse);
        }
        struct sortee *swap = from;
        from = to;
        to = swap;
    }
    for (size_t i = 0; i < n; i++)
        out.u.list->items[i] = from[i].item;
    return out;
}

struct value j_sorted(struct run *r, struct value list)
{
    return j_sorted_by(r, list, list.u.list->items, false);
}
