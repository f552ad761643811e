/* What a client's text costs: every text path of the server takes eight times as much of its input in little more than
 * eight times the time (n log n would be 9 to 10 times, n squared 64), and work for nobody ends soon. Time is CPU time
 * of this process, the best of several, so that a busy machine changes nothing. */
#include "tests/rig/front_fixture.h"

#include "engine/serve/guard.h"
#include "models/tokenizer/pretok.h"
#include "tests/rig/tiny_vocab.h"

enum { TIMES = 8, MOST = 24, TRIES = 5 };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SMALLER = 8 };
#else
enum { SMALLER = 1 };
#endif

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The least of several: once it is small enough, it need not be tried again. */
static double least_cpu(void (*work)(void *ctx, size_t n), void *ctx, size_t n, double enough)
{
    double best = 1e9;
    for (int i = 0; i < TRIES && best > enough; i++) {
        double from = cpu_seconds();
        work(ctx, n);
        double took = cpu_seconds() - from;
        best = took < best ? took : best;
    }
    return best;
}

static void check_growth(const char *name, void (*work)(void *ctx, size_t n), void *ctx, size_t n)
{
    double once = least_cpu(work, ctx, n, 0);
    once = once < 0.001 ? 0.001 : once; /* what is small beside a request itself has no shape */
    double many = least_cpu(work, ctx, n * TIMES, once * MOST);
    if (many > once * MOST)
        fail_msg("%s: %zu take %.1f ms, %d times as many %.1f ms: %.0f times as long", name, n, once * 1e3, TIMES,
                 many * 1e3, many / once);
}

/* ---- over the wire */

struct path {
    const char *name, *path;
    const char *before, *unit, *middle,
        *after; /* before, unit * n, and if there is a middle: that and unit * n / 2; after. # in a unit: its number */
    size_t n;
    int status;
};

static struct site site;

static void put_units(struct buf *out, const char *unit, size_t n)
{
    const char *mark = strchr(unit, '#');
    for (size_t i = 0; i < n; i++) {
        if (!mark) {
            buf_puts(out, unit);
            continue;
        }
        buf_put(out, unit, (size_t)(mark - unit));
        buf_put_u64(out, i);
        buf_puts(out, mark + 1);
    }
}

static void ask_path(void *ctx, size_t n)
{
    const struct path *p = ctx;
    struct buf body = {0};
    buf_puts(&body, p->before);
    put_units(&body, p->unit, n);
    if (p->middle) {
        buf_puts(&body, p->middle);
        put_units(&body, p->unit, n / 2);
    }
    buf_puts(&body, p->after);
    struct reply r = site_do(site.port, "POST", p->path, "Content-Type: application/json\r\n", body.data);
    if (r.status != p->status)
        fail_msg("%s: %d: %.300s", p->name, r.status, r.body.data);
    reply_free(&r);
    buf_free(&body);
}

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define USER "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\""
static const struct path paths[] = {
    {"continue_final_message of one letter", CHAT, USER, "a", "\"},{\"role\":\"assistant\",\"content\":\"",
     "\"}],\"add_generation_prompt\":false,\"continue_final_message\":true}", 20000, 200},
    {"one long message", CHAT, USER, "word and ", NULL, "\"}]}", 20000, 200},
    {"many messages", CHAT, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"\"}",
     ",{\"role\":\"user\",\"content\":\"a\"}", NULL, "]}", 2000, 200},
    {"many parts", CHAT, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[\"a\"",
     ",{\"type\":\"text\",\"text\":\"a\"}", NULL, "]}]}", 4000, 200},
    {"many fields of a message", CHAT, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"",
     ",\"x#\":1", NULL, "}]}", 10000, 200},
    {"tool calls", CHAT, "{\"max_tokens\":1,\"messages\":[{\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[1",
     ",{\"type\":\"function\",\"function\":{\"name\":\"f#\",\"arguments\":\"{}\"}}", NULL, "]}]}", 2000, 200},
    {"template kwargs", CHAT,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"chat_template_kwargs\":{\"a\":1",
     ",\"k#\":1", NULL, "}}", 10000, 200},
    {"escapes", CHAT, USER, "\\n\\u00e9\\\"", NULL, "\"}]}", 20000, 200},
    {"unknown fields", TEXT, "{\"max_tokens\":1,\"prompt\":\"a\"", ",\"u#\":1", NULL, "}", 10000, 200},
    {"equal fields", TEXT, "{\"max_tokens\":1,\"prompt\":\"a\"", ",\"priority\":1", NULL, "}", 10000, 200},
    {"nested arrays", TEXT, "{\"max_tokens\":1,\"prompt\":\"a\",\"u\":[1", ",[[1]]", NULL, "]}", 10000, 200},
    {"a prompt of ids", TEXT, "{\"max_tokens\":1,\"prompt\":[1", ",#", NULL, "]}", 500, 200},
    {"many prompts", TEXT, "{\"max_tokens\":1,\"prompt\":[\"a\"", ",\"b#\"", NULL, "]}", 200, 200},
    {"echo", TEXT, "{\"max_tokens\":1,\"echo\":true,\"prompt\":\"a", "\\u00e9 ", NULL, "\"}", 20000, 200},
    {"echo with logprobs", TEXT, "{\"max_tokens\":1,\"echo\":true,\"logprobs\":5,\"prompt\":\"a", "bc ", NULL, "\"}",
     2000, 200},
    {"prompt_logprobs", TEXT, "{\"max_tokens\":1,\"prompt_logprobs\":5,\"prompt\":\"a", "bc ", NULL, "\"}", 2000, 200},
    {"allowed_token_ids", TEXT, "{\"max_tokens\":1,\"prompt\":\"a\",\"allowed_token_ids\":[1", ",#", NULL, "]}", 60,
     200},
    {"stop strings in a long answer", TEXT,
     "{\"max_tokens\":1000000,\"stop\":[\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\",\"aaaaaab\",\"b\"],\"prompt\":\"SAY:",
     "a", NULL, "\"}", 4000, 200},
    {"a stream", TEXT,
     "{\"max_tokens\":1000000,\"stream\":true,\"logprobs\":2,\"stop\":[\"aaaaaaaaaaaaaaaaaab\"],\"prompt\":\"SAY:", "a",
     NULL, "\"}", 2000, 200},
    {"usage in every frame of many choices", TEXT,
     "{\"max_tokens\":4,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},"
     "\"prompt\":[\"a\"",
     ",\"b#\"", NULL, "]}", 200, 200},
    {"tokenize", "/tokenize", "{\"return_token_strs\":true,\"prompt\":\"", "some words ", NULL, "\"}", 10000, 200},
    {"tokenize a chat", "/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}",
     ",{\"role\":\"user\",\"content\":\"a\"}", NULL, "]}", 2000, 200},
    {"detokenize", "/detokenize", "{\"tokens\":[1", ",200", NULL, "]}", 20000, 200},
    {"not JSON at the end", TEXT, "{\"prompt\":\"", "a\\n", NULL, "\"", 20000, 400},
};

static void text_paths_do_not_grow_faster_than_n_log_n(void **state)
{
    (void)state;
    struct err e = {0};
    site_init(&site);
    chat_free(site.chat);
    const char *source = chat_builtin("chatml");
    assert_int_equal(chat_compile(&site.chat, source, strlen(source), &e), 0);
    tokenizer_free(site.tokenizer);
    assert_int_equal(tokenizer_bytes(&site.tokenizer, 4096, &e), 0);
    site.setup.tokenizer = site.tokenizer;
    site.setup.chat = site.chat;
    site.setup.n_vocab = 4096;
    site.setup.max_model_len = 1 << 26;
    site.setup.http.backlog = 256 << 20;
    site.setup.text_s = -1;
    site_start(&site);
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        struct path p = paths[i];
        check_growth(p.name, ask_path, &p, p.n > 1000 ? p.n / SMALLER : p.n);
    }
    site_stop(&site);
}

/* ---- the tokenizers */

struct encoding {
    const struct tokenizer *t;
    const char *unit;
};

static void encode_units(void *ctx, size_t n)
{
    const struct encoding *c = ctx;
    struct buf text = {0};
    struct tokens ids = {0};
    put_units(&text, c->unit, n / strlen(c->unit) + 1);
    assert_int_equal(
        tokenizer_encode(c->t, text.data, text.len, (struct tokenize_how){.flags = TOKENIZE_SPECIAL}, &ids, NULL), 0);
    tokens_free(&ids);
    buf_free(&text);
}

static void check_vocabulary(const struct buf *file, const char *name)
{
    static const char *const units[] = {"a",
                                        "ab",
                                        " ",
                                        " \n",
                                        "A",
                                        "Ab'",
                                        "7",
                                        "!/",
                                        "e\xCC\x81\xCC\xA3",
                                        "\xCC\xA3\xCC\x81",
                                        "\xE4\xB8\xAD",
                                        "\xFF",
                                        "<|end",
                                        "<|end|>",
                                        "hello "};
    struct gguf *g;
    struct encoding c = {0};
    struct tokenizer *t;
    struct err e = {0};
    if (gguf_open_memory(&g, file->data, file->len, &e) || tokenizer_from_gguf(&t, g, &e))
        fail_msg("%s: %s", name, e.text);
    c.t = t;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        char what[80];
        snprintf(what, sizeof what, "%s, '%s'", name, units[i]);
        c.unit = units[i];
        check_growth(what, encode_units, &c, 32768 / SMALLER);
    }
    tokenizer_free(t);
    gguf_close(g);
}

static void tokenizers_do_not_grow_faster_than_n_log_n(void **state)
{
    (void)state;
    const char *name;
    struct buf file = {0};
    for (size_t i = 0; (name = pretok_name(i)); i++) {
        if (i % 2 && SMALLER > 1)
            continue;
        tiny_byte_level(name, &file);
        check_vocabulary(&file, name);
        buf_free(&file);
    }
    tiny_sentencepiece(true, &file);
    check_vocabulary(&file, "SentencePiece");
    buf_free(&file);
}

/* ---- work for nobody */

/* A chat template that computes until its steps are used up: about a second. */
static const char slow_template[] =
    "{% for a in range(3000) %}{% for b in range(3000) %}{% set c = a %}{% endfor %}{% endfor %}";
static const char slow_body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
enum { CROWD = 40 };

static void start_slow_site(double text_s, struct guard *guard)
{
    struct err e = {0};
    site_init(&site);
    chat_free(site.chat);
    assert_int_equal(chat_compile(&site.chat, slow_template, strlen(slow_template), &e), 0);
    site.setup.chat = site.chat;
    site.setup.text_s = text_s;
    site.setup.guard = guard;
    site_start(&site);
}

static double one_slow_request(void)
{
    double from = cpu_seconds();
    struct reply r = site_do(site.port, "POST", "/tokenize", NULL, slow_body);
    assert_int_equal(r.status, 400);
    assert_non_null(strstr(r.body.data, "steps"));
    reply_free(&r);
    return cpu_seconds() - from;
}

static void a_text_that_takes_too_long_is_given_up(void **state)
{
    (void)state;
    start_slow_site(0.1, NULL); /* 0.01 s on the short lane */
    static const char *const routes[] = {"/tokenize", CHAT};
    for (int i = 0; i < 2; i++) {
        struct reply r = site_do(site.port, "POST", routes[i], NULL, slow_body);
        assert_int_equal(r.status, 400);
        if (!strstr(r.body.data, "more than 0.01 s of computing"))
            fail_msg("%s", r.body.data);
        reply_free(&r);
    }
    site_stop(&site);
}

static void wait_until_no_text_job_is_left(void)
{
    for (int i = 0; i < 12000; i++) {
        struct reply r = site_do(site.port, "GET", "/metrics", NULL, "");
        bool none = strstr(r.body.data, "\nfront_text_jobs 0\n");
        reply_free(&r);
        if (none)
            return;
        usleep(10000);
    }
    fail_msg("text jobs went on for two minutes");
}

static void text_work_ends_when_its_client_goes(void **state)
{
    (void)state;
    start_slow_site(-1, NULL);
    int fds[CROWD];
    double one = one_slow_request(), from = cpu_seconds();
    for (int i = 0; i < CROWD; i++) {
        fds[i] = site_connect(site.port);
        site_post_on(fds[i], "POST", i % 2 ? "/tokenize" : CHAT, NULL, slow_body);
    }
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    wait_until_no_text_job_is_left();
    if (cpu_seconds() - from > one * CROWD / 3)
        fail_msg("%d requests without a client took %.2f s of computing; one with a client takes %.2f s", CROWD,
                 cpu_seconds() - from, one);
    site_stop(&site);
}

static void an_end_waits_for_no_text_work(void **state)
{
    (void)state;
    struct guard *guard;
    int fds[CROWD];
    assert_int_equal(guard_start(&guard, 1, NULL), 0);
    start_slow_site(-1, guard);
    double one = one_slow_request(), from = cpu_seconds();
    for (int i = 0; i < CROWD; i++) {
        fds[i] = site_connect(site.port);
        site_post_on(fds[i], "POST", i % 2 ? "/tokenize" : CHAT, NULL, slow_body);
    }
    struct reply r = site_do(site.admin_port, "POST", "/admin/drain", NULL, ""); /* a second later it becomes a stop */
    reply_free(&r);
    thread_join(site.thread);
    guard_end(guard);
    assert_int_equal(site.rc, E_GONE);
    fake_stop(&site.engine);
    server_destroy(site.server);
    if (cpu_seconds() - from > one * CROWD / 3 + 2)
        fail_msg("the end took %.2f s of computing; one request takes %.2f s", cpu_seconds() - from, one);
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
    fake_free(&site.engine);
    chat_free(site.chat);
    tokenizer_free(site.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_paths_do_not_grow_faster_than_n_log_n),
        cmocka_unit_test(tokenizers_do_not_grow_faster_than_n_log_n),
        cmocka_unit_test(a_text_that_takes_too_long_is_given_up),
        cmocka_unit_test(text_work_ends_when_its_client_goes),
        cmocka_unit_test(an_end_waits_for_no_text_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
