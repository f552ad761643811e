/* The two files that a batch job writes: results, and errors. Each line of the input has one line in one of them, in
 * the order of the input, and begins with its number; so what a killed job has left tells how far it came. One thread.
 * Invariant: after results_open the files hold the lines 1 .. n and nothing else. */
#ifndef SERVE_BATCH_RESULTS_H
#define SERVE_BATCH_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

struct results;

/* Opens or makes them, and cuts off what does not belong to an unbroken run of lines from 1 on (a line that was being
 * written, or one whose predecessor was lost). The errors' file is made when there is one. E_SYS. */
int results_open(struct results **out, const char *path, const char *errors_path, struct err *e);
void results_close(struct results *r); /* NULL is fine; the files are on the disk then */
int64_t results_count(const struct results *r);
int64_t results_errors(const struct results *r); /* of them, in the errors' file */
/* The next line, without its end. E_SYS: the disk. */
int results_put(struct results *r, bool error, const struct buf *line, struct err *e);
/* {"id":"batch_req_7",: how the line of that number begins. */
void results_begin_line(struct buf *out, int64_t number);

#endif
