#include "engine/serve/terminal/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "engine/base/utf8.h"
#include "engine/engine.h"
#include "engine/serve/terminal/line_editor.h"

enum { INPUT_BYTES = 64 << 20, READ_BYTES = 4096 };

struct terminal {
    struct terminal_setup setup;
    int interrupts;             /* signalfd of SIGINT */
    bool screen, keyboard;      /* stdout, stdin is a terminal */
    bool dim;                   /* the numbers, on stderr */
    struct line_editor *editor; /* NULL: lines come as the terminal gives them */
    bool at_end;                /* of the input */
    struct buf input;           /* read and not used yet */
    struct buf messages;        /* JSON objects with commas between */
    uint64_t tag;
    struct detok detok;
    struct buf shown; /* the answer so far */
    size_t n_written; /* of it, on the screen */
};

struct answer {
    bool stopped; /* by Ctrl-C */
    int n_prompt, n_output, n_cached;
    double first_s, all_s;
};

/* ---- the screen */

static void write_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return;
        p += w;
        n -= (size_t)w;
    }
}

static void put(int fd, const char *text)
{
    write_all(fd, text, strlen(text));
}

/* A terminal obeys control characters, and a model may have been made to write some. */
static void put_answer(const struct terminal *t, const char *text, size_t n)
{
    if (!t->screen) {
        write_all(STDOUT_FILENO, text, n);
        return;
    }
    struct buf clean = {0};
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = utf8_decode(text + i, n - i, &cp);
        bool control = len > 0 && ((cp < 0x20 && cp != '\n' && cp != '\t') || (cp >= 0x7F && cp < 0xA0));
        if (len > 0 && !control)
            buf_put(&clean, text + i, (size_t)len);
        else
            buf_puts(&clean, "\xEF\xBF\xBD");
        i += len > 0 ? (size_t)len : 1;
    }
    write_all(STDOUT_FILENO, clean.data ? clean.data : "", clean.len);
    buf_free(&clean);
}

static void put_new_text(struct terminal *t)
{
    put_answer(t, t->shown.data + t->n_written, t->shown.len - t->n_written);
    t->n_written = t->shown.len;
}

/* ---- the keyboard */

static void forget_interrupts(struct terminal *t)
{
    struct signalfd_siginfo info;
    while (read(t->interrupts, &info, sizeof info) > 0)
        ;
}

/* Reads a piece of the input. false: an interrupt came instead. */
static bool read_some(struct terminal *t)
{
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = t->interrupts, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0)
        return errno == EINTR;
    if (fds[1].revents) {
        forget_interrupts(t);
        return false;
    }
    buf_reserve(&t->input, READ_BYTES);
    ssize_t n = read(STDIN_FILENO, t->input.data + t->input.len, READ_BYTES);
    if (n > 0) {
        t->input.len += (size_t)n;
        t->input.data[t->input.len] = 0;
    }
    t->at_end = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
    return true;
}

/* As line_editor_read, without an editor. */
static enum line_result read_plainly(struct terminal *t, const char *prompt, struct buf *line)
{
    buf_clear(line);
    put(STDOUT_FILENO, prompt);
    for (;;) {
        char *end = t->input.len ? memchr(t->input.data, '\n', t->input.len) : NULL;
        if (end || (t->at_end && t->input.len)) {
            size_t n = end ? (size_t)(end - t->input.data) : t->input.len;
            buf_put(line, t->input.data, n);
            buf_cut(&t->input, end ? n + 1 : n);
            return LINE_READ;
        }
        if (t->at_end)
            return LINE_OVER;
        if (!read_some(t)) {
            buf_clear(&t->input);
            return LINE_INTERRUPTED;
        }
    }
}

/* The next question: a line, with those after it while one ends in a backslash. false: the input is over. */
static bool read_question(struct terminal *t, struct buf *question)
{
    struct buf line = {0};
    const char *prompt = "> ";
    bool more = true;
    buf_clear(question);
    while (more) {
        enum line_result got = t->editor ? line_editor_read(t->editor, prompt, &line) : read_plainly(t, prompt, &line);
        if (got == LINE_OVER) {
            put(STDOUT_FILENO, "\n");
            break;
        }
        if (got == LINE_INTERRUPTED) {
            buf_clear(question);
            put(STDOUT_FILENO, "\n(Ctrl-D or /quit ends)\n");
            prompt = "> ";
            continue;
        }
        more = line.len && line.data[line.len - 1] == '\\';
        buf_put(question, line.data, more ? line.len - 1 : line.len);
        if (more)
            buf_putc(question, '\n');
        prompt = ". ";
    }
    buf_free(&line);
    return !more || question->len > 0;
}

/* ---- a question to the engine */

static struct request_spec *make_spec(struct terminal *t, struct tokens *prompt)
{
    int64_t most = t->setup.max_tokens;
    struct request_spec *s = mem_new(sizeof *s);
    const int32_t *ends;
    size_t n_ends = tokenizer_end_ids(t->setup.model_text->tokenizer, &ends);
    int room = t->setup.model_text->max_model_len - (int)prompt->len;
    s->tag = ++t->tag;
    snprintf(s->name, sizeof s->name, "run-%llu", (unsigned long long)t->tag);
    s->arrival_ns = clock_now(t->setup.clock);
    s->prompt = prompt->ids; /* moves */
    s->n_prompt = (int)prompt->len;
    *prompt = (struct tokens){0};
    s->open_ended = !most;
    s->max_tokens = most && most < room ? (int)most : room;
    s->stop_ids = mem_new_array(n_ends, sizeof *s->stop_ids);
    s->n_stop_ids = (int)n_ends;
    if (n_ends)
        memcpy(s->stop_ids, ends, n_ends * sizeof *ends);
    s->sampling = t->setup.sampling;
    s->sampling.seed += t->tag;
    return s;
}

/* Takes one event of the engine's. true: it was the ending; *rc says how it went. */
static bool take_event(struct terminal *t, const struct engine_event *ev, struct answer *a, int *rc, struct err *e)
{
    struct engine_event one;
    if (ev->tag != t->tag)
        return false;
    for (int i = 0; engine_event_token(ev, i, &one); i++) {
        if (!one.is_stop)
            detok_put(&t->detok, one.token, &t->shown);
        put_new_text(t);
        a->n_output++;
    }
    if (ev->kind != EV_END)
        return false;
    detok_flush(&t->detok, &t->shown);
    put_new_text(t);
    a->n_prompt = ev->n_prompt;
    a->n_cached = ev->n_cached;
    if (ev->code == END_REFUSED || ev->code == END_ERROR)
        *rc = err_set(e, E_FULL, "%s", ev->payload ? (const char *)ev->payload : "the engine failed");
    return true;
}

static void cancel(struct terminal *t, struct answer *a)
{
    forget_interrupts(t);
    if (!a->stopped) {
        a->stopped = true;
        queue_post(t->setup.inbox, &(struct engine_message){.kind = IN_CANCEL, .code = END_ABORT, .tag = t->tag});
    }
}

/* Submits the prompt (moves) and shows the answer as it comes. */
static int ask(struct terminal *t, struct tokens *prompt, struct answer *a, struct err *e)
{
    *a = (struct answer){0};
    buf_clear(&t->shown);
    t->n_written = 0;
    detok_init(&t->detok, t->setup.model_text->tokenizer, true);
    int64_t begin = clock_now(t->setup.clock), first = 0;
    queue_post(t->setup.inbox, &(struct engine_message){.kind = IN_SUBMIT, .payload = make_spec(t, prompt)});
    int rc = 0;
    for (bool over = false; !over;) {
        struct pollfd fds[2] = {{.fd = queue_fd(t->setup.outbox), .events = POLLIN},
                                {.fd = t->interrupts, .events = POLLIN}};
        poll(fds, 2, -1);
        if (fds[1].revents)
            cancel(t, a);
        queue_fd_clear(t->setup.outbox);
        struct engine_event ev;
        while (queue_take(t->setup.outbox, &ev)) {
            over |= take_event(t, &ev, a, &rc, e);
            mem_free(ev.payload);
            if (a->n_output && !first)
                first = clock_now(t->setup.clock);
        }
    }
    a->all_s = (double)(clock_now(t->setup.clock) - begin) * 1e-9;
    a->first_s = first ? (double)(first - begin) * 1e-9 : a->all_s;
    return rc;
}

/* ---- prompts */

static void add_message(struct terminal *t, const char *role, const char *text, size_t n)
{
    buf_printf(&t->messages, "%s{\"role\":\"%s\",\"content\":", t->messages.len ? "," : "", role);
    buf_put_json(&t->messages, text, n);
    buf_putc(&t->messages, '}');
}

static void clear_messages(struct terminal *t)
{
    buf_clear(&t->messages);
    const char *system = t->setup.system;
    if (system && *system)
        add_message(t, "system", system, strlen(system));
}

static int check_length(const struct terminal *t, const struct tokens *ids, struct err *e)
{
    int most = t->setup.model_text->max_model_len;
    if (!ids->len)
        return err_set(e, E_INPUT, "the prompt is empty");
    if (ids->len >= (size_t)most)
        return err_set(e, E_INPUT, "the prompt has %zu tokens; %d is what fits (--max-model-len)", ids->len, most);
    return 0;
}

static int chat_prompt(struct terminal *t, struct tokens *ids, struct err *e)
{
    struct openai_params p = {.route = ROUTE_CHAT, .add_generation_prompt = true};
    struct fault f = {0};
    struct buf body = {0}, text = {0};
    buf_printf(&body, "{\"messages\":[%s]}", t->messages.data);
    struct json *j = json_parse(body.data, body.len, NULL, e);
    const struct openai_reading r = {t->setup.model_text, &p, NULL};
    int rc = j ? openai_render(&r, j, &text, &f) : E_INPUT;
    if (!rc)
        rc = openai_encode(&r, &text, false, ids, &f);
    if (rc && j)
        err_set(e, rc, "%s", f.text);
    json_free(j);
    buf_free(&body);
    buf_free(&text);
    return rc ? rc : check_length(t, ids, e);
}

static int raw_prompt(struct terminal *t, const struct buf *text, struct tokens *ids, struct err *e)
{
    struct fault f = {0};
    const struct openai_reading r = {t->setup.model_text, NULL, NULL};
    int rc = openai_encode(&r, text, true, ids, &f);
    if (rc)
        return err_set(e, rc, "%s", f.text);
    return check_length(t, ids, e);
}

/* One question and its answer, which joins the conversation. */
static int turn(struct terminal *t, const struct buf *text, struct answer *a, struct err *e)
{
    struct tokens ids = {0};
    int rc;
    size_t before = t->messages.len;
    if (t->setup.raw) {
        rc = raw_prompt(t, text, &ids, e);
    } else {
        add_message(t, "user", text->data, text->len);
        rc = chat_prompt(t, &ids, e);
    }
    if (!rc)
        rc = ask(t, &ids, a, e);
    tokens_free(&ids);
    if (rc && t->messages.data) { /* what could not be answered was not said */
        t->messages.len = before;
        t->messages.data[before] = 0;
    } else if (!t->setup.raw) {
        add_message(t, "assistant", t->shown.data ? t->shown.data : "", t->shown.len);
    }
    return rc;
}

/* ---- one answer, or many */

/* All of the standard input. E_GONE: Ctrl-C came. */
static int read_input(struct terminal *t, struct err *e)
{
    while (!t->at_end && t->input.len < INPUT_BYTES)
        if (!read_some(t))
            return err_set(e, E_GONE, "stopped before the end of the standard input");
    return t->at_end ? 0 : err_set(e, E_INPUT, "the standard input is longer than %d MiB", INPUT_BYTES >> 20);
}

/* What comes on standard input and the question of the command line, in this order, with an empty line between: `cat
 * FILE | moonshift run M "Sum this up."` */
static int gather(struct terminal *t, struct buf *text, struct err *e)
{
    const char *asked = t->setup.prompt;
    if (!t->keyboard)
        TRY(read_input(t, e));
    size_t n = t->input.len;
    while ((asked || !t->setup.raw) && n && t->input.data[n - 1] == '\n')
        n--;
    buf_put(text, t->input.data, n);
    if (asked)
        buf_printf(text, "%s%s", n ? "\n\n" : "", asked);
    return 0;
}

static int once(struct terminal *t, struct err *e)
{
    struct buf text = {0};
    struct answer a = {0};
    int rc = gather(t, &text, e);
    if (!rc)
        rc = turn(t, &text, &a, e);
    if (!rc && !(t->shown.len && t->shown.data[t->shown.len - 1] == '\n'))
        put(STDOUT_FILENO, "\n");
    buf_free(&text);
    return rc;
}

static const char help_text[] = "  /clear          forget the conversation\n"
                                "  /quit           end (or Ctrl-D)\n"
                                "  Ctrl-C          stop the answer\n"
                                "  a line that ends in \\ goes on in the next\n"
                                "  arrow keys      edit the line, look back at earlier ones; Ctrl-R searches them\n";

static void put_numbers(const struct terminal *t, const struct answer *a)
{
    char line[200];
    double rest = a->all_s - a->first_s;
    int n = snprintf(line, sizeof line,
                     "%s[%d tokens in, %d of them cached; first after %.2f s; %d out, %.1f a second%s]%s\n",
                     t->dim ? "\x1b[2m" : "", a->n_prompt, a->n_cached, a->first_s, a->n_output,
                     a->n_output > 1 && rest > 0 ? (a->n_output - 1) / rest : 0.0, a->stopped ? "; stopped" : "",
                     t->dim ? "\x1b[0m" : "");
    write_all(STDERR_FILENO, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

static void chat(struct terminal *t)
{
    struct buf line = {0};
    if (t->setup.smart)
        t->editor = line_editor_open(t->interrupts, t->setup.history);
    put(STDOUT_FILENO, "Ctrl-C stops an answer, Ctrl-D ends, /help tells the rest.\n");
    while (read_question(t, &line)) {
        struct err e = {0};
        struct answer a;
        if (!line.len)
            continue;
        if (buf_equals(&line, "/quit"))
            break;
        if (buf_equals(&line, "/clear")) {
            clear_messages(t);
            continue;
        }
        if (line.data[0] == '/' && strspn(line.data + 1, "abcdefghijklmnopqrstuvwxyz") == line.len - 1) {
            put(STDOUT_FILENO, help_text);
            continue;
        }
        if (turn(t, &line, &a, &e)) {
            put(STDERR_FILENO, e.text);
            put(STDERR_FILENO, "\n(/clear forgets the conversation)\n");
            continue;
        }
        put(STDOUT_FILENO, "\n");
        put_numbers(t, &a);
    }
    line_editor_close(t->editor);
    buf_free(&line);
}

int terminal_run(const struct terminal_setup *s, struct err *e)
{
    struct terminal t = {.setup = *s};
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, &old);
    t.interrupts = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (t.interrupts < 0)
        return err_set(e, E_SYS, "cannot watch for Ctrl-C: %s", strerror(errno));
    t.screen = isatty(STDOUT_FILENO);
    t.keyboard = isatty(STDIN_FILENO);
    clear_messages(&t);
    t.dim = s->smart && s->colour && isatty(STDERR_FILENO);
    int rc = 0;
    if (s->prompt || !t.keyboard)
        rc = once(&t, e);
    else
        chat(&t);
    close(t.interrupts);
    sigprocmask(SIG_SETMASK, &old, NULL);
    buf_free(&t.input);
    buf_free(&t.messages);
    buf_free(&t.shown);
    return rc;
}
