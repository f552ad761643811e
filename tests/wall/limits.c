/* Orders for limits from outside: what is wrong is named, and nothing of it is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/world/limits.h"

static void orders_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"", "line 1"},
        {"[]", "must be an object"},
        {"{}", "must be an object"},
        {"null", "must be an object"},
        {"7", "must be an object"},
        {"{\"max_num_seqs\":8", "line 1"},
        {"{\"max_num_seqs\":8}x", "line 1"},
        {"{\"max_num_seqs\":0}", "max_num_seqs: a whole number from 1 to 4096"},
        {"{\"max_num_seqs\":-1}", "max_num_seqs: a whole number from 1 to 4096"},
        {"{\"max_num_seqs\":4097}", "max_num_seqs: a whole number from 1 to 4096"},
        {"{\"max_num_seqs\":8.5}", "max_num_seqs: a whole number"},
        {"{\"max_num_seqs\":\"8\"}", "max_num_seqs: a whole number"},
        {"{\"max_num_seqs\":null}", "max_num_seqs: a whole number"},
        {"{\"max_num_seqs\":[8]}", "max_num_seqs: a whole number"},
        {"{\"max_num_seqs\":99999999999999999999}", "max_num_seqs: a whole number"},
        {"{\"max_num_seqs\":1e400}", ""},
        {"{\"max_num_batched_tokens\":1048577}", "max_num_batched_tokens: a whole number from 1 to 1048576"},
        {"{\"max_num_queued_reqs\":65537}", "max_num_queued_reqs: a whole number from 0 to 65536"},
        {"{\"max_num_queued_tokens\":1000000000001}", "max_num_queued_tokens: a whole number from 0"},
        {"{\"max_park_seconds\":0}", "max_park_seconds: seconds from 0.001 to 86400"},
        {"{\"max_park_seconds\":1e300}", "max_park_seconds: seconds from"},
        {"{\"max_park_seconds\":true}", "max_park_seconds: seconds from"},
        {"{\"starvation_seconds\":-0.5}", "starvation_seconds: seconds from 0 to 86400"},
        {"{\"starvation_seconds\":86401}", "starvation_seconds: seconds from 0 to 86400"},
        {"{\"max_model_len\":5}", "there is no limit 'max_model_len' that changes while the server runs"},
        {"{\"max_num_seqs\":5,\"\":5}", "there is no limit ''"},
        {"{\"max_num_seqs\":{\"max_num_seqs\":{\"a\":1}}}", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct limits_order o;
        struct err e = {0};
        int rc = limits_read(&o, cases[i].json, strlen(cases[i].json), &e);
        if (rc != E_INPUT || !e.text[0] || !strstr(e.text, cases[i].says))
            fail_msg("'%s' was to say '%s', said '%s'", cases[i].json, cases[i].says, e.text);
    }
}

static void the_last_of_two_counts(void **state)
{
    (void)state;
    static const char json[] = "{\"max_num_seqs\":5,\"max_num_seqs\":6,\"max_park_seconds\":0.001}";
    struct limits_order o;
    struct err e = {0};
    assert_int_equal(limits_read(&o, json, sizeof json - 1, &e), 0);
    assert_true(o.given[LIMIT_SEQS] && o.values[LIMIT_SEQS] == 6);
    assert_true(o.given[LIMIT_PARK] && o.values[LIMIT_PARK] == 1000000);
    assert_false(o.given[LIMIT_STARVATION]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_that_are_wrong),
        cmocka_unit_test(the_last_of_two_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
