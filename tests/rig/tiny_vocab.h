/* Made-up vocabularies of a few hundred tokens, as GGUF bytes, for tests and fuzz targets. One thread. */
#ifndef RIG_TINY_VOCAB_H
#define RIG_TINY_VOCAB_H

#include <stdbool.h>
#include <stdio.h>

#include "engine/base/utf8.h"
#include "tests/rig/gguf_build.h"

/* A byte in GPT-2's alphabet, as UTF-8. */
static inline int tiny_spell(int byte, char out[4])
{
    uint32_t next = 256;
    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t cp = plain ? (uint32_t)b : next++;
        if (b == byte)
            return utf8_encode(cp, out);
    }
    return 0;
}

/* Byte-level: 256 bytes, these pieces, then <|end|> (control) and <tool> (user-defined). */
static inline void tiny_byte_level(const char *pre, struct buf *out)
{
    static const char *const pieces[] = {"he", "ll", "llo", "hello", "\xC4\xA0h", "\xC4\xA0hello", "12", "aa", "aaaa"};
    static const char *const merges[] = {"h e", "l l", "ll o", "he llo", "\xC4\xA0 h", "\xC4\xA0 hello",
                                         "1 2", "a a", "aa aa"};
    const int n_pieces = (int)(sizeof pieces / sizeof *pieces);
    struct gguf_build b = {0};
    build_string(&b, "tokenizer.ggml.model", "gpt2");
    build_string(&b, "tokenizer.ggml.pre", pre);
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, 256 + (uint64_t)n_pieces + 2);
    for (int i = 0; i < 256; i++) {
        char s[4];
        build_text(&b.keys, s, (size_t)tiny_spell(i, s));
    }
    for (int i = 0; i < n_pieces; i++)
        build_text(&b.keys, pieces[i], strlen(pieces[i]));
    build_text(&b.keys, "<|end|>", 7);
    build_text(&b.keys, "<tool>", 6);
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, 256 + (uint64_t)n_pieces + 2);
    for (int i = 0; i < 256 + n_pieces + 2; i++)
        build_put(&b.keys, i < 256 + n_pieces ? 1 : i == 256 + n_pieces ? 3 : 4, 4);
    build_array(&b, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)n_pieces);
    for (int i = 0; i < n_pieces; i++)
        build_text(&b.keys, merges[i], strlen(merges[i]));
    build_u32(&b, "tokenizer.ggml.eos_token_id", 256 + (uint32_t)n_pieces);
    build_finish(&b, 3, 0, out);
}

/* SentencePiece: <unk> <s> </s>, 256 bytes (or none), then these pieces with falling scores. */
static inline void tiny_sentencepiece(bool bytes, struct buf *out)
{
    static const char *const pieces[] = {"\xE2\x96\x81",
                                         "a",
                                         "b",
                                         "c",
                                         "ab",
                                         "\xE2\x96\x81"
                                         "a",
                                         "bc",
                                         "abc",
                                         "\xE2\x96\x81"
                                         "ab",
                                         "\xC3\xA9",
                                         "\xE2\x96\x81\xE2\x96\x81"};
    const int n_pieces = (int)(sizeof pieces / sizeof *pieces), n_bytes = bytes ? 256 : 0, n = 3 + n_bytes + n_pieces;
    struct gguf_build b = {0};
    build_string(&b, "tokenizer.ggml.model", "llama");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)n);
    build_text(&b.keys, "<unk>", 5);
    build_text(&b.keys, "<s>", 3);
    build_text(&b.keys, "</s>", 4);
    for (int i = 0; i < n_bytes; i++) {
        char s[8];
        snprintf(s, sizeof s, "<0x%02X>", (unsigned)i);
        build_text(&b.keys, s, 6);
    }
    for (int i = 0; i < n_pieces; i++)
        build_text(&b.keys, pieces[i], strlen(pieces[i]));
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        build_put(&b.keys, i == 0 ? 2 : i < 3 ? 3 : i < 3 + n_bytes ? 6 : 1, 4);
    build_array(&b, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        float score = i < 3 + n_bytes ? 0 : -(float)i;
        uint32_t bits;
        memcpy(&bits, &score, 4);
        build_put(&b.keys, bits, 4);
    }
    build_u32(&b, "tokenizer.ggml.unknown_token_id", 0);
    build_finish(&b, 3, 0, out);
}

/* WordPiece as llama.cpp spells it: [PAD] [UNK] [CLS] [SEP], printable ASCII but capitals, at the beginning of a word
 * and inside one, and these pieces. */
static inline void tiny_wordpiece(struct buf *out)
{
    static const char *const special[] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
    static const char *const pieces[] = {
        "\xE2\x96\x81he",           "\xE2\x96\x81hello", "llo", "ing",
        "\xE2\x96\x81\xE4\xB8\xAD", "\xC3\xA6",          "lll", "\xE2\x96\x81\xC3\xA6"};
    const int n_pieces = (int)(sizeof pieces / sizeof *pieces);
    struct gguf_build b = {0};
    int n = 4 + n_pieces;
    for (int c = '!'; c <= '~'; c++)
        n += (c >= 'A' && c <= 'Z') ? 0 : 2;
    build_string(&b, "tokenizer.ggml.model", "bert");
    build_array(&b, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)n);
    for (int i = 0; i < 4; i++)
        build_text(&b.keys, special[i], 5);
    for (int c = '!'; c <= '~'; c++) {
        char s[4] = {'\xE2', '\x96', '\x81', (char)c};
        if (c >= 'A' && c <= 'Z')
            continue;
        build_text(&b.keys, s, 4);
        build_text(&b.keys, s + 3, 1);
    }
    for (int i = 0; i < n_pieces; i++)
        build_text(&b.keys, pieces[i], strlen(pieces[i]));
    build_array(&b, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        build_put(&b.keys, i == 1 ? 2 : i < 4 ? 3 : 1, 4);
    build_finish(&b, 3, 0, out);
}

#endif
