/* Embeddings, rerank and score over an encoder of the device sim: shapes that clients depend on, what is refused and
 * how, texts in parts, clients that leave, and ends. What a vector should be is asked of the encoder itself. */
#include "tests/rig/front_fixture.h"

#include <math.h>

#include "models/encode/encoder_inner.h"

static struct site site;
static struct encoder *vectors, *pairs, *cuttable;

static void begin(const struct encoder *c)
{
    site_init(&site);
    site.setup.embed = (struct embed_plan){.encoder = c,
                                           .name = "enc",
                                           .root = "here",
                                           .replicas = 2,
                                           .threads = 1,
                                           .batch_tokens = 600,
                                           .queued_tokens = 4000000};
    site_start(&site);
}

static int with_vectors(void **state)
{
    (void)state;
    begin(vectors);
    return 0;
}

static int with_pairs(void **state)
{
    (void)state;
    begin(pairs);
    return 0;
}

static int with_cuts(void **state)
{
    (void)state;
    begin(cuttable);
    return 0;
}

static int without(void **state)
{
    (void)state;
    begin(NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    site_stop(&site);
    return 0;
}

static struct json *parsed(const struct buf *b)
{
    struct err e = {0};
    struct json *j = json_parse(b->data, b->len, NULL, &e);
    if (!j)
        fail_msg("not JSON (%s): %s", e.text, b->data);
    return j;
}

static struct json *post(const char *path, const char *body, int status)
{
    struct reply r = site_do(site.port, "POST", path, NULL, body);
    if (r.status != status)
        fail_msg("%.200s: %d instead of %d: %.300s", body, r.status, status, r.body.data);
    struct json *j = parsed(&r.body);
    reply_free(&r);
    return j;
}

static const struct json *item(const struct json *array, int i)
{
    const struct json *v = json_first(array);
    while (v && i--)
        v = json_next(v);
    assert_non_null(v);
    return v;
}

static int64_t number(const struct json *j, const char *key)
{
    int64_t v = -1;
    assert_true(json_i64(json_find(j, key), &v));
    return v;
}

/* ---- what it should be */

static void run(const struct encoder *c, const struct tokens *ids, int n_first, float *out)
{
    struct encoder_replica *r;
    struct err e = {0};
    struct encoder_seq s = {ids->ids, (int)ids->len, n_first, out};
    assert_int_equal(encoder_replica_new(&r, c, 1, 1024, &e), 0);
    assert_int_equal(encoder_replica_run(r, &s, 1, &e), 0);
    encoder_replica_free(r);
}

static int expected(const struct encoder *c, const char *text, const char *pair, float *out)
{
    struct tokens ids = {0};
    struct err e = {0};
    int n_first, n;
    struct encoder_text t = {text, pair, strlen(text), pair ? strlen(pair) : 0};
    assert_int_equal(encoder_tokenize(c, &t, (struct tokenize_how){0}, &ids, &n_first, &e), 0);
    run(c, &ids, n_first, out);
    n = (int)ids.len;
    tokens_free(&ids);
    return n;
}

static double cosine(const float *x, const float *y)
{
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < 384; i++) {
        xy += (double)x[i] * (double)y[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)y[i] * (double)y[i];
    }
    return xy / sqrt(xx * yy);
}

static void check_floats(const struct json *list, const float *want)
{
    assert_int_equal(json_count(list), 384);
    int i = 0;
    for (const struct json *v = json_first(list); v; v = json_next(v), i++)
        assert_true((float)json_number(v) == want[i]);
}

static int sextet(char c)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    return (int)(strchr(alphabet, c) - alphabet);
}

static void check_base64(const char *text, const float *want)
{
    assert_int_equal(strlen(text), 2048);
    const uint8_t *bytes = (const uint8_t *)want;
    for (int i = 0; i < 1536; i++) {
        int at = i / 3 * 4,
            x = sextet(text[at]) << 18 | sextet(text[at + 1]) << 12 | sextet(text[at + 2]) << 6 | sextet(text[at + 3]);
        assert_int_equal(x >> (16 - i % 3 * 8) & 255, bytes[i]);
    }
}

static const struct json *vector_of(const struct json *j, int i)
{
    const struct json *d = item(json_find(j, "data"), i);
    assert_string_equal(json_text(json_find(d, "object")), "embedding");
    assert_int_equal(number(d, "index"), i);
    return json_find(d, "embedding");
}

/* ---- vectors */

static void one_text(void **state)
{
    (void)state;
    float want[384];
    int n = expected(vectors, "the red river", NULL, want);
    struct json *j = post("/v1/embeddings", "{\"model\":\"enc\",\"input\":\"the red river\",\"user\":\"u\"}", 200);
    assert_string_equal(json_text(json_find(j, "object")), "list");
    assert_string_equal(json_text(json_find(j, "model")), "enc");
    assert_int_equal(strncmp(json_text(json_find(j, "id")), "embd-", 5), 0);
    assert_int_equal(json_count(json_find(j, "data")), 1);
    check_floats(vector_of(j, 0), want);
    assert_int_equal(number(json_find(j, "usage"), "prompt_tokens"), n);
    assert_int_equal(number(json_find(j, "usage"), "total_tokens"), n);
    json_free(j);
}

static void many_texts_in_their_order(void **state)
{
    (void)state;
    static const char *const texts[] = {"paris", "the capital of france is paris and", "", "dog cat dog"};
    float want[384];
    struct json *f = post("/v1/embeddings",
                          "{\"input\":[\"paris\",\"the capital of france is paris and\",\"\",\"dog cat dog\"]}", 200);
    struct json *b = post("/v1/embeddings",
                          "{\"input\":[\"paris\",\"the capital of france is paris and\",\"\",\"dog cat dog\"],"
                          "\"encoding_format\":\"base64\",\"dimensions\":384}",
                          200);
    assert_int_equal(json_count(json_find(f, "data")), 4);
    for (int i = 0; i < 4; i++) {
        expected(vectors, texts[i], NULL, want);
        check_floats(vector_of(f, i), want);
        check_base64(json_text(vector_of(b, i)), want);
    }
    json_free(f);
    json_free(b);
}

/* The first floats of the whole vector, at length 1 again. */
static void vectors_are_cut_where_the_model_says_so(void **state)
{
    (void)state;
    float want[384];
    double square = 0, off = 0;
    expected(cuttable, "paris", NULL, want);
    for (int i = 0; i < 64; i++)
        square += (double)want[i] * (double)want[i];
    struct json *f = post("/v1/embeddings", "{\"input\":[\"dog\",\"paris\"],\"dimensions\":64}", 200);
    struct json *b =
        post("/v1/embeddings", "{\"input\":\"paris\",\"dimensions\":128,\"encoding_format\":\"base64\"}", 200);
    struct json *r = post("/v1/embeddings", "{\"input\":\"paris\",\"dimensions\":100}", 400);
    struct json *s = post("/score", "{\"text_1\":\"a\",\"text_2\":\"b\",\"dimensions\":64}", 400);
    assert_int_equal(json_count(vector_of(f, 1)), 64);
    int i = 0;
    for (const struct json *v = json_first(vector_of(f, 1)); v; v = json_next(v), i++)
        off = fmax(off, fabs(json_number(v) - (double)want[i] / sqrt(square)));
    assert_true(off < 1e-6);
    assert_int_equal(strlen(json_text(vector_of(b, 0))), (128 * 4 + 2) / 3 * 4);
    assert_non_null(strstr(json_text(json_find(json_find(r, "error"), "message")), "64, 128"));
    assert_non_null(strstr(json_text(json_find(json_find(s, "error"), "message")), "whole vectors"));
    json_free(f);
    json_free(b);
    json_free(r);
    json_free(s);
}

static void token_ids_are_taken_as_they_are(void **state)
{
    (void)state;
    float want[384];
    int32_t ids[] = {2, 90, 91, 3, 7};
    run(vectors, &(struct tokens){ids, 4, 4}, 4, want);
    struct json *j = post("/v1/embeddings", "{\"input\":[2,90,91,3]}", 200);
    check_floats(vector_of(j, 0), want);
    assert_int_equal(number(json_find(j, "usage"), "prompt_tokens"), 4);
    json_free(j);
    j = post("/v1/embeddings", "{\"input\":[[7],[2,90,91,3]]}", 200);
    check_floats(vector_of(j, 1), want);
    run(vectors, &(struct tokens){ids + 4, 1, 1}, 1, want);
    check_floats(vector_of(j, 0), want);
    json_free(j);
}

static void put_words(struct buf *out, int words, int salt)
{
    static const char *const w[] = {"red", "paris", "moon", "king", "dog", "sees", "river", "slow"};
    for (int i = 0; i < words; i++)
        buf_printf(out, "%s%s", i ? " " : "", w[(i * 7 + salt * (i + 3)) % 8]);
}

/* 400 texts of many lengths, read in parts by two workers and computed in many batches: as each alone. */
static void a_large_body_is_read_in_parts(void **state)
{
    (void)state;
    struct buf body = {0}, text = {0};
    float want[384];
    buf_puts(&body, "{\"input\":[");
    for (int i = 0; i < 400; i++) {
        buf_puts(&body, i ? ",\"" : "\"");
        put_words(&body, 1 + i * 13 % 230, i);
        buf_putc(&body, '"');
    }
    buf_puts(&body, "]}");
    assert_true(body.len > 150000);
    struct json *j = post("/v1/embeddings", body.data, 200);
    int64_t tokens = 0;
    for (int i = 0; i < 400; i++) {
        buf_clear(&text);
        put_words(&text, 1 + i * 13 % 230, i);
        tokens += expected(vectors, text.data, NULL, want);
        check_floats(vector_of(j, i), want);
    }
    assert_int_equal(number(json_find(j, "usage"), "total_tokens"), tokens);
    json_free(j);
    buf_free(&body);
    buf_free(&text);
}

static void what_is_too_long_is_refused_or_cut(void **state)
{
    (void)state;
    struct buf body = {0};
    struct tokens ids = {0};
    struct err e = {0};
    float want[384];
    int n_first;
    buf_puts(&body, "{\"input\":[\"dog\",\"");
    size_t from = body.len;
    put_words(&body, 600, 1);
    struct encoder_text t = {body.data + from, NULL, body.len - from, 0};
    assert_int_equal(encoder_tokenize(vectors, &t, (struct tokenize_how){0}, &ids, &n_first, &e), 0);
    assert_int_equal(ids.len, 602);
    buf_puts(&body, "\"]}");
    struct json *j = post("/v1/embeddings", body.data, 400);
    const struct json *error = json_find(j, "error");
    assert_string_equal(json_text(json_find(error, "code")), "context_length_exceeded");
    assert_string_equal(json_text(json_find(error, "param")), "input");
    assert_non_null(
        strstr(json_text(json_find(error, "message")), "'input'[1] has 602 tokens, and the model takes 512"));
    json_free(j);
    body.data[body.len -= 1] = 0;
    buf_puts(&body, ",\"truncate_prompt_tokens\":100}");
    j = post("/v1/embeddings", body.data, 200);
    ids.ids[99] = ids.ids[601]; /* the first 99, and [SEP] */
    ids.len = 100;
    run(vectors, &ids, 100, want);
    check_floats(vector_of(j, 1), want);
    assert_int_equal(number(json_find(j, "usage"), "total_tokens"), 103);
    json_free(j);
    tokens_free(&ids);
    buf_free(&body);
}

/* ---- what is refused */

struct wrong {
    const char *path, *body;
    int status;
    const char *param, *code;
};

static void refused(const struct wrong *w)
{
    struct json *j = post(w->path, w->body, w->status);
    const struct json *e = json_find(j, "error");
    const char *param = json_text(json_find(e, "param"));
    assert_non_null(json_text(json_find(e, "message")));
    if (w->param ? !param || strcmp(param, w->param) != 0 : param != NULL)
        fail_msg("%s: the parameter is %s", w->body, param ? param : "null");
    assert_string_equal(json_text(json_find(e, "code")), w->code);
    json_free(j);
}

static void wrong_bodies(void **state)
{
    (void)state;
    static const char v[] = "/v1/embeddings", r[] = "/v1/rerank", s[] = "/v1/score";
    static const struct wrong all[] = {
        {v, "", 400, NULL, "invalid_json"},
        {v, "[]", 400, NULL, "invalid_json"},
        {v, "{}", 400, "input", "missing_parameter"},
        {v, "{\"input\":null}", 400, "input", "missing_parameter"},
        {v, "{\"input\":7}", 400, "input", "invalid_type"},
        {v, "{\"input\":{}}", 400, "input", "invalid_type"},
        {v, "{\"input\":[]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[[]]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[null]}", 400, "input", "invalid_type"},
        {v, "{\"input\":[\"a\",1]}", 400, "input", "invalid_type"},
        {v, "{\"input\":[1,\"a\"]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[[1],2]}", 400, "input", "invalid_type"},
        {v, "{\"input\":[[1],[\"a\"]]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[-1]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[152]}", 400, "input", "invalid_value"},
        {v, "{\"input\":[1.5]}", 400, "input", "invalid_value"},
        {v, "{\"input\":\"a\",\"model\":\"other\"}", 404, "model", "model_not_found"},
        {v, "{\"input\":\"a\",\"model\":\"fake-model\"}", 400, "model", "model_not_supported"},
        {v, "{\"input\":\"a\",\"model\":3}", 400, "model", "invalid_type"},
        {v, "{\"input\":\"a\",\"encoding_format\":\"hex\"}", 400, "encoding_format", "invalid_value"},
        {v, "{\"input\":\"a\",\"encoding_format\":1}", 400, "encoding_format", "invalid_value"},
        {v, "{\"input\":\"a\",\"dimensions\":128}", 400, "dimensions", "unsupported_parameter"},
        {v, "{\"input\":\"a\",\"dimensions\":0}", 400, "dimensions", "invalid_value"},
        {v, "{\"input\":\"a\",\"dimensions\":\"x\"}", 400, "dimensions", "invalid_type"},
        {v, "{\"input\":\"a\",\"truncate_prompt_tokens\":513}", 400, "truncate_prompt_tokens", "invalid_value"},
        {v, "{\"input\":\"a\",\"truncate_prompt_tokens\":-2}", 400, "truncate_prompt_tokens", "invalid_value"},
        {v, "{\"input\":\"dog cat\",\"truncate_prompt_tokens\":1}", 400, "truncate_prompt_tokens", "invalid_value"},
        {v, "{\"input\":\"a\",\"add_special_tokens\":false}", 400, "add_special_tokens", "unsupported_parameter"},
        {v, "{\"input\":\"a\",\"normalize\":false}", 400, "normalize", "unsupported_parameter"},
        {v, "{\"messages\":[]}", 400, "messages", "unsupported_parameter"},
        {r, "{\"documents\":[\"a\"]}", 400, "query", "missing_parameter"},
        {r, "{\"query\":\"a\"}", 400, "documents", "missing_parameter"},
        {r, "{\"query\":\"a\",\"documents\":[]}", 400, "documents", "invalid_value"},
        {r, "{\"query\":\"a\",\"documents\":\"b\"}", 400, "documents", "invalid_type"},
        {r, "{\"query\":\"a\",\"documents\":[\"b\",{\"text\":1}]}", 400, "documents", "invalid_type"},
        {r, "{\"query\":[\"a\"],\"documents\":[\"b\"]}", 400, "query", "invalid_type"},
        {r, "{\"query\":\"a\",\"documents\":[\"b\"],\"top_n\":-1}", 400, "top_n", "invalid_value"},
        {r, "{\"query\":\"a\",\"documents\":[\"b\"],\"return_documents\":1}", 400, "return_documents", "invalid_type"},
        {r, "{\"query\":\"a\",\"documents\":[\"b\"],\"max_tokens_per_doc\":1}", 400, "max_tokens_per_doc",
         "unsupported_parameter"},
        {s, "{\"text_1\":\"a\"}", 400, "text_2", "missing_parameter"},
        {s, "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"a\",\"b\",\"c\"]}", 400, "text_2", "invalid_value"},
        {s, "{\"text_1\":[\"a\",\"b\"],\"text_2\":\"c\"}", 400, "text_2", "invalid_value"},
        {s, "{\"text_1\":[],\"text_2\":\"c\"}", 400, "text_1", "invalid_value"},
        {s, "{\"text_1\":\"a\",\"text_2\":\"c\",\"activation\":false}", 400, "activation", "unsupported_parameter"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refused(&all[i]);
    struct json *j = post("/v1/embeddings", "{\"input\":\"still here\"}", 200);
    json_free(j);
}

static void as_many_texts_as_openai_takes(void **state)
{
    (void)state;
    struct buf body = {0};
    buf_puts(&body, "{\"encoding_format\":\"base64\",\"input\":[\"a\"");
    for (int i = 1; i < 2048; i++)
        buf_puts(&body, ",\"a\"");
    buf_puts(&body, "]}");
    struct json *j = post("/v1/embeddings", body.data, 200);
    assert_int_equal(json_count(json_find(j, "data")), 2048);
    json_free(j);
    body.len -= 2;
    buf_puts(&body, ",\"a\"]}");
    refused(&(struct wrong){"/v1/embeddings", body.data, 400, "input", "invalid_value"});
    buf_free(&body);
}

static void methods_and_models(void **state)
{
    (void)state;
    static const char *const paths[] = {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"};
    for (int i = 0; i < 6; i++) {
        struct reply r = site_do(site.port, "GET", paths[i], NULL, "");
        assert_int_equal(r.status, 405);
        reply_free(&r);
        r = site_do(site.port, "POST", paths[i], "Origin: http://x\r\nContent-Type: text/plain\r\n", "{}");
        assert_int_equal(r.status, 415);
        reply_free(&r);
    }
    struct reply r = site_do(site.port, "GET", "/v1/models", NULL, "");
    struct json *j = parsed(&r.body);
    const struct json *m = item(json_find(j, "data"), 2);
    assert_string_equal(json_text(json_find(m, "id")), "enc");
    assert_string_equal(json_text(json_find(m, "root")), "here");
    assert_int_equal(number(m, "max_model_len"), 512);
    json_free(j);
    reply_free(&r);
    r = site_do(site.port, "GET", "/v1/models/enc", NULL, "");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    r = site_do(site.port, "POST", "/v1/embeddings", "X-Request-Id: mine-1\r\n", "{\"input\":\"a\"}");
    assert_int_equal(strncmp(reply_header(&r, "X-Request-Id: "), "mine-1\r\n", 8), 0);
    assert_non_null(strstr(r.body.data, "\"id\":\"embd-mine-1\""));
    reply_free(&r);
}

static void without_an_encoder_it_says_so(void **state)
{
    (void)state;
    struct json *j = post("/v1/embeddings", "{\"input\":\"a\"}", 501);
    assert_non_null(strstr(json_text(json_find(json_find(j, "error"), "message")), "--embedding-model"));
    json_free(j);
}

/* ---- scores */

static void scores_of_vectors(void **state)
{
    (void)state;
    float a[384], b[384], c[384];
    expected(vectors, "dog", NULL, a);
    expected(vectors, "cat", NULL, b);
    expected(vectors, "the sun", NULL, c);
    struct json *j = post("/score", "{\"text_1\":\"dog\",\"text_2\":[\"cat\",\"the sun\",\"dog\"]}", 200);
    const struct json *data = json_find(j, "data");
    const double want[] = {cosine(a, b), cosine(a, c), 1};
    assert_int_equal(json_count(data), 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(number(item(data, i), "index"), i);
        assert_true(fabs(json_number(json_find(item(data, i), "score")) - want[i]) < 1e-6);
    }
    assert_int_equal(number(json_find(j, "usage"), "total_tokens"), 3 + 3 + 4 + 3);
    json_free(j);
    j = post("/v1/score", "{\"text_1\":[\"dog\",\"cat\"],\"text_2\":[\"the sun\",\"cat\"]}", 200);
    data = json_find(j, "data");
    assert_true(fabs(json_number(json_find(item(data, 0), "score")) - cosine(a, c)) < 1e-6);
    assert_true(fabs(json_number(json_find(item(data, 1), "score")) - 1) < 1e-6);
    json_free(j);
}

static void ranks_best_first(void **state)
{
    (void)state;
    static const char *const docs[] = {"cat", "the sun", "dog", "king of the north"};
    float q[384], d[384];
    double want[4];
    expected(vectors, "dog", NULL, q);
    for (int i = 0; i < 4; i++) {
        expected(vectors, docs[i], NULL, d);
        want[i] = cosine(q, d);
    }
    struct json *j = post("/v1/rerank",
                          "{\"query\":\"dog\",\"documents\":[\"cat\",{\"text\":\"the sun\"},\"dog\",\"king of the "
                          "north\"],\"top_n\":3}",
                          200);
    const struct json *results = json_find(j, "results");
    double last = 2;
    assert_int_equal(json_count(results), 3);
    assert_int_equal(number(item(results, 0), "index"), 2);
    for (int i = 0; i < 3; i++) {
        const struct json *r = item(results, i);
        int64_t k = number(r, "index");
        double score = json_number(json_find(r, "relevance_score"));
        assert_string_equal(json_text(json_find(json_find(r, "document"), "text")), docs[k]);
        assert_true(fabs(score - want[k]) < 1e-6 && score <= last);
        last = score;
    }
    for (int i = 0, better = 0; i < 4; i++, assert_true(better <= 4))
        better += want[i] >= last - 1e-6;
    json_free(j);
    j = post("/v2/rerank", "{\"query\":\"dog\",\"documents\":[\"cat\"],\"return_documents\":false}", 200);
    assert_null(json_find(item(json_find(j, "results"), 0), "document"));
    json_free(j);
}

static void scores_of_pairs(void **state)
{
    (void)state;
    float want[2];
    int n = expected(pairs, "who is king", "the king of the north", &want[0]);
    n += expected(pairs, "who is king", "paris", &want[1]);
    struct json *j =
        post("/score", "{\"text_1\":\"who is king\",\"text_2\":[\"the king of the north\",\"paris\"]}", 200);
    const struct json *data = json_find(j, "data");
    for (int i = 0; i < 2; i++)
        assert_true((float)json_number(json_find(item(data, i), "score")) == want[i]);
    assert_int_equal(number(json_find(j, "usage"), "total_tokens"), n);
    json_free(j);
    j = post("/rerank", "{\"query\":\"who is king\",\"documents\":[\"the king of the north\",\"paris\"]}", 200);
    int best = want[0] >= want[1] ? 0 : 1;
    assert_int_equal(number(item(json_find(j, "results"), 0), "index"), best);
    json_free(j);
    refused(&(struct wrong){"/v1/embeddings", "{\"input\":\"a\"}", 400, "model", "model_not_supported"});
}

/* The document is cut, the query never. */
static void long_pairs(void **state)
{
    (void)state;
    struct buf body = {0};
    struct tokens ids = {0};
    struct err e = {0};
    float want;
    int n_first;
    buf_puts(&body, "{\"query\":\"who\",\"documents\":[\"");
    size_t from = body.len;
    put_words(&body, 700, 3);
    struct encoder_text t = {"who", body.data + from, 3, body.len - from};
    assert_int_equal(encoder_tokenize(pairs, &t, (struct tokenize_how){0}, &ids, &n_first, &e), 0);
    buf_puts(&body, "\"]}");
    refused(&(struct wrong){"/rerank", body.data, 400, "documents", "context_length_exceeded"});
    body.len -= 1;
    buf_puts(&body, ",\"truncate_prompt_tokens\":-1}");
    struct json *j = post("/rerank", body.data, 200);
    ids.ids[511] = ids.ids[ids.len - 1];
    ids.len = 512;
    run(pairs, &ids, n_first, &want);
    assert_true((float)json_number(json_find(item(json_find(j, "results"), 0), "relevance_score")) == want);
    json_free(j);
    body.len -= 3;
    buf_puts(&body, "3}"); /* [CLS] who [SEP] leaves nothing */
    refused(&(struct wrong){"/rerank", body.data, 400, "truncate_prompt_tokens", "invalid_value"});
    tokens_free(&ids);
    buf_free(&body);
}

/* ---- who leaves, and ends */

/* Many that leave at any moment: the server answers the next, and its books balance. */
static void clients_that_leave(void **state)
{
    (void)state;
    struct buf body = {0};
    buf_puts(&body, "{\"input\":[\"a\"");
    for (int i = 1; i < 1500; i++) {
        buf_puts(&body, ",\"");
        put_words(&body, 20 + i % 30, i);
        buf_putc(&body, '"');
    }
    buf_puts(&body, "]}");
    for (int i = 0; i < 30; i++) {
        int fd = site_connect(site.port);
        site_post_on(fd, "POST", "/v1/embeddings", NULL, body.data);
        usleep((unsigned)(i * 1500));
        close(fd);
    }
    struct json *j = post("/v1/embeddings", "{\"input\":\"still here\"}", 200);
    json_free(j);
    struct reply r = site_do(site.port, "GET", "/metrics", NULL, "");
    assert_non_null(strstr(r.body.data, "moonshift:embedding_inputs_waiting 0\n"));
    assert_non_null(strstr(r.body.data, "result=\"gone\"}"));
    reply_free(&r);
    buf_free(&body);
}

static double value(const char *metrics, const char *name)
{
    const char *at = strstr(metrics, name);
    assert_non_null(at);
    return strtod(at + strlen(name), NULL);
}

struct seen {
    double handed, waiting, running, requests; /* handed: to replicas, in tokens */
};

static struct seen look(void)
{
    struct reply r = site_do(site.port, "GET", "/metrics", NULL, "");
    struct seen s = {value(r.body.data, "\nmoonshift:embedding_batch_tokens_total "),
                     value(r.body.data, "\nmoonshift:embedding_inputs_waiting "),
                     value(r.body.data, "\nmoonshift:embedding_inputs_running "),
                     value(r.body.data, "\nhttp_requests_in_progress ") - 1};
    reply_free(&r);
    return s;
}

/* Large requests that are all in the line, and leave while most of their texts wait: not all of them are computed. On a
 * busy machine the moment may pass unseen, so it may take several rounds. */
static void what_nobody_waits_for_is_not_computed(void **state)
{
    (void)state;
    enum { REQUESTS = 12, TEXTS = 2048, ALL = REQUESTS * TEXTS };
    struct buf body = {0};
    bool saved = false;
    buf_puts(&body, "{\"encoding_format\":\"base64\",\"input\":[[5]");
    for (int i = 1; i < TEXTS; i++)
        buf_puts(&body, ",[5]");
    buf_puts(&body, "]}");
    for (int round = 0; round < 100 && !saved; round++) {
        int fds[REQUESTS];
        struct seen before = look(), now = before;
        for (int i = 0; i < REQUESTS; i++) {
            fds[i] = site_connect(site.port);
            site_post_on(fds[i], "POST", "/v1/embeddings", NULL, body.data);
        }
        do /* each text is one token */
            now = look();
        while (now.handed - before.handed + now.waiting < ALL);
        bool early = now.waiting > 0;
        for (int i = 0; i < REQUESTS; i++)
            close(fds[i]);
        do
            now = look();
        while (now.requests > 0 || now.waiting > 0 || now.running > 0);
        saved = early && now.handed - before.handed < ALL;
    }
    assert_true(saved);
    buf_free(&body);
}

enum { SMALL_ROOM = 100000 };

static int with_little_room_for_texts(void **state)
{
    (void)state;
    site_init(&site);
    site.setup.embed = (struct embed_plan){.encoder = vectors,
                                           .name = "enc",
                                           .root = "here",
                                           .replicas = 1,
                                           .threads = 1,
                                           .batch_tokens = 600,
                                           .held_bytes = SMALL_ROOM};
    site_start(&site);
    return 0;
}

/* More than fits; the last text has so many words. */
static struct buf large_body(const char *kind, int last)
{
    struct buf body = {0};
    buf_printf(&body, "{%s:[", kind);
    for (int i = 0; i < 500; i++) {
        buf_putc(&body, '"');
        put_words(&body, 60, i);
        buf_puts(&body, "\",");
    }
    buf_putc(&body, '"');
    put_words(&body, last, 1);
    buf_puts(&body, "\"]}");
    assert_true(body.len > SMALL_ROOM);
    return body;
}

/* Several at once: one is taken, the others are refused while it keeps its texts. How many refusals there were. */
static int ask_at_once(const struct buf *body, const char *path)
{
    int fds[8], taken = 0, refused_n = 0;
    for (int i = 0; i < 8; i++) {
        fds[i] = site_connect(site.port);
        site_post_on(fds[i], "POST", path, NULL, body->data);
    }
    for (int i = 0; i < 8; i++) {
        struct reply r = site_reply(fds[i], NULL);
        bool full = r.status == 503 && strstr(r.body.data, "too many texts wait to be read") &&
                    strstr(r.head.data, "Retry-After: 1");
        if (r.status != 200 && !full)
            fail_msg("%d: %.300s", r.status, r.body.data);
        taken += !full;
        refused_n += full;
        reply_free(&r);
        close(fds[i]);
    }
    assert_true(taken > 0);
    return refused_n;
}

/* Who is taken although nothing more would fit has found the room empty. That may take a moment: of a client that is
 * gone the server reads and drops what it has sent. */
static void expect_room(const struct buf *body)
{
    for (int wait = 0;; wait++) {
        struct reply r = site_do(site.port, "POST", "/v1/embeddings", NULL, body->data);
        int status = r.status;
        if (status != 200 && (status != 503 || wait == 3000))
            fail_msg("%d: %.300s", status, r.body.data);
        reply_free(&r);
        if (status == 200)
            return;
        usleep(10000);
    }
}

static void texts_that_wait_have_a_bound(void **state)
{
    (void)state;
    struct buf texts = large_body("\"encoding_format\":\"base64\",\"input\"", 3),
               documents = large_body("\"query\":\"king\",\"documents\"", 3),
               wrong = large_body("\"encoding_format\":\"base64\",\"input\"", 2000);
    int n = 0, m = 0;
    for (int round = 0; round < 100 && (!n || !m); round++) { /* on a busy machine they may come one by one */
        n += ask_at_once(&texts, "/v1/embeddings");
        m += ask_at_once(&documents, "/rerank"); /* it keeps its documents for the answer */
    }
    assert_true(n > 0 && m > 0);
    expect_room(&texts);
    json_free(post("/v1/embeddings", wrong.data, 400));
    expect_room(&texts);
    for (int i = 0; i < 4; i++) {
        int fd = site_connect(site.port);
        site_post_on(fd, "POST", i % 2 ? "/rerank" : "/v1/embeddings", NULL, i % 2 ? documents.data : texts.data);
        usleep(3000 * (unsigned)i);
        close(fd);
        expect_room(&texts);
    }
    buf_free(&texts);
    buf_free(&documents);
    buf_free(&wrong);
}

/* Requests that are under way when the server drains are answered. */
static void draining_answers_who_is_here(void **state)
{
    (void)state;
    struct buf body = {0};
    int fds[8];
    buf_puts(&body, "{\"encoding_format\":\"base64\",\"input\":[\"a\"");
    for (int i = 1; i < 1000; i++) {
        buf_puts(&body, ",\"");
        put_words(&body, 40, i);
        buf_putc(&body, '"');
    }
    buf_puts(&body, "]}");
    for (int i = 0; i < 8; i++) {
        fds[i] = site_connect(site.port);
        site_post_on(fds[i], "POST", "/v1/embeddings", NULL, body.data);
    }
    for (int k = 0; k < 2000; k++) { /* until all have been received */
        struct reply r = site_do(site.port, "GET", "/metrics", NULL, "");
        bool all = strstr(r.body.data, "http_requests_in_progress 9\n") != NULL;
        reply_free(&r);
        if (all)
            break;
        usleep(500);
    }
    int late = site_connect(site.port); /* its body comes when it is too late */
    static const char head[] = "POST /score HTTP/1.1\r\nHost: t\r\nContent-Length: 27\r\n\r\n{\"text_1\":",
                      rest[] = "\"a\",\"text_2\":\"b\"}";
    site_send(late, head, sizeof head - 1);
    struct reply asked = site_do(site.port, "GET", "/health", NULL, ""); /* by now its head has been read */
    assert_int_equal(asked.status, 200);
    reply_free(&asked);
    struct reply drain = site_do(site.admin_port, "POST", "/admin/drain", NULL, "");
    assert_int_equal(drain.status, 200);
    reply_free(&drain);
    int answered = 0;
    site_send(late, rest, sizeof rest - 1);
    struct reply refusal = site_reply(late, NULL);
    assert_int_equal(refusal.status, 503);
    assert_non_null(strstr(refusal.body.data, "draining"));
    reply_free(&refusal);
    close(late);
    for (int i = 0; i < 8; i++) {
        struct reply r = site_reply(fds[i], NULL);
        assert_int_equal(r.status, 200);
        struct json *j = parsed(&r.body);
        answered += json_count(json_find(j, "data")) == 1000;
        json_free(j);
        reply_free(&r);
        close(fds[i]);
    }
    assert_int_equal(answered, 8);
    buf_free(&body);
    thread_join(site.thread);
    assert_int_equal(site.rc, 0);
    fake_stop(&site.engine);
    server_destroy(site.server);
    fake_free(&site.engine);
    chat_free(site.chat);
    tokenizer_free(site.tokenizer);
}

static int open_encoders(void **state)
{
    (void)state;
    struct err e = {0};
    if (encoder_open(&vectors, "tests/data/encoder_sim", "sim", &e) ||
        encoder_open(&pairs, "tests/data/encoder_pairs", "sim", &e) ||
        encoder_open(&cuttable, "tests/data/encoder_sim", "sim", &e))
        fail_msg("%s", e.text);
    cuttable->facts.cuts = (struct encoder_cuts){.n = 2, .at = {64, 128}}; /* as config.json would say */
    return 0;
}

static int close_encoders(void **state)
{
    (void)state;
    encoder_close(vectors);
    encoder_close(pairs);
    encoder_close(cuttable);
    return 0;
}

#define WITH(test, how) cmocka_unit_test_setup_teardown(test, how, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(one_text, with_vectors),
        WITH(many_texts_in_their_order, with_vectors),
        WITH(vectors_are_cut_where_the_model_says_so, with_cuts),
        WITH(token_ids_are_taken_as_they_are, with_vectors),
        WITH(a_large_body_is_read_in_parts, with_vectors),
        WITH(what_is_too_long_is_refused_or_cut, with_vectors),
        WITH(wrong_bodies, with_vectors),
        WITH(as_many_texts_as_openai_takes, with_vectors),
        WITH(methods_and_models, with_vectors),
        WITH(without_an_encoder_it_says_so, without),
        WITH(scores_of_vectors, with_vectors),
        WITH(ranks_best_first, with_vectors),
        WITH(scores_of_pairs, with_pairs),
        WITH(long_pairs, with_pairs),
        WITH(clients_that_leave, with_vectors),
        WITH(what_nobody_waits_for_is_not_computed, with_vectors),
        WITH(texts_that_wait_have_a_bound, with_little_room_for_texts),
        cmocka_unit_test_setup(draining_answers_who_is_here, with_vectors),
    };
    return cmocka_run_group_tests(tests, open_encoders, close_encoders);
}
