#include "engine/base/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "engine/base/check.h"
#include "engine/base/mem.h"

struct hasher {
    EVP_MD *md;
    EVP_MD_CTX *ctx;
};

struct sha256 hash_sha256(const void *p, size_t n)
{
    struct sha256 h;
    unsigned len = sizeof h.bytes;
    int ok = EVP_Digest(p, n, h.bytes, &len, EVP_sha256(), NULL);
    ASSERT(ok == 1);
    return h;
}

struct hasher *hasher_create(void)
{
    struct hasher *h = mem_new(sizeof *h);
    h->md = EVP_MD_fetch(NULL, "SHA256", NULL);
    h->ctx = EVP_MD_CTX_new();
    ASSERT(h->md && h->ctx);
    return h;
}

void hasher_destroy(struct hasher *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->ctx);
    EVP_MD_free(h->md);
    mem_free(h);
}

struct sha256 hasher_sha256(struct hasher *h, const void *p, size_t n)
{
    struct sha256 out;
    unsigned len = sizeof out.bytes;
    int ok = EVP_DigestInit_ex(h->ctx, h->md, NULL) && EVP_DigestUpdate(h->ctx, p, n) &&
             EVP_DigestFinal_ex(h->ctx, out.bytes, &len);
    ASSERT(ok);
    return out;
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
