/* SHA-256 (libcrypto, whose header lives in hash.c only). Pure functions, any thread. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>

struct sha256 {
    unsigned char bytes[32];
};

struct sha256 hash_sha256(const void *p, size_t n);
void hash_hex(const struct sha256 *h, char out[65]);
bool hash_equal(const struct sha256 *a, const struct sha256 *b); /* constant time */

#endif
