/* SHA-256 (libcrypto, whose header lives in hash.c only). Pure functions, any thread; a hasher belongs to one thread.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>

struct sha256 {
    unsigned char bytes[32];
};

struct sha256 hash_sha256(const void *p, size_t n);
void hash_hex(const struct sha256 *h, char out[65]);
/* For many short texts: what libcrypto looks up and allocates for each digest is kept. */
struct hasher;
struct hasher *hasher_create(void);
void hasher_destroy(struct hasher *h); /* NULL is fine */
struct sha256 hasher_sha256(struct hasher *h, const void *p, size_t n);
bool hash_equal(const struct sha256 *a, const struct sha256 *b); /* constant time */

#endif
