/* The intrusive list: order, removal twice, removal while walking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/base/list.h"

struct item {
    int number;
    struct list node;
};

static void fill(struct list *head, struct item *items, int n)
{
    list_init(head);
    for (int i = 0; i < n; i++) {
        items[i].number = i;
        list_push_back(head, &items[i].node);
    }
}

static void order_front_and_back(void **state)
{
    (void)state;
    struct list head;
    struct item items[5];
    fill(&head, items, 5);
    int want = 0;
    LIST_EACH(pos, &head)
    assert_int_equal(LIST_ENTRY(pos, struct item, node)->number, want++);
    assert_int_equal(want, 5);
    int back = 4;
    for (struct list *pos = head.prev; pos != &head; pos = pos->prev)
        assert_int_equal(LIST_ENTRY(pos, struct item, node)->number, back--);
    assert_int_equal(back, -1);
}

static void removal_is_safe_twice(void **state)
{
    (void)state;
    struct list head;
    struct item items[3];
    fill(&head, items, 3);
    list_remove(&items[1].node);
    list_remove(&items[1].node);
    assert_true(list_empty(&items[1].node));
    assert_ptr_equal(head.next, &items[0].node);
    assert_ptr_equal(items[0].node.next, &items[2].node);
    list_remove(&items[0].node);
    list_remove(&items[2].node);
    assert_true(list_empty(&head));
}

static void removal_while_walking(void **state)
{
    (void)state;
    struct list head;
    struct item items[10];
    fill(&head, items, 10);
    LIST_EACH_SAFE(pos, tmp, &head)
    if (LIST_ENTRY(pos, struct item, node)->number % 3)
        list_remove(pos);
    int n = 0;
    LIST_EACH(pos, &head)
    assert_int_equal(LIST_ENTRY(pos, struct item, node)->number, 3 * n++);
    assert_int_equal(n, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_front_and_back),
        cmocka_unit_test(removal_is_safe_twice),
        cmocka_unit_test(removal_while_walking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
