/* Bounded multi-producer, single-consumer queue of fixed-size by-value messages: the only way threads talk. With
 * thread.h it is the only home of pthread. A consumer waits on the condition (queue_wait) or on the eventfd (queue_fd),
 * which is readable whenever the queue may hold messages. Invariant: a message holds values and owned memory, never a
 * pointer to an object that is still in use elsewhere; ownership of what it carries moves with it. */
#ifndef BASE_QUEUE_H
#define BASE_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queue;

/* capacity: messages; 0 = unbounded (grows). with_fd: also signal an eventfd. NULL when the system refuses the fd. */
struct queue *queue_create(size_t message_bytes, size_t capacity, bool with_fd);
void queue_destroy(struct queue *q);
int queue_post(struct queue *q, const void *message); /* 0, or E_FULL; never blocks */
bool queue_take(struct queue *q, void *message);      /* false: empty */
/* Takes up to max messages with one lock. Returns how many. */
size_t queue_take_many(struct queue *q, void *messages, size_t max);
/* Waits until there is a message or timeout_ns passed (negative: for ever). True when there is a message. */
bool queue_wait(struct queue *q, int64_t timeout_ns);
int queue_fd(const struct queue *q); /* eventfd; the consumer calls queue_fd_clear first */
void queue_fd_clear(struct queue *q);
size_t queue_count(struct queue *q);

#endif
