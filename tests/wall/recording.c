/* Recordings from outside: what is wrong is told with file, line and field; names and keys come back as they were; a
 * file of any length is read line by line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/recording/record.h"
#include "engine/lab/recording/record_plan.h"
#include "engine/lab/recording/recording.h"
#include "engine/lab/recording/recording_steps.h"

static const char HEAD[] = "{\"moonshift_recording\":1,\"began\":5,\"clock_ns\":1000,\"version\":\"t\",\"model_name\":"
                           "\"m\",\"device\":\"d\",\"ranks\":2,\"block_size\":16,\"kv_blocks\":8,"
                           "\"kv_bytes\":1,\"memory_bytes\":1,\"weight_bytes\":1,\"heads\":[4,2,64],\"start\":[0,0],"
                           "\"limits\":{\"max_num_seqs\":4,\"max_num_batched_tokens\":64,"
                           "\"max_model_len\":128,\"max_num_queued_reqs\":0,\"max_num_queued_tokens\":0,\"prefix_"
                           "caching\":true,\"starvation_ns\":0,\"park_ns\":0},"
                           "\"sets\":[\"1\",\"2\",\"3\"],\"tokens_per_block\":[16,32],\"refusals\":[[2,2,\"no\"]],"
                           "\"comms\":[{\"meet_ns\":1,\"bytes\":[1,2,3,4],\"oneshot_ns\":[1,2,3,4],"
                           "\"twoshot_ns\":[1,2,3,4]}],\"model\":{},\"policy\":{\"name\":\"fcfs\",\"sha256\":\"ab\","
                           "\"params\":{\"budget\":5}}}\n";

/* Reads everything. 0, or what was wrong. */
static int read_text(const char *text, size_t n, uint64_t *lines, struct recorded *last, struct err *e)
{
    struct recording *r = NULL;
    struct recorded x;
    bool end = false;
    *lines = 0;
    int rc = recording_open_stream(&r, fmemopen((void *)(uintptr_t)text, n, "r"), "f", e);
    while (!rc && !(rc = recording_next(r, &x, &end, e)) && !end) {
        *last = x;
        (*lines)++;
    }
    recording_close(r);
    return rc;
}

static void check_wrong(const char *text, const char *says)
{
    struct err e = {0};
    struct recorded x;
    uint64_t n;
    if (read_text(text, strlen(text), &n, &x, &e) != E_INPUT || !strstr(e.text, says))
        fail_msg("'%.80s...' was to say '%s', said '%s'", text, says, e.text);
}

static void heads_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *old, *new, *says;
    } cases[] = {
        {"recording\":1", "recording\":2", "f:1: drafts must be a list of up to 4 sources"},
        {"recording\":1", "recording\":4", "f:1: moonshift_recording: this program reads formats 1 to 3, not 4"},
        {"\"ranks\":2", "\"ranks\":65", "f:1: ranks must be a whole number from 1 to 64"},
        {"\"ranks\":2", "\"ranks\":3", "f:1: sets must be first each rank alone"},
        {"\"block_size\":16", "\"block_size\":24", "f:1: block_size must be a multiple of 16"},
        {"\"kv_blocks\":8", "\"kv_blocks\":0", "f:1: kv_blocks must be"},
        {"\"clock_ns\":1000", "\"clock_ns\":\"x\"", "f:1: clock_ns must be"},
        {"\"start\":[0,0]", "\"start\":[2,2]", "f:1: start must be"},
        {"\"start\":[0,0]", "\"start\":[1,0]", "f:1: start must be"},
        {"\"heads\":[4,2,64]", "\"heads\":[4,2]", "f:1: heads must be"},
        {"\"3\"]", "\"7\"]", "f:1: sets must be different masks"},
        {"\"3\"]", "\"2\"]", "f:1: sets must be different masks"},
        {"[16,32]", "[16,33]", "f:1: tokens_per_block must be a multiple of 16"},
        {"[16,32]", "[16]", "f:1: tokens_per_block must be a list"},
        {"[[2,2,\"no\"]]", "[[2,3,\"no\"]]", "f:1: refusals must be"},
        {"\"bytes\":[1,2,3,4]", "\"bytes\":[1,2,3]", "f:1: bytes must be a list of four"},
        {"\"max_model_len\":128", "\"max_model_len\":1", "f:1: max_model_len must be"},
        {"\"prefix_caching\":true", "\"prefix_caching\":1", "f:1: prefix_caching must be true or false"},
        {"\"model\":{}", "\"model\":[]", "f:1: model must be an object"},
        {"\"params\":{\"budget\":5}", "\"params\":3", "f:1: params must be an object"},
        {"\"device\":\"d\"", "\"device\":7", "f:1: device must be a short text"},
        {"\"ranks\":2,", "\"ranks\":2,,", "f:1: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = {0};
        const char *at = strstr(HEAD, cases[i].old);
        assert_non_null(at);
        buf_put(&text, HEAD, (size_t)(at - HEAD));
        buf_puts(&text, cases[i].new);
        buf_puts(&text, at + strlen(cases[i].old));
        check_wrong(text.data, cases[i].says);
        buf_free(&text);
    }
    check_wrong("arrival_s,input_tokens,output_tokens\n", "f:1: this is no recording");
    check_wrong("{\"moonshift_recording\":1}", "cut off");
}

static void lines_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"i 1", "f:2: the line must be of a kind that recordings have, not 'i"},
        {"hello", "f:2: the line must be of a kind that recordings have, not 'hello'"},
        {"t x", "f:2: time must be a whole number from 0"},
        {"t -1", "f:2: time must be"},
        {"t 1 2", "f:2: the line must be at its end, not '2'"},
        {"a 1 1 0 4 4 0 - 0 0 0 n - 0", "f:2: order must be that of the request before, and one"},
        {"a 1 0 0 0 4 0 - 0 0 0 n - 0", "f:2: prompt must be a whole number from 1"},
        {"a 1 0 0 4 4 0 0 0 0 0 n - 0", "f:2: leader must be"},
        {"a 1 0 0 4 4 0 - 524288 0 0 n - 0", "f:2: asked must be a whole number from 0 to 524287"},
        {"a 1 0 0 4 4 0 - 0 nan 0 n - 0", "f:2: ttft_ms must be milliseconds, not 'nan'"},
        {"a 1 0 0 4 4 0 - 0 0 0 n%4 - 0", "f:2: name must be a name"},
        {"a 1 0 0 4 4 0 - 0 0 0 n - 1", "f:2: n_keys must be a whole number from 0 to 0"},
        {"a 1 0 0 40 4 0 - 0 0 0 n - 1 xyz", "f:2: key must be 16 hexadecimal digits, not 'xyz'"},
        {"a 1 0 0 40 4 0 - 0 0 0 n - 0 9", "f:2: the line must be at its end"},
        {"c 1 0 gone", "f:2: ending must be"},
        {"c 1 0 refused", "f:2: ending must be stop, length, abort or error"},
        {"e 1 0 stop 1", "f:2: n_cached must be"},
        {"s 1 0 0 1 1 1 1 1 1 - 0 0", "f:2: group must be"},
        {"s 1 1 0 1 1 3 1 1 1 - 0 0", "f:2: sp must be a whole number from 1 to 2"},
        {"s 1 1 0 1 1 1 1 0/0 1 - 0 0", "f:2: tokens must be a whole number from 1 to"},
        {"s 1 1 0 1 1 1 1 /1 1 - 0 0", "f:2: tokens must be"},
        {"s 1 1 0 1 1 1 1 8/ 1 - 0 0", "f:2: logits must be a whole number from 0 to 8, not ''"},
        {"s 1 1 0 1 1 1 1 8/9 1 - 0 0", "f:2: logits must be a whole number from 0 to 8"},
        {"s 1 1 0 1 1 1 1 8/1/1 1 - 0 0", "f:2: logits must be"},
        {"s 1 1 0 1 1 1 1 99999999999999999999/1 1 - 0 0", "f:2: tokens must be"},
        {"s 1 1 0 1 1 1 1 1 1 2 0 0", "f:2: failed_rank must be a whole number from 0 to 1"},
        {"s 1 1 0 1 1 1 1 1 1 - 2 5 0", "f:2: n_keys must be"},
        {"s 1 1 0 1 1 1 1 1 1 - 0 1 5", "f:2: key must be"},
        {"m 1 0 0 0", "f:2: number must be"},
        {"g 1 n abc", "f:2: params must be there"},
        {"y 1 n abc 1 5", "f:2: params must be there"},
        {"y 1 n abc 1,x 5 {}", "f:2: groups must be a whole number from 1 to"},
        {"y 1 n abc 1, 5 {}", "f:2: groups must be a whole number from 1 to"},
        {"y 1 n abc 0 5 {}", "f:2: groups must be a whole number from 1 to"},
        {"y 1 n abc 1,66,131 5 {}", "f:2: groups must be no more than there are ranks, not '131'"},
        {"y 1 n abc 1 0 {}", "f:2: for must be a whole number from 1 to"},
        {"y 1 n", "f:2: groups must be"},
        {"u 1 2", "f:2: the line must be at its end, not '2'"},
        {"q 1", "f:2: plan must be there"},
        {"o 1 2 1 0 0 0 0", "f:2: strict must be a whole number from 0 to 1, not '2'"},
        {"o 1 0 1 -1 0 0 0", "f:2: ago must be a number, not '-1'"},
        {"o 1 0 1 1 9 30 1.5", "f:2: guessed must be a share, not '1.5'"},
        {"o 1 0 1 1 9 30 0 1 nan", "f:2: change must be a number, not 'nan'"},
        {"o 1 0 1 1 9 30 0 1 .2 -2", "f:2: change must be a number, not '.2'"},
        {"o 1 0 1 1 9 30 0 1 0 -1 2 0 0 0 0 0 0 0 0 5 5", "f:2: failed must be"},
        {"l 1 0 - - - - -", "f:2: max_num_seqs must be a whole number from 1 to 4096, not '0'"},
        {"l 1 4 65 - - - -", "f:2: max_num_batched_tokens must be a whole number from 1 to 64, not '65'"},
        {"l 1 4 64 -1 - - -", "f:2: max_num_queued_reqs must be"},
        {"l 1 4 64 0 x - -", "f:2: max_num_queued_tokens must be"},
        {"l 1 4 64 0 0 99999999999999999 -", "f:2: max_park_seconds must be"},
        {"l 1 4 64 0 0 0", "f:2: starvation_seconds must be"},
        {"l 1 4 64 0 0 0 0 0", "f:2: the line must be at its end, not '0'"},
        {"v 0 step slow", "f:2: call must be"},
        {"v 1 stop slow", "f:2: hook must be"},
        {"v 1 step ok", "f:2: verdict must be slow, heavy, timeout, oom or crashed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = {0};
        buf_printf(&text, "%s%s\n", HEAD, cases[i].line);
        check_wrong(text.data, cases[i].says);
        buf_free(&text);
    }
    struct buf text = {0};
    buf_printf(&text, "%st 9\n\nt 8\n", HEAD);
    check_wrong(text.data, "f:4: time must be not before that of the line above");
    buf_free(&text);
}

static void fields_come_back(void **state)
{
    (void)state;
    struct err e = {0};
    struct recorded x;
    uint64_t n;
    struct buf text = {0};
    buf_printf(&text, "%sa 7 0 -3 40 5 -2 - 1 1.5 0 a%%20b%%2f - 2 0123456789abcdef fedcba9876543210\n", HEAD);
    struct recording *r = NULL;
    bool end;
    assert_int_equal(recording_open_stream(&r, fmemopen(text.data, text.len, "r"), "f", &e), 0);
    assert_int_equal(recording_next(r, &x, &end, &e), 0);
    assert_false(end);
    assert_true(x.kind == 'a' && x.t_ns == 7 && x.arrival_ns == -3 && x.priority == -2 && x.logprobs &&
                x.slo_ttft_ms == 1.5 && x.leader == -1);
    assert_string_equal(x.name, "a b/");
    assert_string_equal(x.tenant, "");
    assert_true(x.n_keys == 2 && x.keys[0] == 0x0123456789abcdefu && x.keys[1] == 0xfedcba9876543210u);
    recording_close(r);
    buf_puts(&text, "l 8 3 - 0 - 5000000 -\n");
    if (read_text(text.data, text.len, &n, &x, &e))
        fail_msg("%s", e.text);
    assert_true(x.kind == 'l' && x.limits.given[LIMIT_SEQS] && x.limits.values[LIMIT_SEQS] == 3 &&
                !x.limits.given[LIMIT_STEP_TOKENS] && x.limits.values[LIMIT_PARK] == 5000000);
    static const struct {
        const char *rows;
        int n_logits;
    } steps[] = {{"8/3", 3}, {"8/8", 8}, {"8/0", 0}, {"8", -1}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct buf one = {0};
        buf_printf(&one, "%ss 9 1 0 1 1 1 1 %s 1 - 0 0\n", HEAD, steps[i].rows);
        if (read_text(one.data, one.len, &n, &x, &e))
            fail_msg("%s", e.text);
        assert_true(x.kind == 's' && x.rows == 8 && x.n_logits == steps[i].n_logits);
        buf_free(&one);
    }
    text.len = (size_t)(strstr(text.data, "\nl ") + 1 - text.data);
    text.data[text.len - 1] = 0; /* without the end of its last line the request is not whole */
    if (read_text(text.data, text.len - 1, &n, &x, &e) || n != 0)
        fail_msg("%s, %llu lines", e.text, (unsigned long long)n);
    buf_free(&text);
}

/* Keys of a long prompt go on in lines of their own; where these are missing, so is the request. */
static void keys_go_on(void **state)
{
    (void)state;
    enum { KEYS = 2 * RECORD_KEYS_A_LINE + 3 };
    struct err e = {0};
    struct recorded x;
    struct recording *r = NULL;
    uint64_t n;
    bool end;
    struct buf text = {0};
    buf_printf(&text, "%sa 7 0 0 %d 5 0 - 0 0 0 - - %d", HEAD, KEYS * 16 + 5, KEYS);
    for (int i = 0; i < KEYS; i++)
        buf_printf(&text, "%s %016x", i && i % RECORD_KEYS_A_LINE == 0 ? "\nk" : "", i);
    size_t cut = text.len - 20;
    buf_puts(&text, "\nt 8\n");
    assert_int_equal(recording_open_stream(&r, fmemopen(text.data, text.len, "r"), "f", &e), 0);
    if (recording_next(r, &x, &end, &e))
        fail_msg("%s", e.text);
    assert_true(!end && x.n_keys == KEYS && x.keys[KEYS - 1] == KEYS - 1 &&
                x.keys[RECORD_KEYS_A_LINE] == RECORD_KEYS_A_LINE);
    recording_close(r);
    if (read_text(text.data, cut, &n, &x, &e) || n != 0)
        fail_msg("%s, %llu lines", e.text, (unsigned long long)n);
    memcpy(strstr(text.data, "\nk "), "\nt ", 3);
    check_wrong(text.data, "f:3: the line must be more keys of the request above");
    buf_free(&text);
}

static void a_long_one_streams(void **state)
{
    (void)state;
    enum { LINES = 1000000 };
    char name[] = "/tmp/moonshift-long-XXXXXX";
    int fd = mkstemp(name);
    FILE *f = fdopen(fd, "w");
    struct recording *r = NULL;
    struct recorded x;
    struct err e = {0};
    bool end = false;
    assert_non_null(f);
    fputs(HEAD, f);
    for (int i = 0; i < LINES; i++)
        fprintf(f, "t %d\n", i);
    fclose(f);
    assert_int_equal(recording_open(&r, name, &e), 0);
    int n = 0;
    while (!recording_next(r, &x, &end, &e) && !end)
        n++;
    assert_int_equal(n, LINES);
    recording_close(r);
    remove(name);
}

/* A recording is a trace like any other: rows in order of time, whose shared beginnings are shared. */
static void it_is_a_trace(void **state)
{
    (void)state;
    struct arrivals *a = NULL;
    struct trace_row row;
    struct err e = {0};
    bool end = false;
    int64_t last = 0;
    int n = 0, shared = 0;
    int32_t first[64], ids[4096];
    if (arrivals_open(&a, &(struct arrivals_setup){.spec = "tests/data/server.rec", .seed = 1}, &e))
        fail_msg("%s", e.text);
    while (!arrivals_next(a, &row, &end, &e) && !end) {
        assert_true(row.arrival_ns >= 0 && row.front_ns >= 0 && row.n_output >= 1 && row.n_output <= 9);
        assert_true(row.arrival_ns + row.front_ns >= last); /* in the order in which the engine heard of them */
        last = row.arrival_ns + row.front_ns;
        n++;
        if (!row.n_hashes)
            continue;
        trace_prompt(&row, 1, 500, ids);
        if (!shared++)
            memcpy(first, ids, sizeof first);
        assert_memory_equal(ids, first, 16 * sizeof *ids); /* all that are longer than a unit begin alike */
    }
    assert_int_equal(n, 40);
    assert_true(shared > 10);
    arrivals_close(a);
    assert_int_equal(arrivals_open(&a, &(struct arrivals_setup){.spec = "tests/data/server.rec", .hashes = "x"}, &e),
                     E_INPUT);
}

struct steps_read {
    struct fit_step steps[8];
    int n;
};

static void take_step(void *ctx, const struct fit_step *s)
{
    struct steps_read *r = ctx;
    assert_true(r->n < 8);
    r->steps[r->n++] = *s;
}

/* From the event that a step waited for until it was taken in; who ran beside it; which rows gave a token, where that
 * was written down. Not: of a group that no plan posted, of a step that failed; nor what went by while a copy had the
 * ranks. */
static void steps_with_what_was_around_them(void **state)
{
    (void)state;
    static const char lines[] = "a 100 0 90 8 4 0 - 0 0 0 n - 0\n"
                                "q 150 D1 B1:1x1:8:1:0:0+8*\n"
                                "s 1000 1 150 700 0 1 1 8 36 - 0 0\n"
                                "a 1100 1 1000 20 4 0 - 0 0 0 n - 0\n"
                                "q 1200 D2 B1:1x1:1:1:1 B2:1x1:20:2:0:1+12*,2+8*\n"
                                "s 2000 1 1200 700 0 1 1 1/1 9 - 0 0\n"
                                "q 2100 D3 B1:1x1:4:1:1:0+1~0x3 W5\n"
                                "s 3000 2 1200 1500 0 1 1 20/0 210 - 0 0\n"
                                "m 3100 1 2000 64\n"
                                "s 3200 1 2100 1000 0 1 1 4 40 - 0 0\n"
                                "t 3300\n"
                                "s 3400 2 3300 10 0 1 1 1 9 - 0 0\n"
                                "q 3500 D4 B2:1x1:1:1:1 B-1:x B B9\n"
                                "s 3600 2 3500 50 0 1 1 1 9 0 0 0\n"
                                "z 3600\n";
    static const struct fit_step want[] = {
        {{1, 1, 1}, false, 0, 8, 1, 36, 150, 700, 200},
        {{1, 1, 1}, false, 1, 1, 1, 9, 1200, 700, 300},
        {{1, 1, 1}, false, 1, 20, 0, 210, 1200, 1500, 400},
        {{1, 1, 1}, false, 1, 4, 4, 40, 2100, 1000, -1},
    };
    struct recording *r = NULL;
    struct steps_read read = {.n = 0};
    struct buf text = {0};
    struct err e = {0};
    buf_printf(&text, "%s%s", HEAD, lines);
    if (recording_open_stream(&r, fmemopen(text.data, text.len, "r"), "f", &e) ||
        recording_each_step(r, take_step, &read, &e))
        fail_msg("%s", e.text);
    assert_int_equal(read.n, 4);
    for (int i = 0; i < 4; i++) {
        const struct fit_step *a = &read.steps[i], *b = &want[i];
        if (!layout_equal(a->layout, b->layout) || a->beside != b->beside || a->rows != b->rows ||
            a->logits != b->logits || a->looked_at != b->looked_at || a->at_ns != b->at_ns || a->ns != b->ns ||
            a->lag_ns != b->lag_ns)
            fail_msg("step %d: beside %d, rows %d, logits %d, at %lld, ns %lld, lag %lld", i, a->beside, a->rows,
                     a->logits, (long long)a->at_ns, (long long)a->ns, (long long)a->lag_ns);
    }
    recording_close(r);
    buf_free(&text);
}

/* A file of the first format: its totals stay. */
static void old_recordings_are_fitted(void **state)
{
    (void)state;
    static const struct model_config model = {.n_layers = 2, .hidden = 128, .vocab = 263};
    struct step_fit *f = NULL;
    struct err e = {0};
    if (recording_fit_steps(&f, "tests/data/server.rec", &model, &e))
        fail_msg("%s", e.text);
    const struct fit_quality *q = step_fit_quality(f);
    assert_true(q->n_steps > 20 && q->lag_ns > 0 && q->measured_ns > 0);
    assert_true(q->modelled_ns > q->measured_ns * (1 - 1e-9) && q->modelled_ns < q->measured_ns * (1 + 1e-9));
    step_fit_free(f);
    assert_int_equal(recording_fit_steps(&f, "/no/such/file.rec", &model, &e), E_NOTFOUND);
}

/* The head with `pool` in it, and one line more. */
static struct buf pooled_text(const char *pool, const char *line)
{
    struct buf text = {0};
    const char *at = strstr(HEAD, "\"model\":{}");
    buf_put(&text, HEAD, (size_t)(at - HEAD));
    buf_printf(&text, "\"ffn\":%s,%s%s\n", pool, at, line);
    return text;
}

/* The recording of this text, and its first line. */
static struct recording *first_of(const struct buf *text, struct recorded *x)
{
    struct err e = {0};
    struct recording *r = NULL;
    bool end = false;
    if (recording_open_stream(&r, fmemopen(text->data, text->len, "r"), "f", &e) || recording_next(r, x, &end, &e))
        fail_msg("%s", e.text);
    return r;
}

static void pooled_weights_come_back(void **state)
{
    (void)state;
    static const char good[] = "{\"slots\":2,\"order\":1,\"tile_bytes\":4096,\"link_gbps\":0.5,\"layer_bytes\":9,"
                               "\"freed_bytes\":7,\"replica_blocks\":3,\"owners\":[1,[0,1],1]}";
    static const struct {
        const char *pool, *line, *says;
    } cases[] = {
        {"[]", "t 1", "f:1: slots must be"},
        {"{\"slots\":2,\"order\":3}", "t 1", "f:1: order must be a whole number from 0 to 2"},
        {"{\"slots\":2,\"order\":0,\"tile_bytes\":1,\"layer_bytes\":1,\"freed_bytes\":1,\"replica_blocks\":3,\"link_"
         "gbps\":-1}",
         "t 1", "f:1: link_gbps must be"},
        {"{\"slots\":2,\"order\":0,\"tile_bytes\":1,\"layer_bytes\":1,\"freed_bytes\":1,\"replica_blocks\":3,\"link_"
         "gbps\":1}",
         "t 1", "f:1: owners must be a list"},
        {"{\"slots\":2,\"order\":0,\"tile_bytes\":1,\"layer_bytes\":1,\"freed_bytes\":1,\"replica_blocks\":3,\"link_"
         "gbps\":1,\"owners\":[2]"
         "}",
         "t 1", "f:1: owners must be a whole number from 0 to 1"},
        {"{\"slots\":2,\"order\":0,\"tile_bytes\":1,\"layer_bytes\":1,\"freed_bytes\":1,\"replica_blocks\":3,\"link_"
         "gbps\":1,\"owners\":[0,[1]]}",
         "t 1", "f:1: owners must be a rank, or 2 to 8 ranks"},
        {"{\"slots\":2,\"order\":0,\"tile_bytes\":1,\"layer_bytes\":1,\"freed_bytes\":1,\"replica_blocks\":3,\"link_"
         "gbps\":1,\"owners\":[[0,2]]}",
         "t 1", "f:1: owners must be a whole number from 0 to 1"},
        {good, "s 1 1 0 1 1 1 1 1 1 - 0 0", "f:2: cas_layers must be"},
        {good, "s 1 1 0 1 1 1 1 1 1 - 0 0 4 0 0 0 0 0", "f:2: cas_layers must be a whole number from 0 to 3"},
        {good, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 2 3 4 5", "f:2: cas_rows must be"},
        {good, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 2 3 4 5 6 7", "f:2: the line must be at its end"},
        {good, "f 1 0 0 1 0 9000 3 - - -", "f:2: group must be"},
        {good, "f 1 1 2 1 0 9000 3 - - -", "f:2: rank must be a whole number from 0 to 1"},
        {good, "f 1 1 0 1 -1 9000 3 - - -", "f:2: start must be"},
        {good, "f 1 1 0 1 0 9000 4 - - - -", "f:2: n_layers must be a whole number from 3 to 3"},
        {good, "f 1 1 0 1 0 9000 2 - -", "f:2: n_layers must be a whole number from 3 to 3"},
        {good, "f 1 1 0 1 0 9000 3 - -", "f:2: a layer must be l, c, w or -"},
        {good, "f 1 1 0 1 0 9000 3 - - x", "f:2: a layer must be l, c, w or -, not 'x"},
        {good, "f 1 1 0 1 0 9000 3 - - lc 1 2", "f:2: a layer must be l, c, w or -"},
        {good, "f 1 1 0 1 0 9000 3 - - l 1 10", "f:2: end must be a whole number from 1 to 9"},
        {good, "f 1 1 0 1 0 9000 3 - - c 5 4", "f:2: end must be a whole number from 5 to 9"},
        {good, "f 1 1 0 1 0 9000 3 - - w 1 2 4 3 5 0 1", "f:2: resume must be a whole number from 4 to 9"},
        {good, "f 1 1 0 1 0 9000 3 - - w 1 2 3 4 5 2 1", "f:2: fetched_to must be a whole number from 2 to 9"},
        {good, "f 1 1 0 1 0 9000 3 - - w 1 2 3 4 5 2 10", "f:2: fetched_to must be a whole number from 2 to 9"},
        {good, "f 1 1 0 1 0 9000 3 - - w 1 2 3 4 5 -9223372036854775808 3", "f:2: fetched_from must be"},
        {good, "f 1 1 0 1 0 9000 3 - - - -", "f:2: the line must be at its end"},
        {good, "w 1 3 0 0 0", "f:2: layer must be a whole number from 0 to 2"},
        {good, "w 1 2 0 2 0", "f:2: gives_up must be a whole number from 0 to 1"},
        {good, "w 1 2 0 0", "f:2: rc must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = pooled_text(cases[i].pool, cases[i].line);
        check_wrong(text.data, cases[i].says);
        buf_free(&text);
    }
    check_wrong("{\"moonshift_recording\":1}", "cut off");
    struct buf text = pooled_text(good, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 2 3 4 5 6");
    struct recorded x;
    struct recording *r = first_of(&text, &x);
    const struct recording_head *h = recording_head(r);
    const struct ffn_setup *f = h->facts.ffn;
    assert_true(f && f->n_ranks == 2 && f->n_layers == 3 && f->n_slots == 2 && f->order == FFN_SLICED);
    assert_true(f->owner[0] == 1 && f->owner[1] == 0 && f->owner[2] == 1 && f->tile_bytes == 4096);
    assert_true(ffn_shares(f, 0) == 1 && ffn_shares(f, 1) == 2 && ffn_owner(f, 1, 1) == 1);
    assert_true(f->link_gbps == 0.5 && h->facts.ffn_layer_bytes == 9 && h->facts.ffn_freed_bytes == 7);
    assert_int_equal(h->facts.ffn_replica_blocks, 3);
    assert_true(x.cas_layers == 1 && x.ffn.wait_ns == 2 && x.ffn.fetch_ns == 3 && x.ffn.was_bytes == 4);
    assert_true(x.ffn.cas_bytes == 5 && x.ffn.cas_rows == 6);
    recording_close(r);
    buf_free(&text);
}

/* When the layers of a watched step were fetched and multiplied; a server without pooled weights has none. */
static void timelines_come_back(void **state)
{
    (void)state;
    static const char good[] = "{\"slots\":2,\"order\":1,\"tile_bytes\":4096,\"link_gbps\":0.5,\"layer_bytes\":9,"
                               "\"freed_bytes\":7,\"replica_blocks\":0,\"owners\":[1,0,1]}";
    struct buf text = pooled_text(good, "f 9 4 1 17 5 9000 3 w 1 2 3 4 5 -2 0 l 6 7 -"), plain = {0};
    struct recorded x;
    struct recording *r = first_of(&text, &x);
    const struct ffn_layer_times *t = x.layers;
    assert_true(x.kind == 'f' && x.t_ns == 9 && x.group == 4 && x.rank == 1 && x.rows == 17);
    assert_true(x.start_ns == 5 && x.ns == 9000);
    assert_true(t[0].mode == FFN_WAS && t[0].ready == 1000 && t[0].begin == 2000 && t[0].pause == 3000);
    assert_true(t[0].resume == 4000 && t[0].end == 5000 && t[0].fetch_begin == -2000 && t[0].fetch_end == 0);
    assert_true(t[1].mode == FFN_LOCAL && t[1].ready == 6000 && t[1].begin == 6000 && t[1].end == 7000);
    assert_true(!t[1].pause && !t[1].resume && !t[2].end);
    recording_close(r);
    buf_free(&text);
    buf_puts(&plain, HEAD);
    buf_puts(&plain, "f 1 1 0 1 0 9000 0\n");
    check_wrong(plain.data, "f:2: the line must be of a server with pooled weights");
    buf_free(&plain);
}

/* The head as format 2 with these sources, and more lines. */
static struct buf drafts_text(const char *sources, const char *lines)
{
    struct buf text = {0};
    const char *after = strchr(HEAD, ':') + 2, *at = strstr(HEAD, "\"model\":{}");
    buf_puts(&text, "{\"moonshift_recording\":2");
    buf_put(&text, after, (size_t)(at - after));
    buf_printf(&text, "\"drafts\":%s,%s%s\n", sources, at, lines);
    return text;
}

static void drafts_come_back(void **state)
{
    (void)state;
    static const char two[] = "[{\"name\":\"suffix\",\"by_name\":false,\"keeps\":true},"
                              "{\"name\":\"lookup\",\"by_name\":true,\"keeps\":false}]",
                      first[] = "a 1 0 0 4 4 0 - 0 0 0 n - 0\n";
    static const struct {
        const char *sources, *line, *says;
    } cases[] = {
        {"5", "t 1", "f:1: drafts must be a list of up to 4 sources"},
        {"[1,2,3,4,5]", "t 1", "f:1: drafts must be a list of up to 4 sources"},
        {"[{\"name\":5,\"by_name\":true,\"keeps\":true}]", "t 1", "f:1: name must be a short text"},
        {"[{\"name\":\"x\",\"keeps\":true}]", "t 1", "f:1: by_name must be true or false"},
        {"[]", "p 1 0 0 1 1 1 1", "f:3: the line must be of a server with sources of draft tokens"},
        {"[]", "s 1 1 0 1 1 1 1 1 1 - 0 0 0", "f:3: the line must be at its end"},
        {two, "p 0 0 0 1 1 1 1", "f:3: call must be"},
        {two, "p 1 2 0 1 1 1 1", "f:3: source must be a whole number from 0 to 1"},
        {two, "p 1 0 1 1 1 1 1", "f:3: order must be that of a request above"},
        {two, "p 1 0 0 65 1 1 1", "f:3: asked must be a whole number from 1 to 64"},
        {two, "p 1 0 0 5 6 1 1", "f:3: n must be a whole number from 0 to 5"},
        {two, "p 1 0 0 5 5 -1 1", "f:3: match must be"},
        {two, "p 1 0 0 5 5 1 nan", "f:3: score must be a number, not 'nan'"},
        {two, "p 1 0 0 5 5 1 1e99", "f:3: score must be a number"},
        {two, "p 1 0 0 5 5 1", "f:3: score must be a number"},
        {two, "p 1 0 0 5 5 1 1 1", "f:3: the line must be at its end"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0", "f:3: n_verified must be"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 1 0 1 1 0", "f:3: order must be that of a request above"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 0 2 1 1 0", "f:3: source must be"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 0 0 65 1 0", "f:3: drafts must be a whole number from 1 to 64"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 0 0 3 4 0", "f:3: right must be a whole number from 0 to 3"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 1 0 0 3 3 2", "f:3: ended must be"},
        {two, "s 1 1 0 1 1 1 1 1 1 - 0 0 2 0 0 3 3 0", "f:3: order must be"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf lines = {0};
        buf_printf(&lines, "%s%s", first, cases[i].line);
        struct buf text = drafts_text(cases[i].sources, lines.data);
        check_wrong(text.data, cases[i].says);
        buf_free(&text);
        buf_free(&lines);
    }
    struct buf lines = {0};
    buf_printf(&lines, "%sp 7 1 0 5 3 9 1.25\ns 1 1 0 1 1 1 1 1 1 - 0 0 1 0 1 3 2 1", first);
    struct buf text = drafts_text(two, lines.data);
    struct err e = {0};
    struct recorded x;
    struct recording *r = first_of(&text, &x);
    const struct recording_head *h = recording_head(r);
    bool end;
    assert_true(h->n_sources == 2 && !h->sources[0].by_name && h->sources[0].keeps);
    assert_true(h->sources[1].by_name && !h->sources[1].keeps && !strcmp(h->sources[1].name, "lookup"));
    assert_int_equal(recording_next(r, &x, &end, &e), 0);
    assert_true(x.kind == 'p' && x.call == 7 && x.source == 1 && x.order == 0 && x.asked == 5);
    assert_true(x.n_guessed == 3 && x.match == 9 && x.score == 1.25f);
    assert_int_equal(recording_next(r, &x, &end, &e), 0);
    assert_true(x.kind == 's' && x.n_drafts == 1 && x.drafts[0].order == 0 && x.drafts[0].source == 1);
    assert_true(x.drafts[0].n == 3 && x.drafts[0].right == 2 && x.drafts[0].ended);
    recording_close(r);
    buf_free(&text);
    buf_free(&lines);
}

/* What guessing took, with rows that gave a token; recordings of before have rows alone. */
static void draft_times_come_back(void **state)
{
    (void)state;
    static const char model[] = "[{\"name\":\"model\",\"by_name\":false,\"keeps\":true,\"timed\":true}]",
                      step[] = "a 1 0 0 4 4 0 - 0 0 0 n - 0\ns 1 1 0 1 1 1 1 1 1 - 0 0 0";
    static const struct {
        const char *draft, *says;
    } cases[] = {
        {" 9 5/6 10 7 1/1 3 2", "f:3: logits must be a whole number from 0 to 5"},
        {" 9 5/-1 10 7 1/1 3 2", "f:3: logits must be"},
        {" 9 /1 10 7 1/1 3 2", "f:3: tokens must be"},
        {" 9 5/ 10 7 1/1 3 2", "f:3: logits must be"},
        {" 9 99999999999999999999/1 10 7 1/1 3 2", "f:3: tokens must be"},
        {" -9 5/1 10 7 1/1 3 2", "f:3: draft must be"},
        {" 9 5/1 10 7", "f:3: tokens must be"},
        {" 9 5/1 10 7 1/1 3 2 1", "f:3: the line must be at its end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf lines = {0};
        buf_printf(&lines, "%s%s", step, cases[i].draft);
        struct buf text = drafts_text(model, lines.data);
        check_wrong(text.data, cases[i].says);
        buf_free(&text);
        buf_free(&lines);
    }
    for (int old = 0; old < 2; old++) {
        struct buf lines = {0};
        buf_printf(&lines, "%s%s", step, old ? " 9 5 10 7 1 3 2" : " 9 5/4 10 7 1/1 3 2");
        struct buf text = drafts_text(model, lines.data);
        struct err e = {0};
        struct recorded x;
        struct recording *r = first_of(&text, &x);
        bool end;
        assert_int_equal(recording_next(r, &x, &end, &e), 0);
        const struct drafter_pass *first = &x.drafting.first, *last = &x.drafting.last;
        assert_true(x.drafting.ns == 9 && first->size.rows == 5 && first->size.looked_at == 10 && first->ns == 7);
        assert_true(last->size.rows == 1 && last->size.looked_at == 3 && last->ns == 2);
        assert_true(first->size.n_logits == (old ? 0 : 4) && last->size.n_logits == (old ? 0 : 1));
        recording_close(r);
        buf_free(&text);
        buf_free(&lines);
    }
}

static void plans_in_words(void **state)
{
    (void)state;
    struct buf out = {0};
    record_plan_words(&out,
                      "D0 B3:2x1:40:5:4:7+36* P2:park O3:bind:hard:migrate:2x1:0 W5000000 F-1:0:32:cas F7:3:4:was");
    assert_string_equal(out.data, "group 3 runs 40 tokens of 5 requests (4 decode) as sp 2 tp 1, prompts 7+36*; "
                                  "request 2 gives way (park); bind ranks 0x3 (hard, migrate); "
                                  "wake after 5.000 ms; all groups take the FFN layers 0 to 31 as cas; "
                                  "group 7 takes the FFN layers 3 to 3 as was");
    buf_clear(&out);
    record_plan_words(&out, "D0 B1:1x1:9:2:2:7+1~0x6 E1");
    assert_string_equal(out.data, "group 1 runs 9 tokens of 2 requests (2 decode) as sp 1 tp 1, prompts and draft "
                                  "tokens 7+1~0x6; texts for draft tokens go by rule 1");
    buf_clear(&out);
    record_plan_words(&out, "D0");
    assert_string_equal(out.data, "nothing is run");
    buf_clear(&out);
    record_plan_words(&out, "B :: ::: X F F1:2 F::::");
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_that_are_wrong),
        cmocka_unit_test(lines_that_are_wrong),
        cmocka_unit_test(fields_come_back),
        cmocka_unit_test(keys_go_on),
        cmocka_unit_test(a_long_one_streams),
        cmocka_unit_test(it_is_a_trace),
        cmocka_unit_test(steps_with_what_was_around_them),
        cmocka_unit_test(old_recordings_are_fitted),
        cmocka_unit_test(plans_in_words),
        cmocka_unit_test(pooled_weights_come_back),
        cmocka_unit_test(timelines_come_back),
        cmocka_unit_test(drafts_come_back),
        cmocka_unit_test(draft_times_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
