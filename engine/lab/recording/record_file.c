#include "engine/lab/recording/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/queue.h"
#include "engine/base/thread.h"

enum { MAX_WAITING_BYTES = 32 << 20 }; /* more than that not yet written: the disk does not keep up */

/* To the writer's thread. */
struct chunk {
    char *text; /* NULL: the end */
    size_t n;
};

struct record_file {
    char path[256];
    int fd;
    struct queue *chunks;
    struct thread *writer;
    _Atomic int64_t n_waiting; /* bytes with the writer */
    _Atomic bool failed;
};

/* ---- the writer's thread */

static void give_up(struct record_file *f, const char *why)
{
    if (!atomic_exchange(&f->failed, true))
        log_warn("record", "the recording %s ends here: %s; serving goes on", f->path, why);
}

static void write_all(struct record_file *f, const struct chunk *c)
{
    size_t done = 0;
    while (done < c->n && !atomic_load(&f->failed)) {
        ssize_t n = write(f->fd, c->text + done, c->n - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            give_up(f, strerror(n < 0 ? errno : EIO));
        else
            done += (size_t)n;
    }
}

static void write_chunks(void *arg)
{
    struct record_file *f = arg;
    struct chunk c;
    for (;;) {
        while (!queue_take(f->chunks, &c))
            queue_wait(f->chunks, -1);
        if (!c.text)
            return;
        write_all(f, &c);
        atomic_fetch_sub(&f->n_waiting, (int64_t)c.n);
        mem_free(c.text);
    }
}

/* ---- the engine's */

int record_file_open(struct record_file **out, const char *path, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return err_set(e, E_INPUT, "--record %.200s: the file is there already; choose another name, or remove it",
                       path);
    if (fd < 0)
        return err_set(e, E_SYS, "--record %.200s: %s", path, strerror(errno));
    struct record_file *f = mem_new(sizeof *f);
    f->fd = fd;
    snprintf(f->path, sizeof f->path, "%s", path);
    f->chunks = queue_create(sizeof(struct chunk), 0, false);
    int rc = thread_start(&f->writer, "record", write_chunks, f, e);
    if (rc) {
        record_file_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

bool record_file_over(const struct record_file *f)
{
    return atomic_load_explicit(&f->failed, memory_order_relaxed);
}

void record_file_give(struct record_file *f, char *text, size_t n)
{
    if (atomic_load(&f->n_waiting) > MAX_WAITING_BYTES)
        give_up(f, "the disk does not keep up");
    if (record_file_over(f)) {
        mem_free(text);
        return;
    }
    atomic_fetch_add(&f->n_waiting, (int64_t)n);
    queue_post(f->chunks, &(struct chunk){text, n});
}

void record_file_close(struct record_file *f)
{
    if (!f)
        return;
    if (f->writer) {
        queue_post(f->chunks, &(struct chunk){0});
        thread_join(f->writer);
    }
    close(f->fd);
    queue_destroy(f->chunks);
    mem_free(f);
}
