#include "engine/lab/trace/trace.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/lab/trace/lines.h"

enum { MAX_COLUMNS = 8 };
static const int64_t MAX_SECONDS = INT64_C(315360000); /* ten years */

enum column {
    COL_ARRIVAL,
    COL_INPUT,
    COL_OUTPUT,
    COL_PRIORITY,
    COL_TENANT,
    COL_HASHES,
    COL_TIMESTAMP,
    COL_ROW,
    COL_OPEN_ENDED,
    COL_COUNT
};

struct trace {
    struct lines rows, side; /* side.file NULL: no hashes beside it */
    enum column columns[MAX_COLUMNS];
    int n_columns;
    bool is_jsonl, has_held; /* held: the first line of a file of JSON lines is a row already */
    uint64_t n_rows;
    int64_t first_ns, last_ns; /* absolute */
    uint64_t *hashes;
    int n_hashes;
};

/* ---- values */

/* ".5" as nanoseconds; digits past the ninth are cut off. */
static bool fraction(const char *text, int64_t *ns, const char **end)
{
    int64_t unit = 100000000;
    const char *c = text + 1;
    *ns = 0;
    for (; isdigit((unsigned char)*c); c++, unit /= 10)
        *ns += (*c - '0') * unit;
    *end = c;
    return c > text + 1;
}

static bool read_seconds(const char *text, int64_t *ns)
{
    uint64_t whole;
    int64_t part = 0;
    const char *end;
    if (!lines_digits(text, (uint64_t)MAX_SECONDS, &whole, &end) || (*end == '.' && !fraction(end, &part, &end)) ||
        *end)
        return false;
    *ns = (int64_t)whole * 1000000000 + part;
    return true;
}

/* Days since 1970-01-01 of a date of the Gregorian calendar. */
static int64_t days_of(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    int64_t era = y / 400, yoe = y - era * 400, doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* "2023-11-16 18:17:03.9799600", also with 'T' between, and "+00:00" or "Z" after it. */
static bool read_timestamp(const char *text, int64_t *ns)
{
    static const char marks[] = "--*::";
    static const uint64_t most[] = {2200, 12, 31, 23, 59, 60}, least[] = {1970, 1, 1, 0, 0, 0};
    uint64_t v[6];
    int64_t part = 0;
    for (int i = 0; i < 6; i++) {
        const char *from = text;
        if (!lines_digits(text, most[i], &v[i], &text) || v[i] < least[i] || text - from != (i ? 2 : 4))
            return false;
        if (i < 5 && !(marks[i] == '*' ? (*text == ' ' || *text == 'T') : *text == marks[i]))
            return false;
        text += i < 5;
    }
    if (*text == '.' && !fraction(text, &part, &text))
        return false;
    if (*text && strcmp(text, "Z") != 0 && strcmp(text, "+00:00") != 0)
        return false;
    int64_t day = days_of((int64_t)v[0], (int64_t)v[1], (int64_t)v[2]);
    if (day >= (v[1] == 12 ? days_of((int64_t)v[0] + 1, 1, 1) : days_of((int64_t)v[0], (int64_t)v[1] + 1, 1)))
        return false; /* the month is not that long */
    int64_t s = day * 86400 + (int64_t)(v[3] * 3600 + v[4] * 60 + v[5]);
    *ns = s * 1000000000 + part;
    return true;
}

static bool read_count(const char *text, uint64_t min, uint64_t max, int *out)
{
    uint64_t v;
    const char *end;
    if (!lines_digits(text, max, &v, &end) || *end || v < min)
        return false;
    *out = (int)v;
    return true;
}

static int read_hashes(struct trace *t, const struct lines *l, const char *text, struct err *e)
{
    t->n_hashes = 0;
    while (*text) {
        if (t->n_hashes == TRACE_MAX_HASHES)
            return lines_bad(l, e, "hash_ids has more ids than a prompt can have blocks");
        if (!lines_digits(text, UINT64_MAX, &t->hashes[t->n_hashes++], &text) || (*text && *text != ' '))
            return lines_bad_field(l, "hash_ids", "whole numbers with a blank between them", text, e);
        text += strspn(text, " ");
    }
    return 0;
}

/* ---- rows of CSV */

static const struct {
    const char *name;
    enum column column;
} column_names[] = {
    {"arrival_s", COL_ARRIVAL},      {"input_tokens", COL_INPUT},
    {"output_tokens", COL_OUTPUT},   {"priority", COL_PRIORITY},
    {"tenant", COL_TENANT},          {"hash_ids", COL_HASHES},
    {"TIMESTAMP", COL_TIMESTAMP},    {"ContextTokens", COL_INPUT},
    {"GeneratedTokens", COL_OUTPUT}, {"row", COL_ROW},
    {"open_ended", COL_OPEN_ENDED},
};

static const char *column_name(enum column c, bool azure)
{
    if (azure && (c == COL_INPUT || c == COL_OUTPUT))
        return c == COL_INPUT ? "ContextTokens" : "GeneratedTokens";
    for (size_t i = 0; i < sizeof column_names / sizeof *column_names; i++)
        if (column_names[i].column == c)
            return column_names[i].name;
    return "?";
}

/* Cuts a line at its commas. Returns how many fields; MAX_COLUMNS + 1: too many. */
static int split(char *line, char *fields[MAX_COLUMNS])
{
    int n = 0;
    for (char *c = line; c;) {
        char *comma = strchr(c, ',');
        if (n == MAX_COLUMNS)
            return MAX_COLUMNS + 1;
        fields[n++] = c + strspn(c, " \t");
        if (comma)
            *comma = 0;
        for (size_t len = strlen(fields[n - 1]);
             len && (fields[n - 1][len - 1] == ' ' || fields[n - 1][len - 1] == '\t');)
            fields[n - 1][--len] = 0;
        c = comma ? comma + 1 : NULL;
    }
    return n;
}

static bool has_column(const struct trace *t, enum column c)
{
    for (int i = 0; i < t->n_columns; i++)
        if (t->columns[i] == c)
            return true;
    return false;
}

static int read_header(struct trace *t, struct err *e)
{
    char *fields[MAX_COLUMNS], *line = t->rows.line.data;
    if (!strncmp(line, "\xef\xbb\xbf", 3))
        line += 3;
    int n = split(line, fields);
    if (n > MAX_COLUMNS)
        return lines_bad(&t->rows, e, "there are more columns than a trace can have");
    for (int i = 0; i < n; i++) {
        size_t k = 0, all = sizeof column_names / sizeof *column_names;
        while (k < all && (strcmp(fields[i], column_names[k].name) != 0 || column_names[k].column == COL_ROW))
            k++;
        if (k == all)
            return lines_bad_field(
                &t->rows, "the header",
                "of arrival_s,input_tokens,output_tokens[,priority][,tenant][,open_ended][,hash_ids] "
                "or TIMESTAMP,ContextTokens,GeneratedTokens",
                fields[i], e);
        if (has_column(t, column_names[k].column))
            return lines_bad_field(&t->rows, "a column", "named once", fields[i], e);
        t->columns[t->n_columns++] = column_names[k].column;
    }
    bool clock = has_column(t, COL_ARRIVAL) != has_column(t, COL_TIMESTAMP);
    if (!clock || !has_column(t, COL_INPUT) || !has_column(t, COL_OUTPUT))
        return lines_bad(&t->rows, e,
                         "the header must name arrival_s (or TIMESTAMP), input_tokens (ContextTokens) and "
                         "output_tokens (GeneratedTokens)");
    return 0;
}

static int read_field(struct trace *t, enum column c, const char *text, struct trace_row *row, struct err *e)
{
    const struct lines *l = &t->rows;
    bool azure = has_column(t, COL_TIMESTAMP);
    switch (c) {
    case COL_ARRIVAL:
        return read_seconds(text, &row->arrival_ns) ? 0
                                                    : lines_bad_field(l, "arrival_s", "seconds (like 12.345)", text, e);
    case COL_TIMESTAMP:
        return read_timestamp(text, &row->arrival_ns)
                   ? 0
                   : lines_bad_field(l, "TIMESTAMP", "like 2023-11-16 18:17:03.97996", text, e);
    case COL_INPUT:
    case COL_OUTPUT:
        if (read_count(text, 1, TRACE_MAX_TOKENS, c == COL_INPUT ? &row->n_prompt : &row->n_output))
            return 0;
        return lines_bad_field(l, column_name(c, azure), "a whole number from 1 to 4194304", text, e);
    case COL_PRIORITY:
        if (!read_count(text + (*text == '-'), 0, TRACE_MAX_PRIORITY, &row->priority))
            return lines_bad_field(l, "priority", "a whole number from -1000000 to 1000000", text, e);
        row->priority = *text == '-' ? -row->priority : row->priority;
        return 0;
    case COL_TENANT:
        if (strlen(text) >= sizeof row->tenant ||
            strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(text))
            return lines_bad_field(l, "tenant", "up to 63 letters, digits, '.', '_' or '-'", text, e);
        snprintf(row->tenant, sizeof row->tenant, "%s", text);
        return 0;
    case COL_OPEN_ENDED:
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return lines_bad_field(l, "open_ended", "0 or 1", text, e);
        row->open_ended = *text == '1';
        return 0;
    case COL_HASHES:
        return read_hashes(t, l, text, e);
    case COL_ROW:
    case COL_COUNT:
        break;
    }
    return 0;
}

static int read_csv(struct trace *t, struct trace_row *row, struct err *e)
{
    char *fields[MAX_COLUMNS];
    int n = split(t->rows.line.data, fields);
    if (n != t->n_columns)
        return err_set(e, E_INPUT, "%s:%llu: there are %s%d fields where the header has %d", t->rows.name,
                       (unsigned long long)t->rows.number, n > MAX_COLUMNS ? "more than " : "",
                       n > MAX_COLUMNS ? MAX_COLUMNS : n, t->n_columns);
    for (int i = 0; i < n; i++)
        TRY(read_field(t, t->columns[i], fields[i], row, e));
    return 0;
}

/* ---- rows of JSON */

static int json_tokens(const struct lines *l, const struct json *j, const char *field, int *out, struct err *e)
{
    int64_t v;
    if (!json_i64(j, &v) || v < 1 || v > TRACE_MAX_TOKENS)
        return lines_bad_field(l, field, "a whole number from 1 to 4194304", json_type_name(j), e);
    *out = (int)v;
    return 0;
}

static int json_hashes(struct trace *t, const struct json *list, struct err *e)
{
    t->n_hashes = 0;
    if (json_type(list) != JSON_ARRAY)
        return lines_bad_field(&t->rows, "hash_ids", "a list of whole numbers", json_type_name(list), e);
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        int64_t v;
        if (t->n_hashes == TRACE_MAX_HASHES)
            return lines_bad(&t->rows, e, "hash_ids has more ids than a prompt can have blocks");
        if (!json_i64(j, &v) || v < 0)
            return lines_bad_field(&t->rows, "hash_ids", "a list of whole numbers", json_type_name(j), e);
        t->hashes[t->n_hashes++] = (uint64_t)v;
    }
    return 0;
}

static int json_fields(struct trace *t, const struct json *root, struct trace_row *row, struct err *e)
{
    const struct lines *l = &t->rows;
    if (json_type(root) != JSON_OBJECT)
        return lines_bad_field(l, "a row", "an object", json_type_name(root), e);
    row->arrival_ns = -1;
    for (const struct json *j = json_first(root); j; j = json_next(j)) {
        const char *key = json_key(j);
        double ms = json_number(j);
        if (!strcmp(key, "timestamp")) {
            if (json_type(j) != JSON_NUMBER || !(ms >= 0 && ms <= (double)MAX_SECONDS * 1e3))
                return lines_bad_field(l, key, "milliseconds, at most ten years", json_type_name(j), e);
            row->arrival_ns = (int64_t)(ms * 1e6 + 0.5);
        } else if (!strcmp(key, "input_length")) {
            TRY(json_tokens(l, j, key, &row->n_prompt, e));
        } else if (!strcmp(key, "output_length")) {
            TRY(json_tokens(l, j, key, &row->n_output, e));
        } else if (!strcmp(key, "hash_ids")) {
            TRY(json_hashes(t, j, e));
        } else {
            return lines_bad_field(l, "a key", "timestamp, input_length, output_length or hash_ids", key, e);
        }
    }
    if (row->arrival_ns < 0 || !row->n_prompt || !row->n_output)
        return lines_bad(l, e, "timestamp, input_length and output_length are needed");
    return 0;
}

static int read_json(struct trace *t, struct trace_row *row, struct err *e)
{
    static const struct json_limits limits = {.bytes = TRACE_LINE_BYTES, .depth = 4, .nodes = 2 * TRACE_MAX_HASHES};
    struct err why = {0};
    struct json *root = json_parse(t->rows.line.data, t->rows.line.len, &limits, &why);
    if (!root)
        return err_set(e, E_INPUT, "%s:%llu: %.200s", t->rows.name, (unsigned long long)t->rows.number, why.text);
    int rc = json_fields(t, root, row, e);
    json_free(root);
    return rc;
}

/* ---- the file beside it */

static int open_side(struct trace *t, struct err *e)
{
    bool end;
    TRY(lines_next(&t->side, &end, e));
    if (end || strcmp(t->side.line.data, "row,hash_ids") != 0)
        return lines_bad(&t->side, e, "the first line must be row,hash_ids");
    return 0;
}

static int read_side(struct trace *t, const struct trace_row *row, struct err *e)
{
    bool end;
    char *fields[MAX_COLUMNS];
    int index;
    TRY(lines_next(&t->side, &end, e));
    if (end)
        return err_set(e, E_INPUT, "%s:%llu: there is no line for row %llu of the trace", t->side.name,
                       (unsigned long long)t->side.number, (unsigned long long)row->index);
    if (split(t->side.line.data, fields) != 2)
        return lines_bad(&t->side, e, "there must be two fields, row and hash_ids");
    if (!read_count(fields[0], 0, INT32_MAX, &index) || (uint64_t)index != row->index)
        return lines_bad_field(&t->side, "row", "the number of the trace's row, in order from 0", fields[0], e);
    return read_hashes(t, &t->side, fields[1], e);
}

/* ---- all of it */

int trace_open_streams(struct trace **out, FILE *rows, FILE *hashes, const char *name, struct err *e)
{
    struct trace *t = mem_new(sizeof *t);
    bool end;
    t->hashes = mem_new_array(TRACE_MAX_HASHES, sizeof *t->hashes);
    t->first_ns = -1;
    lines_start(&t->rows, rows, name);
    if (hashes)
        lines_start(&t->side, hashes, "hashes");
    int rc = lines_next(&t->rows, &end, e);
    if (!rc && end)
        rc = err_set(e, E_INPUT, "%s is empty", name);
    if (!rc && t->rows.line.data[0] == '{')
        t->is_jsonl = t->has_held = true;
    else if (!rc)
        rc = read_header(t, e);
    if (!rc && hashes && has_column(t, COL_HASHES))
        rc = err_set(e, E_INPUT, "%s has hash_ids of its own: leave the file of hashes away", name);
    if (!rc && hashes)
        rc = open_side(t, e);
    if (rc) {
        trace_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

int trace_open(struct trace **out, const char *path, const char *hashes_path, struct err *e)
{
    FILE *hashes = NULL, *rows = fopen(path, "re");
    if (rows && hashes_path)
        hashes = fopen(hashes_path, "re");
    if (!rows || (hashes_path && !hashes)) {
        int code = errno == ENOENT ? E_NOTFOUND : E_SYS;
        err_set(e, code, "cannot open %.200s: %s", rows ? hashes_path : path, strerror(errno));
        if (rows)
            fclose(rows);
        return code;
    }
    TRY(trace_open_streams(out, rows, hashes, last_part(path), e));
    if (hashes)
        snprintf((*out)->side.name, sizeof(*out)->side.name, "%s", last_part(hashes_path));
    return 0;
}

void trace_close(struct trace *t)
{
    if (!t)
        return;
    lines_stop(&t->rows);
    lines_stop(&t->side);
    mem_free(t->hashes);
    mem_free(t);
}

/* What no single field can know: order of time, and as many ids as blocks. */
static int check_row(struct trace *t, struct trace_row *row, struct err *e)
{
    int64_t at = row->arrival_ns;
    if (t->first_ns < 0)
        t->first_ns = t->last_ns = at;
    if (at < t->last_ns)
        return lines_bad(&t->rows, e, "the time is before that of the row above; rows must be in order of time");
    t->last_ns = at;
    row->arrival_ns = at - t->first_ns;
    if (row->arrival_ns > MAX_SECONDS * 1000000000)
        return lines_bad(&t->rows, e, "the time is more than ten years after that of the first row");
    int blocks = (row->n_prompt + TRACE_HASH_TOKENS - 1) / TRACE_HASH_TOKENS;
    if (t->n_hashes && t->n_hashes != blocks)
        return err_set(e, E_INPUT, "%s:%llu: hash_ids has %d ids; %d tokens are %d blocks of %d", t->rows.name,
                       (unsigned long long)t->rows.number, t->n_hashes, row->n_prompt, blocks, TRACE_HASH_TOKENS);
    row->n_hashes = t->n_hashes;
    row->hashes = t->n_hashes ? t->hashes : NULL;
    return 0;
}

int trace_next(struct trace *t, struct trace_row *row, bool *end, struct err *e)
{
    struct trace_row r = {.index = t->n_rows};
    *end = false;
    if (!t->has_held)
        TRY(lines_next(&t->rows, end, e));
    t->has_held = false;
    if (*end)
        return 0;
    t->n_hashes = 0;
    TRY(t->is_jsonl ? read_json(t, &r, e) : read_csv(t, &r, e));
    if (t->side.file)
        TRY(read_side(t, &r, e));
    TRY(check_row(t, &r, e));
    t->n_rows++;
    *row = r;
    return 0;
}

/* Tokens first, first + 1, ... of a text. */
static void fill_text(uint64_t text, int first, int n, int vocab, int32_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (int32_t)((unsigned __int128)rng_at(text, (uint64_t)(first + i)) * (uint64_t)vocab >> 64);
}

void trace_prompt(const struct trace_row *row, uint64_t seed, int vocab, int32_t *out)
{
    int each = row->hash_tokens ? row->hash_tokens : TRACE_HASH_TOKENS, n = row->n_prompt, i = 0;
    for (int k = 0; k < row->n_hashes && i < n; k++) {
        int here = n - i < each ? n - i : each;
        fill_text(rng_at(seed, row->hashes[k]), 0, here, vocab, out + i);
        i += here;
    }
    fill_text(rng_at(~seed, row->index), i, n - i, vocab, out + i);
}
