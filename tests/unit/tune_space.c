/* What a search looks at: ranges end where a unit says that nothing changes any more, the default stays where that is
 * not quite so, and bounds that somebody asked for are kept or refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/lab/search/tune_space.h"

static const struct tune_limits limits = {.step_tokens = 2048,
                                          .step_requests = 128,
                                          .request_tokens = 4096,
                                          .ranks = 8,
                                          .blocks = 800,
                                          .requests = 300,
                                          .tokens = 60000,
                                          .seconds = 12.34};
static const struct strings none = {0};

static const struct tune_param *find(const struct tune_space *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->params[i].name, name))
            return &s->params[i];
    return NULL;
}

/* One param; low, high: what is searched of it in the end. NAN: it is left. */
static void ranges_end(void **state)
{
    static const struct {
        const char *declared;
        double low, high;
        const char *why;
    } cases[] = {
        {"\"default\":512,\"min\":1,\"max\":65536,\"unit\":\"tokens/step\"", 1, 2048, "--max-num-batched-tokens"},
        {"\"default\":8192,\"min\":1,\"max\":65536,\"unit\":\"tokens/step\"", 1, 2048, "--max-num-batched-tokens"},
        {"\"default\":512,\"min\":1,\"unit\":\"tokens/step\"", 1, 2048, "--max-num-batched-tokens"},
        {"\"default\":512,\"min\":1,\"max\":1000,\"unit\":\"tokens/step\"", 1, 1000, NULL},
        {"\"default\":9000,\"min\":9000,\"max\":9999,\"unit\":\"tokens/step\"", 9000, 9000, "--max-num-batched-tokens"},
        {"\"default\":512,\"min\":1,\"max\":65536", 1, 65536, NULL},
        {"\"default\":512,\"min\":1", NAN, NAN, NULL},
        {"\"default\":1,\"unit\":\"ratio\"", NAN, NAN, NULL},
        {"\"default\":1,\"max\":4,\"unit\":\"ratio\"", 0, 4, NULL},
        {"\"default\":-1,\"max\":4,\"unit\":\"priority\"", NAN, NAN, NULL},
        {"\"default\":-1,\"max\":4,\"unit\":\"requests\"", -1, 4, NULL},
        {"\"default\":500,\"min\":1,\"unit\":\"ms\"", 1, 12400, "the run's time"},
        {"\"default\":600000,\"min\":1,\"max\":3600000,\"unit\":\"ms\"", 1, 600000, "the run's time"},
        {"\"default\":3,\"min\":0,\"max\":3600,\"unit\":\"s\"", 0, 12.4, "the run's time"},
        {"\"default\":8,\"min\":1,\"unit\":\"requests\"", 1, 300, "the trace's requests"},
        {"\"default\":8,\"min\":1,\"max\":1024,\"unit\":\"requests/step\"", 1, 128, "--max-num-seqs"},
        {"\"default\":128,\"min\":1,\"max\":1000000,\"unit\":\"tokens/request\"", 1, 4096, "--max-model-len"},
        {"\"default\":128,\"min\":1,\"max\":1000000,\"unit\":\"tokens\"", 1, 60000, "all tokens of the trace"},
        {"\"default\":0,\"min\":0,\"max\":10000,\"unit\":\"blocks\"", 0, 800, "the KV blocks of all ranks"},
        {"\"default\":1,\"min\":1,\"max\":64,\"unit\":\"groups\"", 1, 8, "the ranks there are"},
        {"\"default\":0.5,\"min\":0,\"max\":1,\"unit\":\"share\"", 0, 1, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = {0};
        struct tune_space s;
        struct err e = {0};
        buf_printf(&text, "{\"a\":{%s,\"type\":\"number\"},\"b\":{\"default\":true,\"type\":\"boolean\"}}",
                   cases[i].declared);
        assert_int_equal(tune_space_open(&s, text.data, &none, &none, &e), 0);
        assert_int_equal(tune_space_cut(&s, &limits, &e), 0);
        const struct tune_param *p = find(&s, "a");
        assert_int_equal(p == NULL, isnan(cases[i].low));
        assert_int_equal(s.n_left, p == NULL);
        if (p && (p->low != cases[i].low || p->high != cases[i].high))
            fail_msg("%s: %g to %g", cases[i].declared, p->low, p->high);
        assert_true(!p || (p->by_default >= 0 && p->by_default <= 1));
        if (p && cases[i].why)
            assert_string_equal(p->cut_why, cases[i].why);
        else
            assert_true(!p || !p->cut_why);
        tune_space_close(&s);
        buf_free(&text);
    }
}

/* "a=LOW..HIGH" of a param with this unit; the end of its range, or what is said. */
static void bounds_that_were_asked_for(void **state)
{
    static const struct {
        const char *unit, *asked;
        double high;
        const char *says;
    } cases[] = {
        {"tokens/step", "a=64..65536", 2048, NULL},
        {"tokens/step", "a=64..100", 100, NULL},
        {"tokens/step", "a=4096..8192", 0,
         "--param a: from 2048 tokens/step on (--max-num-batched-tokens) it makes no"},
        {"ms", "a=1..50000", 50000, NULL}, /* it may differ: who asks gets it */
        {"tokens/step", "a", 2048, NULL},
        {"ratio", "a", 0, "--param a: the policy does not bound it: give --param a=LOW..HIGH"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf text = {0};
        struct tune_space s;
        struct err e = {0};
        char *items[] = {(char *)(uintptr_t)cases[i].asked};
        struct strings asked = {.items = items, .n = 1};
        buf_printf(&text, "{\"a\":{\"default\":70,\"min\":1,\"type\":\"integer\",\"unit\":\"%s\"}}", cases[i].unit);
        int rc = tune_space_open(&s, text.data, &asked, &none, &e);
        if (!rc)
            rc = tune_space_cut(&s, &limits, &e);
        assert_int_equal(rc, cases[i].says ? E_INPUT : 0);
        if (rc && !strstr(e.text, cases[i].says))
            fail_msg("%s: %s", cases[i].asked, e.text);
        if (!rc)
            assert_true(s.params[0].high == cases[i].high);
        tune_space_close(&s);
        buf_free(&text);
    }
}

/* Limits come from a result; what it does not say cuts nothing, and what needs it is left. */
static void limits_are_read(void **state)
{
    static const char declared[] = "{\"a\":{\"default\":8192,\"min\":1,\"type\":\"integer\",\"unit\":\"tokens/step\"},"
                                   "\"b\":{\"default\":1,\"min\":0,\"max\":2,\"type\":\"number\",\"unit\":\"ratio\"}}",
                      result[] = "{\"ranks\":4,\"kv_blocks\":10,\"limits\":{\"max_num_seqs\":9,"
                                 "\"max_num_batched_tokens\":777,\"max_model_len\":55},\"runs\":[{\"seconds\":1.5}]}";
    struct tune_limits l;
    struct tune_space s;
    struct err e = {0};
    struct buf out = {0};
    (void)state;
    struct json *j = json_parse(result, strlen(result), NULL, &e);
    tune_limits_read(&l, j, 20, 30);
    json_free(j);
    assert_true(l.ranks == 4 && l.blocks == 40 && l.step_requests == 9 && l.step_tokens == 777 &&
                l.request_tokens == 55 && l.seconds == 1.5 && l.requests == 20 && l.tokens == 30);
    assert_int_equal(tune_space_open(&s, declared, &none, &none, &e), 0);
    tune_space_default(&s, 0, &out); /* the run that says what the limits are has it */
    assert_string_equal(out.data, "8192");
    assert_int_equal(tune_space_cut(&s, &l, &e), 0);
    buf_clear(&out);
    tune_space_cuts(&s, &out);
    assert_string_equal(out.data, "a to 777 tokens/step (--max-num-batched-tokens)");
    buf_clear(&out);
    tune_space_value(&s, 0, s.params[0].by_default, &out);
    assert_string_equal(out.data, "777"); /* as good as 8192 */
    tune_space_close(&s);
    tune_limits_read(&l, NULL, 0, 0);
    assert_int_equal(tune_space_open(&s, declared, &none, &none, &e), 0);
    assert_int_equal(tune_space_cut(&s, &l, &e), 0);
    assert_true(s.n == 1 && s.n_left == 1 && !strcmp(s.left[0], "a") && !strcmp(s.params[0].name, "b"));
    tune_space_close(&s);
    buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_end),
        cmocka_unit_test(bounds_that_were_asked_for),
        cmocka_unit_test(limits_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
