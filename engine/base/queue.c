#include "engine/base/queue.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    size_t size, limit;      /* message bytes; 0 = unbounded */
    size_t head, count, cap; /* ring */
    unsigned char *ring;
    int fd; /* eventfd or -1 */
    bool fd_raised;
};

struct queue *queue_create(size_t message_bytes, size_t capacity, bool with_fd)
{
    struct queue *q = mem_new(sizeof *q);
    q->size = message_bytes;
    q->limit = capacity;
    q->cap = capacity ? capacity : 64;
    q->ring = mem_new_array(q->cap, message_bytes);
    q->fd = with_fd ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
    if (with_fd && q->fd < 0) {
        mem_free(q->ring);
        mem_free(q);
        return NULL;
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&q->ready, &attr);
    pthread_condattr_destroy(&attr);
    return q;
}

void queue_destroy(struct queue *q)
{
    if (!q)
        return;
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->ready);
    if (q->fd >= 0)
        close(q->fd);
    mem_free(q->ring);
    mem_free(q);
}

static void grow(struct queue *q)
{
    unsigned char *bigger = mem_new_array(q->cap * 2, q->size);
    size_t first = q->cap - q->head < q->count ? q->cap - q->head : q->count;
    memcpy(bigger, q->ring + q->head * q->size, first * q->size);
    memcpy(bigger + first * q->size, q->ring, (q->count - first) * q->size);
    mem_free(q->ring);
    q->ring = bigger;
    q->head = 0;
    q->cap *= 2;
}

static size_t around(const struct queue *q, size_t i) /* i < 2 * cap */
{
    return i < q->cap ? i : i - q->cap;
}

int queue_post(struct queue *q, const void *message)
{
    pthread_mutex_lock(&q->lock);
    if (q->count == q->cap) {
        if (q->limit) {
            pthread_mutex_unlock(&q->lock);
            return E_FULL;
        }
        grow(q);
    }
    memcpy(q->ring + around(q, q->head + q->count) * q->size, message, q->size);
    q->count++;
    bool raise = q->fd >= 0 && !q->fd_raised;
    q->fd_raised |= raise;
    pthread_cond_signal(&q->ready);
    if (raise)
        eventfd_write(q->fd, 1);
    pthread_mutex_unlock(&q->lock);
    return 0;
}

size_t queue_take_many(struct queue *q, void *messages, size_t max)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->count < max ? q->count : max;
    for (size_t i = 0; i < n; i++) {
        memcpy((unsigned char *)messages + i * q->size, q->ring + q->head * q->size, q->size);
        q->head = around(q, q->head + 1);
    }
    q->count -= n;
    pthread_mutex_unlock(&q->lock);
    return n;
}

bool queue_take(struct queue *q, void *message)
{
    return queue_take_many(q, message, 1) == 1;
}

bool queue_wait(struct queue *q, int64_t timeout_ns)
{
    struct timespec until = {0};
    if (timeout_ns >= 0) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        int64_t ns = until.tv_nsec + timeout_ns % 1000000000;
        until.tv_sec += timeout_ns / 1000000000 + ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
    }
    pthread_mutex_lock(&q->lock);
    int rc = 0;
    while (!q->count && rc != ETIMEDOUT)
        rc = timeout_ns < 0 ? pthread_cond_wait(&q->ready, &q->lock)
                            : pthread_cond_timedwait(&q->ready, &q->lock, &until);
    bool any = q->count > 0;
    pthread_mutex_unlock(&q->lock);
    return any;
}

int queue_fd(const struct queue *q)
{
    return q->fd;
}

void queue_fd_clear(struct queue *q)
{
    eventfd_t v;
    pthread_mutex_lock(&q->lock);
    q->fd_raised = false;
    eventfd_read(q->fd, &v);
    pthread_mutex_unlock(&q->lock);
}

size_t queue_count(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    size_t n = q->count;
    pthread_mutex_unlock(&q->lock);
    return n;
}
