/* The command line: every row of the table works, human sizes, precedence, and messages that say the nearest right
 * word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/file.h"
#include "engine/cli/opts.h"
#include "engine/cli/opts_table.h"

enum { MAX_WORDS = 16 };

/* Parses "moonshift" and the words of line, separated by single blanks. */
static int parse_env(struct opts *o, const char *line, char *const *env, struct err *e)
{
    static char words[1000];
    char *argv[MAX_WORDS + 1] = {(char *)"moonshift"};
    int argc = 1;
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w && argc < MAX_WORDS; w = strtok(NULL, " "))
        argv[argc++] = w;
    struct opts_input in = {.argc = argc, .argv = argv, .env = env};
    memset(e, 0, sizeof *e);
    return opts_parse(o, &in, e);
}

static int parse(struct opts *o, const char *line, struct err *e)
{
    return parse_env(o, line, NULL, e);
}

static void refuses(const char *line, int code, const char *says)
{
    struct opts o;
    struct err e;
    int rc = parse(&o, line, &e);
    if (rc != code || !strstr(e.text, says))
        fail_msg("'%s' gave %d '%s', not %d with '%s'", line, rc, e.text, code, says);
    opts_free(&o);
}

static void accepts(struct opts *o, const char *line)
{
    struct err e;
    if (parse(o, line, &e))
        fail_msg("'%s' was refused: %s", line, e.text);
}

static void defaults_come_from_the_table(void **state)
{
    (void)state;
    struct opts o;
    accepts(&o, "serve m.gguf");
    assert_int_equal(o.command, CMD_SERVE);
    assert_string_equal(o.model, "m.gguf");
    assert_string_equal(o.host, "127.0.0.1");
    assert_string_equal(o.policy, "fcfs");
    assert_true(o.port == 8000 && o.max_num_seqs == 128 && o.max_num_batched_tokens == 2048 && o.prefix_caching);
    assert_int_equal(o.given.n, 1); /* the model */
    opts_free(&o);
}

/* For every row and every command that has it: each spelling is taken, a wrong value is refused by name, the mirror in
 * the environment works. */
static void every_row_works(void **state)
{
    (void)state;
    int n;
    const struct opt_row *rows = opts_rows(&n);
    static const char *const commands[] = {"serve m", "run m", "policy check f", "simulate --trace t --hf-config c",
                                           "batch m -i a -o b"};
    static const int bits[] = {IN_SERVE, IN_RUN, IN_CHECK, IN_SIMULATE, IN_BATCH};
    for (int i = 0; i < n; i++) {
        const struct opt_row *r = &rows[i];
        assert_true(r->kind == OPT_SWITCH ? r->value == NULL : r->value != NULL);
        assert_true(r->kind == OPT_CHOICE ? r->choices != NULL : r->choices == NULL);
        for (int c = 0; c < 5; c++) {
            if (!(r->where & bits[c]) || !strcmp(r->name, "config") || !strcmp(r->name, "hf-config") ||
                !strcmp(r->name, "load-format") || !strcmp(r->name, "disk-kv") ||
                !strcmp(r->name, "speculative-config") ||
                (!strncmp(r->name, "embedding-", 10) && strcmp(r->name, "embedding-model") != 0))
                continue;
            if (bits[c] == IN_SIMULATE && (!strcmp(r->name, "hardware") || !strcmp(r->name, "model") ||
                                           !strcmp(r->name, "weight-shares") || !strcmp(r->name, "weight-stages") ||
                                           !strcmp(r->name, "lockstep") || !strcmp(r->name, "all-reduce-scale")))
                continue; /* settings that need one another: see what_a_simulation_needs */
            char value[60], line[300], env_line[200];
            struct opts o;
            struct err e;
            switch (r->kind) {
            case OPT_CHOICE:
                snprintf(value, sizeof value, "%.*s", (int)strcspn(r->choices, "|"), r->choices);
                break;
            case OPT_COUNT:
                snprintf(value, sizeof value, "%.0f", r->max);
                break;
            case OPT_NUMBER:
                snprintf(value, sizeof value, "%.9g", r->max);
                break;
            case OPT_SEED:
                snprintf(value, sizeof value, "18446744073709551615");
                break;
            case OPT_SWITCH:
                snprintf(value, sizeof value, "true");
                break;
            default:
                snprintf(value, sizeof value, "a=b");
                break;
            }
            snprintf(line, sizeof line, "%s --%s=%s", commands[c], r->name, value);
            accepts(&o, line);
            opts_free(&o);
            if (r->alias) {
                snprintf(line, sizeof line, "%s --%s %s", commands[c], r->alias, value);
                accepts(&o, line);
                opts_free(&o);
            }
            if (r->letter) {
                snprintf(line, sizeof line, "%s -%c %s", commands[c], r->letter, value);
                accepts(&o, line);
                opts_free(&o);
            }
            if (r->kind != OPT_TEXT && r->kind != OPT_LIST) {
                snprintf(line, sizeof line, "%s --%s=-nonsense-", commands[c], r->name);
                refuses(line, E_INPUT, r->name);
            }
            if (r->kind == OPT_COUNT || r->kind == OPT_NUMBER) {
                snprintf(line, sizeof line, "%s --%s %.9g9", commands[c], r->name, r->max);
                refuses(line, E_INPUT, r->name);
            }
            snprintf(env_line, sizeof env_line, "MOONSHIFT_%s=%s", r->name, value);
            for (char *p = env_line; *p != '='; p++)
                *p = *p == '-' ? '_' : (char)(*p >= 'a' && *p <= 'z' ? *p - 32 : *p);
            char *env[] = {(char *)"PATH=/bin", env_line, NULL};
            if (parse_env(&o, commands[c], env, &e))
                fail_msg("%s was refused: %s", env_line, e.text);
            opts_free(&o);
        }
    }
}

static void what_a_simulation_needs(void **state)
{
    (void)state;
    struct opts o;
    accepts(&o, "simulate --trace t --hardware h --model m --weight-shares 4 --policy a:b=1 --policy c");
    assert_true(o.policies.n == 2 && o.weight_tp == 4 && o.max_num_queued_reqs == 0 && o.memory_share == 0.9 &&
                o.max_num_seqs == 128);
    assert_string_equal(o.policies.items[0], "a:b=1");
    struct buf shown = {0};
    opts_show(&o, &shown);
    assert_string_equal(shown.data, "--policy a:b=1 --policy c --hardware h --model m --weight-shares 4 --trace t");
    buf_free(&shown);
    opts_free(&o);
    accepts(&o, "simulate --trace t --hf-config c");
    assert_true(o.policies.n == 1 && !strcmp(o.policies.items[0], "fcfs"));
    opts_free(&o);
    accepts(&o, "serve m");
    assert_true(o.max_num_queued_reqs == 1024 && o.memory_share == 0.4);
    opts_free(&o);
    refuses("simulate", E_INPUT, "which traffic?");
    refuses("simulate --trace t --hardware h", E_INPUT, "needs --model");
    refuses("simulate --trace t --model m", E_INPUT, "needs --hardware");
    refuses("simulate --trace t --hf-config c --lockstep", E_INPUT, "--lockstep needs");
    refuses("simulate --trace t --hf-config c --weight-shares 2", E_INPUT, "--weight-shares needs");
    refuses("simulate --trace t --hf-config c --all-reduce-scale 2", E_INPUT, "--all-reduce-scale needs");
    refuses("simulate --trace t --hf-config c --weight-stages 2", E_INPUT, "--weight-stages needs");
    refuses("simulate --trace t --hardware h --model m --sim-row-us 3", E_INPUT, "--sim-row-us says what");
    refuses("simulate --trace t --hardware h --model m --kv-cache-dtype fp8", E_INPUT, "--kv-cache-dtype says what");
    refuses("simulate --trace t --hardware h --model m --rank-memory 1GiB", E_INPUT, "--rank-memory says what");
    refuses("simulate --trace t --hardware h --model m --policy-param x", E_INPUT, "NAME=VALUE");
    refuses("simulate --trace t --hf-config c word", E_INPUT, "a word too many");
    refuses("serve m --trace t", E_INPUT, "belongs to moonshift simulate");
    refuses("simulat", E_INPUT, "did you mean simulate?");
}

static void human_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"32k", 32000},
        {"32K", 32768},
        {"1.5k", 1500},
        {"25.6k", 25600},
        {"2GiB", (int64_t)2 << 30},
        {"0.5GiB", 1 << 29},
        {"1g", 1000000000},
        {"1G", 1 << 30},
        {"500MB", 500000000},
        {"9223372036854775807", INT64_MAX},
    };
    static const char *const bad[] = {"",
                                      "k",
                                      "-1",
                                      "+1",
                                      " 1",
                                      "1 ",
                                      "1kk",
                                      "0x10",
                                      "1.5",
                                      "1.5K",
                                      "1..5k",
                                      "1e3",
                                      "9223372036854775808",
                                      "99999999999999999999",
                                      "9999999999T",
                                      "nan",
                                      "1,000",
                                      "32kb"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t v = -1;
        assert_int_equal(opts_human(good[i].text, &v), 0);
        assert_true(v == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t v;
        if (opts_human(bad[i], &v) != E_INPUT)
            fail_msg("'%s' was taken", bad[i]);
    }
}

static void spellings(void **state)
{
    (void)state;
    struct opts o;
    accepts(&o,
            "serve --model m.gguf --max_model_len=8k -t3 --no-enable-prefix-caching --alias a --served-model-name b");
    assert_true(o.max_model_len == 8000 && o.threads == 3 && !o.prefix_caching && o.names.n == 2);
    assert_string_equal(o.names.items[1], "b");
    opts_free(&o);
    accepts(&o, "serve -m m --scheduling-policy priority --api-key one --api-key two=team --memory-utilization 0.25");
    assert_string_equal(o.policy, "priority");
    assert_true(o.api_keys.n == 2 && o.memory_share == 0.25);
    struct buf shown = {0};
    opts_show(&o, &shown);
    assert_null(strstr(shown.data, "two"));
    assert_non_null(strstr(shown.data, "--policy priority"));
    assert_non_null(strstr(shown.data, "--gpu-memory-utilization 0.25"));
    buf_free(&shown);
    opts_free(&o);
    accepts(&o, "run m.gguf -- --not-a-flag");
    assert_string_equal(o.prompt, "--not-a-flag");
    opts_free(&o);
    accepts(&o, "serve m --allowed-origins [\"http://a\",\"http://b\"]");
    assert_int_equal(o.origins.n, 2);
    assert_string_equal(o.origins.items[1], "http://b");
    opts_free(&o);
    accepts(&o, "serve m -tp 1 --no-warmup --enforce-eager --trust-remote-code --tensor-parallel-size=1");
    opts_free(&o);
}

static void wrong_words_name_the_nearest(void **state)
{
    (void)state;
    refuses("serve m --max-model-length 5", E_INPUT, "did you mean --max-model-len?");
    refuses("serve m --prot 5", E_INPUT, "did you mean --port?");
    refuses("serve m --polcy fair", E_INPUT, "did you mean --policy?");
    refuses("serve m --xyzzy", E_INPUT, "there is no flag --xyzzy (moonshift serve --help");
    refuses("serve m -z", E_INPUT, "there is no flag -z");
    refuses("servr m", E_INPUT, "did you mean serve?");
    refuses("frobnicate", E_INPUT, "there is no command 'frobnicate'");
    refuses("serve m --kv-cache-dtype f61", E_INPUT, "did you mean f16?");
    refuses("serve m --temperature 1", E_INPUT, "--temperature belongs to moonshift run");
    refuses("policy psuh f", E_INPUT, "did you mean push?");
    refuses("", E_INPUT, "moonshift serve MODEL");
}

static void what_is_not_offered_says_so(void **state)
{
    (void)state;
    struct opts o;
    refuses("serve m --swap-space 4", E_UNSUPPORTED, "--host-kv-memory");
    refuses("serve m --enable-shift-parallel", E_UNSUPPORTED, "--policy shift");
    accepts(&o, "serve m -tp 2 -pp 2");
    assert_int_equal(o.pp, 2);
    opts_free(&o);
    accepts(&o, "serve m -tp 2 -dp 4 -sp 1 --comm-sets 0-2 --ranks 8");
    assert_int_equal(o.tp, 2);
    assert_int_equal(o.dp, 4);
    assert_int_equal(o.ranks, 8);
    opts_free(&o);
    refuses("serve m --enable-lora", E_UNSUPPORTED, "LoRA");
    refuses("serve m --uds sock", E_UNSUPPORTED, "--host and --port");
    refuses("serve m --scheduler-cls a.B", E_UNSUPPORTED, "--policy");
    refuses("serve m --quantization=awq", E_UNSUPPORTED, "GGUF");
}

/* Words are split at blanks, so these have none. */
static void speculative_config_is_a_policy(void **state)
{
    (void)state;
    struct opts o;
    accepts(&o,
            "serve m --speculative-config {\"method\":\"ngram\",\"num_speculative_tokens\":5,\"prompt_lookup_max\":4}");
    assert_string_equal(o.policy, "arctic");
    assert_int_equal(o.policy_params.n, 2);
    assert_string_equal(o.policy_params.items[0], "source=lookup");
    assert_string_equal(o.policy_params.items[1], "most=5");
    opts_free(&o);
    accepts(&o, "run m -sc {\"model\":\"[ngram]\"} --policy arctic");
    assert_string_equal(o.policy, "arctic");
    assert_int_equal(o.policy_params.n, 1);
    opts_free(&o);
    accepts(&o, "serve m -sc {\"method\":\"suffix\"}");
    assert_string_equal(o.policy_params.items[0], "source=suffix");
    opts_free(&o);
    refuses("serve m -sc {\"method\":\"suffix\"} --draft-memory 0", E_INPUT, "needs --draft-memory");
    refuses("serve m --draft-file f --draft-memory 0", E_INPUT, "give that some");
    refuses("serve m --draft-file=", E_INPUT, "wants a file's name");
    refuses("serve m -sc {\"method\":\"suffix\",\"suffix_decoding_max_cached_requests\":9}", E_UNSUPPORTED,
            "--draft-memory bounds");
    accepts(&o, "serve m -sc {\"method\":\"mlp_speculator\",\"model\":\"a/draft\",\"num_speculative_tokens\":3}");
    assert_int_equal(o.policy_params.n, 1);
    assert_string_equal(o.policy_params.items[0], "source=heads");
    assert_string_equal(o.draft_model, "a/draft");
    assert_int_equal(o.draft_tokens, 3);
    opts_free(&o);
    accepts(&o, "run m -sc {\"method\":\"arctic\",\"model\":\"d\",\"enable_suffix_decoding\":true} --draft-model d");
    assert_string_equal(o.policy_params.items[0], "source=best");
    assert_true(!strcmp(o.draft_model, "d") && o.draft_tokens == 0);
    opts_free(&o);
    accepts(&o, "serve m -sc {\"method\":\"draft_model\",\"model\":\"small.gguf\",\"num_speculative_tokens\":5}");
    assert_string_equal(o.policy_params.items[0], "source=model");
    assert_true(!strcmp(o.draft_model, "small.gguf") && !strcmp(o.draft_kind, "model") && o.draft_tokens == 5);
    opts_free(&o);
    accepts(&o, "run m -sc {\"method\":\"draft_model\",\"model\":\"s\",\"enable_suffix_decoding\":true}");
    assert_string_equal(o.policy_params.items[0], "source=best");
    assert_string_equal(o.draft_kind, "model");
    opts_free(&o);
    accepts(&o, "run m -sc {\"model\":\"README.md\"}"); /* a file; whether it is a model is seen when it is opened */
    assert_true(!strcmp(o.policy_params.items[0], "source=model") && !strcmp(o.draft_model, "README.md"));
    opts_free(&o);
    refuses("serve m -sc {\"model\":\"docs\"}", E_UNSUPPORTED, "\"docs\" is not offered");
    refuses("serve m -sc {\"method\":\"draft_model\"}", E_INPUT, "a GGUF file or a Hugging Face folder");
    refuses("serve m -sc {\"method\":\"medusa\",\"model\":\"m\"}", E_UNSUPPORTED, "\"medusa\" is not offered");
    refuses("serve m -sc {\"method\":\"eagle\",\"model\":\"README.md\"}", E_UNSUPPORTED, "\"eagle\" is not offered");
    refuses("serve m -sc {\"method\":\"arctic\"}", E_INPUT, "folder of its heads");
    refuses("serve m -sc {\"method\":\"arctic\",\"model\":\"\"}", E_INPUT, "folder of its heads");
    refuses("serve m -sc {\"method\":\"arctic\",\"model\":\"d\"} --draft-model e", E_INPUT, "name two models");
    refuses("serve m -sc {\"method\":\"arctic\",\"model\":\"d\",\"enable_suffix_decoding\":1}", E_INPUT,
            "true or false");
    refuses("serve m -sc {\"method\":\"arctic\",\"model\":\"d\",\"enable_suffix_decoding\":true} --draft-memory 0",
            E_INPUT, "needs --draft-memory");
    refuses("serve m -sc {\"method\":\"suffix\",\"enable_suffix_decoding\":true}", E_UNSUPPORTED,
            "the methods arctic and draft_model");
    refuses("serve m -sc {\"method\":\"arctic\",\"model\":\"d\",\"disable_by_batch_size\":8}", E_UNSUPPORTED,
            "the policy decides");
    refuses("serve m -sc {\"method\":\"eagle3\"}", E_UNSUPPORTED, "\"eagle3\" is not offered");
    refuses("serve m -sc {\"num_speculative_tokens\":4}", E_INPUT, "no \"method\"");
    refuses("serve m -sc {\"method\":\"ngram\",\"num_speculative_tokens\":65}", E_INPUT, "from 1 to 64");
    refuses("serve m -sc {\"method\":\"ngram\",\"num_speculative_tokens\":\"4\"}", E_INPUT, "from 1 to 64");
    refuses("serve m -sc {\"method\":\"ngram\",\"num_speculative_token\":4}", E_UNSUPPORTED, "did you mean");
    refuses("serve m -sc {\"method\":\"ngram\",\"model\":\"a/draft\"}", E_UNSUPPORTED, "\"a/draft\" is not offered");
    refuses("serve m -sc {\"method\":7}", E_INPUT, "are texts");
    refuses("serve m --scheduling-policy priority -sc {\"method\":\"ngram\"}", E_INPUT, "--policy says priority");
    refuses("serve m -sc [1]", E_INPUT, "not an array");
    refuses("serve m -sc {", E_INPUT, "is no JSON");
    refuses("serve m --policy fair -sc {\"method\":\"ngram\"}", E_INPUT, "--policy says fair");
}

static void settings_that_do_not_fit_together(void **state)
{
    (void)state;
    refuses("serve", E_INPUT, "which model?");
    refuses("run", E_INPUT, "which model?");
    refuses("policy check", E_INPUT, "which file?");
    refuses("serve --load-format dummy", E_INPUT, "--hf-config");
    refuses("serve m --hf-config c.json", E_INPUT, "--load-format dummy");
    refuses("serve m --block-size 24", E_INPUT, "multiple of 16");
    refuses("serve m --policy-param =3", E_INPUT, "NAME=VALUE");
    refuses("serve m n", E_INPUT, "a word too many");
    refuses("serve m --port", E_INPUT, "--port needs a value (N)");
    refuses("serve m --no-dry-run=true", E_INPUT, "takes no value");
    refuses("serve m --disk-kv f:2Gib --host-kv-memory 1GiB", E_INPUT, "'2Gib' is no size");
    refuses("serve m --disk-kv f", E_INPUT, "--host-kv-memory 2GiB");
    refuses("serve m --disk-kv f --host-kv-memory 1GiB --record r", E_INPUT, "exclude each other");
    refuses("serve m --disk-kv f --host-kv-memory 1GiB --no-enable-prefix-caching", E_INPUT, "keeps cached prefixes");
    struct opts o;
    accepts(&o, "serve --load-format dummy --hf-config c.json");
    opts_free(&o);
    accepts(&o, "serve m --disk-kv f:1GiB --host-kv-memory 1GiB");
    opts_free(&o);
}

static void an_encoder_beside_a_model(void **state)
{
    (void)state;
    static const char *const alone[] = {"embedding-name n", "embedding-replicas 2", "embedding-threads 1",
                                        "embedding-batch-tokens 512", "embedding-queued-tokens 1M"};
    char line[200];
    struct opts o;
    for (size_t i = 0; i < sizeof alone / sizeof *alone; i++) {
        snprintf(line, sizeof line, "serve m --%s", alone[i]);
        refuses(line, E_INPUT, "--embedding-model");
        snprintf(line, sizeof line, "serve m --embedding-model e --%s", alone[i]);
        accepts(&o, line);
        opts_free(&o);
    }
    refuses("serve m --embedding-model=", E_INPUT, "a file or a folder");
    refuses("serve m --embedding-model e --embedding-replicas 65", E_INPUT, "embedding-replicas");
    refuses("serve m --embedding-model e --embedding-name=", E_INPUT, "1 to 127 bytes");
    refuses("serve m --runner pooling", E_UNSUPPORTED, "--embedding-model");
    refuses("run --embedding-model e", E_INPUT, "embedding-model");
    accepts(&o, "serve m --embedding-model e");
    assert_string_equal(o.embedding_model, "e");
    assert_int_equal(o.embedding_replicas, 1);
    assert_int_equal(o.embedding_threads, 0);
    assert_int_equal(o.embedding_batch_tokens, 2048);
    assert_int_equal(o.embedding_queued_tokens, 4 << 20);
    opts_free(&o);
}

static void what_an_encoder_alone_has_a_use_for(void **state)
{
    (void)state;
    static const char *const fine[] = {"embedding-threads 2", "embedding-name n", "served-model-name n", "port 0",
                                       "api-key k",           "batch-dir d",      "device sim",          "dry-run"};
    static const char *const useless[] = {"max-model-len 99", "tokenizer t",        "policy fcfs",
                                          "max-num-seqs 4",   "host-kv-memory 1GB", "threads 2",
                                          "record r",         "device cuda",        "served-model-name a --alias b"};
    char line[200];
    struct opts o;
    struct err e = {0};
    accepts(&o, "serve --embedding-model e");
    assert_null(o.model);
    assert_int_equal(opts_check_alone(&o, &e), 0);
    opts_free(&o);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        snprintf(line, sizeof line, "serve --embedding-model e --%s", fine[i]);
        accepts(&o, line);
        if (opts_check_alone(&o, &e))
            fail_msg("%s: %s", line, e.text);
        opts_free(&o);
    }
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++) {
        snprintf(line, sizeof line, "serve --embedding-model e --%s", useless[i]);
        accepts(&o, line);
        snprintf(line, sizeof line, "--%.*s", (int)strcspn(useless[i], " "), useless[i]);
        if (!opts_check_alone(&o, &e) || !strstr(e.text, line))
            fail_msg("%s: '%s'", useless[i], e.text);
        opts_free(&o);
    }
    accepts(&o, "serve --embedding-model e --embedding-name a --served-model-name b");
    assert_int_equal(opts_check_alone(&o, &e), E_INPUT);
    opts_free(&o);
}

static void a_path_and_its_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int path;
        int64_t bytes;
    } cases[] = {{"kv:2GiB", 2, 2ll << 30},
                 {"kv", 2, (int64_t)DISK_GIB << 30},
                 {"a:b/kv", 6, (int64_t)DISK_GIB << 30},
                 {"a:b:500MB", 3, 500000000},
                 {"kv:2GiBB", 2, -1},
                 {"a:b", 3, (int64_t)DISK_GIB << 30},
                 {"kv:", 3, (int64_t)DISK_GIB << 30}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        assert_int_equal(opts_disk_bytes(cases[i].text, &n), cases[i].bytes);
        assert_int_equal(n, cases[i].path);
    }
}

static char config_path[40];

static void with_config(const char *text)
{
    snprintf(config_path, sizeof config_path, "%s", "/tmp/unit_opts-XXXXXX");
    int fd = mkstemp(config_path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void line_over_environment_over_file(void **state)
{
    (void)state;
    struct opts o;
    struct err e;
    char line[200];
    with_config(
        "# a comment\nport: 1111\nmax_model_len: 32k   # with a comment\r\n---\nhost: \"0.0.0.0\"\nmodel: 'from file'\n"
        "max-num-seqs: 7\nenable-prefix-caching: false\napi-key: filekey\n\n");
    char *env[] = {(char *)"MOONSHIFT_PORT=2222", (char *)"MOONSHIFT_MAX_NUM_SEQS=8",
                   (char *)"MOONSHIFT_BUILD=of/the/tests", NULL};
    snprintf(line, sizeof line, "serve --config %s --max-num-seqs 9 --api-key mine", config_path);
    assert_int_equal(parse_env(&o, line, env, &e), 0);
    assert_true(o.port == 2222 && o.max_num_seqs == 9 && o.max_model_len == 32000 && !o.prefix_caching);
    assert_string_equal(o.host, "0.0.0.0");
    assert_string_equal(o.model, "from file");
    assert_true(o.api_keys.n == 1 && !strcmp(o.api_keys.items[0], "mine"));
    opts_free(&o);
    unlink(config_path);
}

static void config_files_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"port: 80\nprot: 1\n", ":2: there is no flag --prot; did you mean --port?"},
        {"just words\n", ":1: expected \"flag-name: value\""},
        {"port: many\n", ":1: port wants a whole number"},
        {"host: \"open\n", ":1: the quotes do not match"},
        {"config: other\n", ":1:"},
    };
    char line[200];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        with_config(rows[i].text);
        snprintf(line, sizeof line, "serve m --config %s", config_path);
        refuses(line, E_INPUT, rows[i].says);
        unlink(config_path);
    }
    refuses("serve m --config none/such", E_NOTFOUND, "none/such");
}

static void help_names_every_flag(void **state)
{
    (void)state;
    int n;
    const struct opt_row *rows = opts_rows(&n);
    struct opts o;
    for (int c = CMD_SERVE; c <= CMD_POLICY_CHECK; c++) {
        struct buf b = {0};
        opts_help((enum opts_command)c, &b);
        for (int i = 0; i < n; i++)
            if (rows[i].where & (c == CMD_SERVE   ? IN_SERVE
                                 : c == CMD_RUN   ? IN_RUN
                                 : c == CMD_BATCH ? IN_BATCH
                                                  : IN_CHECK))
                assert_non_null(strstr(b.data, rows[i].name));
        size_t width = 0;
        for (char *p = b.data; *p; p++) {
            width = *p == '\n' ? 0 : width + 1;
            assert_true(width <= 125);
        }
        buf_free(&b);
    }
    accepts(&o, "serve --help");
    assert_true(o.command == CMD_HELP && o.help_for == CMD_SERVE);
    opts_free(&o);
    accepts(&o, "run m --temperature 0 -h");
    assert_true(o.command == CMD_HELP && o.help_for == CMD_RUN);
    opts_free(&o);
    accepts(&o, "--help");
    assert_true(o.command == CMD_HELP && o.help_for == CMD_HELP);
    opts_free(&o);
    accepts(&o, "--version");
    assert_int_equal(o.command, CMD_VERSION);
    opts_free(&o);
}

static void keys_are_wiped_from_the_command_line(void **state)
{
    (void)state;
    char words[][40] = {"moonshift",        "serve",       "m",    "--api-key", "sk-one=team",
                        "--api_key=sk-two", "--admin-key", "root", "--port",    "9000"};
    char *argv[11] = {0};
    for (int i = 0; i < 10; i++)
        argv[i] = words[i];
    struct opts o;
    struct err e = {0};
    assert_int_equal(opts_parse(&o, &(struct opts_input){.argc = 10, .argv = argv}, &e), 0);
    assert_true(o.api_keys.n == 2 && !strcmp(o.api_keys.items[0], "sk-one=team") &&
                !strcmp(o.api_keys.items[1], "sk-two"));
    assert_string_equal(o.admin_keys.items[0], "root");
    assert_string_equal(words[4], "***********");
    assert_string_equal(words[5], "--api_key=******");
    assert_string_equal(words[7], "****");
    assert_string_equal(words[9], "9000");
    opts_free(&o);
}

static void variables_are_flags_or_mistakes(void **state)
{
    (void)state;
    static const struct {
        const char *entry, *says; /* says NULL: taken */
    } cases[] = {
        {"MOONSHIFT_NO_ENABLE_PREFIX_CACHING=1", NULL},
        {"MOONSHIFT_NO_ENABLE_PREFIX_CACHING=maybe",
         "MOONSHIFT_NO_ENABLE_PREFIX_CACHING must be true or false, not 'maybe'"},
        {"MOONSHIFT_SLO_TTFT_MS=3", NULL}, /* of simulate */
        {"MOONSHIFT_TENSOR_PARALLEL_SIZE=2", NULL},
        {"MOONSHIFTED=1", NULL},
        {"MOONSHIFT_SANITIZE=address", NULL},
        {"MOONSHIFT_MAX_NUM_SEQ=8", "there is no flag --max-num-seq; did you mean MOONSHIFT_MAX_NUM_SEQS?"},
        {"MOONSHIFT_NO_ENABLE_PREFIX_CACHE=1",
         "there is no flag --no-enable-prefix-cache; did you mean MOONSHIFT_ENABLE_PREFIX_CACHING?"},
        {"MOONSHIFT_NO_SUCH=1", "MOONSHIFT_NO_SUCH in the environment: there is no flag --no-such"},
        {"MOONSHIFT_=1", "there is no flag --"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *env[] = {(char *)cases[i].entry, NULL};
        struct opts o;
        struct err e = {0};
        int rc = parse_env(&o, "serve m", env, &e);
        if (rc != (cases[i].says ? E_INPUT : 0) || (cases[i].says && !strstr(e.text, cases[i].says)))
            fail_msg("%s: %d %s", cases[i].entry, rc, e.text);
        if (i == 0)
            assert_false(o.prefix_caching);
        opts_free(&o);
    }
    char *off[] = {(char *)"MOONSHIFT_NO_ENABLE_PREFIX_CACHING=false", NULL};
    struct opts o;
    struct err e;
    assert_int_equal(parse_env(&o, "serve m", off, &e), 0);
    assert_true(o.prefix_caching);
    opts_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_wiped_from_the_command_line),
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(every_row_works),
        cmocka_unit_test(what_a_simulation_needs),
        cmocka_unit_test(human_sizes),
        cmocka_unit_test(spellings),
        cmocka_unit_test(wrong_words_name_the_nearest),
        cmocka_unit_test(what_is_not_offered_says_so),
        cmocka_unit_test(speculative_config_is_a_policy),
        cmocka_unit_test(settings_that_do_not_fit_together),
        cmocka_unit_test(an_encoder_beside_a_model),
        cmocka_unit_test(what_an_encoder_alone_has_a_use_for),
        cmocka_unit_test(a_path_and_its_bytes),
        cmocka_unit_test(line_over_environment_over_file),
        cmocka_unit_test(variables_are_flags_or_mistakes),
        cmocka_unit_test(config_files_are_checked),
        cmocka_unit_test(help_names_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
