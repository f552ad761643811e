#include "engine/serve/whatif/whatif.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/scratch.h"
#include "engine/serve/whatif/child.h"
#include "engine/serve/whatif/report.h"

enum { LOOK_MS = 20, PATH_BYTES = 160, MOST_WORDS = 64 << 10 };
static const size_t MOST_RESULT = 64 << 20, MOST_MEMORY = (size_t)4 << 30;

/* One what-if, from the order until the answer. */
struct trial {
    struct text_job job; /* first */
    struct whatif *w;
    struct whatif_ask ask;
    whatif_fn fn; /* NULL: nobody waits any more */
    void *ctx;
    struct scratch scratch;
    struct whatif_window window;
    struct child child;
    struct loop_event *tick; /* NULL: no child runs */
    bool stopped;            /* the server ends */
    int64_t began_ns;        /* of the child */
    bool ran;                /* the job, on the lane */
    struct err err;          /* of the job */
    enum whatif_result result;
    struct buf text; /* of the outcome */
    struct prediction predicted;
};

void whatif_ask_free(struct whatif_ask *a)
{
    struct whatif_policy *const both[] = {&a->live, &a->other};
    for (int i = 0; i < 2; i++) {
        buf_free(&both[i]->source);
        mem_free(both[i]->params);
        both[i]->params = NULL;
    }
}

/* ---- its folder */

static void path_of(const struct trial *t, const char *name, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%s", t->scratch.path, name);
}

/* The folder gives a policy the name of its file, so that two of one name have one each. */
static void policy_path(const struct trial *t, const char *whose, const struct whatif_policy *p, char out[PATH_BYTES])
{
    snprintf(out, PATH_BYTES, "%s/%s/%s.lua", t->scratch.path, whose, p->name);
}

static void remove_folder(struct trial *t)
{
    if (!scratch_close(&t->scratch))
        log_warn("what-if", "a folder in /tmp cannot be removed: %s", strerror(errno));
}

/* ---- the end */

static void end(struct trial *t)
{
    struct whatif *w = t->w;
    child_end(&t->child);
    loop_event_free(t->tick);
    remove_folder(t);
    w->now = NULL;
    if (t->fn)
        t->fn(t->ctx, &(struct whatif_outcome){t->result, t->text.data ? t->text.data : "", &t->ask.live, &t->ask.other,
                                               &t->predicted});
    whatif_ask_free(&t->ask);
    buf_free(&t->text);
    mem_free(t);
}

static void end_with(struct trial *t, enum whatif_result result, const char *why)
{
    t->result = result;
    buf_clear(&t->text);
    buf_puts(&t->text, why);
    end(t);
}

static bool is_wanted(const struct trial *t)
{
    return t->fn && !t->w->front->stopped && !t->stopped;
}

static void end_unwanted(struct trial *t)
{
    end_with(t, WHATIF_STOPPED, "the server is stopping");
}

static int post(struct trial *t, void (*run)(struct text_job *), void (*done)(struct text_job *))
{
    t->job = (struct text_job){.run = run, .done = done, .bytes = t->ask.other.source.len};
    t->ran = false;
    t->err = (struct err){0};
    return text_post(t->w->front->text, TEXT_POLICY, &t->job);
}

/* ---- the last step: what the child wrote */

/* The last thing that it said, without the program's name; else how it ended. */
static void last_words(const struct trial *t, struct buf *out)
{
    char path[PATH_BYTES];
    struct buf text = {0};
    struct err e = {0};
    int status = t->child.status;
    path_of(t, "said", path);
    if (file_read(&text, path, MOST_WORDS, &e))
        buf_clear(&text);
    const char *found = NULL;
    for (char *line = text.data; line && *line;) {
        char *stop = line + strcspn(line, "\n"), *next = *stop ? stop + 1 : stop;
        *stop = 0;
        if (!strncmp(line, "moonshift: ", 11))
            found = line + 11;
        line = next;
    }
    if (found)
        buf_puts(out, found);
    else if (WIFSIGNALED(status))
        buf_printf(out, "the simulation was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        buf_printf(out, "the simulation ended with status %d", WEXITSTATUS(status));
    buf_free(&text);
}

/* Whether the policy itself was what ended the run: on this server's ranks, or with its params, it does not start. */
static bool is_of_policy(const struct trial *t)
{
    char file[WHATIF_NAME + 8];
    snprintf(file, sizeof file, "%s.lua:", t->ask.other.name);
    const char *at = t->text.data ? strstr(t->text.data, file) : NULL;
    return at && (at == t->text.data || at[-1] == ' ');
}

static int read_result(struct trial *t, struct err *e)
{
    char path[PATH_BYTES];
    struct buf text = {0};
    path_of(t, "result.json", path);
    int rc = file_read(&text, path, MOST_RESULT, e);
    struct json *j = rc ? NULL : json_parse(text.data ? text.data : "", text.len, NULL, e);
    bool has_live = t->ask.live.source.len || !strcmp(t->ask.live.sha256, "native");
    struct whatif_report r = {.window = &t->window,
                              .live = has_live ? &t->ask.live : NULL,
                              .other = &t->ask.other,
                              .took_s = (double)(clock_now(t->w->front->clock) - t->began_ns) * 1e-9,
                              .stretch_s = t->w->stretch_s,
                              .predicted = &t->predicted};
    if (!rc)
        rc = j ? whatif_report(&r, j, &t->text, e) : E_INPUT;
    json_free(j);
    buf_free(&text);
    return rc;
}

static void collect_run(struct text_job *job)
{
    struct trial *t = (struct trial *)job;
    bool good = WIFEXITED(t->child.status) && WEXITSTATUS(t->child.status) == 0;
    t->ran = true;
    t->result = WHATIF_OK;
    if (good && read_result(t, &t->err) == 0)
        return;
    t->result = WHATIF_FAILED;
    buf_clear(&t->text);
    if (good)
        buf_puts(&t->text, t->err.text);
    else
        last_words(t, &t->text);
    if (!good && is_of_policy(t))
        t->result = WHATIF_REFUSED;
}

static void collect_done(struct text_job *job)
{
    struct trial *t = (struct trial *)job;
    if (!t->ran)
        end_unwanted(t);
    else
        end(t);
}

/* ---- the child */

static void on_tick(void *ctx)
{
    struct trial *t = ctx;
    bool late = clock_now(t->w->front->clock) - t->began_ns > WHATIF_SECONDS * INT64_C(1000000000);
    if (!is_wanted(t) || late)
        child_kill(&t->child);
    if (!child_has_ended(&t->child))
        return;
    loop_disarm(t->tick);
    if (!is_wanted(t))
        end_unwanted(t);
    else if (late || (WIFSIGNALED(t->child.status) && WTERMSIG(t->child.status) == SIGXCPU))
        end_with(t, WHATIF_LATE,
                 "the simulation did not come to its end within 60 s: ask for less of the window (seconds)");
    else if (post(t, collect_run, collect_done))
        end_with(t, WHATIF_FAILED, "too many jobs are waiting");
}

static char *param_text(const struct json *j)
{
    struct buf out = {0};
    if (json_text(j))
        buf_puts(&out, json_text(j));
    else
        json_write(&out, j, NULL);
    return buf_take(&out);
}

/* "FILE:name=value,...", as simulate takes it. */
static int policy_word(const struct trial *t, const struct whatif_policy *p, struct buf *out, struct err *e)
{
    char path[PATH_BYTES];
    struct json *params = p->params ? json_parse(p->params, strlen(p->params), NULL, NULL) : NULL;
    char mark = ':';
    policy_path(t, "other", p, path);
    buf_puts(out, path);
    int rc = 0;
    for (const struct json *j = json_first(params); j && !rc; j = json_next(j)) {
        char *value = param_text(j);
        if (strpbrk(value, ",\n"))
            rc = err_set(e, E_INPUT,
                         "%.40s.lua:1: its param %.40s has a comma or a line end in its value, and cannot be "
                         "handed to the simulation",
                         p->name, json_key(j));
        buf_printf(out, "%c%s=%s", mark, json_key(j), value);
        mark = ',';
        mem_free(value);
    }
    json_free(params);
    return rc;
}

static int start_child(struct trial *t, struct err *e)
{
    char window[PATH_BYTES], said[PATH_BYTES], result[PATH_BYTES], path[PATH_BYTES];
    struct buf other = {0};
    const char *args[16] = {"moonshift", "simulate", "--what-if", "--trace", window, "--json", result};
    int n = 7;
    path_of(t, "window.rec", window);
    path_of(t, "said", said);
    path_of(t, "result.json", result);
    policy_path(t, "live", &t->ask.live, path);
    int rc = policy_word(t, &t->ask.other, &other, e);
    if (t->ask.live.source.len || !strcmp(t->ask.live.sha256, "native")) {
        args[n++] = "--policy";
        args[n++] = t->ask.live.source.len ? path : "native"; /* its params are in the window's first line */
    }
    args[n++] = "--policy";
    args[n++] = other.data;
    struct child_setup s = {
        .args = (char *const *)(uintptr_t)args, .said = said, .cpu_s = WHATIF_SECONDS, .memory = MOST_MEMORY};
    if (!rc)
        rc = child_start(&t->child, &s, e);
    buf_free(&other);
    return rc;
}

/* ---- the first step: the policy, and the files */

static int write_text(const char *path, const struct buf *text, struct err *e)
{
    return file_replace_private(path, text->data ? text->data : "", text->len, e);
}

/* Loaded and tried as a server would before it goes live; what it is made of becomes one text. */
static int try_policy(struct trial *t, struct err *e)
{
    struct whatif_policy *p = &t->ask.other;
    struct lua_opts lua = t->ask.lua;
    struct buf whole = {0};
    struct policy made;
    lua.relaxed |= t->ask.is_known;
    int rc = lua_policy_text(p->name, p->source.data ? p->source.data : "", p->source.len, &lua, &whole, e);
    lua.folder = NULL; /* the text has all */
    if (!rc)
        rc = lua_policy_load(&made, p->name, whole.data ? whole.data : "", whole.len, &lua, p->params, e);
    if (rc) {
        buf_free(&whole);
        return rc;
    }
    made.ops->destroy(made.ctx);
    buf_free(&p->source);
    p->source = whole;
    struct sha256 sum = hash_sha256(whole.data, whole.len);
    hash_hex(&sum, p->sha256);
    return 0;
}

static int write_window(struct trial *t, struct err *e)
{
    const struct whatif_window_ops *o = &t->w->window;
    const struct whatif_policy *live = &t->ask.live;
    char path[PATH_BYTES];
    path_of(t, "window.rec", path);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        int rc = err_set(e, E_SYS, "cannot write %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    struct whatif_part part = {t->ask.seconds, live->name, live->sha256, live->params};
    int rc = o->write(o->ctx, &part, f, &t->window, e);
    if (fclose(f) && !rc)
        rc = err_set(e, E_SYS, "cannot write %s: %s", path, strerror(errno));
    return rc;
}

static int write_files(struct trial *t, struct err *e)
{
    char path[PATH_BYTES];
    TRY(scratch_open(&t->scratch, e));
    TRY(write_window(t, e));
    path_of(t, "live", path);
    int rc = mkdir(path, 0700);
    path_of(t, "other", path);
    if (rc || mkdir(path, 0700))
        return err_set(e, E_SYS, "cannot make a folder in %s: %s", t->scratch.path, strerror(errno));
    policy_path(t, "live", &t->ask.live, path);
    if (t->ask.live.source.len)
        TRY(write_text(path, &t->ask.live.source, e));
    policy_path(t, "other", &t->ask.other, path);
    return write_text(path, &t->ask.other.source, e);
}

static void prepare_run(struct text_job *job)
{
    struct trial *t = (struct trial *)job;
    t->ran = true;
    t->result = WHATIF_REFUSED;
    if (try_policy(t, &t->err))
        return;
    int rc = write_files(t, &t->err);
    t->result = rc == E_NOTFOUND ? WHATIF_EMPTY : rc ? WHATIF_FAILED : WHATIF_OK;
}

static void prepare_done(struct text_job *job)
{
    struct trial *t = (struct trial *)job;
    struct err e = {0};
    if (!t->ran || !is_wanted(t)) {
        end_unwanted(t);
        return;
    }
    if (t->result != WHATIF_OK) {
        end_with(t, t->result, t->err.text);
        return;
    }
    t->began_ns = clock_now(t->w->front->clock);
    int rc = start_child(t, &e);
    if (!rc)
        t->tick = loop_every(t->w->loop, LOOK_MS, on_tick, t);
    if (!rc && !t->tick)
        rc = err_set(&e, E_SYS, "no timer for the simulation");
    if (rc)
        end_with(t, rc == E_INPUT ? WHATIF_REFUSED : WHATIF_FAILED, e.text);
    else
        log_info("what-if", "%s (%.12s) on %.1f s of traffic, %llu requests", t->ask.other.name, t->ask.other.sha256,
                 t->window.seconds, (unsigned long long)t->window.n_requests);
}

/* ---- asking */

int whatif_begin(struct whatif *w, struct whatif_ask *ask, whatif_fn fn, void *ctx)
{
    if (w->now)
        return E_FULL;
    struct trial *t = mem_new(sizeof *t);
    *t = (struct trial){.w = w, .ask = *ask, .fn = fn, .ctx = ctx};
    if (post(t, prepare_run, prepare_done)) {
        mem_free(t);
        return E_FULL;
    }
    *ask = (struct whatif_ask){0};
    w->now = t;
    return 0;
}

void whatif_forget(struct whatif *w, void *ctx)
{
    if (!w->now || w->now->ctx != ctx)
        return;
    w->now->fn = NULL;
    child_kill(&w->now->child);
}

void whatif_interrupt(struct whatif *w)
{
    if (!w->now)
        return;
    w->now->stopped = true;
    child_kill(&w->now->child);
}

void whatif_free(struct whatif *w)
{
    if (!w->now)
        return;
    w->now->fn = NULL;
    end(w->now);
}
