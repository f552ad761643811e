/* The tree of a sum cut among ranks: for every number of leaves and every cut, the nodes of the windows add up to the
 * same tree that one rank has, which is spelled out here as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "models/forward/sum_tree.h"

enum { TEXT = 4096 };

/* The sum of leaves [a, b) as brackets: halves at the largest power of two that is smaller than what a level holds. */
static void spell(int a, int b, int size, char *out)
{
    if (size == 1) {
        snprintf(out, TEXT, "%d", a);
        return;
    }
    int middle = a + size / 2;
    if (middle >= b) { /* the right half is absent */
        spell(a, b, size / 2, out);
        return;
    }
    char *left = mem_new(TEXT), *right = mem_new(TEXT);
    spell(a, middle, size / 2, left);
    spell(middle, b, size / 2, right);
    snprintf(out, TEXT, "(%.1900s+%.1900s)", left, right);
    mem_free(left);
    mem_free(right);
}

static int level_size(int n)
{
    int size = 1;
    while (size < n)
        size *= 2;
    return size;
}

/* A node of a window as a linear layer sums it: its leaves in the tree over absolute indices. */
static void spell_node(struct leaf_range r, char *out)
{
    spell(r.leaf0, r.leaf1, level_size(r.leaf1 - r.leaf0), out);
}

static void check_cut(int leaves, const struct leaf_range *windows, int n)
{
    char want[TEXT], stack[24][TEXT], both[TEXT];
    struct leaf_range nodes[TREE_MAX_NODES];
    struct reduce_order o;
    int depth = 0;
    spell(0, leaves, level_size(leaves), want);
    tree_order(&o, leaves, windows, n);
    for (int p = 0; p < o.n_planes; p++) {
        int n_nodes = tree_nodes(leaves, windows[o.member[p]], nodes);
        assert_in_range(o.index[p], 0, n_nodes - 1);
        assert_true(nodes[o.index[p]].leaf0 % level_size(nodes[o.index[p]].leaf1 - nodes[o.index[p]].leaf0) == 0);
        assert_true(depth < 20);
        spell_node(nodes[o.index[p]], stack[depth++]);
        for (int k = 0; k < o.adds[p]; k++, depth--) {
            snprintf(both, sizeof both, "(%.2000s+%.2000s)", stack[depth - 2], stack[depth - 1]);
            memcpy(stack[depth - 2], both, TEXT);
        }
    }
    assert_int_equal(depth, 1);
    assert_string_equal(stack[0], want);
    tree_order_free(&o);
}

static void even_shares_of_every_width(void **state)
{
    (void)state;
    for (int leaves = 1; leaves <= 150; leaves++)
        for (int n = 1; n <= 16; n++) {
            struct leaf_range windows[16];
            for (int i = 0; i < n; i++)
                windows[i] = tree_share(leaves, n, i);
            check_cut(leaves, windows, n);
        }
}

static void any_cut_at_all(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 3000; i++) {
        int leaves = 1 + (int)rng_below(&r, 150), n = 1 + (int)rng_below(&r, 9);
        struct leaf_range windows[9];
        for (int m = 0, at = 0; m < n; m++) {
            int end = m == n - 1 ? leaves : at + (int)rng_below(&r, (uint64_t)(leaves - at + 1));
            windows[m] = (struct leaf_range){at, end}; /* empty ones too */
            at = end;
        }
        check_cut(leaves, windows, n);
    }
}

static void shares_are_even(void **state)
{
    (void)state;
    for (int leaves = 1; leaves < 70; leaves++)
        for (int n = 1; n <= 16; n++)
            for (int i = 0, at = 0; i < n; i++) {
                struct leaf_range r = tree_share(leaves, n, i);
                assert_int_equal(r.leaf0, at);
                assert_in_range(r.leaf1 - r.leaf0, leaves / n, (leaves + n - 1) / n);
                at = r.leaf1;
                assert_true(i < n - 1 || at == leaves);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_shares_of_every_width),
        cmocka_unit_test(any_cut_at_all),
        cmocka_unit_test(shares_are_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
