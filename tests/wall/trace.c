/* The wall of traffic: the three file formats, what is refused and how it is said, that equal hashes mean equal
 * prompts, that a long file streams, and that the generators make the rows that their definitions promise, on any
 * machine. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/hash.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/trace/portable_math.h"

static FILE *stream(const char *text)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fputs(text, f);
    rewind(f);
    return f;
}

/* Reads to the end or to the first error. Returns the rows read; *last is the last one. */
static int read_all(const char *text, const char *hashes, struct trace_row *last, struct err *e)
{
    struct trace *t = NULL;
    bool end = false;
    int n = 0;
    *e = (struct err){0};
    if (trace_open_streams(&t, stream(text), hashes ? stream(hashes) : NULL, "t.csv", e))
        return 0;
    while (!trace_next(t, last, &end, e) && !end)
        n++;
    last->hashes = NULL; /* they go with the trace */
    trace_close(t);
    return n;
}

static void accepts(const char *text, int n, struct trace_row *last)
{
    struct err e;
    int is = read_all(text, NULL, last, &e);
    if (e.code || is != n)
        fail_msg("%.80s: %d rows instead of %d, %s", text, is, n, e.text);
}

static void refuses(const char *text, const char *hashes, const char *says)
{
    struct trace_row row = {0};
    struct err e;
    read_all(text, hashes, &row, &e);
    if (e.code != E_INPUT || !strstr(e.text, says))
        fail_msg("%.120s: %d \"%s\" instead of \"...%s...\"", text, e.code, e.text, says);
}

#define HEAD "arrival_s,input_tokens,output_tokens\n"
#define AZURE "TIMESTAMP,ContextTokens,GeneratedTokens\n"

static void our_csv(void **state)
{
    (void)state;
    struct trace_row r;
    accepts(HEAD "10,5,7\n12.345678901234,100,200\n", 2, &r);
    assert_int_equal(r.arrival_ns, 2345678901); /* after the first row; past the ninth digit nothing counts */
    assert_true(r.n_prompt == 100 && r.n_output == 200 && r.index == 1 && r.n_hashes == 0 && r.priority == 0 &&
                !r.tenant[0]);
    accepts("\xef\xbb\xbfoutput_tokens, tenant ,priority,arrival_s,input_tokens,hash_ids\r\n\r\n3,team-a,-2,0,1025,7 8 "
            "9\r\n",
            1, &r);
    assert_true(r.n_prompt == 1025 && r.n_output == 3 && r.priority == -2 && r.n_hashes == 3);
    assert_string_equal(r.tenant, "team-a");
    accepts("arrival_s,input_tokens,output_tokens,open_ended\n0,9,9,1\n1,9,9,0\n", 2, &r);
    assert_false(r.open_ended);
    accepts("arrival_s,input_tokens,output_tokens,open_ended\n0,9,9,0\n1,9,9,1\n", 2, &r);
    assert_true(r.open_ended);
    accepts(HEAD "1,4194304,1", 1, &r); /* no newline at the end */
    accepts(HEAD, 0, &r);
}

static void azure_csv(void **state)
{
    (void)state;
    struct trace_row r;
    accepts(AZURE "2023-11-16 18:15:46.6805900,374,44\n2023-11-17 00:00:00,10,1\n", 2, &r);
    assert_int_equal(r.arrival_ns, INT64_C(20653319410000));
    accepts(AZURE "2024-02-28T23:59:59.5Z,1,1\n2024-03-01 00:00:00.000000+00:00,1,1\n", 2, &r);
    assert_int_equal(r.arrival_ns, INT64_C(86400500000000)); /* a leap day lies between */
}

static void mooncake_jsonl(void **state)
{
    (void)state;
    struct trace_row r;
    accepts("{\"timestamp\": 27482, \"input_length\": 6955, \"output_length\": 52, \"hash_ids\": [46, 47, 48, 49, 50, "
            "51, 52, 53, 54, 55, 56, 57, 2353, 2354]}\n"
            "{\"timestamp\": 30535, \"input_length\": 512, \"output_length\": 26, \"hash_ids\": [46]}\n",
            2, &r);
    assert_int_equal(r.arrival_ns, INT64_C(3053000000));
    assert_true(r.n_prompt == 512 && r.n_output == 26 && r.n_hashes == 1);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    refuses("", NULL, "t.csv is empty");
    refuses("a,b\n", NULL, "t.csv:1: the header must be of arrival_s");
    refuses("arrival_s,input_tokens\n", NULL, "t.csv:1: the header must name");
    refuses("arrival_s,arrival_s,input_tokens,output_tokens\n", NULL, "named once");
    refuses("arrival_s,TIMESTAMP,input_tokens,output_tokens\n", NULL, "the header must name");
    refuses("a,a,a,a,a,a,a,a,a,a\n", NULL, "more columns");
    refuses(HEAD "0,1,1\n1,2\n", NULL, "t.csv:3: there are 2 fields where the header has 3");
    refuses(HEAD "0,1,1,1,1,1,1,1,1,1\n", NULL, "more than");
    refuses(HEAD "0,1,1\n\n-1,1,1\n", NULL, "t.csv:4: arrival_s must be seconds (like 12.345), not '-1'");
    refuses(HEAD "1e3,1,1\n", NULL, "arrival_s");
    refuses(HEAD "99999999999999999999,1,1\n", NULL, "arrival_s");
    refuses(HEAD "0,0,1\n", NULL, "input_tokens must be a whole number from 1 to 4194304, not '0'");
    refuses(HEAD "0,1,4194305\n", NULL, "output_tokens");
    refuses(HEAD "0,1,18446744073709551617\n", NULL, "output_tokens");
    refuses(HEAD "0,1\x1b[2J,1\n", NULL, "not '1?[2J'");
    refuses(HEAD "2,1,1\n1.999,1,1\n", NULL, "t.csv:3: the time is before that of the row above");
    refuses(AZURE "2023-11-16 18:15:46.68,0,44\n", NULL, "ContextTokens");
    refuses(AZURE "2023-13-16 18:15:46.68,1,44\n", NULL, "TIMESTAMP must be like");
    refuses(AZURE "2023-02-29 18:15:46.68,1,44\n", NULL, "TIMESTAMP");
    refuses(AZURE "2023-11-16 18:15:46+02:00,1,44\n", NULL, "TIMESTAMP");
    refuses("priority," HEAD "x,0,1,1\n", NULL, "priority must be");
    refuses("tenant," HEAD "a b,0,1,1\n", NULL, "tenant must be");
    refuses("open_ended," HEAD "2,0,512,1\n", NULL, "open_ended must be 0 or 1");
    refuses("hash_ids," HEAD "1 2,0,512,1\n", NULL, "hash_ids has 2 ids; 512 tokens are 1 blocks of 512");
    refuses("hash_ids," HEAD "1;2,0,1024,1\n", NULL, "hash_ids must be whole numbers");
    refuses("{\"timestamp\": 1}\n", NULL, "t.csv:1: timestamp, input_length and output_length are needed");
    refuses("{\"timestamp\": 1, \"input_length\": 1.5, \"output_length\": 1}\n", NULL, "input_length");
    refuses("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}\n", NULL, "timestamp");
    refuses("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"a\"]}\n", NULL, "hash_ids");
    refuses("{\"timestamp\": 1, \"inputlength\": 1}\n", NULL, "not 'inputlength'");
    refuses("{\"timestamp\": 1\n", NULL, "t.csv:1: ");
    refuses("{\"timestamp\": 1, \"input_length\": 1, \"output_length\": 1}\n[]\n", NULL,
            "t.csv:2: a row must be an object");
    refuses(HEAD "0,1,1\n", "row,hashes\n", "hashes:1: the first line must be row,hash_ids");
    refuses(HEAD "0,1,1\n", "row,hash_ids\n1,5\n", "hashes:2: row must be");
    refuses(HEAD "0,1,1\n1,1,1\n", "row,hash_ids\n0,5\n", "no line for row 1");
}

static void long_lines_are_refused(void **state)
{
    (void)state;
    char *text = mem_new((size_t)3 << 20);
    memset(text, '1', ((size_t)3 << 20) - 1);
    refuses(text, NULL, "t.csv:1: the line is longer than 1 MiB");
    mem_free(text);
}

/* Equal ids at the beginning, equal tokens there; else a text of its own. */
static void hashes_make_prompts(void **state)
{
    (void)state;
    uint64_t a_ids[] = {5, 6, 7}, b_ids[] = {5, 6, 8};
    struct trace_row a = {.index = 1, .n_prompt = 1300, .hashes = a_ids, .n_hashes = 3},
                     b = {.index = 2, .n_prompt = 1100, .hashes = b_ids, .n_hashes = 3};
    struct trace_row c = {.index = 3, .n_prompt = 1024}, d = {.index = 4, .n_prompt = 1024};
    static int32_t x[1300], y[1300];
    trace_prompt(&a, 9, 1000, x);
    trace_prompt(&b, 9, 1000, y);
    assert_memory_equal(x, y, 1024 * sizeof *x);
    assert_true(memcmp(x + 1024, y + 1024, 64 * sizeof *x) != 0);
    for (int i = 0; i < 1300; i++)
        assert_true(x[i] >= 0 && x[i] < 1000);
    trace_prompt(&c, 9, 1000, x);
    trace_prompt(&d, 9, 1000, y);
    assert_true(memcmp(x, y, 16 * sizeof *x) != 0);
    trace_prompt(&d, 9, 1000, x);
    assert_memory_equal(x, y, 1024 * sizeof *x);
}

/* A million rows go by and memory does not grow by the file's size. */
static void a_million_rows_stream(void **state)
{
    (void)state;
    char path[] = "/tmp/moonshift-trace-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    struct arrivals *a = NULL;
    struct trace_row r;
    struct err e = {0};
    struct rusage before, after;
    bool end = false;
    uint64_t n = 0;
    assert_non_null(f);
    fputs(HEAD, f);
    for (int i = 0; i < 1000000; i++)
        fprintf(f, "%d.%03d,%d,%d\n", i / 100, i % 100 * 10, 1 + i % 4000, 1 + i % 300);
    fclose(f);
    getrusage(RUSAGE_SELF, &before);
    if (arrivals_open(&a, &(struct arrivals_setup){.spec = path}, &e))
        fail_msg("%s", e.text);
    for (; !arrivals_next(a, &r, &end, &e) && !end; n++)
        assert_int_equal(r.index, n);
    getrusage(RUSAGE_SELF, &after);
    arrivals_close(a);
    unlink(path);
    assert_int_equal(e.code, 0);
    assert_int_equal(n, 1000000);
    assert_true(after.ru_maxrss - before.ru_maxrss < 4096); /* KiB; the file has 18 MB */
}

static void limits_of_a_trace(void **state)
{
    (void)state;
    struct arrivals *a = NULL;
    struct trace_row r;
    struct err e = {0};
    bool end = false;
    int n = 0;
    const struct arrivals_setup s = {
        .spec = "batch:requests=10,batches=5,every=2.5", .max_requests = 34, .max_seconds = 7.5};
    assert_int_equal(arrivals_open(&a, &s, &e), 0);
    for (; !arrivals_next(a, &r, &end, &e) && !end; n++)
        assert_int_equal(r.arrival_ns, n / 10 * INT64_C(2500000000));
    assert_int_equal(n, 30); /* the fourth batch comes at 7.5 s */
    arrivals_close(a);
}

/* ---- generators */

static void rows_of(const char *spec, uint64_t seed, struct buf *out, long long sums[2])
{
    struct generator *g = NULL;
    struct trace_row r;
    struct err e = {0};
    if (generator_open(&g, spec, seed, &e))
        fail_msg("%s", e.text);
    sums[0] = sums[1] = 0;
    while (generator_next(g, &r)) {
        buf_printf(out, "%lld.%06lld,%d,%d\n", (long long)(r.arrival_ns / 1000000000),
                   (long long)(r.arrival_ns % 1000000000 / 1000), r.n_prompt, r.n_output);
        sums[0] += r.n_prompt;
        sums[1] += r.n_output;
    }
    generator_close(g);
}

static void generator_is(const char *spec, const char *sha256, long long in, long long out)
{
    struct buf rows = {0};
    long long sums[2];
    char hex[65];
    rows_of(spec, 1, &rows, sums);
    struct sha256 h = hash_sha256(rows.data, rows.len);
    hash_hex(&h, hex);
    assert_string_equal(hex, sha256);
    assert_true(sums[0] == in && sums[1] == out);
    buf_free(&rows);
}

/* The check values of the written definitions. */
static void bursty_workloads_to_the_bit(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 1 * 1000003 + 1);
    assert_true(rng_unit(&r) == 0.23279337494583152 && rng_unit(&r) == 0.0005605195266261687);
    generator_is("shift-bursty", "ef0940c20b7069b9878fde1b3b71d055828b66e09774ebca527f6a05c4c25e15", 8346109, 1126140);
    generator_is("flying-bursty", "0235a3468572772705c0b3639893e9f96eaa3089888a1cfcdf768d1fc9be45a9", 14464427,
                 1161381);
}

/* Mean and spread of the gaps are those of the distribution. */
static void gaps(const char *spec, double mean, double cv)
{
    struct generator *g = NULL;
    struct trace_row r;
    double last = 0, sum = 0, squares = 0;
    int n = 0;
    assert_int_equal(generator_open(&g, spec, 5, NULL), 0);
    for (; generator_next(g, &r); n++) {
        double t = (double)r.arrival_ns * 1e-9;
        sum += t - last;
        squares += (t - last) * (t - last);
        last = t;
    }
    generator_close(g);
    double m = sum / n, s = sqrt(squares / n - m * m);
    if (fabs(m / mean - 1) > 0.03 || fabs(s / m / cv - 1) > 0.03)
        fail_msg("%s: mean %g, cv %g", spec, m, s / m);
}

static void gaps_are_as_asked(void **state)
{
    (void)state;
    gaps("poisson:rate=8,requests=50000", 0.125, 1);
    gaps("gamma:rate=8,burstiness=4,requests=50000", 0.125, 0.5);
    gaps("gamma:rate=8,burstiness=0.25,requests=100000", 0.125, 2);
}

static void settings_of_generators(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"poisson:rte=3", "did you mean rate?"},
        {"poisson:rate=3", "needs requests=N or seconds=S"},
        {"poisson:rate=0,requests=1", "rate must be a number"},
        {"poisson:rate", "needs a value"},
        {"poisson:requests=1.5", "a whole number"},
        {"poisson:requests=1,input=9-3", "LOW-HIGH"},
        {"poisson:requests=1,input=9-", "LOW-HIGH"},
        {"batch:rate=3", "batch has no setting 'rate'"},
        {"poisson:requests=nan", "requests"},
        {"shift-bursty:input=3", "(there are: seconds)"},
    };
    struct generator *g = NULL;
    struct buf b = {0}, again = {0};
    long long sums[2];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct err e = {0};
        if (generator_open(&g, wrong[i][0], 0, &e) != E_INPUT || !strstr(e.text, wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], e.text);
    }
    assert_int_equal(generator_open(&g, "gamma:requests=7,input=3-9", 0, NULL), 0);
    generator_describe(g, &b);
    generator_close(g);
    assert_string_equal(b.data, "gamma:rate=1,burstiness=0.25,requests=7,input=3-9,output=128-128");
    buf_clear(&b);
    rows_of("gamma:requests=700,input=3-9", 3, &b, sums);
    rows_of("gamma:requests=700,input=3-9", 3, &again, sums);
    assert_string_equal(b.data, again.data);
    buf_clear(&again);
    rows_of("gamma:requests=700,input=3-9", 4, &again, sums);
    assert_string_not_equal(b.data, again.data);
    buf_free(&b);
    buf_free(&again);
}

static void portable_functions_are_right(void **state)
{
    (void)state;
    struct rng r;
    rng_init(&r, 3);
    for (int i = 0; i < 200000; i++) {
        double u = rng_unit(&r), x = 1 - u, y = 40 * u - 20;
        assert_true(fabs(portable_ln(x) - log(x)) <= 4e-16 * fabs(log(x)) + 1e-300);
        assert_true(fabs(portable_exp(y) / exp(y) - 1) <= 4e-16);
        assert_true(fabs(portable_cos_turns(u) - cos(2 * 3.14159265358979323846 * u)) <= 2e-15);
    }
    assert_true(portable_ln(1) == 0 && portable_exp(0) == 1 && portable_cos_turns(0) == 1 &&
                portable_cos_turns(0.5) == -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_csv),
        cmocka_unit_test(azure_csv),
        cmocka_unit_test(mooncake_jsonl),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(long_lines_are_refused),
        cmocka_unit_test(hashes_make_prompts),
        cmocka_unit_test(a_million_rows_stream),
        cmocka_unit_test(limits_of_a_trace),
        cmocka_unit_test(bursty_workloads_to_the_bit),
        cmocka_unit_test(gaps_are_as_asked),
        cmocka_unit_test(settings_of_generators),
        cmocka_unit_test(portable_functions_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
