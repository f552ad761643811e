/* Message queues: order per producer, bounds, growth around the ring's end, waits, kicks and the eventfd. */
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/queue.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"

struct message {
    int producer;
    int serial;
    char padding[20]; /* a size that is no power of two */
};

static bool readable(const struct queue *q)
{
    struct pollfd p = {.fd = queue_fd(q), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void bounded_queue_fills_up(void **state)
{
    (void)state;
    struct queue *q = queue_create(sizeof(int), 3, false);
    int v = 0, got[4];
    assert_false(queue_take(q, &v));
    for (int round = 0; round < 5; round++) { /* the ring's head moves round */
        for (int i = 0; i < 3; i++)
            assert_int_equal(queue_post(q, &i), 0);
        assert_int_equal(queue_post(q, &v), E_FULL);
        assert_int_equal(queue_count(q), 3);
        assert_true(queue_take(q, &v) && v == 0);
        assert_int_equal(queue_take_many(q, got, 4), 2);
        assert_true(got[0] == 1 && got[1] == 2);
    }
    assert_int_equal(queue_fd(q), -1);
    queue_destroy(q);
    queue_destroy(NULL);
}

static void growth_keeps_the_order(void **state)
{
    (void)state;
    struct queue *q = queue_create(sizeof(struct message), 0, false);
    struct rng r;
    rng_init(&r, 5);
    int in = 0, out = 0;
    for (int round = 0; round < 2000; round++) {
        for (uint64_t n = rng_below(&r, 30); n; n--) {
            struct message m = {.serial = in++};
            memset(m.padding, in, sizeof m.padding);
            assert_int_equal(queue_post(q, &m), 0);
        }
        for (uint64_t n = rng_below(&r, 29); n; n--) {
            struct message m;
            if (!queue_take(q, &m))
                break;
            assert_int_equal(m.serial, out++);
            assert_int_equal(m.padding[19], (char)(m.serial + 1));
        }
    }
    assert_int_equal(queue_count(q), in - out);
    queue_destroy(q);
}

static void waits(void **state)
{
    (void)state;
    struct queue *q = queue_create(sizeof(int), 0, false);
    struct clock c;
    clock_init_real(&c);
    int64_t t = clock_now(&c);
    assert_false(queue_wait(q, 20000000));
    assert_true(clock_now(&c) - t >= 20000000);
    assert_false(queue_wait(q, 0));
    int v = 1;
    queue_post(q, &v);
    assert_true(queue_wait(q, -1));
    assert_true(queue_wait(q, 0)); /* waiting takes nothing */
    assert_true(queue_wait(q, INT64_MAX));
    queue_destroy(q);
}

static void eventfd_says_when_to_look(void **state)
{
    (void)state;
    struct queue *q = queue_create(sizeof(int), 0, true);
    int v = 1;
    assert_false(readable(q));
    for (int round = 0; round < 3; round++) {
        queue_post(q, &v);
        queue_post(q, &v);
        assert_true(readable(q));
        queue_fd_clear(q);
        assert_false(readable(q));
        queue_fd_clear(q); /* never blocks */
        queue_post(q, &v); /* after the clear: must show again */
        assert_true(readable(q));
        queue_fd_clear(q);
        while (queue_take(q, &v))
            ;
        assert_false(readable(q));
    }
    queue_destroy(q);
}

enum { PRODUCERS = 4, EACH = 20000 };

struct producer {
    struct queue *q;
    int number;
};

static void produce(void *p)
{
    struct producer *me = p;
    for (int i = 0; i < EACH; i++) {
        struct message m = {.producer = me->number, .serial = i};
        while (queue_post(me->q, &m) == E_FULL)
            sched_yield();
    }
}

static void many_producers(size_t capacity, bool by_fd)
{
    struct queue *q = queue_create(sizeof(struct message), capacity, by_fd);
    struct producer p[PRODUCERS];
    struct thread *t[PRODUCERS];
    int next[PRODUCERS] = {0}, total = 0;
    for (int i = 0; i < PRODUCERS; i++) {
        p[i] = (struct producer){q, i};
        assert_int_equal(thread_start(&t[i], "producer", produce, &p[i], NULL), 0);
    }
    while (total < PRODUCERS * EACH) {
        struct pollfd f = {.fd = queue_fd(q), .events = POLLIN};
        if (by_fd) {
            assert_int_equal(poll(&f, 1, 60000), 1);
            queue_fd_clear(q);
        } else {
            assert_true(queue_wait(q, (int64_t)60000 * 1000000));
        }
        struct message m[16];
        for (size_t n; (n = queue_take_many(q, m, 16)) > 0;)
            for (size_t i = 0; i < n; i++, total++)
                assert_int_equal(m[i].serial, next[m[i].producer]++);
    }
    for (int i = 0; i < PRODUCERS; i++)
        thread_join(t[i]);
    assert_int_equal(queue_count(q), 0);
    queue_destroy(q);
}

static void producers_by_condition(void **state)
{
    (void)state;
    many_producers(0, false);
    many_producers(7, false);
}

static void producers_by_eventfd(void **state)
{
    (void)state;
    many_producers(0, true);
    many_producers(7, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounded_queue_fills_up),
        cmocka_unit_test(growth_keeps_the_order),
        cmocka_unit_test(waits),
        cmocka_unit_test(eventfd_says_when_to_look),
        cmocka_unit_test(producers_by_condition),
        cmocka_unit_test(producers_by_eventfd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
