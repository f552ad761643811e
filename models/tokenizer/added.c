#include "models/tokenizer/added.h"

#include <string.h>

#include "engine/base/mem.h"

/* Children are a list of siblings: real vocabularies branch little after the first byte. */
struct added_node {
    uint32_t child, sibling;
    int32_t plain, control; /* the token that ends here; -1: none */
    unsigned char byte;
};

static int new_node(struct added *a, unsigned char byte, uint32_t *out, struct err *e)
{
    if (a->n_nodes == a->cap) {
        size_t cap = a->cap ? a->cap * 2 : 256;
        struct added_node *bigger = mem_try_array(cap, sizeof *bigger);
        if (!bigger)
            return err_set(e, E_FULL, "no memory for the special tokens");
        if (a->n_nodes)
            memcpy(bigger, a->nodes, a->n_nodes * sizeof *bigger);
        mem_free(a->nodes);
        a->nodes = bigger;
        a->cap = cap;
        a->n_nodes += a->n_nodes == 0; /* node 0 means none */
    }
    *out = (uint32_t)a->n_nodes++;
    a->nodes[*out] = (struct added_node){0, 0, -1, -1, byte};
    return 0;
}

static uint32_t step(const struct added *a, uint32_t node, unsigned char byte)
{
    uint32_t c = a->nodes[node].child;
    while (c && a->nodes[c].byte != byte)
        c = a->nodes[c].sibling;
    return c;
}

static int grow(struct added *a, uint32_t node, unsigned char byte, uint32_t *out, struct err *e)
{
    TRY(new_node(a, byte, out, e));
    if (node) {
        a->nodes[*out].sibling = a->nodes[node].child;
        a->nodes[node].child = *out;
    } else {
        a->first[byte] = *out;
    }
    return 0;
}

int added_put(struct added *a, const char *s, size_t n, int32_t id, bool control, struct err *e)
{
    uint32_t node = 0;
    if (n > ADDED_MAX_BYTES)
        return err_set(e, E_INPUT, "token %d is special and %zu bytes long; %d are possible", id, n, ADDED_MAX_BYTES);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        uint32_t next = i ? step(a, node, c) : a->first[c];
        if (!next)
            TRY(grow(a, node, c, &next, e));
        node = next;
    }
    if (n && control)
        a->nodes[node].control = id;
    else if (n)
        a->nodes[node].plain = id;
    return 0;
}

void added_free(struct added *a)
{
    mem_free(a->nodes);
    memset(a, 0, sizeof *a);
}

static int32_t token_at(const struct added *a, uint32_t node, bool controls)
{
    const struct added_node *at = a->nodes + node;
    return controls && at->control >= 0 ? at->control : at->plain;
}

bool added_search(const struct added *a, const char *s, size_t n, size_t from, bool controls, struct added_match *m)
{
    for (size_t i = from; a->n_nodes && i < n; i++) {
        uint32_t node = a->first[(unsigned char)s[i]];
        m->id = -1;
        for (size_t k = i + 1; node; k++) {
            int32_t id = token_at(a, node, controls);
            if (id >= 0)
                *m = (struct added_match){i, k, id};
            node = k < n ? step(a, node, (unsigned char)s[k]) : 0;
        }
        if (m->id >= 0)
            return true;
    }
    return false;
}

int32_t added_find(const struct added *a, const char *s, size_t n)
{
    uint32_t node = n && a->n_nodes ? a->first[(unsigned char)s[0]] : 0;
    for (size_t i = 1; node && i < n; i++)
        node = step(a, node, (unsigned char)s[i]);
    return node ? token_at(a, node, true) : -1;
}
