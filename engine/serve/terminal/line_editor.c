#include "engine/serve/terminal/line_editor.h"

#include <errno.h>
#include <fcntl.h>
#include <histedit.h>
#include <limits.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/utf8.h"

enum { HISTORY_LINES = 1000 };

struct line_editor {
    EditLine *edit;
    History *history;
    int interrupts;
    bool interrupted;
    const char *prompt;
    char path[PATH_MAX]; /* of the history; "": not kept */
};

static struct line_editor *of(EditLine *edit)
{
    void *d = NULL;
    el_get(edit, EL_CLIENTDATA, &d);
    return d;
}

static char *show_prompt(EditLine *edit)
{
    return (char *)of(edit)->prompt;
}

/* A byte from the keyboard: 1; 0 at its end; -1 when Ctrl-C came instead. */
static int read_byte(struct line_editor *d, char *byte)
{
    for (;;) {
        struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = d->interrupts, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            return 0;
        if (fds[1].revents) {
            struct signalfd_siginfo info;
            while (read(d->interrupts, &info, sizeof info) > 0)
                ;
            d->interrupted = true;
            return -1;
        }
        ssize_t n = fds[0].revents ? read(STDIN_FILENO, byte, 1) : -1;
        if (n >= 0)
            return (int)n;
        if (fds[0].revents && errno != EINTR && errno != EAGAIN)
            return 0;
    }
}

/* libedit's source of characters. What is not UTF-8 becomes U+FFFD. */
static int read_character(EditLine *edit, wchar_t *out)
{
    char bytes[4];
    uint32_t cp = 0xFFFD;
    for (size_t n = 0; n < sizeof bytes;) {
        int rc = read_byte(of(edit), &bytes[n]);
        if (rc <= 0)
            return rc;
        int len = utf8_decode(bytes, ++n, &cp);
        if (len < 0)
            cp = 0xFFFD;
        if (len)
            break;
    }
    *out = (wchar_t)cp;
    return 1;
}

/* The file is made here, before libedit writes it: only its owner may read what was typed. */
static void load_history(struct line_editor *d, const char *path)
{
    HistEvent ev;
    d->history = history_init();
    if (!d->history)
        return;
    history(d->history, &ev, H_SETSIZE, HISTORY_LINES);
    history(d->history, &ev, H_SETUNIQUE, 1); /* the same line twice in a row is kept once */
    el_set(d->edit, EL_HIST, history, d->history);
    int fd = *path && strlen(path) < sizeof d->path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (fd < 0)
        return;
    close(fd);
    snprintf(d->path, sizeof d->path, "%s", path);
    history(d->history, &ev, H_LOAD, d->path);
}

struct line_editor *line_editor_open(int interrupts, const char *history_path)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return NULL;
    if (!setlocale(LC_CTYPE, "C.UTF-8")) /* how wide characters are written; numbers and sorting stay as they are */
        setlocale(LC_CTYPE, "");
    struct line_editor *d = mem_new(sizeof *d);
    d->interrupts = interrupts;
    d->prompt = "";
    d->edit = el_init("moonshift", stdin, stdout, stderr);
    if (!d->edit) {
        mem_free(d);
        return NULL;
    }
    el_set(d->edit, EL_CLIENTDATA, d);
    el_set(d->edit, EL_PROMPT, show_prompt);
    el_set(d->edit, EL_GETCFN, read_character);
    el_set(d->edit, EL_EDITOR, "emacs");
    el_set(d->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    load_history(d, history_path);
    el_source(d->edit, NULL);
    return d;
}

enum line_result line_editor_read(struct line_editor *d, const char *prompt, struct buf *line)
{
    int n = 0;
    buf_clear(line);
    d->prompt = prompt;
    d->interrupted = false;
    el_resize(d->edit); /* it may have changed while an answer ran */
    el_set(d->edit, EL_PREP_TERM,
           1); /* before the prompt is seen: what is typed after it must meet the editor, not the terminal's own */
    const char *text = el_gets(d->edit, &n);
    if (d->interrupted)
        return LINE_INTERRUPTED;
    if (!text || n <= 0)
        return LINE_OVER;
    size_t len = strlen(text);
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r'))
        len--;
    buf_put(line, text, len);
    HistEvent ev;
    if (len && d->history)
        history(d->history, &ev, H_ENTER, line->data);
    return LINE_READ;
}

void line_editor_close(struct line_editor *d)
{
    HistEvent ev;
    if (!d)
        return;
    if (d->history && d->path[0])
        history(d->history, &ev, H_SAVE, d->path);
    if (d->history)
        history_end(d->history);
    el_end(d->edit);
    mem_free(d);
}
