/* Any bytes as the input of a batch job, and as what a job has left: every line that is not blank is read once, in
 * order, as a request or with the reason why it is none; what is left of the output is an unbroken run of lines. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "engine/serve/batch/input.h"
#include "engine/serve/batch/results.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A file of these bytes that has a name as long as it is open. */
static int file_of(const uint8_t *data, size_t size, char path[64])
{
    int fd = memfd_create("batch", MFD_CLOEXEC);
    ASSERT(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_line(const struct batch_line *l)
{
    if (l->code) {
        ASSERT(l->why[0] && memchr(l->why, 0, sizeof l->why));
        return;
    }
    struct json *body = json_parse(l->body.data, l->body.len, NULL, NULL);
    ASSERT(l->path && l->id.len >= 2 && json_type(body) == JSON_OBJECT);
    json_free(body);
}

static void read_input(const uint8_t *data, size_t size)
{
    char path[64];
    struct input *in;
    struct batch_line line;
    int64_t n = 0;
    int fd = file_of(data, size, path);
    ASSERT(input_open(&in, path, NULL) == 0);
    while (input_next(in, 1, &line)) {
        ASSERT(line.number == ++n);
        check_line(&line);
        batch_line_free(&line);
    }
    ASSERT(n == input_count(in));
    input_close(in);
    close(fd);
}

static void read_results(const uint8_t *data, size_t size)
{
    char path[64], errors[64];
    struct results *r;
    struct buf line = {0};
    int fd = file_of(data, size, path), other = file_of(data, size / 2, errors);
    for (int again = 0; again < 2; again++) {
        ASSERT(results_open(&r, path, errors, NULL) == 0);
        int64_t n = results_count(r);
        buf_clear(&line);
        results_begin_line(&line, n + 1);
        ASSERT(results_put(r, again, &line, NULL) == 0 && results_count(r) == n + 1);
        results_close(r);
        ASSERT(results_open(&r, path, errors, NULL) == 0);
        ASSERT(results_count(r) == n + 1); /* what was written is found again */
        results_close(r);
    }
    buf_free(&line);
    close(fd);
    close(other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_input(data, size);
    read_results(data, size);
    return 0;
}
