/* Windows of a server's traffic from outside: a mark in the first line says from when they are; what is wrong is told
 * with line and field, orders may have gaps and never go back, what is about earlier requests is passed by, and no
 * decision of one is replayed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/lab/arrivals.h"
#include "engine/lab/recording/recording_digest.h"
#include "engine/lab/recording/recording_steps.h"
#include "engine/lab/simulate_recorded.h"

static const char HEAD[] =
    "{\"moonshift_recording\":2,\"began\":5,\"clock_ns\":1000,\"version\":\"t\",\"model_name\":\"m\",\"device\":\"d\","
    "\"ranks\":2,\"block_size\":16,\"kv_blocks\":8,\"kv_bytes\":1,\"memory_bytes\":1,\"weight_bytes\":1,"
    "\"heads\":[4,2,64],\"start\":[0,0,0],\"limits\":{\"max_num_seqs\":4,\"max_num_batched_tokens\":64,"
    "\"max_model_len\":128,\"max_num_queued_reqs\":0,\"max_num_queued_tokens\":0,\"prefix_caching\":true,"
    "\"starvation_ns\":0,\"park_ns\":0},\"sets\":[\"1\",\"2\",\"3\"],\"tokens_per_block\":[16,32],\"refusals\":[],"
    "\"comms\":[{\"meet_ns\":1,\"bytes\":[1,2,3,4],\"oneshot_ns\":[1,2,3,4],\"twoshot_ns\":[1,2,3,4]}],"
    "\"model\":{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":256,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":64,\"intermediate_size\":64,\"vocab_size\":99,"
    "\"max_position_embeddings\":128,\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":true},"
    "\"drafts\":[],\"window\":%s,\"policy\":{\"name\":\"fcfs\",\"sha256\":\"ab\",\"params\":{}}}\n%s";
static const char MARK[] = "{\"from_ns\":100,\"order\":5}";

static void check_wrong(const char *mark, const char *lines, const char *says)
{
    struct recording *r = NULL;
    struct recorded x;
    struct err e = {0};
    struct buf text = {0};
    bool end = false;
    buf_printf(&text, HEAD, mark, lines);
    int rc = recording_open_stream(&r, fmemopen(text.data, text.len, "r"), "f", &e);
    while (!rc && !(rc = recording_next(r, &x, &end, &e)) && !end)
        ;
    if (says ? rc != E_INPUT || !strstr(e.text, says) : rc)
        fail_msg("%s %s: was to say '%s', said '%s'", mark, lines, says ? says : "nothing", e.text);
    recording_close(r);
    buf_free(&text);
}

static void what_is_wrong_is_told(void **state)
{
    (void)state;
    check_wrong("{\"from_ns\":-1,\"order\":5}", "", "f:1: from_ns must be a whole number from 0");
    check_wrong("{\"from_ns\":1,\"order\":-5}", "", "f:1: order must be a whole number from 0");
    check_wrong("{\"from_ns\":1,\"order\":1e99}", "", "f:1: order must be");
    check_wrong("{\"from_ns\":1}", "", "f:1: order must be");
    check_wrong("3", "", "f:1: from_ns must be");
    check_wrong(MARK, "t 99\n", "f:2: time must be not before that of the line above");
    check_wrong(MARK, "a 100 4 0 4 4 0 - 0 0 0 n - 0\n", "f:2: order must be after that of the request before");
    check_wrong(MARK, "a 100 7 0 4 4 0 - 0 0 0 n - 0\na 100 7 0 4 4 0 - 0 0 0 n - 0\n", "f:3: order must be after");
    check_wrong(MARK, "a 100 281474976710657 0 4 4 0 - 0 0 0 n - 0\n", "f:2: order must be");
    check_wrong(MARK, "a 100 7 0 4 4 0 7 0 0 0 n - 0\n", "f:2: leader must be a whole number from 0 to 4");
    check_wrong(MARK, "k 0011223344556677\n", "f:2: ");
    check_wrong(MARK,
                "e 100 2 stop 4 0\nc 101 1 abort\na 102 281474976710656 0 4 4 0 4 0 0 0 n - 0\n"
                "s 103 1 90 5 1 1 1 4 9 - 1 2 0\n",
                NULL);
}

/* A file with this text. */
static void write_window(char path[64], const char *mark, const char *lines)
{
    snprintf(path, 64, "/tmp/moonshift-window-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    fprintf(f, HEAD, mark, lines);
    fclose(f);
}

static const char TRAFFIC[] = "e 100 2 stop 90 0\n" /* of before: no answer's length follows from it */
                              "a 110 5 105 8 50 0 - 0 0 0 n - 0\n"
                              "c 111 3 abort\n"
                              "a 120 9 110 8 60 0 4 0 0 0 n - 0\n"
                              "a 120 - 119 8 60 0 - 0 0 0 n - 0\n"
                              "a 130 1000000 125 8 70 0 - 0 0 0 n - 0\n"
                              "e 200 9 length 20 0\n"
                              "e 200 8 stop 90 0\n" /* of nobody that is known */
                              "e 210 5 stop 10 0\n";

static void earlier_requests_are_passed_by(void **state)
{
    (void)state;
    static const struct {
        int64_t arrival_ns;
        int n_output;
    } want[] = {{0, 10}, {5, 20}, {14, 15}, {20, 15}}; /* after the first arrival; who has no ending has the average */
    struct arrivals *a = NULL;
    struct recording_digest d;
    struct trace_row row;
    struct err e = {0};
    bool end = false;
    char path[64];
    int n = 0;
    write_window(path, MARK, TRAFFIC);
    if (recording_digest(&d, path, &e) || arrivals_open(&a, &(struct arrivals_setup){.spec = path, .seed = 1}, &e))
        fail_msg("%s", e.text);
    assert_true(d.n_outcomes == 3 && d.mean_output == 15 && d.first_arrival_ns == 105);
    assert_null(recording_outcome_of(&d, 2));
    assert_null(recording_outcome_of(&d, 8));
    assert_null(recording_outcome_of(&d, -1));
    assert_null(recording_outcome_of(&d, 1000001));
    assert_int_equal(recording_outcome_of(&d, 9)->n_output, 20);
    assert_int_equal(recording_outcome_of(&d, 1000000)->n_output, -1);
    while (!arrivals_next(a, &row, &end, &e) && !end) {
        assert_true(n < 4 && row.arrival_ns == want[n].arrival_ns && row.n_output == want[n].n_output);
        n++;
    }
    assert_int_equal(n, 4);
    arrivals_close(a);
    recording_digest_free(&d);
    unlink(path);
}

static void take_step(void *ctx, const struct fit_step *s)
{
    int *beside = ctx;
    beside[beside[0] + 1] = s->beside;
    beside[0]++;
}

/* What began before is in no plan: it is no step that can be fitted, and those that began meanwhile ran beside it. */
static void a_step_under_way_counts_beside_others(void **state)
{
    (void)state;
    int beside[8] = {0};
    struct recording *r = NULL;
    struct err e = {0};
    struct buf text = {0};
    buf_printf(&text, HEAD, MARK,
               "a 100 5 90 8 4 0 - 0 0 0 n - 0\n"
               "q 110 D1 B1:1x1:8:1:0:5+8*\n"
               "s 200 2 50 140 0 1 1 8 36 - 0 0\n"
               "q 205 D2 B2:1x1:1:1:1\n"
               "s 210 1 110 90 0 1 1 8 36 - 0 0\n"
               "s 300 2 205 90 0 1 1 1 36 - 0 0\n");
    if (recording_open_stream(&r, fmemopen(text.data, text.len, "r"), "f", &e) ||
        recording_each_step(r, take_step, beside, &e))
        fail_msg("%s", e.text);
    assert_true(beside[0] == 2 && beside[1] == 1 && beside[2] == 1);
    recording_close(r);
    buf_free(&text);
}

static void no_limits(void *ctx, struct limits *l)
{
    (void)ctx, (void)l;
}

static void no_decision_is_replayed(void **state)
{
    (void)state;
    struct recorded_machine m;
    struct engine_setup engine;
    struct err e = {0};
    char path[64];
    write_window(path, MARK, TRAFFIC);
    struct recorded_ask ask = {.path = path, .set_limits = no_limits};
    assert_int_equal(recorded_machine_open(&m, &ask, &engine, &e), E_INPUT);
    assert_non_null(strstr(e.text, "is a window of what a server did"));
    recorded_machine_close(&m);
    ask.what_if = true;
    if (recorded_machine_open(&m, &ask, &engine, &e))
        fail_msg("%s", e.text);
    recorded_machine_close(&m);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_wrong_is_told), cmocka_unit_test(earlier_requests_are_passed_by),
        cmocka_unit_test(a_step_under_way_counts_beside_others), cmocka_unit_test(no_decision_is_replayed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
