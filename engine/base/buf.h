/* A growable run of bytes, owned by whoever holds the struct. Zero it (or call buf_init) before use, call buf_free
 * after. Once anything was put, data is NUL-terminated. One thread at a time. A buffer that clients can make grow has a
 * limit. With a limit, puts never abort: the first one that would pass the limit, or for which there is no memory, is
 * left out, and so are all that follow; `over` tells. Without a limit, running out of memory is a bug. Invariant: len
 * <= cap. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *data;
    size_t len, cap;
    size_t limit; /* bytes; 0: none */
    bool over;    /* something was left out; until buf_clear */
};

void buf_init(struct buf *b);
void buf_free(struct buf *b);                 /* empty again; a limit stays */
void buf_clear(struct buf *b);                /* len = 0, memory kept */
bool buf_reserve(struct buf *b, size_t more); /* room for `more` further bytes and a NUL; false: over */
void buf_put(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_put_u64(struct buf *b, unsigned long long v);
void buf_put_json(struct buf *b, const char *s,
                  size_t n); /* a JSON string with quotes; control characters escaped, bad UTF-8 is U+FFFD */
void buf_cut(struct buf *b, size_t from_front); /* drops bytes at the front */
char *buf_take(struct buf *b);                  /* hands out data (never NULL) and empties b */
bool buf_equals(const struct buf *b, const char *s);

#endif
