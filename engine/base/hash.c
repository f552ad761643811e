#include "engine/base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "engine/base/check.h"

struct sha256 hash_sha256(const void *p, size_t n)
{
    struct sha256 h;
    unsigned len = sizeof h.bytes;
    int ok = EVP_Digest(p, n, h.bytes, &len, EVP_sha256(), NULL);
    ASSERT(ok == 1);
    return h;
}

void hash_hex(const struct sha256 *h, char out[65])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        out[2 * i] = digits[h->bytes[i] >> 4];
        out[2 * i + 1] = digits[h->bytes[i] & 15];
    }
    out[64] = 0;
}

bool hash_equal(const struct sha256 *a, const struct sha256 *b)
{
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}
