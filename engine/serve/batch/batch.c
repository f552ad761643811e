#include "engine/serve/batch/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/serve/batch/input.h"
#include "engine/serve/batch/results.h"
#include "engine/serve/http/client.h"

enum { ANSWER_BYTES = 256 << 20, AHEAD_BYTES = 64 << 20, TRIES = 3 };

/* A line on its way, or answered and waiting for those before it. */
struct pending {
    struct batch *batch;
    struct batch_line line;
    struct buf result;
    bool answered, error;
    bool again; /* it is to be sent once more, a little later */
    int tries;
};

struct batch {
    struct batch_setup setup;
    struct input *input;
    struct results *results;
    struct http_client *client;
    char *journal;                   /* path */
    struct pending *window;          /* the line of number k is at k % n_window; from the next to be written on */
    int64_t n_window, next, read_to; /* numbers: the next to be written; the last that was read */
    size_t held;                     /* bytes of requests and results in the window */
    bool at_end;                     /* of the input */
    bool gone;                       /* the server takes no more */
    bool expired;                    /* lines without an answer get none */
    struct batch_server server;      /* while it runs */
    int n_again;
    int64_t again_ns; /* since then */
    char why[200];
    int64_t begun_ns, said_ns, begun_at; /* begun_at: lines that were done then */
    int64_t tokens;
};

static size_t weight(const struct pending *p)
{
    return p->line.id.len + p->line.body.len + p->result.len;
}

/* ---- what came of a line */

static void begin_result(struct pending *p)
{
    results_begin_line(&p->result, p->line.number);
    buf_puts(&p->result, "\"custom_id\":");
    buf_puts(&p->result, p->line.id.len ? p->line.id.data : "null");
}

static void note_refused(struct pending *p)
{
    begin_result(p);
    buf_printf(&p->result, ",\"response\":null,\"error\":{\"code\":\"%s\",\"message\":", p->line.code);
    json_put_string(&p->result, p->line.why, strlen(p->line.why), false);
    buf_puts(&p->result, "}}");
    p->answered = p->error = true;
}

/* Behind the first of these words in the answer; its end: it has none. */
static const char *behind(const char *from, const char *end, const char *word)
{
    size_t n = strlen(word);
    const char *at = from < end ? memmem(from, (size_t)(end - from), word, n) : NULL;
    return at ? at + n : end;
}

/* Text [at, end), with this word, which is not empty, in the place of that one. */
static void put_with(struct buf *out, const char *at, const char *end, const char *that, size_t n, const char *word)
{
    for (const char *found; (found = memmem(at, (size_t)(end - at), that, n)); at = found + n) {
        buf_put(out, at, (size_t)(found - at));
        buf_puts(out, word);
    }
    buf_put(out, at, (size_t)(end - at));
}

/* The answer as it came, but for what would differ from run to run: what follows "cmpl-" or "resp_" in its id, which
 * ids within it may have, too, and the time. It is not read as JSON: texts may hold what a wall does not let in. */
static void put_answer(struct buf *out, const struct batch *b, int64_t number, const char *body, size_t n)
{
    const char *end = body + n, *id = behind(body, end, "{\"id\":\""), *rest = behind(id, end, "\"");
    const char *own = id + strcspn(id, "-_\""), *created = behind(rest, end, "\"created\":");
    char word[32];
    if (created == end)
        created = behind(rest, end, "\"created_at\":");
    size_t digits = created < end ? strspn(created, "0123456789") : 0,
           n_own = own + 1 < rest ? (size_t)(rest - own) - 2 : 0;
    if (!n_own) {
        buf_put(out, body, n);
        return;
    }
    snprintf(word, sizeof word, "batch-%" PRId64, number);
    put_with(out, body, created, own + 1, n_own, word);
    if (digits)
        buf_printf(out, "%" PRId64, input_modified(b->input));
    put_with(out, created + digits, end, own + 1, n_own, word);
}

static void note_answer(struct pending *p, int status, const char *body, size_t n)
{
    const char *end = body + n, *usage = behind(body, end, "\"completion_tokens\":");
    if (usage == end) /* responses */
        usage = behind(body, end, "\"output_tokens\":");
    if (usage == end) /* vectors */
        usage = behind(body, end, "\"total_tokens\":");
    begin_result(p);
    buf_printf(&p->result, ",\"response\":{\"status_code\":%d,\"request_id\":\"req_%" PRId64 "\",\"body\":", status,
               p->line.number);
    if (status == 200)
        put_answer(&p->result, p->batch, p->line.number, body, n);
    else
        buf_put(&p->result, body, n);
    buf_puts(&p->result, "},\"error\":null}");
    buf_free(&p->line.body); /* it is not sent again */
    p->batch->tokens += usage < end ? strtoll(usage, NULL, 10) : 0;
    p->answered = true;
    p->error = status != 200;
}

static void stop(struct batch *b, const char *why)
{
    b->gone = true;
    snprintf(b->why, sizeof b->why, "%s", why);
}

static void post(struct pending *p)
{
    p->tries++;
    p->batch->n_again -= p->again;
    p->again = false;
    if (!http_client_post(p->batch->client, p->line.path, p->line.body.data, p->line.body.len, p))
        stop(p->batch, "the server cannot be reached");
}

/* Why a server takes no more, in its words. */
static void stop_with(struct batch *b, const char *body, size_t n)
{
    struct json *root = json_parse(body, n, NULL, NULL);
    const char *why = json_text(json_find(json_find(root, "error"), "message"));
    stop(b, why ? why : "the server takes no more");
    json_free(root);
}

static void put_off(struct pending *p)
{
    struct batch *b = p->batch;
    if (!b->n_again++)
        b->again_ns = clock_now(b->setup.clock);
    p->again = true;
}

static void on_answer(void *ctx, void *tag, int status, const char *body, size_t n)
{
    struct batch *b = ctx;
    struct pending *p = tag;
    size_t before = weight(p);
    if (b->gone)
        return; /* nothing is written any more */
    if (b->server.word && (status == 503 || status == 429 || status == 0))
        put_off(p);
    else if (status == 503)
        stop_with(b, body, n);
    else if (status && n && !memchr(body, '\n', n))
        note_answer(p, status, body, n);
    else if (p->tries < TRIES)
        post(p); /* the connection had gone */
    else
        stop(b, "the server takes no more requests");
    b->held += weight(p) - before; /* modulo 2^64: it may have become less */
}

/* ---- progress */

static void say_progress(struct batch *b, bool now)
{
    int64_t t = clock_now(b->setup.clock), every = b->setup.terminal ? 1000000000 : 30000000000;
    if (b->setup.quiet || (!now && t - b->said_ns < every))
        return;
    b->said_ns = t;
    int64_t done = results_count(b->results), all = input_count(b->input);
    double s = (double)(t - b->begun_ns) * 1e-9, rate = s > 0 ? (double)(done - b->begun_at) / s : 0;
    double left = rate > 0 ? (double)(all - done) / rate : 0;
    fprintf(stderr, "%s%" PRId64 " of %" PRId64 " lines, %" PRId64 " errors, %.0f tokens/s, %.0f min %02.0f s left%s",
            b->setup.terminal ? "\r" : "", done, all, results_errors(b->results), s > 0 ? (double)b->tokens / s : 0.0,
            (left - (double)((int64_t)left % 60)) / 60, (double)((int64_t)left % 60),
            b->setup.terminal && !now ? "   " : "\n");
}

/* ---- the job */

/* What the job is of, as text: whoever goes on with it has to be of the same. */
static void describe(const struct batch *b, struct buf *out)
{
    buf_puts(out, "moonshift batch: ");
    input_print(b->input, out);
    buf_printf(out, "; model %s; seed %" PRIu64 "\n", b->setup.model, b->setup.seed);
}

static int check_journal(struct batch *b, struct err *e)
{
    struct buf here = {0}, there = {0};
    int rc = 0;
    describe(b, &here);
    if (access(b->journal, F_OK) == 0)
        rc = file_read(&there, b->journal, 4096, e);
    else if (access(b->setup.output, F_OK) == 0 || access(b->setup.errors, F_OK) == 0)
        rc = err_set(e, E_INPUT, "%.300s is there already, and no job is under way: choose another name, or remove it",
                     access(b->setup.output, F_OK) == 0 ? b->setup.output : b->setup.errors);
    else
        rc = file_replace(b->journal, here.data, here.len, e);
    if (!rc && there.len && !buf_equals(&there, here.data))
        rc =
            err_set(e, E_INPUT,
                    "%.200s was begun with another input, model, precision or seed (%.200s says which): choose another "
                    "name, or remove both",
                    b->setup.output, b->journal);
    buf_free(&here);
    buf_free(&there);
    return rc;
}

int batch_open(struct batch **out, const struct batch_setup *s, struct err *e)
{
    struct batch *b = mem_new(sizeof *b);
    struct buf journal = {0};
    b->setup = *s;
    buf_printf(&journal, "%s.job", s->output);
    b->journal = buf_take(&journal);
    int rc = input_open(&b->input, s->input, e);
    if (!rc)
        rc = check_journal(b, e);
    if (!rc)
        rc = results_open(&b->results, s->output, s->errors, e);
    if (rc) {
        batch_close(b);
        return rc;
    }
    b->begun_at = b->read_to = results_count(b->results);
    b->next = b->begun_at + 1;
    input_skip(b->input, b->begun_at);
    *out = b;
    return 0;
}

void batch_close(struct batch *b)
{
    if (!b)
        return;
    http_client_close(b->client);
    for (int64_t i = 0; i < b->n_window; i++) {
        batch_line_free(&b->window[i].line);
        buf_free(&b->window[i].result);
    }
    mem_free(b->window);
    results_close(b->results);
    input_close(b->input);
    mem_free(b->journal);
    mem_free(b);
}

int64_t batch_left(const struct batch *b)
{
    return input_count(b->input) - results_count(b->results);
}

static struct pending *pending_of(struct batch *b, int64_t number)
{
    return &b->window[number % b->n_window];
}

/* Writes what is answered, as far as nothing before it is missing. */
static int write_answered(struct batch *b, struct err *e)
{
    while (b->next <= b->read_to && pending_of(b, b->next)->answered) {
        struct pending *p = pending_of(b, b->next);
        b->held -= weight(p);
        TRY(results_put(b->results, p->error, &p->result, e));
        batch_line_free(&p->line);
        buf_free(&p->result);
        *p = (struct pending){.batch = b};
        b->next++;
    }
    return 0;
}

static void expire(struct pending *p)
{
    p->line.code = "batch_expired";
    snprintf(p->line.why, sizeof p->line.why, "this line was not answered within 24 hours");
    note_refused(p);
}

/* What is on its way is called off, too. */
static void expire_all(struct batch *b)
{
    http_client_close(b->client);
    b->client = NULL;
    b->expired = true;
    for (int64_t n = b->next; n <= b->read_to; n++) {
        struct pending *p = pending_of(b, n);
        size_t before = weight(p);
        if (!p->answered)
            expire(p);
        b->held += weight(p) - before;
    }
}

/* What the server would not take is offered again after a while. */
static void send_again(struct batch *b)
{
    enum { LATER_NS = 250000000 };
    if (!b->n_again || clock_now(b->setup.clock) - b->again_ns < LATER_NS)
        return;
    b->again_ns = clock_now(b->setup.clock);
    for (int64_t n = b->next; n <= b->read_to && !http_client_is_full(b->client) && !b->gone; n++)
        if (pending_of(b, n)->again)
            post(pending_of(b, n));
}

/* False: it stops here. */
static bool heed_word(struct batch *b)
{
    enum batch_word w = b->server.word && !b->expired
                            ? b->server.word(b->server.ctx, results_count(b->results), results_errors(b->results))
                            : BATCH_GO;
    if (w == BATCH_EXPIRE)
        expire_all(b);
    if (w == BATCH_STOP)
        stop(b, "it is called off");
    return w != BATCH_STOP;
}

/* Lines may be 16 MiB long: it is their bytes that fill the memory, not their number. One is read in any case. */
static bool may_read(const struct batch *b)
{
    int64_t n = b->read_to + 1 - b->next;
    bool full = b->client && (b->n_again || http_client_is_full(b->client));
    return !b->gone && !full && n < b->n_window && (n == 0 || b->held < AHEAD_BYTES);
}

/* Sends lines until as many are on their way, or wait for others, as may. */
static void send_more(struct batch *b)
{
    while (may_read(b)) {
        struct batch_line line;
        if (!input_next(b->input, b->setup.seed, &line)) {
            b->at_end = true;
            return;
        }
        struct pending *p = pending_of(b, line.number);
        *p = (struct pending){.batch = b, .line = line};
        b->read_to = line.number;
        if (b->expired && !line.code)
            expire(p);
        else if (line.code)
            note_refused(p);
        else
            post(p);
        b->held += weight(p);
    }
}

static int run_lines(struct batch *b, struct err *e)
{
    while (heed_word(b)) {
        send_more(b);
        TRY(write_answered(b, e));
        if (b->gone)
            break;
        if (b->next > b->read_to && b->at_end) {
            say_progress(b, b->setup.terminal);
            heed_word(b); /* whoever counts has it all */
            return 0;
        }
        if (b->next <= b->read_to && !pending_of(b, b->next)->answered)
            http_client_turn(b->client, b->n_again ? 250 : 500);
        if (b->client)
            send_again(b);
        say_progress(b, false);
    }
    return err_set(e, E_GONE, "stopped: %.150s. The same command goes on from here", b->why);
}

int batch_run(struct batch *b, const struct batch_server *s, struct err *e)
{
    struct http_client_setup setup = {.port = s->port,
                                      .key = s->key,
                                      .n_connections = s->at_once,
                                      .answer_bytes = ANSWER_BYTES,
                                      .answered = on_answer,
                                      .ctx = b};
    b->server = *s;
    b->begun_ns = b->said_ns = clock_now(b->setup.clock);
    b->n_window = 4 * (int64_t)s->at_once;
    b->window = mem_new_array((size_t)b->n_window, sizeof *b->window);
    TRY(http_client_open(&b->client, &setup, e));
    int rc = run_lines(b, e);
    http_client_close(b->client); /* what is still on its way is called off: it would keep the server from its end */
    b->client = NULL;
    return rc;
}

static void say_end(const struct batch *b, int64_t errors)
{
    fprintf(stderr, "%" PRId64 " answers in %s", results_count(b->results) - errors, b->setup.output);
    if (errors)
        fprintf(stderr, ", %" PRId64 " errors in %s", errors, b->setup.errors);
    fputc('\n', stderr);
}

int batch_end(struct batch *b, struct err *e)
{
    int64_t errors = results_errors(b->results);
    if (batch_left(b) != 0)
        return err_set(e, E_INPUT, "the input has changed: it had %" PRId64 " lines, and %" PRId64 " were found",
                       input_count(b->input), results_count(b->results));
    if (!b->setup.quiet)
        say_end(b, errors);
    return b->setup.keeps_journal || unlink(b->journal) == 0 ? 0
                                                             : err_set(e, E_SYS, "cannot remove %.300s", b->journal);
}
