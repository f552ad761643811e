/* Intrusive doubly linked list. A node is in at most one list; an unlinked node points to itself, so list_remove is
 * safe twice. One thread at a time; the list owns nothing. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next, *prev;
};

#define LIST_ENTRY(node, type, member) ((type *)((char *)(node)-offsetof(type, member)))
#define LIST_EACH(pos, head) for (struct list *pos = (head)->next; pos != (head); pos = pos->next)
#define LIST_EACH_SAFE(pos, tmp, head)                                                                                 \
    for (struct list *pos = (head)->next, *tmp = pos->next; pos != (head); pos = tmp, tmp = pos->next)

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

static inline void list_push_back(struct list *head, struct list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

#endif
