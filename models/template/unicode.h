/* What Python's str methods know about characters: classes and case. Constant tables (unicode_data.c) and pure
 * functions over them; any thread. Invariant: the tables are generated (tests/oracle/unicode_tables.py), never edited.
 */
#ifndef MODELS_TEMPLATE_UNICODE_H
#define MODELS_TEMPLATE_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

enum unicode_flag {
    UNI_ALPHA = 1,
    UNI_DECIMAL = 2,
    UNI_DIGIT = 4,
    UNI_NUMERIC = 8,
    UNI_PRINTABLE = 16,
    UNI_LOWER = 32,
    UNI_UPPER = 64,
    UNI_TITLE = 128 /* titlecase letters such as U+01C5 */,
    UNI_SPACE = 256,
    UNI_IGNORABLE = 512 /* for a final sigma */,
    UNI_WORD = 1024 /* may follow in an identifier */,
    UNI_CASED = UNI_LOWER | UNI_UPPER | UNI_TITLE,
    UNI_ALNUM = UNI_ALPHA | UNI_DECIMAL | UNI_DIGIT | UNI_NUMERIC,
};
enum unicode_case { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_FOLD };

struct case_run {
    uint32_t first, last, step;
    int32_t delta;
};
struct case_several {
    uint32_t from, to[3]; /* 0 ends it early */
};

unsigned unicode_flags(uint32_t cp);
bool unicode_is(uint32_t cp, unsigned any_of);
/* Appends cp in that case, as UTF-8; one code point may become three. Knows nothing of neighbours. */
void unicode_put_case(struct buf *out, uint32_t cp, enum unicode_case to);
/* Appends s[0..n) lowered, with Greek's final sigma. */
void unicode_put_lower(struct buf *out, const char *s, size_t n);
/* The same for the one character of len bytes at byte `at`. */
void unicode_put_lower_at(struct buf *out, const char *s, size_t n, size_t at, size_t len);
size_t unicode_skip_space(const char *s, size_t n);  /* bytes of white space at the front */
size_t unicode_strip_space(const char *s, size_t n); /* n less the white space at the end */

extern const uint32_t unicode_runs[]; /* first code point << 11 | flags, ascending */
extern const int n_unicode_runs;
extern const struct case_run unicode_lower[], unicode_upper[], unicode_title[], unicode_fold[];
extern const int n_unicode_lower, n_unicode_upper, n_unicode_title, n_unicode_fold;
extern const struct case_several unicode_lower_several[], unicode_upper_several[], unicode_title_several[],
    unicode_fold_several[];
extern const int n_unicode_lower_several, n_unicode_upper_several, n_unicode_title_several, n_unicode_fold_several;

#endif
