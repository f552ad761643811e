/* What a device has counted of its steps, op by op, where its ops are watched (backend.h): plain numbers, added up over
 * steps, and over devices by whoever adds them. Steps are kept apart by their rows: one, as of a request that decodes
 * alone; few, as of a batch of them; many, as of prompts.
 *
 * Bytes are what an op has to get out of memory, once a call: weights as they are stored, and cached keys and values
 * (stored bytes). Of an op that has neither they are the activations that it reads and writes, which mostly lie in a
 * cache. Operations are those of products with weights and of attention, a multiply-add counted as two. Both follow
 * from shapes and types; nothing is measured.
 * Invariant: the times of the ops of a step add up to no more than the step took. */
#ifndef KERNELS_PROFILE_H
#define KERNELS_PROFILE_H

#include <stdint.h>

enum profile_op {
    PROFILE_PREPARE, /* which sequence a row is of, its angles */
    PROFILE_EMBED,
    PROFILE_QKV, /* products with what comes before them: a norm, SwiGLU */
    PROFILE_ATTENTION_OUT,
    PROFILE_GATE_UP,
    PROFILE_DOWN,
    PROFILE_HEAD,
    PROFILE_OTHER_LINEAR,
    PROFILE_ROPE,
    PROFILE_KV_WRITE,
    PROFILE_ATTENTION,
    PROFILE_GATHER,
    PROFILE_SAMPLE,
    PROFILE_DRAFT,    /* of draft heads, their products included */
    PROFILE_EXCHANGE, /* these two with the wait for the other ranks */
    PROFILE_REDUCE,
    PROFILE_OPS
};

enum profile_size { PROFILE_ONE, PROFILE_FEW, PROFILE_MANY, PROFILE_SIZES };
enum { PROFILE_MOST_FEW = 16 }; /* rows */

struct profile_count {
    uint64_t calls;
    int64_t ns;      /* of the rank's thread */
    int64_t pool_ns; /* of that, while items were there for several threads of the rank */
    int64_t wait_ns; /* of that, what a thread was without an item, on average */
    double bytes, stored_bytes, int8_ops, float_ops;
};

static inline void profile_add(struct profile_count *to, const struct profile_count *c)
{
    to->calls += c->calls;
    to->ns += c->ns;
    to->pool_ns += c->pool_ns;
    to->wait_ns += c->wait_ns;
    to->bytes += c->bytes;
    to->stored_bytes += c->stored_bytes;
    to->int8_ops += c->int8_ops;
    to->float_ops += c->float_ops;
}

struct profile_steps {
    uint64_t steps, rows;
    int64_t ns;
    int64_t before_ns; /* from the end of the step before to their begin */
    struct profile_count ops[PROFILE_OPS];
};

/* A second, by the probes of the machine; 0: not known. Floats: f32, or pairs of bfloat16 where they are multiplied. */
struct profile_peaks {
    double bytes, int8_ops, float_ops;
};

struct profile {
    int n_devices, n_threads;   /* sums, too */
    struct profile_peaks peaks; /* of all devices together */
    struct profile_steps steps[PROFILE_SIZES];
};

#endif
