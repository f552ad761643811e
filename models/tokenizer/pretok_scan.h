/* Hand-written scanners for the stages of pretok.c. Each finds the leftmost match of one pattern, in time linear in
 * the piece. Pure functions over valid UTF-8. Invariant: a match has at least one byte. */
#ifndef MODELS_TOKENIZER_PRETOK_SCAN_H
#define MODELS_TOKENIZER_PRETOK_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct piece {
    const char *s;
    size_t n;
    const uint16_t *classes;
};

struct span {
    size_t from, to;
};

/* Finds the first match at or after `from`. */
typedef bool pretok_scan(const struct piece *p, size_t from, struct span *m);

pretok_scan scan_gpt2, scan_llama3, scan_qwen2, scan_digit, scan_punctuation, scan_byte_digits, scan_three_digits,
    scan_newline, scan_cased, scan_listed_punct, scan_trailing_space, scan_cjk, scan_letters, scan_punct, scan_qwen35,
    scan_gpt4o, scan_tekken, scan_numbers3, scan_kana, scan_deepseek3;

#endif
