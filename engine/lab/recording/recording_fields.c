#include "engine/lab/recording/recording_fields.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fields_wrong(struct fields *f, const char *field, const char *must, const char *is)
{
    if (!f->rc)
        f->rc = lines_bad_field(f->lines, field, must, is, f->e);
}

const char *fields_word(struct fields *f)
{
    char *from = f->at, *blank = from ? strchr(from, ' ') : NULL;
    if (blank)
        *blank++ = 0;
    f->at = blank;
    return from ? from : "";
}

int64_t fields_parse(struct fields *f, const char *field, const char *text, int64_t min, int64_t max)
{
    uint64_t v = 0;
    const char *end;
    bool minus = *text == '-' && min < 0;
    if (!lines_digits(text + minus, (uint64_t)INT64_MAX, &v, &end) || *end ||
        (minus ? -(int64_t)v < min : (int64_t)v < min) || (!minus && (int64_t)v > max)) {
        char must[80];
        snprintf(must, sizeof must, "a whole number from %lld to %lld", (long long)min, (long long)max);
        fields_wrong(f, field, must, text);
        return min;
    }
    return minus ? -(int64_t)v : (int64_t)v;
}

int64_t fields_number(struct fields *f, const char *field, int64_t min, int64_t max)
{
    return fields_parse(f, field, fields_word(f), min, max);
}

int64_t fields_number_or_none(struct fields *f, const char *field, int64_t max)
{
    const char *text = fields_word(f);
    return strcmp(text, "-") ? fields_parse(f, field, text, 0, max) : -1;
}

double fields_real(struct fields *f, const char *field, double least, double most, const char *must)
{
    const char *text = fields_word(f);
    char *end = NULL;
    double v = (*text >= '0' && *text <= '9') || *text == '-' ? strtod(text, &end) : 0;
    if (end && !*end && isfinite(v) && v >= least && v <= most)
        return v;
    fields_wrong(f, field, must, text);
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void fields_name(struct fields *f, const char *field, char out[NAME_BYTES])
{
    const char *text = fields_word(f);
    size_t n = 0;
    bool good = *text;
    out[0] = 0;
    if (!strcmp(text, "-"))
        return;
    for (const char *c = text; *c && good; n++) {
        int hi = *c == '%' ? hex_digit(c[1]) : 0, lo = *c == '%' && hi >= 0 ? hex_digit(c[2]) : 0;
        char plain = *c == '%' ? (char)(hi * 16 + lo) : *c;
        good = n + 1 < NAME_BYTES && hi >= 0 && lo >= 0 && plain;
        if (good)
            out[n] = plain;
        c += *c == '%' ? 3 : 1;
    }
    out[good ? n : 0] = 0;
    if (!good)
        fields_wrong(f, field, "a name of up to 63 characters, or -", text);
}

uint64_t fields_key(struct fields *f)
{
    const char *text = fields_word(f);
    uint64_t v = 0;
    int n = 0;
    for (; hex_digit(text[n]) >= 0 && n < 17; n++)
        v = v << 4 | (uint64_t)hex_digit(text[n]);
    if (n != 16 || text[n])
        fields_wrong(f, "key", "16 hexadecimal digits", text);
    return v;
}

const char *fields_rest(struct fields *f, const char *field)
{
    const char *text = f->at;
    if (!text || !*text)
        fields_wrong(f, field, "there", "nothing");
    f->at = NULL;
    return text ? text : "";
}

int fields_choice(struct fields *f, const char *field, const char *(*named)(int), int n)
{
    const char *text = fields_word(f);
    for (int i = 0; i < n; i++)
        if (!strcmp(text, named(i)))
            return i;
    fields_wrong(f, field, "one of the words that recordings have for it", text);
    return 0;
}
