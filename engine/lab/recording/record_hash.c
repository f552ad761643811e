/* SipHash-2-4: what keys of prefixes become in a recording, so that they say nothing of a text. */
#include "engine/lab/recording/record.h"

static uint64_t turn_left(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = turn_left(v[1], 13) ^ v[0];
    v[0] = turn_left(v[0], 32);
    v[2] += v[3];
    v[3] = turn_left(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = turn_left(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = turn_left(v[1], 17) ^ v[2];
    v[2] = turn_left(v[2], 32);
}

uint64_t record_hash(const uint64_t key[2], const uint64_t input[2])
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    const uint64_t words[3] = {input[0], input[1], (uint64_t)16 << 56};
    for (int i = 0; i < 3; i++) {
        v[3] ^= words[i];
        sip_round(v);
        sip_round(v);
        v[0] ^= words[i];
    }
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
