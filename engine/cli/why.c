#include "engine/cli/why.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/cli/opts.h"

enum { BAR = 24, MOST_PARTS = 64, FILE_BYTES = 64 << 20 };

static const struct {
    const char *word, *text;
} parts[] = {
    {"front", "at the front: read, made tokens of, handed to the engine"},
    {"engine", "between steps: the engine takes results in and decides"},
    {"prefill", "in steps that compute its prompt"},
    {"decode", "in steps that make its tokens"},
    {"step_under_way", "waits for the step under way"},
    {"no_seat", "waits: as many requests run as may (--max-num-seqs)"},
    {"no_kv", "waits: no room in the KV cache"},
    {"no_budget", "waits: the step is full (--max-num-batched-tokens)"},
    {"switch", "waits for a switch of groups, or for their weights"},
    {"closed", "waits: the policy has closed the groups that could take it"},
    {"no_group", "waits: no group there is could hold it"},
    {"move", "its KV is being copied between ranks"},
    {"swap", "its KV is on its way to or from host memory or the disk"},
    {"held", "held by the policy"},
    {"sibling", "waits for the prompt that it shares"},
    {"passed_over", "passed over by the policy, which ran others"},
    {"behind", "stands in line behind one that has no room"},
    {"routed", "left to another group, which is to serve it sooner"},
    {"policy_idle", "the policy ran nothing and asked to be woken"},
    {"preempted", "made to give way"},
    {"unexplained", "waits, and no fact says why"},
};

static const char *text_of(const char *word)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(parts[i].word, word) == 0)
            return parts[i].text;
    return word; /* of a newer server */
}

/* As it is, but for what a terminal obeys. */
static void put_plain(struct buf *out, const char *text)
{
    for (; *text; text++)
        buf_putc(out, (unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
}

static int64_t number(const struct json *o, const char *name)
{
    int64_t n = 0;
    return json_i64(json_find(o, name), &n) ? n : 0;
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

/* ---- the parts, the longest first */

struct part {
    const char *word;
    int64_t ns;
};

static int compare(const void *a, const void *b)
{
    int64_t x = ((const struct part *)a)->ns, y = ((const struct part *)b)->ns;
    return (x < y) - (x > y);
}

static int read_parts(const struct json *o, struct part *out, int64_t *sum)
{
    int n = 0;
    *sum = 0;
    for (const struct json *p = json_first(o); p && n < MOST_PARTS; p = json_next(p)) {
        out[n] = (struct part){.word = json_key(p)};
        if (!json_i64(p, &out[n].ns) || out[n].ns <= 0 || out[n].ns > INT64_MAX / MOST_PARTS)
            continue;
        *sum += out[n++].ns;
    }
    qsort(out, (size_t)n, sizeof *out, compare);
    return n;
}

static void put_parts(struct buf *out, const struct part *all, int n, int64_t sum)
{
    for (int i = 0; i < n; i++) {
        double share = (double)all[i].ns / (double)sum;
        int bar = (int)(share * BAR + 0.5);
        buf_printf(out, "  %12.3f ms %4.0f%%  %.*s%*s  ", ms(all[i].ns), share * 100, bar ? bar : 1,
                   "################################", BAR - (bar ? bar : 1), "");
        put_plain(out, text_of(all[i].word));
        buf_putc(out, '\n');
    }
}

/* ---- the spans, in their order */

static void put_steps(struct buf *out, const struct json *x)
{
    const struct json *l = json_find(x, "layout");
    if (!number(x, "steps"))
        return;
    buf_printf(out, "; %" PRId64 " token%s in %" PRId64 " step%s of group %" PRId64, number(x, "tokens"),
               number(x, "tokens") == 1 ? "" : "s", number(x, "steps"), number(x, "steps") == 1 ? "" : "s",
               number(x, "group"));
    buf_printf(out, " (sp %" PRId64 ", tp %" PRId64 ", pp %" PRId64 ")", number(l, "sp"), number(l, "tp"),
               number(l, "pp"));
}

static void put_span(struct buf *out, const struct json *x)
{
    int64_t from = number(x, "from_ns"), to = number(x, "to_ns");
    const char *word = json_text(json_find(x, "part")), *words = json_text(json_find(x, "words"));
    const struct json *behind = json_find(x, "behind");
    buf_printf(out, "  %12.3f %+12.3f ms  ", ms(from), ms(to > from ? to - from : 0));
    if (json_true(json_find(x, "again")))
        buf_puts(out, "(after giving way) ");
    put_plain(out, text_of(word ? word : "?"));
    if (words) {
        buf_puts(out, ": ");
        put_plain(out, words);
    }
    put_steps(out, x);
    if (behind) {
        buf_puts(out, "; behind ");
        put_plain(out, json_text(behind) ? json_text(behind) : "one that is forgotten");
    }
    if (number(x, "others"))
        buf_printf(out, " and %" PRId64 " others", number(x, "others"));
    if (json_true(json_find(x, "mixed")))
        buf_puts(out, "; and whatever came after (too many spans to keep)");
    buf_putc(out, '\n');
}

/* ---- one request */

static void put_head(struct buf *out, const struct json *r, const char *name)
{
    const char *state = json_text(json_find(r, "state")), *ending = json_text(json_find(r, "ending"));
    put_plain(out, name);
    buf_printf(out, " (choice %" PRId64 "): ", number(r, "choice"));
    put_plain(out, state ? state : "?");
    if (ending) {
        buf_puts(out, ", ");
        put_plain(out, ending);
    }
    buf_printf(
        out,
        "\n%" PRId64 " prompt tokens, %" PRId64 " of them cached; %" PRId64 " of output; gave way %" PRId64 " times\n",
        number(r, "prompt_tokens"), number(r, "cached_tokens"), number(r, "output_tokens"), number(r, "preempted"));
}

static void put_request(struct buf *out, const struct json *r, const char *name)
{
    struct part all[MOST_PARTS];
    int64_t sum, ttft;
    int n = read_parts(json_find(r, "ttft"), all, &sum);
    put_head(out, r, name);
    if (json_i64(json_find(r, "ttft_ns"), &ttft))
        buf_printf(out, "\nfirst token after %.3f ms\n", ms(ttft));
    else
        buf_printf(out, "\nno token yet in %.3f ms\n", ms(number(r, "age_ns")));
    put_parts(out, all, n, sum);
    n = read_parts(json_find(r, "after"), all, &sum);
    if (n)
        buf_printf(out, "\nfrom then on %.3f ms\n", ms(sum));
    put_parts(out, all, n, sum);
    if (json_count(json_find(r, "spans")))
        buf_puts(out, "\n     at (ms)         took\n");
    for (const struct json *x = json_first(json_find(r, "spans")); x; x = json_next(x))
        put_span(out, x);
}

int why_render(const struct json *reply, const char *id, struct buf *out, struct err *e)
{
    const struct json *list = json_find(reply, "requests");
    int n = 0;
    if (json_type(list) != JSON_ARRAY)
        return err_set(e, E_INPUT, "this is not what /admin/requests answers: it has no \"requests\"");
    for (const struct json *r = json_first(list); r; r = json_next(r)) {
        const char *name = json_text(json_find(r, "id"));
        if (!name || json_type(json_find(r, "ttft")) != JSON_OBJECT)
            return err_set(e, E_INPUT, "this is not what /admin/requests answers: a request has no id, or no ttft");
        if (id && strcmp(name, id) != 0)
            continue;
        buf_puts(out, n++ ? "\n" : "");
        put_request(out, r, name);
    }
    if (!n && id)
        return err_set(e, E_NOTFOUND, "no request in it is called %.100s", id);
    if (!n)
        buf_puts(out, "no requests\n");
    return 0;
}

/* ---- the command */

static int read_input(const char *path, struct buf *out, struct err *e)
{
    char part[4096];
    if (strcmp(path, "-") != 0)
        return file_read(out, path, FILE_BYTES, e);
    for (size_t n; (n = fread(part, 1, sizeof part, stdin)) > 0;) {
        if (out->len + n > FILE_BYTES)
            return err_set(e, E_INPUT, "more than 64 MiB come in");
        buf_put(out, part, n);
    }
    return 0;
}

int why_command(const struct opts *o, struct err *e)
{
    struct buf in = {0}, out = {0};
    int rc = read_input(o->why_file, &in, e);
    struct json *j = rc ? NULL : json_parse(in.data ? in.data : "", in.len, NULL, e);
    rc = rc ? rc : j ? why_render(j, o->why_id, &out, e) : E_INPUT;
    if (!rc && fwrite(out.data, 1, out.len, stdout) != out.len)
        rc = err_set(e, E_SYS, "the text cannot be written");
    json_free(j);
    buf_free(&in);
    buf_free(&out);
    return rc;
}
