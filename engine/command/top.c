/* `moonshift state` and `moonshift top`: the page of a running server, once, or once a second on a terminal. The
 * terminal gets plain escape codes, and is as it was before whenever top ends: by q, by a signal, or because the server
 * has gone. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/cli/state_page.h"
#include "engine/command/session.h"

enum { LOOK_MS = 1000, RATES_MS = 500, ANSWER_SECONDS = 5, CTRL_C = 3, LEAST_ROWS = 5, LEAST_COLUMNS = 20 };

/* ---- once */

static int print_page(struct session *s, struct err *e)
{
    struct buf page = {0};
    struct json *before, *now = NULL;
    if (!session_ask(s, REMOTE_GET, NULL))
        return 0;
    if (s->app->opts.as_json) {
        session_print(s);
        return 0;
    }
    before = session_json(s);
    nanosleep(&(struct timespec){.tv_nsec = RATES_MS * 1000000L}, NULL);
    int rc = 0;
    if (session_ask(s, REMOTE_GET, NULL)) {
        now = session_json(s);
        rc = state_page(now, before, &page, e);
        fwrite(page.data ? page.data : "", 1, page.len, stdout);
    }
    json_free(before);
    json_free(now);
    buf_free(&page);
    return rc;
}

int session_state(struct session *s, struct err *e)
{
    buf_puts(&s->path, "/admin/state");
    return print_page(s, e);
}

/* ---- again and again */

struct screen {
    struct termios before;
    sigset_t blocked;
    int signals;   /* signalfd: those that end it */
    bool keyboard; /* standard input is a terminal, and its keys come one by one */
};

static void say(const struct buf *text)
{
    fwrite(text->data, 1, text->len, stdout);
    fflush(stdout);
}

static int enter(struct screen *t, struct err *e)
{
    struct termios keys;
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGHUP);
    sigprocmask(SIG_BLOCK, &ending, &t->blocked);
    t->signals = signalfd(-1, &ending, SFD_CLOEXEC);
    if (t->signals < 0)
        return err_set(e, E_SYS, "no descriptor for signals");
    t->keyboard = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, &t->before) == 0;
    if (t->keyboard) {
        keys = t->before;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG);
        keys.c_cc[VMIN] = 0;
        keys.c_cc[VTIME] = 0;
        tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    fputs("\x1b[?1049h\x1b[?25l", stdout); /* a screen of its own, no cursor */
    return 0;
}

/* A signal that has ended it has had its effect. */
static void leave(struct screen *t)
{
    struct signalfd_siginfo had;
    struct pollfd waiting = {.fd = t->signals, .events = POLLIN};
    while (poll(&waiting, 1, 0) > 0 && read(t->signals, &had, sizeof had) > 0)
        ;
    fputs("\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    if (t->keyboard)
        tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
    close(t->signals);
    t->signals = -1;
    sigprocmask(SIG_SETMASK, &t->blocked, NULL);
}

/* What of a line goes on so many columns: no character of several bytes is cut. */
static size_t fitting(const char *line, size_t n, size_t columns)
{
    size_t at = 0;
    for (size_t shown = 0; at < n && shown < columns; shown++)
        for (at++; at < n && ((unsigned char)line[at] & 0xc0) == 0x80;)
            at++;
    return at;
}

static void draw(const struct buf *page)
{
    struct winsize size = {0};
    struct buf out = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    size_t rows = known && size.ws_row >= LEAST_ROWS ? size.ws_row : 24;
    size_t columns = known && size.ws_col >= LEAST_COLUMNS ? size.ws_col : 80;
    const char *at = page->data, *end = at + page->len;
    buf_puts(&out, "\x1b[H");
    for (size_t row = 0; at < end && row + 1 < rows; row++) {
        size_t n = strcspn(at, "\n");
        buf_put(&out, at, fitting(at, n, columns));
        buf_puts(&out, "\x1b[K\r\n");
        at += n + (at + n < end);
    }
    buf_puts(&out, "\x1b[J");
    say(&out);
    buf_free(&out);
}

/* Until the next look is due. False: it is to end. */
static bool wait_for_key(const struct screen *t)
{
    struct pollfd fds[] = {{.fd = t->signals, .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    struct clock clock;
    clock_init_real(&clock);
    int64_t due = clock_now(&clock) + LOOK_MS * INT64_C(1000000);
    for (int64_t left = LOOK_MS; left > 0; left = (due - clock_now(&clock)) / 1000000) {
        char keys[64];
        int n = poll(fds, t->keyboard ? 2 : 1, (int)left);
        if (n > 0 && fds[0].revents)
            return false;
        ssize_t got = n > 0 && t->keyboard && fds[1].revents ? read(STDIN_FILENO, keys, sizeof keys) : 0;
        if (n > 0 && got <= 0)
            return false; /* the terminal has gone */
        for (ssize_t i = 0; i < got; i++)
            if (keys[i] == 'q' || keys[i] == CTRL_C)
                return false;
    }
    return true;
}

/* Looks once. False: it could not, and *asked says how the asking went. */
static bool look(struct session *s, struct json **before, int *asked, int *rc, struct err *e)
{
    struct buf page = {0};
    *asked = session_try(s, REMOTE_GET, NULL, e);
    if (*asked || s->answer.status != 200)
        return false;
    struct json *now = session_json(s);
    *rc = state_page(now, *before, &page, e);
    if (!*rc)
        draw(&page);
    buf_free(&page);
    json_free(*before);
    *before = now;
    return *rc == 0;
}

int session_top(struct session *s, struct err *e)
{
    struct screen t = {.signals = -1};
    struct json *before = NULL;
    int asked = 0, rc = 0;
    buf_puts(&s->path, "/admin/state");
    if (s->app->opts.as_json || !isatty(STDOUT_FILENO))
        return print_page(s, e);
    s->remote.seconds = ANSWER_SECONDS;
    TRY(enter(&t, e));
    bool looked;
    while ((looked = look(s, &before, &asked, &rc, e)) && wait_for_key(&t))
        ;
    leave(&t);
    json_free(before);
    if (!looked && !rc)
        session_judge(s, asked, e);
    return rc;
}
