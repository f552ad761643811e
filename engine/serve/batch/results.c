#include "engine/serve/batch/results.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/mem.h"

#define BEGINNING "{\"id\":\"batch_req_"

/* One of the files while it is read again: its next whole line. */
struct reader {
    FILE *file;
    int64_t number; /* of the line; 0: there is none, or no job has written it */
    int64_t end;    /* of the line, in the file */
};

struct results {
    char *paths[2];
    int fds[2]; /* -1: not there yet */
    int64_t counts[2];
};

void results_begin_line(struct buf *out, int64_t number)
{
    buf_printf(out, BEGINNING "%" PRId64 "\",", number);
}

/* Its number, or 0. */
static int64_t number_of(const char *line)
{
    char *end;
    if (strncmp(line, BEGINNING, sizeof BEGINNING - 1) != 0)
        return 0;
    int64_t number = strtoll(line + sizeof BEGINNING - 1, &end, 10);
    return number > 0 && *end == '"' ? number : 0;
}

static void next_line(struct reader *r)
{
    char head[64] = "";
    size_t n = 0;
    int c = EOF;
    while (r->file && (c = getc_unlocked(r->file)) != EOF && c != '\n')
        if (n++ < sizeof head - 1)
            head[n - 1] = (char)c;
    r->end += (int64_t)n + (c == '\n');
    r->number = c == '\n' ? number_of(head) : 0; /* else it is torn */
}

/* How far both files go on from line 1 without a gap. */
static void count(struct results *r, int64_t ends[2])
{
    struct reader files[2] = {{0}};
    int64_t next = 1;
    for (int i = 0; i < 2; i++) {
        files[i].file = fopen(r->paths[i], "re");
        next_line(&files[i]);
    }
    for (int i = 0; i < 2;) {
        if (files[i].number != next) {
            i++;
            continue;
        }
        r->counts[i]++;
        ends[i] = files[i].end;
        next_line(&files[i]);
        next++;
        i = 0;
    }
    for (int i = 0; i < 2; i++)
        if (files[i].file)
            fclose(files[i].file);
}

static int open_one(struct results *r, int i, int64_t end, struct err *e)
{
    r->fds[i] = open(r->paths[i], O_WRONLY | O_APPEND | O_CLOEXEC | (i == 0 ? O_CREAT : 0), 0666);
    if (r->fds[i] < 0)
        return i == 1 && errno == ENOENT ? 0 : err_set(e, E_SYS, "%.300s: %s", r->paths[i], strerror(errno));
    off_t size = lseek(r->fds[i], 0, SEEK_END);
    if (size < 0 || ftruncate(r->fds[i], end) != 0)
        return err_set(e, E_SYS, "%.300s: %s", r->paths[i], strerror(errno));
    return 0;
}

int results_open(struct results **out, const char *path, const char *errors_path, struct err *e)
{
    struct results *r = mem_new(sizeof *r);
    int64_t ends[2] = {0};
    int rc = 0;
    *r = (struct results){.paths = {mem_strdup(path), mem_strdup(errors_path)}, .fds = {-1, -1}};
    count(r, ends);
    for (int i = 0; i < 2 && !rc; i++)
        rc = open_one(r, i, ends[i], e);
    if (rc) {
        results_close(r);
        return rc;
    }
    *out = r;
    return 0;
}

void results_close(struct results *r)
{
    if (!r)
        return;
    for (int i = 0; i < 2; i++) {
        if (r->fds[i] >= 0) {
            fsync(r->fds[i]);
            close(r->fds[i]);
        }
        mem_free(r->paths[i]);
    }
    mem_free(r);
}

int64_t results_count(const struct results *r)
{
    return r->counts[0] + r->counts[1];
}

int64_t results_errors(const struct results *r)
{
    return r->counts[1];
}

int results_put(struct results *r, bool error, const struct buf *line, struct err *e)
{
    if (r->fds[error] < 0)
        r->fds[error] = open(r->paths[error], O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    for (size_t at = 0; at < line->len + 1;) { /* with its end */
        bool last = at == line->len;
        ssize_t n = write(r->fds[error], last ? "\n" : line->data + at, last ? 1 : line->len - at);
        if (n < 0 && errno != EINTR)
            return err_set(e, E_SYS, "%.300s: %s", r->paths[error], strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    r->counts[error]++;
    return 0;
}
