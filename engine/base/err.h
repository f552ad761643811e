/* Errors. Every fallible function returns int: 0 or a negative code of enum err_code. Text is written only into a
 * `struct err *` that the caller passes where a human will read it (NULL is allowed and drops the text). Any thread; a
 * struct err is owned by its caller. Invariant: an error code is negative. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

enum err_code {
    E_INPUT = -1,       /* untrusted bytes are wrong: a 4xx, a refused file or flag */
    E_FULL = -2,        /* capacity: queue, memory, KV; try later */
    E_GONE = -3,        /* the peer or the thing named is gone */
    E_POLICY = -4,      /* a policy broke its contract */
    E_DEVICE = -5,      /* a device failed */
    E_SYS = -6,         /* the operating system refused */
    E_NOTFOUND = -7,    /* no such name */
    E_UNSUPPORTED = -8, /* understood, and not offered */
    E_PEER = -9,        /* another rank of the group failed; this one is well */
};

struct err {
    int code;
    char text[360];
};

/* Sets code and text (cut to fit) and returns code, so that `return err_set(...)` reads well. e may be NULL. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the text already in e. Returns e's code (or code when e is NULL). */
int err_prefix(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
const char *err_name(int code);

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int rc_ = (call);                                                                                              \
        if (rc_)                                                                                                       \
            return rc_;                                                                                                \
    } while (0)

#endif
